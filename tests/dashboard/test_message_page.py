"""A message, the ledger and the suppressions, by mouse: what happened is shown, and what can be done works."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import expect

from tests.dashboard.hands import Mouse
from tests.support.dashboard_browser import Pages
from tests.support.dashboard_pages import axe_faults, settled, shot
from tests.support.dashboard_service import DESTINATION, DashboardService
from tests.support.service import Tenant

pytestmark = pytest.mark.nightly


async def test_a_message_shows_its_attempts_content_webhooks_and_credits(
    pages: Pages, dashboard: DashboardService, tenant: Tenant
) -> None:
    saved = await tenant.call("PUT", "/v1/webhook", {"url": dashboard.webhook_url()})
    assert saved.status < 300
    html = "<h1>Hello from the frame</h1><a href='https://shop.example/order'>order</a>"
    sent = await tenant.accepts(tenant.mail(to=f"greylist@{DESTINATION}", subject="Greylisted", html=html))
    page = await pages.of(tenant, f"messages/{sent['id']}")
    await expect(page.get_by_text("Try 1: deferred")).to_be_visible()
    await expect(page.get_by_text("Try 3: delivered")).to_be_visible()
    await expect(page.get_by_text("Delivered to", exact=False).first).to_be_visible()
    await expect(page.frame_locator("iframe").get_by_text("Hello from the frame")).to_be_visible()
    await expect(page.get_by_role("link", name="https://shop.example/order")).to_be_visible()
    await page.get_by_role("tab", name="Raw").click()
    await expect(page.get_by_text("Subject: Greylisted")).to_be_visible()
    await expect(page.get_by_text("succeeded").first).to_be_visible()
    await page.get_by_role("button", name=re.compile("Send again")).first.click()
    await expect(page.get_by_text("The event is sent again.")).to_be_visible()
    await page.get_by_role("button", name="Report for support").click()
    report = page.get_by_role("region", name="The report")
    await expect(report).to_contain_text(sent["id"])
    await expect(report).not_to_contain_text("Greylisted", ignore_case=False)
    await page.keyboard.press("Escape")
    await page.get_by_role("link", name="Open in the ledger").click()
    await expect(page.get_by_role("heading", name="Ledger")).to_be_visible()
    await expect(page.get_by_role("listitem").filter(has_text="Spent")).to_have_count(1)


async def test_mail_for_later_and_cancelled_mail_are_named_so(pages: Pages, tenant: Tenant) -> None:
    at = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    sent = await tenant.accepts(tenant.mail(to=f"ada@{DESTINATION}", send_at=at))
    page = await pages.of(tenant, f"messages/{sent['id']}")
    await expect(page.get_by_text("Scheduled.", exact=False).first).to_be_visible()
    await expect(page.get_by_text("scheduled", exact=True)).to_have_count(2)
    await expect(page.get_by_role("button", name="Try now")).to_have_count(0)
    await page.get_by_role("button", name="Reschedule").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Send time").fill("2026-01-01T00:00")
    await dialog.get_by_role("button", name="Reschedule").click()
    await expect(dialog.get_by_role("alert")).to_be_visible()
    later = datetime.now(UTC) + timedelta(days=2)
    await dialog.get_by_label("Send time").fill(f"{later:%Y-%m-%dT%H:%M}")
    await dialog.get_by_role("button", name="Reschedule").click()
    await expect(page.get_by_text("The message is rescheduled.")).to_be_visible()
    assert (await tenant.get(sent["id"])).body["send_at"].startswith(f"{later:%Y-%m-%dT%H:%M}")
    await page.get_by_role("button", name="Cancel message").click()
    await dialog.get_by_role("button", name="Cancel message").click()
    await expect(page.get_by_text("Cancelled.", exact=False).first).to_be_visible()
    await expect(page.get_by_text("cancelled", exact=True).first).to_be_visible()


async def test_a_message_to_many_shows_what_failed_first_and_equal_lines_once(
    pages: Pages, dashboard: DashboardService, tenant: Tenant
) -> None:
    saved = await tenant.call("PUT", "/v1/webhook", {"url": dashboard.webhook_url()})
    assert saved.status < 300
    to = [f"r{number}@{DESTINATION}" for number in range(21)]
    sent = await tenant.accepts(tenant.mail(to=[*to, f"550-rcpt@{DESTINATION}"]))
    await dashboard.processes.wait_until_final(tenant, [sent["id"]])
    page = await pages.of(tenant, "messages")
    await settled(page)
    mouse = Mouse(page)
    await mouse.press(page.get_by_role("listitem").get_by_role("link").first)
    delivery = page.get_by_role("region", name="Delivery", exact=True)
    await expect(delivery.get_by_role("heading", level=3)).to_have_count(5)
    await expect(delivery.get_by_role("heading", level=3).first).to_contain_text("550-rcpt")
    await expect(delivery.get_by_text("550 5.1.1", exact=False).first).to_be_visible()
    mouse.arrives("why one recipient of 22 bounced", clicks_max=1)
    await delivery.get_by_role("button", name="Show all 22").click()
    await expect(delivery.get_by_role("heading", level=3)).to_have_count(22)
    await delivery.get_by_text("1 bounced").click()
    await expect(delivery.get_by_role("heading", level=3)).to_have_count(1)
    webhooks = page.get_by_role("region", name="Webhooks", exact=True)
    await expect(webhooks.get_by_text("21 recipients")).to_be_visible()
    credit_lines = page.get_by_role("region", name="Credits", exact=True)
    for line in ("21 spent", "Returned: ", "Reserved: one credit for each of its 22 recipients."):
        await expect(credit_lines).to_contain_text(line)
    assert await axe_faults(page) == []
    await shot(page, "message-to-many")
    await page.get_by_role("link", name="Open in the ledger").click()
    row = page.get_by_role("listitem")
    await expect(row).to_have_count(1)
    await expect(row).to_contain_text("21 spent and 1 returned")


async def test_addresses_are_added_found_removed_and_imported(pages: Pages, tenant: Tenant) -> None:
    page = await pages.of(tenant, "suppressions")
    await settled(page)
    await expect(page.get_by_text("No suppressed addresses")).to_be_visible()
    await page.get_by_role("button", name="Add").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Address").fill("left@example.org")
    await dialog.get_by_role("button", name="Add").click()
    await expect(page.get_by_text("left@example.org is suppressed.")).to_be_visible()
    await page.get_by_role("button", name="Import").click()
    content = b"email,note\r\nfirst@example.org,asked\r\nwrong\r\n"
    await dialog.locator("input[type=file]").set_input_files(
        {"name": "list.csv", "mimeType": "text/csv", "buffer": content}
    )
    await dialog.get_by_role("button", name="Import").click()
    await expect(dialog.get_by_text("The import is complete.")).to_be_visible()
    await expect(dialog.get_by_text(re.compile("1 added, 0 already listed, 1 invalid"))).to_be_visible()
    await dialog.get_by_role("button", name="Close").click()
    await page.get_by_label("Search addresses").fill("left")
    await page.get_by_role("button", name="Search", exact=True).click()
    await expect(page.get_by_role("button", name="Remove left@example.org")).to_be_visible()
    await expect(page.get_by_role("button", name="Remove first@example.org")).to_have_count(0)
    await page.get_by_role("button", name="Remove left@example.org").click()
    await dialog.get_by_label("Why it may get mail again").fill("asked for mail")
    await dialog.get_by_role("button", name="Remove").click()
    await expect(page.get_by_text("No addresses match")).to_be_visible()
