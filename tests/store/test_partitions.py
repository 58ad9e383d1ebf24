"""Partitions: one for each day, created separately, dropped without stopping anyone, their sums kept."""

import asyncio
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from posthouse.rules.ids import new_message_id
from posthouse.store import partitions
from posthouse.store.partitions import Partition
from posthouse.store.postgres import Database
from tests.support.eventually import HANG_SECONDS

# Far from the days that a fresh database has partitions for.
DAY = date(2040, 2, 29)
RANDOM = bytes(range(10))


async def insert_message(connection: Any, at: datetime, account_id: UUID | None = None) -> UUID:
    message_id = new_message_id(at, RANDOM)
    await connection.execute(
        """
        INSERT INTO messages (account_id, id, credential_id, request_id, source, sender, envelope_sender, subject,
            recipient_count, credits_reserved, open_count, created_at)
        VALUES ($1, $2, $3, $3, 'api', 'a', 'a', 'a', 1, 1, 1, $4)
        """,
        account_id or uuid4(), message_id, uuid4(), at,
    )  # fmt: skip
    return message_id


async def insert_ledger(connection: Any, account_id: UUID, at: datetime, reserve: int, *closes: str) -> None:
    message_id = new_message_id(at, uuid4().bytes[:10])
    rows = [(-1, "reserve", reserve), *((position, kind, 1) for position, kind in enumerate(closes))]
    for position, kind, amount in rows:
        await connection.execute(
            "INSERT INTO ledger (account_id, message_id, position, kind, amount, at) VALUES ($1, $2, $3, $4, $5, $6)",
            account_id, message_id, position, kind, amount, at,
        )  # fmt: skip


async def make(connection: Any, *days: date, tables: tuple[str, ...] = partitions.TABLES) -> None:
    for day in days:
        for table in tables:
            async with connection.transaction():
                await partitions.create(connection, Partition(day, table))


def at(day: date, **parts: int) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(**parts)


async def test_a_message_lies_in_the_partition_of_its_day_to_the_millisecond(database: Database) -> None:
    async with database.connection() as connection:
        await make(connection, DAY, DAY + timedelta(days=1), tables=("messages",))
        first = await insert_message(connection, at(DAY))
        last = await insert_message(connection, at(DAY, days=1, milliseconds=-1))
        next_day = await insert_message(connection, at(DAY, days=1))
        rows = await connection.fetch("SELECT id, tableoid::regclass::text AS name FROM messages")
    assert {row["id"]: row["name"] for row in rows} == {
        first: "messages_20400229",
        last: "messages_20400229",
        next_day: "messages_20400301",
    }


async def test_a_partition_is_like_its_table(database: Database) -> None:
    async with database.connection() as connection:
        await make(connection, DAY)
        assert [partition for partition in await partitions.attached(connection) if partition.day == DAY] == sorted(
            Partition(DAY, table) for table in partitions.TABLES
        )
        for table in partitions.TABLES:
            checks = "SELECT count(*) FROM pg_constraint WHERE conrelid = $1::regclass AND contype IN ('c', 'p')"
            name = Partition(DAY, table).name
            assert await connection.fetchval(checks, name) == await connection.fetchval(checks, table)


async def test_writers_continue_while_a_partition_is_made(database: Database) -> None:
    async with database.connection() as writer, database.connection() as maker:
        await make(maker, DAY, tables=("messages",))
        async with writer.transaction():
            await insert_message(writer, at(DAY))
            await asyncio.wait_for(make(maker, DAY + timedelta(days=1), tables=("messages",)), HANG_SECONDS)


async def test_a_day_of_the_ledger_leaves_its_sums_behind(database: Database) -> None:
    ours, theirs = uuid4(), uuid4()
    async with database.connection() as connection:
        await make(connection, DAY, tables=("ledger",))
        await insert_ledger(connection, ours, at(DAY), 3, "settle", "release", "settle")
        await insert_ledger(connection, ours, at(DAY, hours=23), 2, "release", "release")
        await insert_ledger(connection, theirs, at(DAY), 5)
        await partitions.detach(connection, Partition(DAY, "ledger"))
        async with connection.transaction():
            await partitions.drop(connection, Partition(DAY, "ledger"))
        rows = await connection.fetch("SELECT account_id, day, reserved, settled, released FROM ledger_days")
        assert {tuple(row) for row in rows} == {(ours, DAY, 5, 2, 3), (theirs, DAY, 5, 0, 0)}
        assert Partition(DAY, "ledger") not in await partitions.attached(connection)
        assert await partitions.detached(connection) == []
