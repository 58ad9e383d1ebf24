"""Many messages at once, from the list of messages: cancelled by their tag, sent again after they failed."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.async_api import expect

from tests.support.accept_flow import SIMULATOR
from tests.support.dashboard_browser import Pages
from tests.support.dashboard_pages import axe_faults, settled
from tests.support.eventually import eventually
from tests.support.service import Tenant

pytestmark = pytest.mark.nightly


async def test_messages_are_counted_and_cancelled_by_their_tag(pages: Pages, tenant: Tenant) -> None:
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    sent = [await tenant.accepts(tenant.mail(tags=[tag], send_at=later)) for tag in ("reminder", "reminder", "other")]
    page = await pages.of(tenant, "messages", role="member")
    await settled(page)
    await page.get_by_role("button", name="Cancel messages").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_role("button", name="Count")).to_be_disabled()
    await dialog.get_by_label("Tag").fill("reminder")

    # The list finds a new message within seconds.
    async def count() -> str:
        await dialog.get_by_label("Tag").fill("reminder")
        await dialog.get_by_role("button", name="Count").click()
        return await dialog.get_by_role("status").inner_text()

    await eventually(count, lambda text: text == "2 messages can be cancelled.", every=1)
    assert await axe_faults(page) == []
    await dialog.get_by_role("button", name="Cancel 2 messages").click()
    await expect(dialog.get_by_role("status")).to_have_text("2 messages are cancelled.")
    states = [(await tenant.get(one["id"])).body["recipients"][0]["status"] for one in sent]
    assert states == ["cancelled", "cancelled", "queued"]


async def test_failed_messages_are_counted_and_sent_again(pages: Pages, tenant: Tenant) -> None:
    sent = await tenant.accepts(tenant.mail(to=f"failed@{SIMULATOR}", tags=["orders"]))

    async def read() -> dict[str, Any]:
        body: dict[str, Any] = (await tenant.get(sent["id"])).body
        return body

    await eventually(read, lambda message: message["status"] == "failed")
    page = await pages.of(tenant, "messages", role="member")
    await settled(page)
    await page.get_by_role("button", name="Send failed messages again").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Domain of the recipients").fill(SIMULATOR)
    await dialog.get_by_role("button", name="Count").click()
    await dialog.get_by_role("button", name="Send 1 message again").click()
    await expect(dialog.get_by_role("status")).to_contain_text("All were sent again.")
    await expect(dialog.get_by_role("region", name="Sent again")).to_contain_text("1")
    assert await axe_faults(page) == []
    again = await tenant.service.value(
        "SELECT count(*) FROM messages WHERE account_id = $1 AND resent_from IS NOT NULL", tenant.id
    )
    assert again == 1
