"""Measures the operator's routes in a large installation: each statement, its plan, and what open pages cost.

    make bench-operator                                   (or: python bench/operators.py)
    python bench/operators.py --quick                     (a small installation: shows that it works)
    python bench/operators.py --data /var/tmp/operators   (keeps the installation there for the next run)

10,000 accounts, 10,000 lanes and 1,000,000 waiting recipients are made with SQL. Then every flow of the operator's
routes runs a hundred times, each of its statements is timed, by the clock and by the processor time of PostgreSQL's
process, and explained; twenty clients poll the routes of one HTTP process as twenty open pages do, while its
processor time and PostgreSQL's are read; and Chromium opens each page of what `make dashboard` built. It writes
what it found into RESULTS.md.
"""

import asyncio
import json
import math
import os
import socket
import sys
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote
from uuid import UUID

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import asyncpg
import uvloop

from bench import dataset, harness, operator_pages, report, wrk_load
from bench.dataset import ACCOUNT_PREFIX, NUMBER_MIN, environment_of
from bench.harness import Run
from bench.operator_pages import USABLE_SECONDS_MAX, Usable
from bench.processes import BenchError, Pace, metered, posthouse_command
from bench.report import Report, Rows, goal
from posthouse.clock import DatabaseClock
from posthouse.compose.flows import Flows
from posthouse.config import Settings
from posthouse.config.load import load
from posthouse.entrypoints.http import static_content
from posthouse.flows.operate.accounts import AccountOrder
from posthouse.rules import ids, search, token
from posthouse.rules.credential import Role
from posthouse.rules.ids import AccountId, SessionId, UserId
from posthouse.rules.search import SearchField
from posthouse.store import partitions
from posthouse.store.partitions import Partition
from posthouse.store.postgres import SETTINGS, Database
from tests.support.service import JWT_SECRET
from tools.private_postgres import PrivatePostgres, free_port

ACCOUNTS: Final = 10_000
LANES: Final = 10_000
RECIPIENTS: Final = 1_000_000
QUICK: Final = 100
DAYS: Final = 7
HOURS: Final = 192
REPEATED: Final = 100
P99_MS_MAX: Final = 50.0
PLAN_SHOWN_MS: Final = 5.0
PAGES: Final = 20
POLLED_SECONDS: Final = 60
CORE_MAX: Final = 0.05
LISTEN_SECONDS_MAX: Final = 60.0
ASKED: Final = "ada@example.org"
USER: Final = UserId(UUID("01980000-0000-7000-8000-00000000a001"))
SESSION: Final = SessionId(UUID("01980000-0000-7000-8000-00000000a002"))

_FIRST_ACCOUNT: Final = UUID(f"{ACCOUNT_PREFIX}{NUMBER_MIN}")
_ACCOUNT: Final = f"('{ACCOUNT_PREFIX}' || {NUMBER_MIN} + n)::uuid"
_SENDER: Final = f"('{ACCOUNT_PREFIX}' || {NUMBER_MIN} + n % <accounts>)::uuid"
_AT: Final = "extract(epoch FROM '<now>'::timestamptz - interval '7 days' * (n::float8 / <recipients>))"
_MESSAGE: Final = f"""
(lpad(to_hex(({_AT} * 1000)::bigint), 12, '0')
    || '7' || substr(md5(n::text), 1, 3) || '8' || substr(md5(n::text), 4, 13) || '00')::uuid
"""

