"""SMTP credentials and keys bound to domains, by mouse; a key's life is in `test_operation_journey`."""

import pytest
from playwright.async_api import Page, expect

from tests.support.dashboard_browser import Pages
from tests.support.dashboard_pages import axe_faults, settled, shot
from tests.support.service import Tenant

pytestmark = pytest.mark.nightly


async def shown_secrets(page: Page) -> list[str]:
    alert = page.get_by_role("alert").filter(has_text="This is shown once")
    await alert.wait_for()
    return await alert.locator("code").all_text_contents()


async def test_a_credential_shows_its_password_once_and_the_settings(pages: Pages, tenant: Tenant) -> None:
    page = await pages.of(tenant, "keys?tab=smtp", role="admin", width=390, theme="dark")
    await settled(page)
    await page.get_by_role("button", name="New SMTP credential").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name").fill("wordpress")
    await dialog.get_by_role("button", name="Create").click()
    username, _ = await shown_secrets(page)
    await page.get_by_role("button", name="I have stored it").click()
    row = page.get_by_role("listitem").filter(has_text=username)
    await row.get_by_role("button", name="Rotate wordpress").click()
    await page.get_by_role("dialog").get_by_role("button", name="Rotate").click()
    await shown_secrets(page)
    await page.get_by_role("button", name="I have stored it").click()
    await expect(row).to_contain_text("The previous password works for another")
    assert await axe_faults(page) == []
    await shot(page, "credentials-390-dark")
    assert await page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


async def test_a_key_says_who_created_it_and_is_found(pages: Pages, tenant: Tenant) -> None:
    for name, role in (("shop", "owner"), ("warehouse", "admin")):
        assert (await tenant.call("POST", "/v1/keys", {"name": name}, role=role)).status == 201
    await tenant.service.sql("DELETE FROM audit_log WHERE account_id = $1 AND detail->>'name' = 'warehouse'", tenant.id)
    page = await pages.of(tenant, "keys", role="admin", width=390)
    await settled(page)
    rows = page.get_by_role("listitem")
    me = (await tenant.call("GET", "/v1/auth/me")).body["user"]["email"]
    await expect(rows.filter(has_text="shop")).to_contain_text(f"by {me}")
    await expect(rows.filter(has_text="warehouse")).to_contain_text("by –")
    find = page.get_by_role("searchbox", name="Search keys")
    await find.fill("WARE")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text("warehouse")
    assert await axe_faults(page) == []
    await find.fill("nothing")
    await expect(page.get_by_text("No key matches")).to_be_visible()
    assert await page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


async def test_a_key_is_bound_to_domains(pages: Pages, tenant: Tenant) -> None:
    first, second = (f"{name}.{tenant.unique}.example.com" for name in ("shop", "other"))
    for name in (first, second):
        assert (await tenant.call("POST", "/v1/domains", {"name": name})).status == 201
    page = await pages.of(tenant, "keys", role="admin")
    await settled(page)
    await page.get_by_role("button", name="New API key").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name").fill("shop")
    await dialog.get_by_role("button", name="Advanced").click()
    await dialog.get_by_label("Sender domains").fill(f"{first}, {second.upper()}")
    await dialog.get_by_role("button", name="Create").click()
    [secret] = await shown_secrets(page)
    await page.get_by_role("button", name="I have stored it").click()
    row = page.get_by_role("listitem").filter(has_text=f"only from {first} and {second}")
    await expect(row).to_have_count(1)
    assert (await tenant.send(tenant.mail(), authorization=f"Bearer {secret}")).status == 403
