"""The overview: outcomes, times, reasons and health of an account with mail, of another without, and after a fault."""

import re

import pytest
from playwright.async_api import expect

from tests.support.dashboard_browser import WIDTHS, Pages
from tests.support.dashboard_pages import axe_faults, settled, shot
from tests.support.dashboard_service import DashboardService
from tests.support.service import Tenant

pytestmark = pytest.mark.nightly


async def test_the_overview_shows_outcomes_times_reasons_and_health(
    pages: Pages, dashboard: DashboardService, full_account: Tenant
) -> None:
    await dashboard.processes.wait_until_all_final()
    page = await pages.of(full_account, "overview", role="viewer")
    await settled(page)
    for name, count in [("Accepted", "4"), ("Delivered", "2"), ("Bounced", "1"), ("Failed", "1")]:
        await expect(page.get_by_role("region", name=name, exact=True)).to_contain_text(count)
    await expect(page.locator(".recharts-bar-rectangle").filter(visible=True).first).to_be_visible()
    times = page.get_by_role("region", name="Time to delivery", exact=True)
    await expect(times.get_by_role("row").filter(has_text="other providers")).to_contain_text(re.compile("ms|sec"))
    reasons = page.get_by_role("region", name="Top reasons")
    await expect(reasons).to_contain_text("The address does not exist at its domain.")
    await expect(page.get_by_role("region", name="Bounce and complaint rates")).to_contain_text("too few results")
    await expect(page.get_by_role("region", name="Credits")).to_contain_text("997")
    await expect(page.get_by_role("region", name="Domains")).to_contain_text("1 verified")
    await expect(page.get_by_role("region", name="Webhook")).to_contain_text("Healthy")
    assert await axe_faults(page) == []
    await shot(page, "overview")
    await page.set_viewport_size({"width": 390, "height": WIDTHS[390]})
    await page.emulate_media(color_scheme="dark")
    assert await page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    assert await axe_faults(page) == []
    await shot(page, "overview-390-dark")
    await page.set_viewport_size({"width": 1440, "height": WIDTHS[1440]})

    await page.get_by_role("button", name="As a table").click()
    table = page.get_by_role("table", name="Outcomes by day of acceptance")
    await expect(table.get_by_role("row")).to_have_count(8)
    await page.get_by_text("2 days", exact=True).click()
    await expect(page.get_by_role("table", name="Outcomes by hour of acceptance")).to_be_visible()
    assert page.url.endswith("/overview?days=2")
    await reasons.get_by_role("link", name="Example message: The address does not exist at its domain.").click()
    await expect(page.get_by_text("Try 1: bounced")).to_be_visible()


async def test_an_account_without_mail_is_led_to_start(pages: Pages, dashboard: DashboardService) -> None:
    tenant = await dashboard.account(domain=None, credits=0)
    page = await pages.of(tenant, "overview")
    await settled(page)
    await expect(page.get_by_role("region", name="Domains")).to_contain_text("No domains yet")
    assert await axe_faults(page) == []
    await page.get_by_role("link", name="Open Start").click()
    await expect(page.get_by_role("heading", name="Start", level=1)).to_be_visible()


async def test_a_part_that_fails_says_so_and_can_be_asked_again(pages: Pages, tenant: Tenant) -> None:
    page = await pages.of(tenant, "settings")
    pages.watch_of(page).allow("503:")
    await settled(page)
    answer = '{"error": "The service is busy: try again.", "code": "unavailable", "request_id": "rq_test"}'
    await page.route(
        "**/v1/reasons*", lambda route: route.fulfill(status=503, content_type="application/json", body=answer)
    )
    await page.get_by_role("navigation").get_by_role("link", name="Overview").click()
    failure = page.get_by_role("region", name="Top reasons").get_by_role("alert")
    await expect(failure).to_contain_text("The service is busy: try again.")
    await expect(page.get_by_role("region", name="Credits")).to_contain_text("1,000")
    await page.unroute("**/v1/reasons*")
    await failure.get_by_role("button", name="Try again").click()
    await expect(page.get_by_text("Nothing bounced, failed or was deferred in this period.")).to_be_visible()