FILL: Final = {
    "accounts": f"""
        INSERT INTO accounts (id, name, created_at, changed_at, available, warmup_started_on, warmup_day, warmup_used)
        SELECT {_ACCOUNT}, 'account ' || n, now() - interval '1 day', now() - interval '1 day', n * 100, days.*, n % 200
        FROM generate_series(0, <accounts> - 1) n
        CROSS JOIN (VALUES ((now() AT TIME ZONE 'UTC')::date, (now() AT TIME ZONE 'UTC')::date)) days""",
    "credentials": """
        INSERT INTO credentials (account_id, id, username, secret_hash, name, is_default, created_at)
        SELECT id, id, 'smtp_' || name, '', 'benchmark', true, now() FROM accounts""",
    "usage_hours": f"""
        INSERT INTO usage_hours (account_id, hour, accepted, delivered, bounced)
        SELECT {_ACCOUNT}, date_trunc('hour', now()) - interval '1 hour' * h, n % 1000, n % 900, n % 90
        FROM generate_series(0, <accounts> - 1) n CROSS JOIN generate_series(0, {HOURS - 1}) h""",
    "usage_days": """
        INSERT INTO usage_days (account_id, day, accepted, delivered, bounced)
        SELECT account_id, (hour AT TIME ZONE 'UTC')::date, sum(accepted), sum(delivered), sum(bounced)
        FROM usage_hours GROUP BY 1, 2""",
    "messages": f"""
        INSERT INTO messages (account_id, id, credential_id, request_id, source, sender, envelope_sender, subject,
            recipient_count, credits_reserved, open_count, created_at)
        SELECT {_SENDER}, {_MESSAGE}, {_SENDER}, {_SENDER}, 'api', 'orders@shop.example', 'orders@shop.example',
            'Your order ' || n, 1, 1, 1, now() FROM generate_series(0, <recipients> - 1) n""",
    "recipients": f"""
        INSERT INTO recipients (account_id, message_id, position, field, email)
        SELECT {_SENDER}, {_MESSAGE}, 0, 'to', 'person' || n || '@mail' || n % <lanes> || '.example'
        FROM generate_series(0, <recipients> - 1) n""",
    "delivery_schedule": f"""
        INSERT INTO delivery_schedule (account_id, message_id, position, destination, next_at, fence, attempt_count,
            held_since)
        SELECT {_SENDER}, {_MESSAGE}, 0, 'mail' || n % <lanes> || '.example',
            now() + interval '100 minutes' * (random() - 0.4), 1, 1, CASE WHEN n % 100 = 0 THEN now() END
        FROM generate_series(0, <recipients> - 1) n""",
    "search_index": f"""
        INSERT INTO search_index (account_id, term, message_id)
        SELECT {_SENDER}, term, {_MESSAGE} FROM generate_series(0, <recipients> - 1) n
        CROSS JOIN LATERAL (
            VALUES (hashtextextended('person' || n, 0)), (hashtextextended('orders' || n % 100, 0))) terms(term)""",
    "learned_limits": """
        INSERT INTO learned_limits (ip, lane, limits, version, changed_at)
        SELECT '192.0.2.1', 'mail' || n || '.example', '{"per_second": 2.5, "ceiling": 5}', 1, now()
        FROM generate_series(0, <lanes> - 1) n""",
    "lane_reports": f"""
        INSERT INTO lane_reports (worker_id, lane, waiting, in_flight, connections, delivered_total, deferred_total,
            reported_at, last_reply)
        SELECT ('{ACCOUNT_PREFIX}' || {NUMBER_MIN} + n / 200)::uuid, 'mail' || n || '.example', n % 500, 2, 1, 100, 10,
            now() + interval '1 day', '250 2.0.0 OK' FROM generate_series(0, <lanes> - 1) n""",
    "limit_changes": """
        INSERT INTO limit_changes (at, ip, lane, kind, scope, before, after, cause, reply)
        SELECT now() - interval '1 minute' * n, '192.0.2.1', 'mail' || n || '.example', 'slow', 'address',
            '{"per_second": 10}', '{"per_second": 2.5}', '421', '4.7.0 too much mail'
        FROM generate_series(0, <lanes> - 1) n""",
    "audit_log": f"""
        INSERT INTO audit_log (account_id, id, at, user_id, actor, action, target, detail)
        SELECT {_ACCOUNT}, {_ACCOUNT}, now(), NULL, 'operator', 'account.suspended', 'account ' || n, '{{}}'
        FROM generate_series(0, <accounts> - 1) n""",
}
_USER: Final = """
INSERT INTO users (id, email, password_hash, created_at, operator_since) VALUES ($1, 'op@example.org', '', now(), now())
"""


