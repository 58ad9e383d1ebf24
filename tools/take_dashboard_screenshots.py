"""Screenshots of the dashboard for the documentation, with mail that the running service really delivers.

python -m tools.take_dashboard_screenshots

Scripted mail servers answer as the providers' do. The mail of each past day is sent now, counted, and its counts
are moved to that day: all else on the pictures is as it happened.
"""

import asyncio
import itertools
import operator
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Page, expect

from posthouse.clock import DatabaseClock
from posthouse.entrypoints.http.static_content import is_dashboard_built
from posthouse.flows.operate.usage_counter import SETTLED_AFTER, UsageCounter
from posthouse.rules import ids
from posthouse.store.postgres import Database
from tests.support.clock import OffsetClock
from tests.support.context import context
from tests.support.dashboard_browser import Pages, chromium, running_browser
from tests.support.dashboard_pages import opened, settled
from tests.support.dashboard_service import DashboardService, run_dashboard_service
from tests.support.eventually import eventually
from tests.support.fresh_database import fresh_database, open_database
from tests.support.operator_login import add_second_factor, set_operator
from tests.support.server_process import environment
from tests.support.service import PASSWORD, Tenant
from tests.support.smtp_receiver import SmtpReceiver
from tests.support.webhook_flow import certificates
from tools import pictured_pages
from tools.pictured_pages import TAKEN
from tools.take_screenshots import COLOURS, MESSAGES
from tools.terminal_picture import printed, save, take_terminal

FINAL_SECONDS_MAX: Final = 300.0
# Messages of each day of a week; the last is today.
DAYS: Final = (86, 94, 112, 31, 24, 103, 71)
# Which mail server accepts the mail of a domain, and at which address it answers.
SERVERS: Final = {
    "gmail.example": ("aspmx.l.google.com", "127.0.0.1"),
    "outlook.example": ("outlook-example.mail.protection.outlook.com", "127.0.0.1"),
    "company.example": ("mx.company.example", "127.0.0.1"),
    "careful.example": ("mx.careful.example", "127.0.0.2"),
}
BEHAVIOURS: Final = ("customer",) * 40 + ("550-rcpt", "greylist", "customer", "552-dot")
CAREFUL: Final = "greylist--starttls"
# Messages that wait while an operator looks: at a provider that is kept slow, at one that is paused, and at one that
# has just refused too much mail to several of its domains.
WAITING: Final = {"outlook.example": 240, "company.example": 60, "gmail.example": 90}
REFUSED: Final = ("gmail.example", "school.example", "startup.example")
# A worker reads an operator's changes, and reports its lanes, within this time.
LANES_READ_SECONDS: Final = 8
SLOW_LANE, PAUSED_LANE = "microsoft", "company.example"
COMMAND: Final = str(Path(sys.executable).with_name("posthouse"))
RESULTS_TODAY: Final = (
    "SELECT coalesce(sum(delivered + bounced + failed), 0)::int FROM usage_days"
    " WHERE account_id = $1 AND day = (now() AT TIME ZONE 'UTC')::date"
)
MOVED: Final = (
    "UPDATE usage_days SET day = day - $2::int WHERE account_id = $1 AND day = (now() AT TIME ZONE 'UTC')::date",
    "UPDATE usage_latency SET day = day - $2::int WHERE account_id = $1 AND day = (now() AT TIME ZONE 'UTC')::date",
    "UPDATE usage_reasons SET day = day - $2::int WHERE account_id = $1 AND day = (now() AT TIME ZONE 'UTC')::date",
    "UPDATE usage_splits SET day = day - $2::int WHERE account_id = $1 AND day = (now() AT TIME ZONE 'UTC')::date",
)


