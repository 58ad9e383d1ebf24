"""The webhook in the dashboard, by mouse: saved, pinged, a failing receiver, attempts, replay of what failed."""

import pytest
from playwright.async_api import expect

from tests.support.dashboard_browser import Pages
from tests.support.dashboard_pages import axe_faults, settled, shot
from tests.support.dashboard_service import DashboardService
from tests.support.service import Tenant

pytestmark = pytest.mark.rare

PATIENCE = 60_000


async def test_a_webhook_is_saved_pinged_and_replayed(
    pages: Pages, dashboard: DashboardService, tenant: Tenant
) -> None:
    page = await pages.of(tenant, "webhook", role="member")
    await settled(page)
    await shot(page, "webhook-none")
    await page.get_by_label("URL").fill(dashboard.webhook_url("/status/503"))
    await page.get_by_role("button", name="Save").click()
    await page.get_by_role("alert").filter(has_text="This is shown once").wait_for()
    assert await axe_faults(page) == []
    await page.get_by_role("button", name="I have stored it").click()

    await page.get_by_role("button", name="Send a test").click()
    await expect(page.locator("[data-ping=failed]")).to_contain_text("HTTP 503", timeout=PATIENCE)
    await shot(page, "webhook-failed")
    await page.locator("[data-ping=failed]").get_by_role("link", name="Delivery").click()
    await expect(page.get_by_role("region", name="Attempts", exact=True)).to_contain_text("HTTP 503", timeout=PATIENCE)
    assert await axe_faults(page) == []
    await shot(page, "webhook-delivery")

    await page.get_by_role("link", name="Webhook and its log").click()
    await page.get_by_label("URL").fill(dashboard.webhook_url())
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_text("The webhook is saved.").last).to_be_visible(timeout=PATIENCE)
    failed = page.get_by_role("listitem").filter(has_text="webhook.test").first
    await failed.get_by_role("button", name="Replay").click()
    await expect(page.get_by_role("listitem").filter(has_text="succeeded")).to_have_count(1, timeout=PATIENCE)
    await page.get_by_role("button", name="Replay what failed").click()
    await page.get_by_role("dialog").get_by_role("button", name="Replay").click()
    await expect(page.get_by_text("Nothing had failed.")).to_be_visible(timeout=PATIENCE)
    await page.get_by_role("tab", name="Go").click()
    await expect(page.get_by_role("region", name="Go")).to_contain_text("func IsGenuine")
    assert await axe_faults(page) == []
    await shot(page, "webhook")