@dataclass(slots=True)
class Timed:
    """How long each run of a statement took, how long PostgreSQL's process computed for it, and its last values."""

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    arguments: tuple[Any, ...] = ()


def _ms(seconds: Sequence[float], share: float) -> float:
    return sorted(seconds)[max(0, math.ceil(len(seconds) * share) - 1)] * 1000


class Watched:
    """A database whose statements are timed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.statements: defaultdict[str, Timed] = defaultdict(Timed)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        async with self._database.connection() as connection:
            yield WatchedConnection(connection, self.statements)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self._database.transaction() as tx:
            yield WatchedConnection(tx, self.statements)


class WatchedConnection:
    def __init__(self, connection: Any, statements: Mapping[str, Timed]) -> None:
        self._connection = connection
        self._statements = statements

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._connection, name)
        return partial(self._timed, method) if name in ("fetch", "fetchrow", "fetchval") else method

    async def _timed(self, method: Callable[..., Awaitable[Any]], query: str, *arguments: Any, **options: Any) -> Any:
        pid = self._connection.get_server_pid()
        before, began = _computed(pid), time.perf_counter()
        found = await method(query, *arguments, **options)
        timed = self._statements[query]
        timed.seconds.append(time.perf_counter() - began)
        timed.cpu_seconds.append(_computed(pid) - before)
        timed.arguments = arguments
        return found


def _computed(pid: int) -> float:
    """Seconds of processor time of a process, to the nanosecond. It is counted when the process waits."""
    process = Path(f"/proc/{pid}")
    while (process / "stat").read_text().rpartition(")")[2].split()[0] != "S":
        time.sleep(0.0005)
    return int((process / "schedstat").read_text().split()[0]) / 1e9


async def _fill(url: str, sizes: Mapping[str, int], run: Run) -> None:
    """What is there already stays."""
    values = {**sizes, "now": datetime.now(UTC).isoformat()}
    connection: Any = await asyncpg.connect(url)
    try:
        if await connection.fetchval("SELECT EXISTS (SELECT FROM users)"):
            return
        today = datetime.now(UTC).date()
        there = {(known.table, known.day) for known in await partitions.attached(connection)}
        for table in partitions.TABLES:
            for day in (today - timedelta(days=back) for back in range(DAYS + 1)):
                if (table, day) not in there:
                    await partitions.create(connection, Partition(day, table))
        for table, template in FILL.items():
            statement = template
            began = time.monotonic()
            for name, value in values.items():
                statement = statement.replace(f"<{name}>", str(value))
            await connection.execute(statement)
            run.say(f"filled {table} in {time.monotonic() - began:.0f} s")
        term = search.term(SearchField.RECIPIENT, ASKED)
        await connection.execute(
            "INSERT INTO search_index (account_id, term, message_id)"
            " SELECT account_id, $1, id FROM (SELECT account_id, id FROM messages ORDER BY id DESC LIMIT 100) newest",
            term,
        )
        await connection.execute(_USER, USER)
        await connection.execute(
            "INSERT INTO second_factors (user_id, secret_sealed, created_at, confirmed_at)"
            r" VALUES ($1, '\x010178', now(), now())",
            USER,
        )
        await connection.execute(
            "INSERT INTO sessions (id, user_id, account_id, created_at, expires_at)"
            " VALUES ($1, $2, (SELECT id FROM accounts LIMIT 1), now(), now() + interval '1 day')",
            SESSION,
            USER,
        )
        await connection.execute("VACUUM ANALYZE")
    finally:
        await connection.close()


async def _messages(url: str) -> list[str]:
    """Ids of messages of all days, to ask for."""
    connection: Any = await asyncpg.connect(url)
    try:
        rows = await connection.fetch("SELECT id FROM messages TABLESAMPLE SYSTEM (1) LIMIT 20000")
        rows = rows or await connection.fetch("SELECT id FROM messages LIMIT 100")
        return [ids.text(ids.MESSAGE, row["id"]) for row in rows[:: max(1, len(rows) // 100)]]
    finally:
        await connection.close()


def _flows(flows: Flows, messages: Sequence[str]) -> dict[str, Callable[[int], Awaitable[object]]]:
    """What each route does, by its path; the number is that of the repetition."""

    async def first(order: AccountOrder) -> None:
        found = await flows.accounts.first(order, 50)
        await flows.accounts.rows(found.account_ids)
        await flows.accounts.figures(found.account_ids)
        await flows.accounts.nearest_limits(found.account_ids)

    async def overview(_: int) -> None:
        await flows.monitor.waiting()
        first = await flows.lanes.first(20, stopped_first=True)
        await flows.lanes.shown(first.names, 20)
        await flows.monitor.usage()
        await flows.provider_delays.known()
        await flows.lanes.log(None, 20)
        await flows.monitor.operator_log(20)

    async def lanes(part: str) -> None:
        first = await flows.lanes.first(101, part=part)
        await flows.lanes.shown(first.names, 101, part=part)

    async def lane(number: int) -> None:
        await flows.lanes.explain(f"mail{number}.example", 20)
        await flows.lanes.one(f"mail{number}.example")

    async def page(number: int) -> None:
        rows = await flows.accounts.page(f"account {number * 37 % 10_000}", 51)
        await flows.accounts.figures([row.id for row in rows])
        await flows.accounts.nearest_limits([row.id for row in rows])

    async def detail(number: int) -> None:
        timeline = await flows.monitor.timeline(messages[number % len(messages)])
        await flows.monitor.limit_changes(timeline)

    unknown = ids.text(ids.MESSAGE, ids.message_of(ids.lowest_id(datetime.now(UTC))))
    return {
        "overview": overview,
        "lanes": lambda _: lanes(""),
        "lanes?lane=": lambda number: lanes(f"mail{number}"),
        "lanes/{lane}": lane,
        "queue": lambda _: flows.monitor.shares(50),
        "accounts": page,
        "accounts?by=volume": lambda _: first(AccountOrder.VOLUME),
        "accounts?by=reputation": lambda _: first(AccountOrder.REPUTATION),
        "accounts?by=limits": lambda _: first(AccountOrder.LIMITS),
        "accounts?by=new": lambda _: first(AccountOrder.NEW),
        "messages?q=id": lambda number: flows.message_lookup.find(messages[number % len(messages)]),
        "messages?q=unknown id": lambda _: flows.message_lookup.find(unknown),
        "messages?q=address": lambda _: flows.message_lookup.find(ASKED),
        "messages?q=unknown address": lambda _: flows.message_lookup.find("nobody@example.org"),
        "messages/{id}": detail,
        "addresses": lambda _: flows.sending_addresses.list_addresses(),
        "log": lambda _: flows.monitor.operator_log(100),
    }


async def _plan(connection: Any, statement: str, arguments: Sequence[Any]) -> list[str]:
    """As the service's connections run it: prepared, with one plan for all values."""
    await connection.execute(f"PREPARE shown AS {statement}")
    values = f"({', '.join(map(_literal, arguments))})" if arguments else ""
    rows = await connection.fetch(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) EXECUTE shown{values}")
    await connection.execute("DEALLOCATE shown")
    return [row[0] for row in rows]


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list | tuple):
        quoted = ",".join(json.dumps(str(each)) for each in value)
        return _literal(f"{{{quoted}}}")
    return "'" + str(value).replace("'", "''") + "'"


