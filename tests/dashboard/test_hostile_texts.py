"""Hostile texts in everything stored, shown on every page: nothing runs, and no other host is contacted."""

import asyncio
import base64
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from tests.dashboard.hostile_peers import HostileMailServer, hostile_answers
from tests.dashboard.hostile_rows import CLOSED, columns_without, fill_rows, join_all
from tests.dashboard.hostile_texts import hostile_texts
from tests.support.connection_trap import ConnectionTrap
from tests.support.dashboard_browser import Pages, account_path
from tests.support.dashboard_pages import opened, page_paths, settled
from tests.support.dashboard_service import DESTINATION, DashboardService, run_dashboard_service
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.service import PASSWORD, Tenant

pytestmark = pytest.mark.nightly

HOSTILE_HOST: Final = "127.0.0.9"
HOSTILE_DOMAIN: Final = "hostile.example"
SENT_SECONDS_MAX: Final = 7 * HANG_SECONDS
COUNTED_SECONDS_MAX: Final = 3 * HANG_SECONDS
# What a text may start comes late.
QUIET_SECONDS: Final = 2.0
# At least this many of each kind are accepted; the others meet a rule of the kind, or its limit for an account.
KEPT_MIN: Final = 10
MESSAGES_MIN: Final = 60


@dataclass(frozen=True, slots=True)
class HostileAccount:
    """`email` is of the owner whose sessions have hostile names, a member of accounts with hostile names too."""

    dashboard: DashboardService
    tenant: Tenant
    email: str
    texts: list[str]
    message_ids: list[str]
    trap: ConnectionTrap
    kept: Counter[str]

    async def page(self, pages: Pages, path: str = "messages", **given: Any) -> Page:
        page = await pages.signed_in(self.email, f"{account_path(self.tenant)}/{path}", **given)
        await settled(page)
        return page


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def hostile(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[HostileAccount]:
    async with ConnectionTrap() as trap:
        texts = hostile_texts(trap.url)
        database_url = await asyncio.to_thread(new_database)
        directory = tmp_path_factory.mktemp("hostile")
        async with run_dashboard_service(database_url, directory, answers=hostile_answers(texts)) as dashboard:
            processes = dashboard.processes
            processes.destination(HOSTILE_DOMAIN, HOSTILE_HOST)
            async with HostileMailServer(texts, HOSTILE_HOST, processes.receiver.port):
                tenant = await dashboard.account(credits=100_000)
                email = f"owner-1@{tenant.unique}.example.net"
                kept: Counter[str] = Counter()
                answer = await tenant.call("PUT", "/v1/webhook", {"url": dashboard.webhook_url("/hostile")})
                assert answer.status < 300, answer.raw
                endpoint = {"url": dashboard.webhook_url("/hostile"), "headers": {"X-Team": "mail"}}
                answer = await tenant.call("POST", "/v1/endpoints", endpoint)
                assert answer.status < 300, answer.raw
                since = {"since": datetime.now(UTC).isoformat(), "dry_run": True}
                answer = await tenant.call("POST", "/v1/resends", since, **{"Idempotency-Key": "hostile"})
                assert answer.status < 300, answer.raw
                message_ids = [await _send(tenant, number, text) for number, text in enumerate(texts)]
                await processes.wait_until_final(tenant, message_ids, SENT_SECONDS_MAX)
                await eventually(
                    lambda: dashboard.webhook_receiver.requests,
                    lambda calls: len(calls) >= 2 * len(texts),
                    within=SENT_SECONDS_MAX,
                )
                for number, text in enumerate(texts):
                    await _store(tenant, number, text, kept)
                await _publish(dashboard, tenant, texts)
                await eventually(lambda: _is_counted(tenant), within=COUNTED_SECONDS_MAX)
                await fill_rows(processes.service, tenant.id, texts)
                await join_all(processes.service, email)
                yield HostileAccount(dashboard, tenant, email, texts, message_ids, trap, kept)


@pytest_asyncio.fixture(loop_scope="session")
async def hostile_pages(browser: Browser, hostile: HostileAccount) -> AsyncIterator[Pages]:
    pages = Pages(browser, hostile.dashboard.url)
    yield pages
    await pages.close()
    assert pages.faults() == []
    assert hostile.trap.connections == 0


async def _send(tenant: Tenant, number: int, text: str) -> str:
    """A message with the text wherever a message takes it."""
    quoted = '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'
    attachment = {
        "filename": text[:200],
        "content_type": "text/html",
        "content": base64.b64encode(text.encode()).decode(),
    }
    fields: dict[str, object] = {
        "from_": f"{quoted} <news@{tenant.domain}>",
        "to": [f"{quoted} <a{number}@{HOSTILE_DOMAIN}>", f"b{number}@{DESTINATION}"],
        "reply_to": f"{quoted} <reply@{tenant.domain}>",
        "subject": text,
        "text": text,
        "html": f"<p>{text}</p>",
        "tags": [text[:120]],
        "headers": {"X-Note": text},
        "attachments": [attachment],
    }
    plainer = {
        "from": ("from_", f"news@{tenant.domain}"),
        "to": ("to", [f"a{number}@{HOSTILE_DOMAIN}", f"b{number}@{DESTINATION}"]),
    }
    while (answer := await tenant.send(tenant.mail(**fields))).status == 400:
        named = next((name for name in ("from", "to", *fields) if f"`{name}" in answer.error), None)
        assert named, answer.error
        replaced = plainer.pop(named, None)
        if replaced is not None:
            fields[replaced[0]] = replaced[1]
        else:
            del fields[named]
    assert answer.status == 202, answer.raw
    message_id: str = answer.body["id"]
    return message_id


async def _store(tenant: Tenant, number: int, text: str, kept: Counter[str]) -> None:
    """The text in the account's rows other than messages."""
    requests: list[tuple[str, str, Mapping[str, Any]]] = [
        ("POST", "/v1/keys", {"name": text}),
        ("POST", "/v1/credentials", {"name": text}),
        ("POST", "/v1/suppressions", {"email": f"s{number}@{DESTINATION}", "note": text}),
        ("POST", "/v1/templates", {"alias": f"t{number}", "name": text, "subject": text, "text": text, "html": text}),
    ]
    for method, path, body in requests:
        answer = await tenant.call(method, path, body)
        assert answer.status < 500, answer.raw
        kept[path] += answer.status < 300
    headers = {"User-Agent": re.sub(r"[^\x20-\x7e]", "?", text), "Content-Type": "application/json"}
    login = {"email": f"owner-1@{tenant.unique}.example.net", "password": PASSWORD}
    answer = await tenant.service.request("POST", "/v1/auth/login", headers=headers, json=login)
    kept["sessions"] += answer.status == 200


async def _is_counted(tenant: Tenant) -> bool:
    """Usage has rows of the account: they are made a minute after the messages."""
    counted: bool = await tenant.service.value(
        """SELECT EXISTS (SELECT FROM usage_reasons WHERE account_id = $1)
              AND EXISTS (SELECT FROM usage_latency WHERE account_id = $1)""",
        tenant.id,
    )
    return counted


async def _publish(dashboard: DashboardService, tenant: Tenant, texts: list[str]) -> None:
    """A domain whose name server answers with the texts, looked at once; and further keys of the other."""
    answer = await tenant.call("POST", f"/v1/domains/{tenant.domain}/rotate", {})
    assert answer.status < 300, answer.raw
    name = f"strange.{tenant.unique}.example.org"
    answer = await tenant.call("POST", "/v1/domains", {"name": name})
    assert answer.status == 201, answer.raw
    short = [text.encode()[:200].decode("utf-8", "ignore") for text in texts]
    records = re.findall(r'"name": ?"([^"]+)"', answer.raw.decode())
    for number, record in enumerate(records):
        dashboard.processes.nameserver.zone[record] = short[number * 3 : number * 3 + 3]
    answer = await tenant.call("POST", f"/v1/domains/{name}/verify", {})
    assert answer.status < 500, answer.raw


async def _look(page: Page) -> None:
    """Every part of the page that a tab or a heading hides."""
    await settled(page)
    for hidden in await page.locator("main [aria-expanded=false]:not([aria-haspopup]):visible").element_handles():
        await hidden.click()
    for number in range(await page.locator("main [role=tab]").count()):
        tab = page.locator("main [role=tab]").nth(number)
        if await tab.is_enabled():
            await tab.click()
            await settled(page)


async def test_most_hostile_texts_are_stored(hostile: HostileAccount) -> None:
    assert len(hostile.message_ids) >= MESSAGES_MIN
    assert {kind: count for kind, count in hostile.kept.items() if count < KEPT_MIN} == {}


async def test_every_stored_text_of_the_account_is_hostile(hostile: HostileAccount) -> None:
    lacking = await columns_without(hostile.dashboard.service, hostile.tenant.id, hostile.texts)
    assert lacking - CLOSED == set()


async def test_nothing_runs_on_any_page(hostile: HostileAccount, hostile_pages: Pages) -> None:
    page = await hostile.page(hostile_pages)
    await page.get_by_role("button", name="switch").click()
    await page.get_by_role("menuitem").nth(1).wait_for()
    await page.keyboard.press("Escape")
    for path in (await page_paths(hostile.tenant)).values():
        await opened(page, hostile.tenant, path)
        await _look(page)
    await asyncio.sleep(QUIET_SECONDS)
    assert hostile.trap.connections == 0


async def test_nothing_runs_on_the_page_of_any_message(hostile: HostileAccount, hostile_pages: Pages) -> None:
    page = await hostile.page(hostile_pages)
    for message_id in hostile.message_ids:
        await opened(page, hostile.tenant, f"messages/{message_id}")
        await _look(page)
    await asyncio.sleep(QUIET_SECONDS)
    assert hostile.trap.connections == 0


async def test_the_texts_are_shown_as_they_are(hostile: HostileAccount, hostile_pages: Pages) -> None:
    page = await hostile.page(hostile_pages, f"messages/{hostile.message_ids[0]}")
    assert hostile.texts[0] in await page.locator("main").inner_text()


# As a page without escaping would write them.
_UNESCAPED: Final = """() => {
  for (const leaf of document.querySelectorAll("main *"))
    if (leaf.childElementCount === 0 && leaf.textContent.includes("<")) leaf.innerHTML = leaf.textContent;
}"""


async def test_without_escaping_the_policy_refuses_and_the_watch_sees_it(
    hostile: HostileAccount, hostile_pages: Pages
) -> None:
    page = await hostile.page(hostile_pages, f"messages/{hostile.message_ids[0]}")
    watch = hostile_pages.watch_of(page)
    watch.allow("exception:", "policy violated:", "console:")
    await page.evaluate(f"() => new Promise((end) => {{ setTimeout(end, 100); setTimeout({_UNESCAPED}) }})")
    assert watch.faults


async def test_without_escaping_and_policy_the_texts_run(hostile: HostileAccount, browser: Browser) -> None:
    pages = Pages(browser, hostile.dashboard.url)
    page = await hostile.page(pages, f"messages/{hostile.message_ids[3]}", bypass_csp=True)
    await page.evaluate(_UNESCAPED)
    watch = pages.watch_of(page)
    await eventually(lambda: [fault for fault in watch.faults if fault.startswith("dialog:")])
    await pages.close()
