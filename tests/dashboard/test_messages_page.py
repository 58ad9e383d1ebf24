"""The list of messages: filters in the address, live rows, and opening a message."""

import re

import pytest
from playwright.async_api import expect

from tests.support.dashboard_browser import Pages
from tests.support.dashboard_pages import settled
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