@dataclass(frozen=True, slots=True)
class Setup:
    """The service, and the browser that takes its pictures."""

    dashboard: DashboardService
    database: Database
    pages: Pages

    async def account(self, name: str, shown_name: str) -> Tenant:
        operator = self.dashboard.service.operator
        made = await operator.create_account(name)
        await operator.grant_credits(made.id, 25_000)
        await operator.add_verified_domain(made.id, f"{name}.example")
        await operator.set_limits(made.id, rate=(10_000, 10_000), warmup=())
        first = made.credential
        tenant = Tenant(
            self.dashboard.service, made.id, name, f"{name}.example", first.id, first.username, first.password
        )
        await self.call(tenant, "PUT", "/v1/account", {"name": shown_name})
        return tenant

    async def call(self, tenant: Tenant, method: str, path: str, body: object) -> None:
        answer = await tenant.call(method, path, body)
        assert answer.status < 300, (path, answer.raw)

    async def user(self, tenant: Tenant, email: str) -> str:
        await self.dashboard.service.operator.create_user(tenant.id, email, PASSWORD, "owner")
        return email

    async def open(self, tenant: Tenant, email: str, path: str) -> Page:
        page = await self.pages.signed_in(email, f"{ids.text(ids.ACCOUNT, tenant.id)}/{path}")
        await settled(page)
        return page

    async def terminal(self, *words: str) -> str:
        """What a command prints about this service."""
        processes = self.dashboard.processes
        known = environment(processes.database_url, **processes.settings)
        return await asyncio.to_thread(printed, [COMMAND, *words], known, processes.directory)

    async def take_terminal(self, name: str, *words: str) -> None:
        output = await self.terminal(*words)
        await take_terminal(self.pages.browser, TAKEN / name, " ".join(["posthouse", *words]), output)

    async def counted_results(self, tenant: Tenant) -> int:
        """Counts what was sent until now, without the wait for what might still be committed."""
        await UsageCounter(context(self.database, OffsetClock(DatabaseClock(), SETTLED_AFTER))).run()
        results: int = await self.dashboard.service.value(RESULTS_TODAY, tenant.id)
        return results


async def send_week(setup: Setup, tenant: Tenant) -> None:
    numbers = itertools.count(1)
    for days_ago, messages in zip(reversed(range(len(DAYS))), DAYS, strict=True):
        sent = await asyncio.gather(*[tenant.accepts(mail) for mail in drafts(tenant, numbers, messages)])
        await setup.dashboard.processes.wait_until_final(tenant, [mail["id"] for mail in sent], FINAL_SECONDS_MAX)
        await eventually(lambda: setup.counted_results(tenant), partial(operator.eq, messages))
        if days_ago:
            for statement in MOVED:
                await setup.dashboard.service.sql(statement, tenant.id, days_ago)
    await setup.dashboard.service.sql("UPDATE usage_counter_progress SET splits_since = now() - interval '30 days'")


def drafts(tenant: Tenant, numbers: Iterator[int], count: int) -> Iterator[dict[str, Any]]:
    for number in itertools.islice(numbers, count):
        subject, html = MESSAGES[number % len(MESSAGES)]
        domain = (*SERVERS, "gmail.example", "gmail.example", "outlook.example")[number % (len(SERVERS) + 3)]
        behaviour = BEHAVIOURS[number % len(BEHAVIOURS)]
        yield tenant.mail(
            from_=f"Acme <hello@{tenant.domain}>",
            to=f"{behaviour}+{number}@{domain}",
            subject=subject,
            html=html,
            tags=["receipt" if number % 2 == 0 else "password-reset"],
        )


async def overview(setup: Setup, tenant: Tenant, email: str) -> None:
    page = await setup.open(tenant, email, "overview")
    await page.locator(".recharts-surface").first.wait_for()
    await take(page, "dashboard-overview.png", height=1180)


async def timeline(setup: Setup, tenant: Tenant, email: str) -> None:
    """Of a message that a careful server accepted at the third attempt."""
    subject, html = MESSAGES[1]
    mail = tenant.mail(
        from_=f"Acme <hello@{tenant.domain}>", to="grace@careful.example", subject=subject, html=html, tags=["reset"]
    )
    sent = await tenant.accepts(mail)
    await setup.dashboard.processes.wait_until_final(tenant, [sent["id"]], FINAL_SECONDS_MAX)
    page = await setup.open(tenant, email, f"messages/{sent['id']}")
    await take(page, "dashboard-message.png", height=1180)
    await setup.take_terminal("terminal-message.png", "message", "show", sent["id"])


async def start(setup: Setup) -> None:
    """A new account's first mail, a moment after it arrived."""
    tenant = await setup.account("lovelace", "Lovelace & Co")
    email = await setup.user(tenant, "ada@company.example")
    page = await setup.open(tenant, email, "start")
    await page.get_by_role("button", name="Send me an email").click()
    await expect(page.locator("[data-arrival=delivered]")).to_be_visible(timeout=FINAL_SECONDS_MAX * 1000)
    await take(page, "dashboard-start.png", height=1000)


