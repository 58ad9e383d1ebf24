"""The operator's pages: who sees them, and what they show and change."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import expect

from tests.support.dashboard_browser import Pages
from tests.support.dashboard_pages import opened, operator_pages, operators_page, settled, visited
from tests.support.dashboard_service import DESTINATION, DashboardService
from tests.support.eventually import eventually
from tests.support.operator_login import set_operator
from tests.support.search_index import index_search
from tests.support.service import Tenant

pytestmark = pytest.mark.nightly

LIMIT_CHANGE = """
INSERT INTO limit_changes (at, ip, lane, kind, scope, before, after, until, cause, reply)
VALUES (now(), '', $1, 'slow', 'address', $2, $3, NULL, '421 4.7.28', '4.7.28 too much <b>mail</b>')
"""
LEARNED_LIMITS = "INSERT INTO learned_limits (ip, lane, limits, version, changed_at) VALUES ('', $1, $2, 1, now())"
UNKNOWN = "em_01k6wq3v5e7m8x9c0b2d4f6h80"
BEFORE, AFTER = '{"per_second": 10}', '{"per_second": 2.5, "ceiling": 5}'


@pytest.mark.parametrize("role", ["viewer", "owner"])
async def test_no_customer_sees_a_page_of_operators(pages: Pages, tenant: Tenant, role: str) -> None:
    page = await pages.of(tenant, role=role)
    await settled(page)
    assert await page.get_by_role("link", name="Operate the service").count() == 0
    for path in operator_pages(tenant, UNKNOWN).values():
        # A request to the operator's routes would be refused with 403, which the watch reports.
        await visited(page, tenant, path)
        await expect(page.locator("[data-state=forbidden]")).to_contain_text("for the operators of the service")


async def test_an_operator_without_a_second_factor_is_asked_for_one(pages: Pages, tenant: Tenant) -> None:
    email = await tenant.user("owner")
    await set_operator(tenant.service, email)
    page = await pages.signed_in(email)
    await settled(page)
    lacking = page.get_by_role("navigation").locator("[data-reason^='Operators need a second factor']")
    await expect(lacking).to_have_text(re.compile("^Operate the service"))
    await visited(page, tenant, "now")
    await expect(lacking).to_have_count(sum("$" not in path for path in operator_pages(tenant, UNKNOWN)))


async def test_operators_pages_are_apart_from_the_accounts(pages: Pages, tenant: Tenant) -> None:
    page = await operators_page(pages, tenant, "overview")
    await page.set_viewport_size({"width": 1280, "height": 500})
    entries = page.get_by_role("navigation", name="Pages")
    await expect(entries.get_by_role("link", name="Domains")).to_be_visible()
    await entries.get_by_role("link", name="Operate the service").click()
    await expect(entries.get_by_role("link", name="Domains")).to_have_count(0)
    await expect(page.get_by_role("searchbox", name="Search mail of all accounts")).to_be_visible()
    for path, name in (("operator-log", "Operators’ log"), ("now", "Now")):
        await opened(page, tenant, path)
        active = entries.locator("[aria-current=page]")
        await expect(active).to_have_text(name)
        await expect(active).to_be_in_viewport()
    await page.get_by_role("button", name=re.compile("^Account Operator pages")).click()
    await page.get_by_role("menuitem", name=tenant.unique).click()
    await expect(entries.get_by_role("link", name="Domains")).to_be_visible()


async def test_now_counts_waiting_recipients(pages: Pages, dashboard: DashboardService, tenant: Tenant) -> None:
    page = await operators_page(pages, tenant, "now")
    sent = await tenant.accepts(tenant.mail(to=f"450-rcpt+now@{DESTINATION}"))

    async def attempts() -> int:
        found: int = await tenant.service.value("SELECT count(*) FROM attempts WHERE account_id = $1", tenant.id)
        return found

    await eventually(attempts, lambda count: count > 0)
    assert sent["id"]
    lane = page.get_by_role("region", name="Lanes").get_by_role("row").filter(has_text=DESTINATION)
    await expect(lane).to_be_visible()
    await expect(page.get_by_role("region", name="Deferred")).not_to_contain_text("0 since the workers started")
    await expect(page.get_by_role("region", name="In progress")).to_contain_text("1 worker is running")


async def test_a_lane_is_explained_undone_paused_and_resumed(pages: Pages, tenant: Tenant) -> None:
    service, lane = tenant.service, f"{tenant.unique}.example.org"
    await service.sql(LEARNED_LIMITS, lane, AFTER)
    await service.sql(LIMIT_CHANGE, lane, BEFORE, AFTER)
    page = await operators_page(pages, tenant, f"lanes?lane={tenant.unique}")
    row = page.get_by_role("row").filter(has_text=lane)
    await expect(row).to_contain_text("2.5 a second")
    await row.get_by_role("link", name=lane).click()
    await settled(page)
    why = page.get_by_role("region", name="Latest limit changes")
    await expect(why).to_contain_text("4.7.28 too much <b>mail</b>")
    await why.get_by_role("button", name="Undo").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Undo").click()
    await expect(why).to_contain_text("an operator undid a limit change: 10 ")

    await page.get_by_role("button", name="Pause").click()
    await dialog.get_by_label("Reason").fill("they <i>asked</i>")
    await dialog.get_by_role("button", name="Pause").click()
    await expect(page.get_by_role("main")).to_contain_text("they <i>asked</i>")
    await page.get_by_role("button", name="Resume").click()
    await expect(page.get_by_role("button", name="Pause")).to_be_visible()
    await opened(page, tenant, "now")
    changes = page.get_by_role("region", name="Changed in the last hour")
    for action in ("lane.undone", "lane.paused", "lane.resumed"):
        await expect(changes).to_contain_text(f"{action} {lane}")


async def test_mail_is_counted_then_held_and_cancelled(pages: Pages, tenant: Tenant) -> None:
    domain = f"{tenant.unique}.example.org"
    later = {"send_at": (datetime.now(UTC) + timedelta(days=1)).isoformat()}
    sent = await tenant.accepts(tenant.mail(to=[f"a@{domain}", f"b@{domain}"], **later))
    page = await operators_page(pages, tenant, "queue")
    await page.get_by_role("button", name=f"Choose {domain}").click()
    await expect(page.get_by_role("textbox", name="Destination")).to_have_value(domain)
    form = page.get_by_role("region", name="Change waiting recipients")
    await form.get_by_role("button", name="Count").click()
    await expect(form.get_by_role("status")).to_contain_text("2 recipients would be changed")
    await form.get_by_role("button", name="Hold 2 recipients").click()
    await expect(page.get_by_text("2 recipients were changed.").last).to_be_visible()
    await form.get_by_text("Cancel", exact=True).click()
    await form.get_by_role("button", name="Count").click()
    # A different choice is not what was counted.
    cancel = form.get_by_role("button", name="Cancel 2 recipients")
    await expect(cancel).to_be_visible()
    await page.get_by_role("textbox", name="Destination").fill("example.org")
    await expect(cancel).to_have_count(0)
    await page.get_by_role("textbox", name="Destination").fill(domain)
    await form.get_by_role("button", name="Cancel 2 recipients").click()
    await expect(page.get_by_text("2 recipients were changed.").last).to_be_visible()
    await eventually(lambda: tenant.get(sent["id"]), lambda answer: answer.body["status"] == "failed")


async def test_an_account_is_suspended_and_resumed_and_the_log_says_by_whom(
    pages: Pages, dashboard: DashboardService, tenant: Tenant
) -> None:
    other = await dashboard.account()
    page = await operators_page(pages, tenant, "accounts?by=new")
    await page.get_by_role("link", name=other.unique, exact=True).click()
    await page.get_by_role("button", name="More actions").click()
    await page.get_by_role("menuitem", name="Suspend").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Reason").fill("spam <script>alert(1)</script>")
    await dialog.get_by_role("button", name="Suspend").click()
    main = page.get_by_role("main")
    await expect(main).to_contain_text("Suspended: spam <script>alert(1)</script>")
    await main.get_by_role("button", name="Resume").click()
    await dialog.get_by_role("button", name="Resume").click()
    await expect(main.locator(".mantine-Text-root").filter(has_text="active").first).to_be_visible()
    log = page.get_by_role("region", name="Account log")
    await expect(log).to_contain_text("account.resumed")
    await visited(page, tenant, "operator-log")
    for action in ("account.suspended", "account.resumed"):
        entry = page.get_by_role("row").filter(has_text=action).filter(has_text=f"viewer-1@{tenant.unique}.example.net")
        await expect(entry).to_have_count(1)


async def test_an_account_gets_limits_and_credits_and_its_failed_mail_is_counted(
    pages: Pages, dashboard: DashboardService, tenant: Tenant
) -> None:
    other = await dashboard.account()
    page = await operators_page(pages, tenant, "accounts?by=new")
    await page.get_by_role("link", name=other.unique, exact=True).click()
    await settled(page)
    dialog = page.get_by_role("dialog")
    await page.get_by_role("button", name="Set limits").click()
    await dialog.get_by_label("Requests a second").fill("7")
    await dialog.get_by_label("Warm-up").fill("100, 200")
    await dialog.get_by_role("button", name="Set limits").click()
    limits = page.get_by_role("region", name="Limits")
    await expect(limits).to_contain_text("7 requests a second")
    await expect(limits).to_contain_text("Warm-up set for this account, by day: 100 and 200")

    available = await other.available()
    await page.get_by_role("button", name="Grant credits").click()
    await dialog.get_by_label("Amount").fill("250")
    await dialog.get_by_label("Reason").fill("a larger <b>plan</b>")
    await dialog.get_by_role("button", name="Grant credits").click()
    await expect(page.get_by_role("region", name="Credits")).to_contain_text(f"{available + 250:,}")

    await page.get_by_role("button", name="More actions").click()
    await page.get_by_role("menuitem", name="Send failed messages again").click()
    await dialog.get_by_role("button", name="Count").click()
    await expect(dialog.locator("[data-resend=done]")).to_contain_text("Messages")
    await dialog.get_by_role("button", name="Close").last.click()
    seen = [entry["action"] for entry in (await other.call("GET", "/v1/audit-log")).body["entries"]]
    done = [action for action in seen if action in ("credits.granted", "account.limits_set")]
    assert done[:2] == ["credits.granted", "account.limits_set"]


async def test_accounts_near_to_a_limit_say_to_which_and_how_near(
    pages: Pages, dashboard: DashboardService, tenant: Tenant
) -> None:
    warming, ending = await dashboard.account(), await dashboard.account()
    # Midnight may pass meanwhile: a warm-up that was counted tomorrow is not taken back.
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    await tenant.service.sql(
        "UPDATE accounts SET warmup_exempt = false, warmup_limits = '{500}', warmup_started_on = $2, warmup_day = $2,"
        " warmup_used = 464 WHERE id = $1",
        warming.id,
        tomorrow,
    )
    await tenant.service.sql(
        "INSERT INTO usage_days (account_id, day, accepted) SELECT id, $2, available / 2 FROM accounts WHERE id = $1",
        ending.id,
        tomorrow,
    )
    page = await operators_page(pages, tenant, "accounts")
    await page.get_by_text("Nearest limit").first.click()
    rows = page.get_by_role("row")
    await expect(rows.filter(has_text=warming.unique)).to_contain_text("92% of today’s warm-up")
    await expect(rows.filter(has_text=ending.unique)).to_contain_text("credits for 2 days")


async def test_an_accounts_erased_addresses_stand_next_to_its_bounces(
    pages: Pages, dashboard: DashboardService, tenant: Tenant
) -> None:
    other = await dashboard.account()
    for name in ("ada", "bob"):
        email = f"{name}+{other.unique}@{DESTINATION}"
        await other.accepts(other.mail(to=email))
        await other.call("POST", "/v1/erasures", {"email": email})
    count = "SELECT count(*) FROM erased_recipients WHERE account_id = $1"
    await eventually(lambda: tenant.service.value(count, other.id), lambda found: found == 2)
    page = await operators_page(pages, tenant, "accounts?by=new")
    names = await page.get_by_role("columnheader").all_text_contents()
    assert names[names.index("Bounced") :][:3] == ["Bounced", "Failed", "Erased"]
    cells = page.get_by_role("row").filter(has_text=other.unique).get_by_role("cell")
    await expect(cells.nth(names.index("Erased"))).to_have_text("2")
    await page.get_by_role("link", name=other.unique, exact=True).click()
    await expect(page.get_by_text("2 addresses erased")).to_be_visible()


async def test_a_lane_keeps_a_rate_until_it_may_learn_again(pages: Pages, tenant: Tenant) -> None:
    page = await operators_page(pages, tenant, f"lanes/{tenant.unique}.example.org")
    dialog = page.get_by_role("dialog")
    await page.get_by_role("button", name="Pin the rate").click()
    await dialog.get_by_label("Emails a second").fill("0.5")
    await dialog.get_by_role("button", name="Pin the rate").click()
    why = page.get_by_role("region", name="Latest limit changes")
    await expect(why).to_contain_text("pinned it at 0.5 ")
    await page.get_by_role("button", name="Pin the rate").click()
    await dialog.get_by_role("button", name="Let it learn again").click()
    await expect(why.get_by_role("listitem")).to_have_count(2)


async def test_health_says_what_is_wrong_and_what_to_do(pages: Pages, tenant: Tenant) -> None:
    page = await operators_page(pages, tenant, "health")
    wrong = page.get_by_role("region", name="Needs attention").get_by_role("listitem")
    # A test's installation lacks some of what a real one has.
    for number in range(await wrong.count()):
        await expect(wrong.nth(number)).to_contain_text("What to do: ")
    assert await page.get_by_role("region", name="Passed", exact=True).get_by_role("listitem").count() > 0


async def test_mail_is_found_by_an_address_and_read_and_its_owner_sees_that(
    pages: Pages, dashboard: DashboardService, tenant: Tenant
) -> None:
    other = await dashboard.account()
    later = {"send_at": (datetime.now(UTC) + timedelta(days=1)).isoformat()}
    address = f"ada@{other.unique}.example.org"
    sent = await other.accepts(other.mail(to=address, subject="<b>7</b>", text="Hello", **later))
    page = await operators_page(pages, tenant, "message-search")
    await index_search(tenant.service)
    await page.get_by_role("textbox", name="Id or address").fill(address.upper())
    await page.get_by_role("button", name="Find").click()
    row = page.get_by_role("row").filter(has_text=other.unique)
    await expect(page.get_by_role("main")).not_to_contain_text("<b>7</b>")
    await row.get_by_role("link", name=sent["id"]).click()
    await settled(page)
    content = page.get_by_role("region", name="Content")
    await expect(content).not_to_contain_text("Hello")
    await content.get_by_role("button", name="Show the content").click()
    await expect(content).to_contain_text("Hello")
    entries = (await other.call("GET", "/v1/audit-log")).body["entries"]
    assert [entry["target"] for entry in entries if entry["action"] == "message.content_read"] == [sent["id"]]
