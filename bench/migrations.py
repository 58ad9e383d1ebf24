"""Measures for how long the migrations since the last release keep accepting and delivery waiting, on large tables.

    make bench-migrations                         (or: python bench/migrations.py)
    python bench/migrations.py --rows 1000000

The tables of the release are filled by SQL. Then `posthouse migrate` runs while clients write, as acceptance, delivery
and webhooks do, and `pg_locks` is read all the time: how long a lock was held that keeps writers waiting, and how long
the slowest write took.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from uuid import UUID

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import asyncpg
import uvloop

from bench import dataset, harness, report
from bench.dataset import environment_of
from bench.harness import Run
from bench.processes import BenchError, posthouse_command
from bench.report import Goal, Report, Rows, goal
from posthouse.store import partitions, schema
from posthouse.store.partitions import Partition
from tests.support.released_version import ReleaseError, newest_release, newest_revision
from tools.private_postgres import PrivatePostgres

ROWS: Final = 10_000_000
QUICK_ROWS: Final = 20_000
ROWS_BATCH: Final = 500_000
POLL_SECONDS: Final = 0.002
BASELINE_SECONDS: Final = 5.0
LOCK_MILLISECONDS_MAX: Final = 100
# What accepting, delivery and webhooks write.
WRITTEN: Final = (
    "accounts",
    "messages",
    "recipients",
    "attempts",
    "delivery_schedule",
    "webhook_schedule",
    "webhook_deliveries",
    "ledger",
)
ACCOUNT: Final = UUID(int=1)

_MESSAGE_ID: Final = "(lpad(to_hex($1::bigint), 12, '0') || '70008' || lpad(to_hex(n), 15, '0'))::uuid"
_FILL: Final = {
    "messages": f"""INSERT INTO messages (account_id, id, credential_id, request_id, source, sender, envelope_sender,
        subject, recipient_count, credits_reserved, open_count, created_at)
        SELECT $4, {_MESSAGE_ID}, $4, $4, 'api', 'a@example.com', 'a@example.com', 'Your order', 1, 1, 1, now()
        FROM generate_series($2::bigint, $3::bigint) n""",
    "delivery_schedule": f"""INSERT INTO delivery_schedule (account_id, message_id, position, destination, next_at,
        fence)
        SELECT $4, {_MESSAGE_ID}, 0, 'example.org', now() + interval '1 day', 1
        FROM generate_series($2::bigint, $3::bigint) n""",
    "attempts": f"""INSERT INTO attempts (account_id, message_id, position, fence, worker_id, started_at)
        SELECT $4, {_MESSAGE_ID}, 0, 1, $4, now() FROM generate_series($2::bigint, $3::bigint) n""",
    "webhook_schedule": f"""INSERT INTO webhook_schedule (account_id, id, event_id, next_at, max_attempts)
        SELECT $4, {_MESSAGE_ID}, $4, now() + interval '1 day', 7 FROM generate_series($2::bigint, $3::bigint) n""",
}
_WRITES: Final = (
    "UPDATE accounts SET available = available WHERE id = $1",
    "UPDATE messages SET subject = subject WHERE account_id = $1 AND id = $2",
    "UPDATE delivery_schedule SET fence = fence WHERE account_id = $1 AND message_id = $2",
    "UPDATE attempts SET fence = fence WHERE account_id = $1 AND message_id = $2",
    "UPDATE webhook_schedule SET fence = fence WHERE account_id = $1 AND id = $2",
)
# Locks of another session that keep writers waiting; partitions count as their table.
_LOCKS: Final = f"""
SELECT (SELECT version_num FROM {schema.TABLE}) AS revision,
       array_agg(DISTINCT coalesce(i.inhparent, l.relation)::regclass::text) AS tables
FROM pg_locks l LEFT JOIN pg_inherits i ON i.inhrelid = l.relation
WHERE l.granted AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
  AND coalesce(i.inhparent, l.relation) = ANY($1::regclass[])
"""


@dataclass(slots=True)
class Findings:
    """By revision that was applied before: the longest time a lock was held, its tables, and the slowest write."""

    held: dict[str, float] = field(default_factory=dict)
    tables: dict[str, set[str]] = field(default_factory=dict)
    slowest: dict[str, float] = field(default_factory=dict)
    baseline: float = 0.0
    seconds: float = 0.0
    now: str = ""


async def _fill(url: str, rows: int, run: Run) -> UUID:
    """A message's id."""
    connection = await asyncpg.connect(url)
    today = datetime.now(UTC)
    milliseconds = int(today.timestamp() * 1000)
    for table in ("messages", "attempts"):
        await partitions.create(connection, Partition(today.date(), table))
    await connection.execute(
        "INSERT INTO accounts (id, name, created_at, changed_at, available) VALUES ($1, 'bench', now(), now(), 1)",
        ACCOUNT,
    )
    for table, statement in _FILL.items():
        for first in range(1, rows + 1, ROWS_BATCH):
            last = min(rows, first + ROWS_BATCH - 1)
            await connection.execute(statement, milliseconds, first, last, ACCOUNT)
        run.say(f"{table}: {rows:,} rows")
    found: UUID = await connection.fetchval("SELECT id FROM messages LIMIT 1")
    await connection.execute("ANALYZE")
    await connection.execute("CHECKPOINT")
    await connection.close()
    return found