class Finding(NamedTuple):
    """A statement of a route."""

    route: str
    statement: str
    timed: Timed
    plan: Sequence[str]

    @property
    def words(self) -> str:
        return " ".join(self.statement.split())[:70].replace("|", "")

    def row(self) -> list[str]:
        timed = self.timed
        figures = [_ms(values, share) for values in (timed.seconds, timed.cpu_seconds) for share in (0.5, 0.99)]
        return [self.route, f"`{self.words}`", str(len(timed.seconds)), *(f"{figure:.1f}" for figure in figures)]


async def _statements(settings: Settings, url: str, messages: Sequence[str], run: Run) -> list[Finding]:
    database = await Database.open(url, connections_max=2)
    watched: Any = Watched(database)
    flows = Flows(settings, watched, DatabaseClock())
    connection: Any = await asyncpg.connect(url, server_settings=SETTINGS)
    findings = []
    try:
        for name, flow in _flows(flows, messages).items():
            for number in range(3):
                await flow(number)
            watched.statements.clear()
            with run.status(name):
                for number in range(REPEATED):
                    await flow(number)
            for statement, timed in list(watched.statements.items()):
                plan = await _plan(connection, statement, timed.arguments)
                findings.append(Finding(name, statement, timed, plan))
                run.say(f"{' '.join(findings[-1].row())}")
    finally:
        await connection.close()
        await database.close()
    return findings


