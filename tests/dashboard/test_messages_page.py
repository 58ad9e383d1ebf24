"""The list of messages: filters in the address, live rows, and opening a message."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import expect

from tests.support.dashboard_browser import Pages
from tests.support.dashboard_pages import axe_faults, settled, shot
from tests.support.dashboard_service import DESTINATION
from tests.support.service import Tenant

pytestmark = pytest.mark.nightly


async def test_messages_are_filtered_by_what_is_typed_and_chosen(pages: Pages, full_account: Tenant) -> None:
    page = await pages.of(full_account, "messages")
    await settled(page)
    rows = page.get_by_role("listitem").filter(has=page.get_by_role("link"))
    await expect(rows).to_have_count(4)
    box = page.get_by_role("searchbox", name="Search mail")
    await box.fill("tag:welcome from:other@example.com")
    await box.press("Enter")
    await expect(page.get_by_text("No message matches")).to_be_visible()
    assert "tag=welcome" in page.url
    assert "sender=other%40example.com" in page.url
    await page.get_by_role("button", name="Remove filter From").click()
    await expect(rows).to_have_count(4)
    await page.get_by_role("button", name="Filters (1)").click()
    await page.get_by_role("dialog", name="Filters").get_by_label("To").fill(f"nowhere@{DESTINATION}")
    await page.get_by_role("button", name="Apply").click()
    await expect(page.get_by_text("No message matches")).to_be_visible()
    await page.get_by_role("button", name="Clear filters").click()
    await expect(rows).to_have_count(4)
    assert "?" not in page.url
    await rows.first.get_by_role("link").click()
    await expect(page).to_have_url(re.compile(r"/messages/em_\w{26}$"))


async def test_a_new_message_appears_without_a_reload(pages: Pages, tenant: Tenant) -> None:
    page = await pages.of(tenant, "messages")
    await expect(page.get_by_text("No messages yet")).to_be_visible()
    await tenant.accepts(tenant.mail(to=f"ada@{DESTINATION}", subject="Seen at once"))
    await expect(page.get_by_role("link", name=re.compile("Seen at once"))).to_be_visible()


async def test_messages_are_selected_by_keys_and_cancelled(pages: Pages, tenant: Tenant) -> None:
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    for number in range(3):
        await tenant.accepts(tenant.mail(to=f"ada@{DESTINATION}", subject=f"Later {number}", send_at=later))
    page = await pages.of(tenant, "messages")
    await settled(page)
    rows = page.get_by_role("listitem").filter(has=page.get_by_role("link"))
    await expect(rows).to_have_count(3)
    for key in ("j", "x", "j", "x"):
        await page.keyboard.press(key)
    bar = page.get_by_role("region", name="Selected messages")
    await expect(bar).to_contain_text("2 selected")
    assert await axe_faults(page) == []
    await shot(page, "messages-selected")
    async with page.expect_download() as download:
        await bar.get_by_role("button", name="Export CSV").click()
    exported = await (await download.value).path()
    assert exported.read_text().count("scheduled") == 2
    await bar.get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Cancel 2 messages").click()
    await expect(dialog).to_contain_text("2 messages are cancelled.")
    await page.keyboard.press("Escape")
    await expect(rows.filter(has_text="cancelled")).to_have_count(2)

    await bar.get_by_role("button", name="Select all 3").click()
    await bar.get_by_role("button", name="Cancel").click()
    await dialog.get_by_role("button", name="Cancel 1 message").click()
    await expect(dialog).to_contain_text("1 message is cancelled.")
    await page.keyboard.press("Escape")
    await bar.get_by_role("button", name="Clear selection").click()
    await page.get_by_label("Status").click()
    await page.get_by_role("option", name="scheduled").click()
    await expect(page.get_by_text("No message matches")).to_be_visible()
    await page.get_by_role("button", name="Clear filters").click()

    await page.keyboard.press("Shift+?")
    await expect(dialog).to_contain_text("Select the message")
    await page.keyboard.press("Escape")
    await page.get_by_role("link", name=re.compile("Later 2")).press("Enter")
    await page.get_by_role("heading", name="Later 2", level=1).wait_for()
    await page.keyboard.press("j")
    await page.get_by_role("heading", name="Later 1", level=1).wait_for()
    await page.get_by_role("button", name="Newer").click()
    await page.get_by_role("heading", name="Later 2", level=1).wait_for()
    await page.get_by_role("link", name="All messages").click()
    await expect(rows).to_have_count(3)
