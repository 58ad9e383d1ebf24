"""The overview: outcomes, times, reasons and health of an account with mail, of another without, and after a fault."""

import re
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
from playwright.async_api import expect

from tests.support.dashboard_browser import WIDTHS, Pages
from tests.support.dashboard_pages import axe_faults, settled, shot
from tests.support.dashboard_service import DashboardService
from tests.support.service import Tenant

pytestmark = pytest.mark.nightly


async def test_the_overview_shows_outcomes_times_reasons_and_health(
    pages: Pages, dashboard: DashboardService, full_account: Tenant
) -> None:
    await dashboard.processes.wait_until_all_final()
    page = await pages.of(full_account, "overview", role="viewer")
    await settled(page)
    for name, count in [("Accepted", "4"), ("Delivered", "2"), ("Bounced", "1"), ("Failed", "1")]:
        await expect(page.get_by_role("region", name=name, exact=True)).to_contain_text(count)
    await expect(page.locator(".recharts-bar-rectangle").filter(visible=True).first).to_be_visible()
    times = page.get_by_role("region", name="Time to delivery", exact=True)
    await expect(times.get_by_role("row").filter(has_text="other providers")).to_contain_text(re.compile("ms|sec"))
    reasons = page.get_by_role("region", name="Top reasons")
    await expect(reasons).to_contain_text("The address does not exist at its domain.")
    await expect(page.get_by_role("region", name="Bounce and complaint rates")).to_contain_text("too few results")
    await expect(page.get_by_role("region", name="Credits")).to_contain_text("997")
    await expect(page.get_by_role("region", name="Domains")).to_contain_text("1 verified")
    await expect(page.get_by_role("region", name="Webhook")).to_contain_text("Healthy")
    assert await axe_faults(page) == []
    await shot(page, "overview")
    await page.set_viewport_size({"width": 390, "height": WIDTHS[390]})
    await page.emulate_media(color_scheme="dark")
    await page.wait_for_function("() => document.documentElement.scrollWidth <= innerWidth")
    assert await axe_faults(page) == []
    await shot(page, "overview-390-dark")
    await page.set_viewport_size({"width": 1440, "height": WIDTHS[1440]})

    await page.get_by_role("button", name="As a table").click()
    table = page.get_by_role("table", name="Outcomes by day of acceptance")
    await expect(table.get_by_role("row")).to_have_count(8)
    await page.get_by_text("24 hours", exact=True).click()
    await expect(page.get_by_role("table", name="Outcomes by hour of acceptance")).to_be_visible()
    assert page.url.endswith("/overview?range=24h")
    by = page.get_by_role("region", name=re.compile("^By "))
    await by.get_by_text("Tag", exact=True).click()
    await expect(by.get_by_role("row").filter(has_text="welcome")).to_contain_text("4")
    await reasons.get_by_role("link", name="Example message: The address does not exist at its domain.").click()
    await expect(page.get_by_text("Try 1: bounced")).to_be_visible()


async def count(tenant: Tenant, days: int) -> None:
    """120 recipients a day, since before 7 days 100, and for this week 5 an hour, as if these days had passed."""
    run = tenant.service.sql
    await run("UPDATE accounts SET created_at = now() - make_interval(days => $2) WHERE id = $1", tenant.id, days)
    await run("UPDATE usage_counter_progress SET splits_since = now() - interval '3 days'")
    await run(
        """INSERT INTO usage_days (account_id, day, accepted, delivered, bounced, failed)
           SELECT $1, (now() AT TIME ZONE 'UTC')::date - ago, CASE WHEN ago < 7 THEN 120 ELSE 100 END,
               CASE WHEN ago < 7 THEN 108 ELSE 94 END, 6, 0
           FROM generate_series(-1, 65) ago""",
        tenant.id,
    )
    await run(
        """INSERT INTO usage_hours (account_id, hour, accepted, delivered, bounced)
           SELECT $1, date_trunc('hour', now()) - make_interval(hours => ago), 5, 4, 1
           FROM generate_series(-2, 190) ago""",
        tenant.id,
    )
    await run(
        """INSERT INTO usage_splits (account_id, day, kind, value, accepted, delivered, bounced, failed)
           SELECT $1, (now() AT TIME ZONE 'UTC')::date - ago, kind, value, accepted, accepted - 2, 2, 0
           FROM generate_series(-1, 2) ago,
               (VALUES ('domain', $2, 120), ('tag', 'order', 70), ('tag', 'eu', 60), ('tag', '', 20))
               made(kind, value, accepted)""",
        tenant.id,
        tenant.domain,
    )
    await run(
        """INSERT INTO usage_splits (account_id, day, kind, value, accepted, delivered, bounced, failed)
           SELECT $1, (now() AT TIME ZONE 'UTC')::date, 'tag', 'rare-' || number, 2, 2, 0, 0
           FROM generate_series(1, 12) number""",
        tenant.id,
    )


