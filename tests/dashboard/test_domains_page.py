"""Domains in the dashboard, by mouse: added, found in DNS while the page is open, new keys, removed."""

import pytest
from playwright.async_api import expect

from tests.support.dashboard_browser import Pages
from tests.support.dashboard_pages import axe_faults, settled, shot
from tests.support.dashboard_service import DashboardService
from tests.support.service import Tenant

pytestmark = pytest.mark.nightly

# The page asks DNS every 10 seconds.


async def test_a_domain_is_verified_while_the_page_is_open(
    pages: Pages, dashboard: DashboardService, tenant: Tenant
) -> None:
    name = f"shop.{tenant.unique}.example.org"
    page = await pages.of(tenant, "domains", role="admin")
    await page.get_by_role("button", name="Add a domain").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Domain", exact=False).fill(name)
    await shot(page, "domains-add")
    await dialog.get_by_role("button", name="Add a domain").click()
    await page.get_by_role("heading", name=name, level=1).wait_for()
    await settled(page)
    assert await axe_faults(page) == []
    await shot(page, "domain-unverified")

    async with page.expect_download() as saved:
        await page.get_by_role("button", name="Zone file").click()
    zone = (await (await saved.value).path()).read_text()
    answer = await tenant.call("GET", f"/v1/domains/{name}")
    records = {record["name"]: record["value"] for record in answer.body["domain"]["records"] if record["value"]}
    assert all(f"{record}. 3600 IN TXT " in zone for record in records)

    dashboard.publish(records)
    # The page checks automatically: no button is pressed.
    await expect(page.get_by_text(f"{name} is verified. You can send from it.")).to_be_visible()
    await expect(page.locator("[data-record=dkim_rsa]")).to_have_attribute("data-result", "found")
    assert await axe_faults(page) == []
    await shot(page, "domain-verified")

    await page.get_by_role("button", name="New keys").click()
    await page.get_by_role("dialog").get_by_role("button", name="Create new keys").click()
    await page.get_by_text("New keys are waiting for their records").wait_for()
    await shot(page, "domain-rotating")

    await page.get_by_role("button", name="Remove").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("textbox").fill(name)
    await dialog.get_by_role("button", name="Remove the domain").click()
    await expect(page.get_by_text(f"{name} is removed.")).to_be_visible()
    await expect(page.get_by_role("link", name=name)).to_have_count(0)
    assert (await tenant.call("GET", f"/v1/domains/{name}")).status == 404


async def test_a_wrong_record_is_shown_with_what_to_do(
    pages: Pages, dashboard: DashboardService, tenant: Tenant
) -> None:
    name = f"wrong.{tenant.unique}.example.org"
    answer = await tenant.call("POST", "/v1/domains", {"name": name})
    records = {record["name"]: "something else" for record in answer.body["domain"]["records"] if record["value"]}
    dashboard.publish(records)
    page = await pages.of(tenant, f"domains/{name}", width=390, theme="dark")
    await page.get_by_role("button", name="Check now").click()
    ownership = page.locator("[data-record=ownership]")
    await expect(ownership).to_have_attribute("data-result", "missing")
    await expect(ownership.get_by_text("something else")).to_be_visible()
    assert await axe_faults(page) == []
    await shot(page, "domain-wrong-390-dark")
    assert await page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
