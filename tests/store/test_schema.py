"""Migrations: any address that the service takes, and several processes at once; and what the tables admit."""

import asyncio
import contextlib
import itertools
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import uuid4

import asyncpg

from posthouse.rules.ids import lowest_id
from posthouse.store import schema
from posthouse.store.postgres import Database
from tools.private_postgres import PrivatePostgres


async def applied(url: str) -> str | None:
    connection = await asyncpg.connect(url)
    try:
        return await schema.applied_revision(connection)
    finally:
        await connection.close()


def test_an_address_with_parameters_is_understood(postgres: PrivatePostgres) -> None:
    postgres.create_database("with_parameters")
    url = postgres.url("with_parameters") + "?sslmode=disable"
    assert asyncio.run(applied(url)) is None
    schema.migrate(url)
    assert asyncio.run(applied(url)) == schema.newest_revision()


async def test_two_at_once_take_turns(postgres: PrivatePostgres) -> None:
    postgres.create_database("two_at_once")
    url = postgres.url("two_at_once")
    command = "import sys; from posthouse.store import schema; schema.migrate(sys.argv[1])"
    started = [await _python(command, url) for _ in range(2)]
    assert [await process.wait() for process in started] == [0, 0]
    assert await applied(url) == schema.newest_revision()


async def _python(command: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-c", command, *arguments)


def test_a_migrated_database_stays_as_it_is(new_database: Callable[[], str]) -> None:
    url = new_database()
    schema.migrate(url)
    assert asyncio.run(applied(url)) == schema.newest_revision()


async def test_a_credit_follows_its_recipients_status(database: Database) -> None:
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
    async with database.connection() as connection:
        for position, (status, billing) in enumerate(states):
            with contextlib.suppress(asyncpg.CheckViolationError):
                await connection.execute(insert, uuid4(), lowest_id(datetime.now(UTC)), position, status, billing)
                allowed.add((status, billing))
    kept = [("queued", "reserved"), ("delivered", "settled"), ("bounced", "released")]
    assert allowed == {*kept, ("failed", "settled"), ("failed", "released"), ("cancelled", "released")}
