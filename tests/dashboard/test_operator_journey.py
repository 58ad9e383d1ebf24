"""An operator's work by mouse: a provider that refuses us, a customer who looks for a message, an abusive account."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import expect

from posthouse.rules.usage import hour_of
from tests.dashboard.hands import Mouse
from tests.support.dashboard_browser import Pages
from tests.support.dashboard_pages import opened, operators_page, settled, shot
from tests.support.dashboard_service import DESTINATION, DashboardService
from tests.support.service import Tenant

pytestmark = pytest.mark.nightly

SOURCE = "127.0.0.1"
# As an operator's hold leaves it.
HELD = """
UPDATE delivery_schedule SET fence = fence + 1, next_at = '9999-01-01', due_at = now(), held_since = now(),
    held_by = 'operator'
WHERE account_id = $1
"""


async def test_a_provider_that_refuses(pages: Pages, dashboard: DashboardService, tenant: Tenant) -> None:
    receiver = dashboard.processes.receiver
    page = await operators_page(pages, tenant, "now")
    receiver.blocked.add(SOURCE)
    # What one message of one account learns says nothing about the lane.
    other = await dashboard.account()
    ids = [(await tenant.accepts(tenant.mail(to=f"first@{DESTINATION}")))["id"]]
    of_other = [(await other.accepts(other.mail(to=f"second@{DESTINATION}")))["id"]]

    # Noticed.
    lanes = page.get_by_role("region", name="Lanes")
    await expect(lanes.locator(f"[data-lane='{DESTINATION}'][data-lane-state=blocked]")).to_be_visible()
    changes = page.get_by_role("region", name="Changed in the last hour")
    await expect(changes).to_contain_text("our address is refused")
    await shot(page, "incident-now")

    # Explained, and stopped.
    await lanes.get_by_role("link", name=DESTINATION).click()
    await settled(page)
    why = page.get_by_role("region", name="Latest limit changes")
    await expect(why).to_contain_text("after the reply")
    await page.get_by_role("button", name="Pause").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Reason").fill("our address is refused")
    await dialog.get_by_role("button", name="Pause").click()
    await expect(page.get_by_role("button", name="Resume")).to_be_visible()
    await shot(page, "incident-lane")
    ids += [(await tenant.accepts(tenant.mail(to=f"r{number}@{DESTINATION}")))["id"] for number in range(3)]

    # Held, counted first.
    await page.get_by_role("navigation", name="Pages").get_by_role("link", name="Queue").click()
    await settled(page)
    form = page.get_by_role("region", name="Change waiting recipients")
    await page.get_by_role("textbox", name="Destination").fill(DESTINATION)
    await form.get_by_role("button", name="Count").click()
    await expect(form.get_by_role("status")).to_contain_text("5 recipients would be changed")
    await form.get_by_role("button", name="Hold 5 recipients").click()
    await expect(page.get_by_text("5 recipients were changed.").last).to_be_visible()
    await shot(page, "incident-held")

    # The provider takes mail again: released, the limit change undone, the lane resumed.
    receiver.blocked.clear()
    await form.get_by_text("Release", exact=True).click()
    await form.get_by_role("button", name="Count").click()
    await form.get_by_role("button", name="Release 5 recipients").click()
    await expect(form.get_by_role("status")).to_have_count(0)
    await page.get_by_role("navigation", name="Pages").get_by_role("link", name="Lanes").click()
    await page.get_by_role("link", name=DESTINATION).click()
    await settled(page)
    await why.get_by_role("button", name="Undo").first.click()
    await dialog.get_by_role("button", name="Undo").click()
    await expect(why).to_contain_text("an operator undid a limit change")
    await page.get_by_role("button", name="Resume").click()
    await expect(page.get_by_role("button", name="Pause")).to_be_visible()

    # Tried now, not after the hour that the refusal asked for.
    await page.get_by_role("navigation", name="Pages").get_by_role("link", name="Queue").click()
    await settled(page)
    await page.get_by_role("textbox", name="Destination").fill(DESTINATION)
    await form.get_by_text("Try now", exact=True).click()
    await form.get_by_role("button", name="Count").click()
    await form.get_by_role("button", name=re.compile(r"Try \d recipients now")).click()
    final = [
        *await dashboard.processes.wait_until_final(tenant, ids),
        *await dashboard.processes.wait_until_final(other, of_other),
    ]
    assert {message["status"] for message in final} == {"delivered"}


async def test_where_is_my_mail(pages: Pages, dashboard: DashboardService, tenant: Tenant) -> None:
    """Answered from what the customer quotes, in three clicks."""
    customer = await dashboard.account()
    sent = await customer.accepts(customer.mail(to=f"450-rcpt+where@{DESTINATION}"))
    await dashboard.processes.wait_until_final(customer, [sent["id"]])
    page = await operators_page(pages, tenant, "now")
    await page.get_by_role("navigation", name="Pages").get_by_role("link", name="Message search").click()
    await page.get_by_role("textbox", name="Id or address").fill(f"250 2.0.0 queued as {sent['id']}")
    await page.get_by_role("button", name="Find").click()
    await page.get_by_role("row").filter(has_text=customer.unique).get_by_role("link").click()
    answer = page.get_by_role("region", name=f"450-rcpt+where@{DESTINATION}")
    await expect(answer).to_contain_text("Why: Gave up after repeated tries")
    await expect(answer).to_contain_text("Try 1: deferred")
    await expect(answer).to_contain_text("450 4.2.1 try again")
    await shot(page, "where-is-my-mail")


async def test_a_stuck_message_is_found_and_released(pages: Pages, dashboard: DashboardService, tenant: Tenant) -> None:
    customer = await dashboard.account()
    later = (datetime.now(UTC) + timedelta(minutes=30)).isoformat()
    sent = (await customer.accepts(customer.mail(to=f"stuck@{DESTINATION}", send_at=later)))["id"]
    await tenant.service.sql(HELD, customer.id)
    page = await operators_page(pages, tenant, "now")
    mouse = Mouse(page)
    await mouse.go("Message search")
    await mouse.write(page.get_by_role("textbox", name="Id or address"), sent)
    await mouse.press(page.get_by_role("button", name="Find"))
    await mouse.press(page.get_by_role("row").filter(has_text=customer.unique).get_by_role("link"))
    await expect(page.get_by_role("region", name=f"stuck@{DESTINATION}")).to_contain_text("holds it")
    await mouse.press(page.get_by_role("link", name="Show in the queue"))
    form = page.get_by_role("region", name="Change waiting recipients")
    await mouse.press(form.get_by_text("Release", exact=True))
    await mouse.press(form.get_by_role("button", name="Count"))
    await mouse.press(form.get_by_role("button", name="Release 1 recipient"))
    await expect(page.get_by_text("1 recipients were changed.").last).to_be_visible()
    mouse.arrives("a customer's stuck message found and released", clicks_max=8)
    [final] = await dashboard.processes.wait_until_final(customer, [sent])
    assert final["status"] == "delivered"


async def test_an_abusive_account(pages: Pages, dashboard: DashboardService, tenant: Tenant) -> None:
    """Found by its reputation, impersonated, suspended."""
    bad = await dashboard.account()
    await bad.accepts(bad.mail(to=f"someone@{DESTINATION}", subject="You have won"))
    counted = "INSERT INTO {} (account_id, {}, accepted, delivered, bounced) VALUES ($1, $2, 900, 9, 891)"
    hour = hour_of(datetime.now(UTC))
    await tenant.service.sql(counted.format("usage_hours", "hour"), bad.id, hour)
    await tenant.service.sql(counted.format("usage_days", "day"), bad.id, hour.date())
    customer = await pages.of(bad, role="owner")
    page = await operators_page(pages, tenant, "accounts")
    await page.get_by_text("Lowest delivery rate").click()
    row = page.get_by_role("row").filter(has_text=bad.unique)
    await expect(row).to_contain_text("891")

    await row.get_by_role("link", name=bad.unique).click()
    await page.get_by_role("button", name="View as customer").click()
    banner = page.locator("[data-banner=impersonation]")
    await expect(banner).to_contain_text("can’t change anything")
    await shot(page, "impersonation")
    await page.get_by_role("navigation", name="Pages").get_by_role("link", name="Messages").click()
    await expect(page.get_by_role("main")).to_contain_text("You have won")
    # The owner sees it, too.
    await opened(customer, bad, "overview")
    await expect(customer.locator("[data-banner=impersonated]")).to_contain_text("An operator of this service")

    await banner.get_by_role("button", name="End impersonation").click()
    await expect(banner).to_have_count(0)
    # So does that it is over.
    await opened(customer, bad, "overview")
    await expect(customer.locator("[data-banner=impersonated]")).to_have_count(0)
    await page.get_by_text("Lowest delivery rate").click()
    await row.get_by_role("link", name=bad.unique).click()
    await page.get_by_role("button", name="More actions").click()
    await page.get_by_role("menuitem", name="Suspend").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Reason").fill("fraud")
    await dialog.get_by_role("button", name="Suspend").click()
    await expect(page.get_by_role("main")).to_contain_text("Suspended: fraud")
    entries = (await bad.call("GET", "/v1/audit-log")).body["entries"]
    changes = [entry["action"] for entry in entries if entry["action"].startswith("account.")]
    assert changes[:3] == ["account.suspended", "account.impersonation_ended", "account.impersonated"]
