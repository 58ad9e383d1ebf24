"""An account in daily use, by mouse: key, webhook, bounce, suppression, and the reason of every credit."""

import re
from typing import Any

import pytest
from playwright.async_api import Locator, Page, expect

from tests.dashboard.hands import Mouse
from tests.support.dashboard_browser import Pages
from tests.support.dashboard_pages import axe_faults, opened, settled, shot
from tests.support.dashboard_service import DESTINATION, DashboardService
from tests.support.eventually import eventually
from tests.support.service import Tenant
from tests.support.webhook_receiver import http_answer

pytestmark = pytest.mark.nightly

HOOK = "/events"
BROKEN = http_answer(b"the database is away", "Connection: close", status="503 Service Unavailable")
WHYS = ("Granted: ", "Reserved: ", "Spent: the recipient's server accepted", "Returned: ")
DELIVERED, BOUNCED = f"ada@{DESTINATION}", f"550-rcpt@{DESTINATION}"


async def test_an_account_in_daily_use(pages: Pages, dashboard: DashboardService, tenant: Tenant) -> None:
    page = await pages.of(tenant, "overview")
    await settled(page)
    secret = await key_is_made_used_rotated_and_revoked(page, tenant)
    await webhook_is_pinged_fails_and_is_replayed(page, dashboard, tenant, secret)
    await bounce_suppresses_until_it_is_removed(page, dashboard, tenant, secret)
    await every_credit_is_explained(page, dashboard, tenant)


async def key_is_made_used_rotated_and_revoked(page: Page, tenant: Tenant) -> str:
    """The secret of the remaining key."""
    mouse = Mouse(page)
    await mouse.press(page.get_by_role("navigation", name="Pages").get_by_role("link", name="Keys"))
    await mouse.press(page.get_by_role("button", name="New API key"))
    dialog = page.get_by_role("dialog")
    await mouse.write(dialog.get_by_label("Name"), "shop")
    await mouse.press(dialog.get_by_role("button", name="Create"))
    first = await shown_secret(page, mouse)
    mouse.arrives("a key made", clicks_max=5)
    await expect(page.get_by_role("listitem").filter(has_text="shop")).to_contain_text("never used")
    await sends(tenant, first, to=DELIVERED, subject="With the first key")

    await mouse.press(page.get_by_role("button", name="Rotate shop"))
    await mouse.press(dialog.get_by_role("button", name="Rotate"))
    await expect(dialog).to_contain_text("The old secret works for")
    second = await shown_secret(page, mouse)
    mouse.arrives("it is used and rotated", clicks_max=3)
    await sends(tenant, second, to=DELIVERED, subject="With the second key")
    await sends(tenant, first, to=DELIVERED, subject="With the first key, in the overlap")

    old = page.get_by_role("listitem").filter(has_text="Ends in")
    await expect(old).to_have_count(1)
    await mouse.press(old.get_by_role("button", name="Revoke shop"))
    await mouse.press(dialog.get_by_role("button", name="Revoke"))
    await expect(page.get_by_text("shop is revoked.")).to_be_visible()
    mouse.arrives("the old key is used and revoked", clicks_max=2)
    await expect(old).to_have_count(0)
    await page.get_by_role("switch", name="Show revoked and expired").click()
    await expect(page.get_by_role("listitem").filter(has_text="Revoked")).to_have_count(1)
    assert await axe_faults(page) == []

    async def status() -> int:
        # A key that still works gets 400 and spends no credit.
        return (await tenant.send(tenant.mail(to="no address"), authorization=f"Bearer {first}")).status

    await eventually(status, lambda status: status == 401)
    return second


async def webhook_is_pinged_fails_and_is_replayed(
    page: Page, dashboard: DashboardService, tenant: Tenant, secret: str
) -> None:
    await opened(page, tenant, "webhooks/account")
    await page.get_by_label("URL").fill(dashboard.webhook_url(HOOK))
    await page.get_by_role("button", name="Save").click()
    await shown_secret(page)
    await page.get_by_role("tab", name="Go").click()
    await expect(page.get_by_role("region", name="Go")).to_contain_text("func IsGenuine")
    assert await axe_faults(page) == []
    await page.get_by_role("button", name="Send a test").click()
    ping = page.locator("[data-ping=succeeded]")
    await expect(ping).to_contain_text("HTTP 200")
    await expect(ping.get_by_role("region", name="Response")).to_have_text("ok")

    dashboard.webhook_receiver.say(HOOK, BROKEN)
    await sends(tenant, secret, to=DELIVERED, subject="While the webhook is broken")
    deliveries = page.get_by_role("region", name="Deliveries").get_by_role("listitem")
    lost = deliveries.filter(has_text="email.delivered")
    await expect(lost).to_contain_text("HTTP 503")
    await waits_pass(tenant)
    await page.reload()
    await expect(lost).to_contain_text("attempt 7 of 7")
    await lost.get_by_role("link").click()
    attempts = page.get_by_role("region", name="Attempts", exact=True)
    await expect(attempts.get_by_text(re.compile(r"^Attempt \d$"))).to_have_count(7)
    await expect(attempts.get_by_role("region", name="Response to attempt 7")).to_have_text("the database is away")
    await shot(page, "journey-webhook-failed")

    dashboard.webhook_receiver.say(HOOK, None)
    await page.get_by_role("link", name="Settings and log").click()
    await page.get_by_role("button", name="Replay failed events").click()
    await page.get_by_role("dialog").get_by_role("button", name="Replay").click()
    await expect(page.get_by_text("1 event is being sent again.").last).to_be_visible()
    await expect(lost.filter(has_text="succeeded")).to_have_count(1)
    await shot(page, "journey-webhook-replayed")


