"""Members, the filters of the log, alerts and erasures; `test_first_steps_journey` has the others."""

from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import expect

from tests.support.dashboard_browser import Pages
from tests.support.dashboard_pages import axe_faults, settled
from tests.support.dashboard_service import DESTINATION
from tests.support.eventually import eventually
from tests.support.service import Tenant

pytestmark = pytest.mark.nightly


async def test_a_member_changes_role_and_is_removed(pages: Pages, tenant: Tenant) -> None:
    email = await tenant.user(role="viewer")
    page = await pages.of(tenant, "team")
    await page.get_by_role("combobox", name=f"Role of {email}").click()
    await page.get_by_role("option", name="admin").click()
    await expect(page.get_by_text(f"{email} is now admin.")).to_be_visible()
    await page.get_by_role("row").filter(has_text=email).get_by_role("button", name="Remove").click()
    await page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    await expect(page.get_by_role("row").filter(has_text=email)).to_have_count(0)

    page = await pages.of(tenant, "log?action=member")
    await expect(page.get_by_text("member.removed")).to_be_visible()
    await page.get_by_label("Action").fill("template")
    await page.get_by_label("Action").press("Enter")
    await expect(page.get_by_text("No entries match")).to_be_visible()
    await page.get_by_role("button", name="Clear filters").click()
    await expect(page.get_by_text("member.removed")).to_be_visible()


async def test_alerts_are_chosen_with_a_limit_and_stored(pages: Pages, tenant: Tenant) -> None:
    page = await pages.of(tenant, "settings")
    await page.get_by_label("Credits left", exact=True).check()
    await page.get_by_label("Threshold: Credits left").fill("50")
    await page.get_by_role("button", name="Save alerts").click()
    await expect(page.get_by_text("Your alerts are saved.")).to_be_visible()
    await page.reload()
    await settled(page)
    await expect(page.get_by_label("Credits left", exact=True)).to_be_checked()
    await expect(page.get_by_label("Threshold: Credits left")).to_have_value("50 credits")


async def test_an_erasure_says_what_it_affects_before_it_begins(pages: Pages, tenant: Tenant) -> None:
    ada = f"ada@{DESTINATION}"
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    for fields in ({"to": ada}, {"to": ada}, {"to": ada, "send_at": later}, {"to": f"bob@{DESTINATION}"}):
        await tenant.accepts(tenant.mail(**fields))
    page = await pages.of(tenant, "suppressions", role="member")
    await settled(page)
    await page.get_by_role("button", name="More actions").click()
    await page.get_by_role("menuitem", name="Erase an address").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("textbox", name="Address").fill(ada)
    await expect(dialog.get_by_role("button", name="Erase")).to_have_count(0)

    # The list finds a new message within seconds.
    async def counted() -> str:
        await dialog.get_by_role("textbox", name="Address").fill("")
        await dialog.get_by_role("textbox", name="Address").fill(ada)
        await dialog.get_by_role("button", name="Count").click()
        return await dialog.locator("[data-affected]").inner_text()

    text = await eventually(
        counted, lambda text: text.split()[:5] == ["Messages", "to", "this", "address", "3"], every=1
    )
    assert "The address becomes suppressed" in text
    assert await axe_faults(page) == []
    await dialog.get_by_role("button", name="Erase").click()
    await expect(dialog.locator("[data-erasure]")).to_be_visible()
