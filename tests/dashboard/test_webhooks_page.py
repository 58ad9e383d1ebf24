"""Endpoints in the dashboard, by mouse: created, pinged, changed, replayed, deleted."""

import pytest
from playwright.async_api import expect

from tests.support.dashboard_browser import Pages
from tests.support.dashboard_pages import axe_faults, settled, shot
from tests.support.dashboard_service import DashboardService
from tests.support.service import Tenant

pytestmark = pytest.mark.nightly


async def test_an_endpoint_is_created_pinged_changed_and_deleted(
    pages: Pages, dashboard: DashboardService, tenant: Tenant
) -> None:
    page = await pages.of(tenant, "webhooks", role="member")
    await settled(page)
    await page.get_by_role("button", name="New endpoint").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("textbox", name="URL").fill(dashboard.webhook_url("/status/503?page"))
    await dialog.get_by_label("unsubscribed").uncheck()
    await dialog.get_by_role("textbox", name="Tags").fill("orders\ntwo words")
    await dialog.get_by_role("textbox", name="Headers").fill("Authorization: Bearer of:the-gateway")
    await dialog.get_by_role("button", name="Create").click()
    await dialog.get_by_role("alert").filter(has_text="This is shown once").wait_for()
    assert await axe_faults(page) == []
    await dialog.get_by_role("button", name="I have stored it").click()

    await page.get_by_role("heading", name="Endpoint", exact=True).wait_for()
    (made,) = (await tenant.call("GET", "/v1/endpoints")).body["endpoints"]
    await page.get_by_role("link", name="All webhooks").click()
    await expect(page.get_by_role("listitem")).to_contain_text("tagged orders and two words")
    await page.get_by_role("listitem").get_by_role("link").click()
    assert (made["tags"], made["header_names"]) == (["orders", "two words"], ["Authorization"])
    assert len(made["types"]) == 12
    await page.get_by_role("button", name="Send a test").click()
    await expect(page.locator("[data-ping=failed]")).to_contain_text("HTTP 503")
    await shot(page, "endpoint-failed")
    await page.locator("[data-ping=failed]").get_by_role("link", name="Delivery").click()
    await expect(page.get_by_role("region", name="Attempts", exact=True)).to_contain_text("HTTP 503")
    await page.get_by_role("link", name="Settings and log").click()

    await page.get_by_role("textbox", name="URL").fill(dashboard.webhook_url("/page"))
    await page.get_by_role("textbox", name="Tags").fill("")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_text("The endpoint is saved.").last).to_be_visible()
    (saved,) = (await tenant.call("GET", "/v1/endpoints")).body["endpoints"]
    assert (saved["tags"], saved["header_names"]) == ([], ["Authorization"])
    failed = page.get_by_role("listitem").filter(has_text="webhook.test").first
    await failed.get_by_role("button", name="Replay").click()
    await expect(page.get_by_role("listitem").filter(has_text="succeeded")).to_have_count(1)
    await page.get_by_role("button", name="Replay failed events").click()
    await dialog.get_by_role("button", name="Replay").click()
    await expect(page.get_by_text("No event had failed.")).to_be_visible()

    await page.get_by_role("button", name="New secret").click()
    await dialog.get_by_role("button", name="New secret").click()
    await page.get_by_role("button", name="I have stored it").click()
    await expect(page.get_by_text("Calls are also signed with the previous secret")).to_be_visible()
    assert await axe_faults(page) == []
    await shot(page, "endpoint")
    await page.get_by_role("link", name="All webhooks").click()
    await expect(page.get_by_role("listitem")).to_contain_text("12 kinds of events")
    await page.get_by_role("listitem").get_by_role("link").click()
    await page.get_by_role("button", name="Delete").click()
    await dialog.get_by_role("button", name="Delete").click()
    await expect(page.get_by_text("No webhooks yet")).to_be_visible()