async def test_a_time_is_chosen_compared_and_split_and_leads_to_its_messages(
    pages: Pages, dashboard: DashboardService, tenant: Tenant
) -> None:
    await count(tenant, days=70)
    await tenant.accepts(tenant.mail(subject="Your order", tags=["order"]))
    await tenant.accepts(tenant.mail(subject="Something else"))
    page = await pages.of(tenant, "overview", role="viewer")
    await settled(page)
    accepted, delivered = (page.get_by_role("region", name=name, exact=True) for name in ("Accepted", "Delivered"))
    await expect(accepted).to_contain_text(re.compile(r"1\d% more than before|20% more than before"))
    await expect(delivered).to_contain_text("down from 94%")
    await expect(page.get_by_text(re.compile("^Compared with .* to .* leaves out today"))).to_be_visible()
    await expect(page.get_by_text("Day (UTC)")).to_be_visible()

    await page.get_by_text("24 hours", exact=True).click()
    await expect(accepted).to_contain_text("as many as before")
    await expect(page.get_by_text("Hour (your time zone)")).to_be_visible()
    await expect(page.get_by_text("The sections below count whole days in UTC: yesterday and today.")).to_be_visible()
    await page.get_by_role("button", name="As a table").click()
    await expect(page.get_by_role("table", name="Outcomes by hour of acceptance").get_by_role("row")).to_have_count(25)
    await shot(page, "overview-24h")

    await page.get_by_text("Dates", exact=True).click()
    week = datetime.now(UTC).date() - timedelta(days=20)
    await page.get_by_label("First day").fill(str(week))
    await page.get_by_label("Last day").fill(str(week + timedelta(days=6)))
    await expect(page).to_have_url(re.compile(f"range=dates&from={week}&to={week + timedelta(days=6)}"))
    await expect(accepted).to_contain_text("700")
    await expect(accepted).to_contain_text("as many as before")
    by = page.get_by_role("region", name=re.compile("^By "))
    await expect(by).to_contain_text("Not counted on these days")
    table = page.get_by_role("table", name="Outcomes by day of acceptance")
    await expect(table.get_by_role("row")).to_have_count(8)
    await shot(page, "overview-dates")
    await table.get_by_role("link").first.click()
    await expect(page).to_have_url(re.compile(f"/messages\\?after={week}T00.*&before={week + timedelta(days=1)}T00"))

    await page.go_back()
    await page.get_by_text("7 days", exact=True).click()
    await expect(by).to_contain_text("Counted from")
    await expect(by.get_by_role("row").filter(has_text=tenant.domain)).to_contain_text("98.33%")
    await by.get_by_text("Tag", exact=True).click()
    await expect(by.get_by_role("row")).to_have_count(11)
    await by.get_by_role("button", name="Show all 15").click()
    await expect(by.get_by_role("row")).to_have_count(16)
    await expect(by.get_by_role("row").filter(has_text="all other tags")).to_be_visible()
    assert await axe_faults(page) == []
    for width in (1280, 390):
        await page.set_viewport_size({"width": width, "height": 900})
        await page.wait_for_function("() => document.documentElement.scrollWidth <= innerWidth")
        await page.emulate_media(color_scheme="light")
        await shot(page, f"overview-split-{width}-light")
        await page.emulate_media(color_scheme="dark")
        await shot(page, f"overview-split-{width}-dark")
    assert await axe_faults(page) == []
    await page.set_viewport_size({"width": 1440, "height": WIDTHS[1440]})
    await by.get_by_role("link", name="order", exact=True).click()
    await expect(page.get_by_text("Your order")).to_be_visible()
    await expect(page.get_by_text("Something else")).to_have_count(0)

    await page.go_back()
    bar = page.locator(".recharts-bar-rectangle").filter(visible=True).last
    await bar.hover()
    await expect(page.locator(".recharts-tooltip-wrapper").get_by_text("Delivered")).to_be_visible()
    await bar.click()
    await expect(page).to_have_url(re.compile(r"/messages\?after=.*&before="))


async def test_mail_that_is_not_counted_yet_is_no_lack_of_mail(
    pages: Pages, dashboard: DashboardService, tenant: Tenant
) -> None:
    page = await pages.of(tenant, "overview?range=today")
    await settled(page)
    await expect(page.get_by_text("No email in this period", exact=True)).to_be_visible()
    connection = await asyncpg.connect(dashboard.processes.database_url)
    try:
        # The counter waits for whoever holds its progress.
        async with connection.transaction():
            await connection.execute("SELECT FROM usage_counter_progress FOR UPDATE")
            await tenant.accepts(tenant.mail())
            await expect(page.get_by_role("status").filter(has_text="New email is being counted")).to_be_visible()
            day = datetime.now(UTC).date() - timedelta(days=9)
            await page.goto(f"{page.url.partition('?')[0]}?range=dates&from={day}&to={day}")
            await settled(page)
            await expect(page.get_by_text("No email in this period", exact=True)).to_be_visible()
            await expect(page.get_by_text("before", exact=False).filter(visible=True)).to_have_count(0)
    finally:
        await connection.close()


async def test_an_account_without_mail_is_led_to_start(pages: Pages, dashboard: DashboardService) -> None:
    tenant = await dashboard.account(domain=None, credits=0)
    page = await pages.of(tenant, "overview")
    await settled(page)
    await expect(page.get_by_role("region", name="Domains")).to_contain_text("No domains yet")
    assert await axe_faults(page) == []
    await page.get_by_role("link", name="Open Start").click()
    await expect(page.get_by_role("heading", name="Start", level=1)).to_be_visible()


async def test_a_part_that_fails_says_so_and_can_be_asked_again(pages: Pages, tenant: Tenant) -> None:
    page = await pages.of(tenant, "settings")
    pages.watch_of(page).allow("503:")
    await settled(page)
    answer = '{"error": "The service is busy: try again.", "code": "unavailable", "request_id": "rq_test"}'
    await page.route(
        "**/v1/reasons*", lambda route: route.fulfill(status=503, content_type="application/json", body=answer)
    )
    await page.get_by_role("navigation").get_by_role("link", name="Overview").click()
    failure = page.get_by_role("region", name="Top reasons").get_by_role("alert")
    await expect(failure).to_contain_text("The service is busy: try again.")
    await expect(page.get_by_role("region", name="Credits")).to_contain_text("1,000")
    await page.unroute("**/v1/reasons*")
    await failure.get_by_role("button", name="Try again").click()
    await expect(page.get_by_text("Nothing bounced, failed or was deferred in this period.")).to_be_visible()
