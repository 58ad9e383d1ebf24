"""The pages team, log and settings: members, filters of the log, alerts; `test_first_steps_journey` has the others."""

import pytest
from playwright.async_api import expect

from tests.support.dashboard_browser import Pages
from tests.support.dashboard_pages import settled
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