# What the pages ask, and how often; every page also asks for the account's banner.
_POLLED: Final[tuple[tuple[tuple[str, float], ...], ...]] = (
    (("overview", 5),),
    (("lanes", 10),),
    (("lanes/mail7.example", 10),),
    (("queue", 10), ("lanes", 10)),
    (("accounts?by=volume", 30),),
    (("health", 30),),
    (("addresses", 30),),
    (("log", 30),),
)


async def _poll(url: str, authorization: str, path: str, every: float, until: float, seconds: list[float]) -> None:
    request = urllib.request.Request(f"{url}/v1/operator/{path}", headers={"Authorization": authorization})
    while time.monotonic() < until:
        began = time.monotonic()
        await asyncio.to_thread(_ask, request)
        seconds.append(time.monotonic() - began)
        await asyncio.sleep(max(0.0, min(began + every, until) - time.monotonic()))


def _ask(request: urllib.request.Request) -> None:
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        raise BenchError(f"{request.full_url}: {error.code} {error.read(300)!r}") from error


async def _pages(url: str, authorization: str, seconds_polled: float) -> list[float]:
    until = time.monotonic() + seconds_polled
    seconds: list[float] = []
    pages = [_POLLED[number % len(_POLLED)] for number in range(PAGES)]
    await asyncio.gather(
        *[_poll(url, authorization, path, every, until, seconds) for page in pages for path, every in page]
    )
    return seconds


