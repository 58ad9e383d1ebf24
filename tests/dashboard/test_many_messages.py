"""Many messages at once, from the list of messages: cancelled by their tag, sent again after they failed."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.async_api import expect

from tests.dashboard.hands import Mouse
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


async def test_forty_scheduled_messages_are_found_and_cancelled(pages: Pages, tenant: Tenant) -> None:
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    for number in range(41):
        await tenant.accepts(tenant.mail(**({} if number == 40 else {"send_at": later})))
    page = await pages.of(tenant, "start", role="member")
    await settled(page)
    mouse = Mouse(page)
    await mouse.go("Messages")
    await mouse.choose(page.get_by_role("combobox", name="Status"), page.get_by_role("option", name="scheduled"))
    await mouse.press(page.get_by_role("checkbox", name="Select the message").first)
    bar = page.get_by_role("region", name="Selected messages")
    await mouse.press(bar.get_by_role("button", name="Select all 40"))
    await mouse.press(bar.get_by_role("button", name="Cancel"))
    dialog = page.get_by_role("dialog")
    await mouse.press(dialog.get_by_role("button", name="Cancel 40 messages"))
    await expect(dialog.get_by_role("status")).to_contain_text("40 messages are cancelled.")
    mouse.arrives("40 scheduled messages found and cancelled", clicks_max=7)


async def failed(tenant: Tenant, **fields: Any) -> None:
    sent = await tenant.accepts(tenant.mail(**fields))

    async def read() -> dict[str, Any]:
        body: dict[str, Any] = (await tenant.get(sent["id"])).body
        return body

    await eventually(read, lambda message: message["status"] == "failed")


RESENT = "SELECT count(*) FROM messages WHERE account_id = $1 AND resent_from IS NOT NULL"


async def test_failed_messages_are_counted_and_sent_again(pages: Pages, tenant: Tenant) -> None:
    await failed(tenant, to=f"failed@{SIMULATOR}", tags=["orders"])
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
    assert await tenant.service.value(RESENT, tenant.id) == 1


async def test_picked_messages_are_sent_again_and_their_recipients_suppressed(pages: Pages, tenant: Tenant) -> None:
    # An address with a label of one's own is the simulator's too.
    one, two, three = [f"failed+{number}@{SIMULATOR}" for number in range(3)]
    for to in (one, [two, one], three):
        await failed(tenant, to=to)
    page = await pages.of(tenant, "messages", role="member")
    await settled(page)
    # The newest is first, and stays unpicked.
    for place in (1, 2):
        await page.get_by_role("checkbox", name="Select the message").nth(place).check()
    bar = page.get_by_role("region", name="Selected messages")
    await bar.get_by_role("button", name="Send again").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("The 2 selected messages")
    await dialog.get_by_role("button", name="Count").click()
    await dialog.get_by_role("button", name="Send 2 messages again").click()
    await expect(dialog.get_by_role("status")).to_contain_text("All were sent again.")
    assert await axe_faults(page) == []
    assert await tenant.service.value(RESENT, tenant.id) == 2
    await page.keyboard.press("Escape")

    await bar.get_by_role("button", name="Suppress").click()
    await dialog.get_by_role("button", name="Suppress the recipients of 2 messages").click()
    await expect(dialog.get_by_role("status")).to_contain_text("2 addresses are suppressed.")
    assert await axe_faults(page) == []
    suppressed = (await tenant.call("GET", "/v1/suppressions")).body["suppressions"]
    assert {row["email"] for row in suppressed} == {one, two}