async def webhook(setup: Setup, tenant: Tenant, email: str) -> None:
    page = await setup.open(tenant, email, "webhooks")
    await take(page, "dashboard-webhook.png", height=1180)


async def operators_pages(setup: Setup, tenant: Tenant, email: str) -> None:
    """What an operator sees while one provider is kept slow and another is paused."""
    page = await setup.pages.signed_in(email)
    await settled(page)
    await set_operator(tenant.service, email)
    await add_second_factor(tenant.service, email)
    await setup.terminal("lane", "pin", SLOW_LANE, "--rate", "1")
    await setup.terminal("lane", "pause", PAUSED_LANE, "--reason", "their outage")
    await asyncio.sleep(LANES_READ_SECONDS)
    for domain in REFUSED:
        setup.dashboard.processes.nameserver.records[domain, "MX"] = [f"10 {SERVERS['gmail.example'][0]}."]
        await send_some(tenant, "throttled-rcpt", domain, 2)
    await asyncio.sleep(LANES_READ_SECONDS)
    for domain, count in WAITING.items():
        await send_some(tenant, "customer", domain, count)
    await asyncio.sleep(LANES_READ_SECONDS)
    await setup.take_terminal("terminal-queue.png", "queue", "top", "--once")
    for name in ("lanes", "queue"):
        await opened(page, tenant, name)
        await take(page, f"operator-{name}.png", height=900)


async def send_some(tenant: Tenant, behaviour: str, domain: str, count: int) -> None:
    mails = [tenant.mail(to=f"{behaviour}+{number}@{domain}", subject=MESSAGES[0][0]) for number in range(count)]
    await asyncio.gather(*map(tenant.accepts, mails))


async def take(page: Page, name: str, *, height: int) -> None:
    await page.set_viewport_size({"width": 1440, "height": height})
    await settled(page)
    await page.mouse.move(0, 0)
    save(await page.screenshot(animations="disabled", caret="hide"), TAKEN / name, COLOURS)


async def take_all(setup: Setup) -> None:
    await start(setup)
    tenant = await setup.account("acme", "Acme")
    email = await setup.user(tenant, "ada@acme.example")
    await setup.call(tenant, "PUT", "/v1/webhook", {"url": setup.dashboard.webhook_url()})
    await send_week(setup, tenant)
    await timeline(setup, tenant, email)
    await overview(setup, tenant, email)
    await setup.call(tenant, "POST", "/v1/webhook/ping", {})
    receiver = setup.dashboard.webhook_receiver
    await eventually(lambda: sum(DAYS) < len(receiver.requests), within=FINAL_SECONDS_MAX)
    await webhook(setup, tenant, email)
    await operators_pages(setup, tenant, await setup.user(tenant, "grace@acme.example"))


async def run(database_url: str, directory: Path) -> None:
    async with (
        run_dashboard_service(
            database_url,
            directory,
            DELIVERY__RETRY_MINUTES="[0.03, 0.06, 0.1]",
            LANES__PER_SECOND="20",
            LANES__BURST="20",
        ) as dashboard,
        SmtpReceiver(CAREFUL, host="127.0.0.2", port=dashboard.processes.receiver.port, certificates=certificates()),
        open_database(database_url) as database,
        running_browser() as browser,
    ):
        records = dashboard.processes.nameserver.records
        for domain, (server, address) in SERVERS.items():
            records[domain, "MX"] = [f"10 {server}."]
            records[server, "A"] = [address]
        pages = Pages(browser, dashboard.url)
        await take_all(Setup(dashboard, database, pages))
        await pages.close()
        if faults := pages.faults():
            raise SystemExit("\n".join(faults))


def main() -> None:
    if chromium() is None:
        raise SystemExit("There is no Chromium: install it with `apt-get install chromium`.")
    if not is_dashboard_built():
        raise SystemExit("The dashboard is not built: run `make dashboard`.")
    TAKEN.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory, fresh_database("screenshots") as (_, database_url):
        asyncio.run(run(database_url, Path(directory)))
    pictured_pages.record()


if __name__ == "__main__":
    main()