async def _write(url: str, statement: str, message_id: UUID, findings: Findings) -> None:
    connection = await asyncpg.connect(url)
    arguments = (ACCOUNT, message_id)[: statement.count("$")]
    while True:
        before, started = findings.now, time.monotonic()
        await connection.execute(statement, *arguments)
        taken = time.monotonic() - started
        findings.slowest[before] = max(findings.slowest.get(before, 0.0), taken)
        await asyncio.sleep(POLL_SECONDS)


async def _watch(url: str, findings: Findings) -> None:
    connection = await asyncpg.connect(url)
    since: float | None = None
    while True:
        row = await connection.fetchrow(_LOCKS, list(WRITTEN))
        at = time.monotonic()
        findings.now = findings.now if findings.now == "baseline" else row["revision"]
        if row["tables"]:
            since = since or at
            findings.held[row["revision"]] = max(findings.held.get(row["revision"], 0.0), at - since + POLL_SECONDS)
            findings.tables.setdefault(row["revision"], set()).update(row["tables"])
        else:
            since = None
        await asyncio.sleep(POLL_SECONDS)


async def _measure(cluster: PrivatePostgres, workplace: Path, rows: int, released: str, run: Run) -> Findings:
    url = cluster.url(dataset.DATABASE)
    message_id = await _fill(url, rows, run)
    findings = Findings(now="baseline")
    tasks = [asyncio.create_task(_watch(url, findings))]
    tasks += [asyncio.create_task(_write(url, statement, message_id, findings)) for statement in _WRITES]
    await asyncio.sleep(BASELINE_SECONDS)
    findings.baseline = findings.slowest["baseline"]
    findings.now = released
    started = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *posthouse_command("migrate"), env=environment_of(cluster), cwd=workplace, stdout=subprocess.DEVNULL
    )
    status = await process.wait()
    findings.seconds = time.monotonic() - started
    for task in tasks:
        if task.done():
            task.result()
        task.cancel()
    if status != 0:
        raise BenchError("the migration failed")
    return findings


def measure(run: Run) -> Report:
    rows = QUICK_ROWS if run.is_quick else run.options.rows
    try:
        released = newest_revision(newest_release())
    except ReleaseError as error:
        raise BenchError(str(error)) from None
    with PrivatePostgres.start(settings=dataset.CLUSTER_SETTINGS) as cluster:
        cluster.create_database(dataset.DATABASE)
        schema.migrate(cluster.url(dataset.DATABASE), released)
        with run.status(f"filling four tables with {rows:,} rows each"):
            findings = uvloop.run(_measure(cluster, run.workplace, rows, released, run))
    return Report(
        name="migrations",
        title="Locks of migrations",
        target="bench-migrations",
        machine=report.machine(),
        tables=[_table(findings)],
        goals=goals(findings),
        notes=report.notes(
            "migrations",
            rows=f"{rows:,}",
            seconds=f"{findings.seconds:.0f}",
            baseline=f"{findings.baseline * 1000:.0f}",
            released=released,
            newest=schema.newest_revision(),
        ),
    )


def _table(findings: Findings) -> Rows:
    rows = [
        [
            _next(before),
            ", ".join(sorted(findings.tables[before])),
            f"{held * 1000:.0f}",
            f"{_slowest(findings, before):.0f}",
        ]
        for before, held in sorted(findings.held.items())
    ]
    return Rows(
        "Locks that keep writers waiting", ("Migration", "Tables", "held, ms", "slowest write, ms"), rows, (), 2
    )


def _slowest(findings: Findings, before: str) -> float:
    return findings.slowest.get(before, 0.0) * 1000


def _next(before: str) -> str:
    """`posthouse migrate` makes partitions once there is no migration left."""
    return "partitions" if before == schema.newest_revision() else f"{int(before) + 1:04}"


def goals(findings: Findings) -> list[Goal]:
    longest = max(findings.held.values(), default=0.0) * 1000
    return [
        goal(
            longest <= LOCK_MILLISECONDS_MAX,
            f"the longest lock of a table that accepting or delivery writes was held for {longest:.0f} ms"
            f" (≤ {LOCK_MILLISECONDS_MAX})",
        )
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = harness.parser(__doc__, rounds=1)
    parser.add_argument("--rows", type=int, default=ROWS, help=f"in each of four tables ({ROWS:,})")
    return harness.main(parser.parse_args(arguments), measure)


if __name__ == "__main__":
    sys.exit(main())