def _wait_until_listening(port: int) -> None:
    deadline = time.monotonic() + LISTEN_SECONDS_MAX
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def measure(run: Run) -> Report:
    scale = QUICK if run.is_quick else 1
    sizes = {"recipients": RECIPIENTS // scale, "accounts": ACCOUNTS // scale, "lanes": LANES // scale}
    with PrivatePostgres.start(run.options.data, settings=dataset.CLUSTER_SETTINGS) as cluster:
        dataset.migrate(cluster, run.workplace)
        url = cluster.url(dataset.DATABASE)
        uvloop.run(_fill(url, sizes, run))
        pace = Pace.start()
        messages = uvloop.run(_messages(url))
        environment = environment_of(cluster)
        os.environ.update(environment)
        findings = uvloop.run(_statements(load(), url, messages, run))
        port = free_port()
        address = f"http://127.0.0.1:{port}"
        # A browser keeps the session of the dashboard's own address.
        environment["POSTHOUSE_HTTP__PUBLIC_URL"] = address
        command = posthouse_command("run", "http", "--processes", "1", "--port", str(port))
        with wrk_load.started(command, port, run.workplace, environment=environment) as server:
            _wait_until_listening(server.port)
            authorization = _authorization()
            asyncio.run(_pages(address, authorization, 5))
            polled = POLLED_SECONDS / (10 if run.is_quick else 1)
            processes = {"http": [server.process.pid], "postgresql": [cluster.pid]}
            with metered(processes) as idle:
                time.sleep(polled)
            with metered(processes) as used:
                seconds = asyncio.run(_pages(address, authorization, polled))
            core = {name: (used[name] - idle[name]) / polled for name in processes}
            pages = asyncio.run(_usable(url, address, messages, run))
    slowest = max(_ms(found.timed.cpu_seconds, 0.99) for found in findings)
    page = max(pages, key=lambda name: pages[name].by_link)
    shares = ", ".join(f"{name} {share:.1%}" for name, share in core.items())
    columns = ("Route", "Statement", "runs", "p50 ms", "p99 ms", "computed p50 ms", "computed p99 ms")
    return Report(
        name="operator",
        title="The operator's routes and pages in a large installation",
        target="bench-operator",
        machine=report.machine(),
        tables=[
            Rows("Statements", columns, [found.row() for found in findings], text_columns=2),
            Rows(
                "Pages",
                ("Page", "by a link, s", "slowest, s", "reloaded, s"),
                [[name, *(f"{figure:.2f}" for figure in usable)] for name, usable in pages.items()],
            ),
        ],
        goals=[
            goal(
                slowest < P99_MS_MAX,
                f"each statement computes for less than {P99_MS_MAX:.0f} ms, p99: {slowest:.1f} ms",
            ),
            goal(
                sum(core.values()) < CORE_MAX,
                f"{PAGES} open pages cost less than {CORE_MAX:.0%} of a core: {sum(core.values()):.1%} ({shares}; "
                f"{len(seconds)} requests in {polled:.0f} s, p50 {_ms(seconds, 0.5):.0f} ms, "
                f"p99 {_ms(seconds, 0.99):.0f} ms)",
            ),
            goal(
                pages[page].by_link < USABLE_SECONDS_MAX,
                f"each page can be used within {USABLE_SECONDS_MAX} s: {pages[page].by_link:.2f} s ({page})",
            ),
        ],
        notes=report.notes(
            "operator",
            **{name: f"{size:,}" for name, size in sizes.items()},
            times=REPEATED,
            polled=f"{polled:.0f}",
            plans="\n\n".join(_shown_plans(findings)),
        ),
        state=pace.text(),
    )


def _shown_plans(findings: Sequence[Finding]) -> Iterator[str]:
    """Each statement's once."""
    shown = set()
    for found in findings:
        if found.statement not in shown and _ms(found.timed.cpu_seconds, 0.5) > PLAN_SHOWN_MS:
            shown.add(found.statement)
            lines = [line for line in found.plan if "->" in line or "Buffers" in line or "Time:" in line]
            yield "\n".join([f"{found.route}: {found.words}", *(f"  {line[:110]}" for line in lines)])


def _authorization() -> str:
    now = datetime.now(UTC)
    return "Bearer " + token.issue(
        account_id=AccountId(_FIRST_ACCOUNT),
        user_id=USER,
        role=Role.VIEWER,
        session_id=SESSION,
        expires_at=now + timedelta(hours=1),
        token_id="bench",
        secret=JWT_SECRET,
        now=now,
    )


async def _usable(url: str, address: str, messages: Sequence[str], run: Run) -> dict[str, Usable]:
    paths = {
        "now": "now",
        "lanes": "lanes",
        "lanes, filtered": "lanes?lane=mail77",
        "a lane": "lanes/mail7.example",
        "queue": "queue",
        "accounts": "accounts",
        "accounts by volume": "accounts?by=volume",
        "accounts by reputation": "accounts?by=reputation",
        "accounts by limits": "accounts?by=limits",
        "messages by id": f"message-search?q={messages[0]}",
        "messages by address": f"message-search?q={quote(ASKED)}",
        "a message": f"message-search/{messages[0]}",
        "addresses": "addresses",
        "health": "health",
        "log": "operator-log",
    }
    database = await Database.open(url, connections_max=2)
    try:
        return await operator_pages.measure(load(), database, address, _FIRST_ACCOUNT, paths, run.say)
    finally:
        await database.close()


def _missing() -> str | None:
    return None if static_content.is_dashboard_built() else static_content.NOT_BUILT


def main(arguments: Sequence[str] | None = None) -> int:
    parser = harness.parser(__doc__, rounds=1)
    parser.add_argument("--data", type=Path, help="where the installation is kept for the next run")
    return harness.main(parser.parse_args(arguments), measure, _missing)


if __name__ == "__main__":
    sys.exit(main())