async def waits_pass(tenant: Tenant) -> None:
    """The attempts of 17 hours, each made as soon as the attempt before it has failed."""

    async def pending() -> int:
        await tenant.service.sql(_NEXT_ATTEMPT_NOW, tenant.id)
        number: int = await tenant.service.value(
            "SELECT count(*) FROM webhook_schedule WHERE account_id = $1", tenant.id
        )
        return number

    await eventually(pending, lambda number: number == 0, every=0.2)


# Shorter waits are leases of tickets.
_NEXT_ATTEMPT_NOW = """
UPDATE webhook_schedule SET next_at = now()
WHERE account_id = $1 AND worker_id IS NULL AND next_at > now() + interval '1 minute'
"""


async def bounce_suppresses_until_it_is_removed(
    page: Page, dashboard: DashboardService, tenant: Tenant, secret: str
) -> None:
    await to_page(page, "Messages")
    await sends(tenant, secret, to=BOUNCED, subject="To an address that is gone")
    await page.get_by_role("link", name=re.compile("To an address that is gone")).click()
    await expect(page.get_by_role("status").filter(has_text="Bounced.").first).to_be_visible()
    await shot(page, "journey-bounced")
    await page.get_by_role("link", name="Open Suppressions").click()
    remove = page.get_by_role("button", name=f"Remove {BOUNCED}")
    await expect(page.get_by_role("listitem").filter(has_text=BOUNCED)).to_contain_text("bounce")

    again = await sends(tenant, secret, to=BOUNCED, subject="To a suppressed address")
    [final] = await dashboard.processes.wait_until_final(tenant, [again["id"]])
    assert "suppressed" in final["recipients"][0]["last_smtp_response"]
    await remove.click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Why it may get mail again").fill("its owner has a mailbox again")
    await dialog.get_by_role("button", name="Remove").click()
    await expect(page.get_by_text("No addresses match")).to_be_visible()
    await to_page(page, "Log")
    await expect(page.get_by_text("its owner has a mailbox again").first).to_be_visible()


async def every_credit_is_explained(page: Page, dashboard: DashboardService, tenant: Tenant) -> None:
    answer = await tenant.call("GET", "/v1/messages")
    messages = {message["id"]: message["subject"] for message in answer.body["messages"]}
    await dashboard.processes.wait_until_final(tenant, list(messages))
    # High enough for every row: the list holds only those that are seen.
    await page.set_viewport_size({"width": 1440, "height": 3_000})
    await to_page(page, "Ledger")
    entries = page.get_by_role("listitem")
    await expect(entries.filter(has=page.get_by_role("link"))).to_have_count(len(messages))
    await shot(page, "journey-ledger")
    amounts = [amount_of(text) for text in await entries.all_inner_texts()]
    assert sum(amounts) == await tenant.available()
    count = await entries.count()
    for place in range(count):
        await explained(page, entries.nth(place), messages)


async def explained(page: Page, entry: Locator, messages: dict[str, Any]) -> None:
    """A row says why, and leads to its message."""
    text = await entry.inner_text()
    assert any(why in text for why in WHYS), text
    if "Granted: " in text:
        return
    why = await entry.locator("[title]").first.get_attribute("title")
    await entry.get_by_role("link").click()
    await page.wait_for_url("**/messages/em_*")
    subject = messages[page.url.rpartition("/")[2]]
    await page.get_by_role("heading", name=subject, level=1, exact=True).wait_for()
    await expect(page.get_by_role("region", name="Credits")).to_contain_text(str(why))
    await page.go_back()
    await settled(page)


def amount_of(text: str) -> int:
    found = re.match(r"[+\-−]?[\d,]+", text)
    assert found is not None, text
    return int(found[0].replace(",", "").replace("−", "-"))


async def to_page(page: Page, name: str) -> None:
    await page.get_by_role("navigation", name="Pages").get_by_role("link", name=name).click()
    await settled(page)


async def shown_secret(page: Page, mouse: Mouse | None = None) -> str:
    alert = page.get_by_role("alert").filter(has_text="This is shown once")
    secret = await alert.locator("code").inner_text()
    await (mouse or Mouse(page)).press(page.get_by_role("button", name="I have stored it"))
    return secret


async def sends(tenant: Tenant, secret: str, **fields: object) -> dict[str, Any]:
    return await tenant.accepts(tenant.mail(**fields), authorization=f"Bearer {secret}")
