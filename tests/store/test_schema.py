"""Migrations: any address that the service takes, and any number of hands at once."""

import asyncio
import contextlib
import itertools
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from uuid import uuid4

import asyncpg

from posthouse.rules.ids import lowest_id
from posthouse.store import partitions, revision, schema
from posthouse.store.partitions import Partition
from tools.private_postgres import PrivatePostgres


async def applied(url: str) -> str | None:
    connection = await asyncpg.connect(url)
    try:
        return await revision.applied(connection)
    finally:
        await connection.close()


def test_an_address_with_parameters_is_understood(postgres: PrivatePostgres) -> None:
    postgres.create_database("with_parameters")
    url = postgres.url("with_parameters") + "?sslmode=disable"
    assert asyncio.run(applied(url)) is None
    schema.migrate(url)
    assert asyncio.run(applied(url)) == revision.newest()


async def test_two_at_once_take_turns(postgres: PrivatePostgres) -> None:
    postgres.create_database("two_at_once")
    url = postgres.url("two_at_once")
    command = "import sys; from posthouse.store import schema; schema.migrate(sys.argv[1])"
    started = [await _python(command, url) for _ in range(2)]
    assert [await process.wait() for process in started] == [0, 0]
    assert await applied(url) == revision.newest()


async def _python(command: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-c", command, *arguments)


def test_a_migrated_database_stays_as_it_is(new_database: Callable[[], str]) -> None:
    url = new_database()
    schema.migrate(url)
    assert asyncio.run(applied(url)) == revision.newest()


async def test_days_made_before_allow_released_failures_afterwards(postgres: PrivatePostgres) -> None:
    postgres.create_database("released_failures")
    url = postgres.url("released_failures")
    await asyncio.to_thread(schema.migrate, url, "0015")
    connection = await asyncpg.connect(url)
    days = [Partition(date(2026, 11, day), "recipients") for day in (15, 16)]
    await partitions.create(connection, days[0])
    await asyncio.to_thread(schema.migrate, url)
    await partitions.create(connection, days[1])
    insert = """
        INSERT INTO recipients (account_id, message_id, position, field, email, status, billing_status,
            delivered_at, bounced_at, failed_at, cancelled_at)
        VALUES ($1, $2, $3, 'to', '', $4, $5, CASE $4 WHEN 'delivered' THEN now() END,
            CASE $4 WHEN 'bounced' THEN now() END, CASE $4 WHEN 'failed' THEN now() END,
            CASE $4 WHEN 'cancelled' THEN now() END)
    """
    allowed = set()
    statuses = ("queued", "delivered", "bounced", "failed", "cancelled")
    states = itertools.product(statuses, ("reserved", "settled", "released"))
    for position, (status, billing) in enumerate(states):
        for day in days:
            message_id = lowest_id(partitions.bounds(day.day)[0])
            with contextlib.suppress(asyncpg.CheckViolationError):
                await connection.execute(insert, uuid4(), message_id, position, status, billing)
                allowed.add((day, status, billing))
    kept = [("queued", "reserved"), ("delivered", "settled"), ("bounced", "released")]
    expected = [*kept, ("failed", "settled"), ("failed", "released"), ("cancelled", "released")]
    assert allowed == {(day, *state) for day in days for state in expected}
    await connection.close()


async def test_suspensions_of_before_are_taken_from_the_audit_log(postgres: PrivatePostgres) -> None:
    postgres.create_database("past_suspensions")
    url = postgres.url("past_suspensions")
    await asyncio.to_thread(schema.migrate, url, "0014")
    connection = await asyncpg.connect(url)
    account, other = uuid4(), uuid4()
    first, second = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 10, tzinfo=UTC)
    hour = timedelta(hours=1)
    for row, suspended_at in ((account, second), (other, second)):
        await connection.execute(
            "INSERT INTO accounts (id, name, created_at, changed_at, suspended_at, suspended_reason)"
            " VALUES ($1, $2, $3, $3, $4, 'spam')",
            row,
            str(row),
            first,
            suspended_at,
        )
    # The audit log of the other account has been forgotten.
    for at, action in ((first, "suspended"), (first + hour, "resumed"), (second, "suspended")):
        await connection.execute(
            "INSERT INTO audit_log (account_id, id, at, actor, action, target, detail)"
            " VALUES ($1, $2, $3, 'operator', $4, '', '{}')",
            account,
            uuid4(),
            at,
            f"account.{action}",
        )
    await asyncio.to_thread(schema.migrate, url)
    rows = await connection.fetch("SELECT account_id, started_at, ended_at FROM suspensions")
    assert {tuple(row) for row in rows} == {
        (account, first, first + hour),
        (account, second, None),
        (other, second, None),
    }
    await connection.close()
