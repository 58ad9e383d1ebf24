"""The operator's pages in Chromium, in a large installation: how long each takes until it can be used.

Each page is opened as a link within the dashboard opens it, and loaded again as its address in a browser does. It can
be used when it has its heading and nothing that is seen of it is loading.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

from posthouse.clock import DatabaseClock
from posthouse.compose.flows import Flows
from posthouse.config import Settings
from posthouse.rules import ids
from posthouse.rules.credential import OPERATOR, Role
from posthouse.rules.ids import AccountId
from posthouse.store.postgres import Database
from tests.support.dashboard_browser import Pages, running_browser
from tests.support.dashboard_pages import settled
from tests.support.service import PASSWORD

USABLE_SECONDS_MAX: Final = 1.5
# The first time is not counted: the browser compiles the page's script.
TIMES: Final = 6

_IS_AT: Final = """(path) => {
  const { status, resolvedLocation } = __TSR_ROUTER__.state;
  return status === "idle" && resolvedLocation?.publicHref.split("?")[0] === path;
}"""


class Usable(NamedTuple):
    """In seconds."""

    by_link: float
    slowest: float
    reloaded: float


async def measure(
    settings: Settings,
    database: Database,
    url: str,
    account: UUID,
    paths: Mapping[str, str],
    say: Callable[[str], None],
) -> dict[str, Usable]:
    """By the page's name; the median of several measurements."""
    email = f"pages-{datetime.now().timestamp():.0f}@example.org"
    flows = Flows(settings, database, DatabaseClock())
    await flows.team.create_user(AccountId(account), email, PASSWORD, Role.VIEWER, OPERATOR)
    found: dict[str, Usable] = {}
    async with running_browser() as browser:
        pages = Pages(browser, url)
        page = await pages.signed_in(email)
        await settled(page)
        await _grant(database, email)
        home = f"/dashboard/{ids.text(ids.ACCOUNT, account)}"
        await page.goto(f"{url}{home}/operator-log")
        await settled(page)
        for name, path in paths.items():
            by_link, reloaded = [], []
            for _ in range(TIMES):
                await _visit(page, f"{home}/operator-log")
                began = time.perf_counter()
                await _visit(page, f"{home}/{path}")
                by_link.append(time.perf_counter() - began)
            for _ in range(TIMES // 2):
                began = time.perf_counter()
                await page.goto(f"{url}{home}/{path}", wait_until="commit")
                await settled(page)
                reloaded.append(time.perf_counter() - began)
            found[name] = Usable(statistics.median(by_link[1:]), max(by_link[1:]), statistics.median(reloaded))
            say(f"{name}: {found[name]}")
        faults = pages.faults()
        await pages.close()
    if faults:
        raise AssertionError(faults)
    return found


async def _visit(page: Any, address: str) -> None:
    await page.evaluate("(address) => __TSR_ROUTER__.history.push(address)", address)
    await page.wait_for_function(_IS_AT, arg=address.partition("?")[0])
    await settled(page)


async def _grant(database: Database, email: str) -> None:
    async with database.connection() as connection:
        await connection.execute("UPDATE users SET operator_since = now() WHERE email = $1", email)
        await connection.execute(
            "INSERT INTO second_factors (user_id, secret_sealed, created_at, confirmed_at)"
            r" SELECT id, '\x010178', now(), now() FROM users WHERE email = $1",
            email,
        )
