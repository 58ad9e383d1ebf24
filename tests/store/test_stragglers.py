"""Stragglers: what keeps a row, what goes, and what others see of it."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import count
from typing import Any
from uuid import UUID, uuid4

import pytest

from posthouse.rules.ids import new_message_id
from posthouse.store import maintenance, partitions
from posthouse.store.partitions import Partition
from posthouse.store.postgres import LOCK_MILLISECONDS_MAX, Connection, Database

# Far from the days that a fresh database has partitions for.
DAY = date(2040, 2, 29)
START = datetime(2040, 2, 29, tzinfo=UTC)
MESSAGE_TABLES = ("recipients", "ledger", "attempts", "reports", "search_index")
NUMBERS: Iterator[int] = count(1)


def new_id(days: int = 0) -> UUID:
    return new_message_id(START + timedelta(days=days, hours=1), next(NUMBERS).to_bytes(10, "big"))


async def schedule(connection: Connection, account_id: UUID, message_id: UUID) -> None:
    await connection.execute(
        "INSERT INTO delivery_schedule (account_id, message_id, position, destination, next_at)"
        " VALUES ($1, $2, 1, '', $3)",
        account_id, message_id, START,
    )  # fmt: skip


async def call(connection: Connection, account_id: UUID, row_id: UUID, event_id: UUID) -> None:
    await connection.execute(
        "INSERT INTO webhook_schedule (account_id, id, event_id, endpoint_id, next_at, due_at, max_attempts)"
        " VALUES ($1, $2, $3, $1, $4, $4, 7)",
        account_id, row_id, event_id, START,
    )  # fmt: skip


async def insert_message(connection: Connection, account_id: UUID, days: int = 0) -> UUID:
    """A message with a row in each table of its day."""
    message_id = new_id(days)
    await connection.execute(
        """
        INSERT INTO messages (account_id, id, credential_id, request_id, source, sender, envelope_sender, subject,
            recipient_count, credits_reserved, open_count, created_at)
        VALUES ($1, $2, $3, $3, 'api', 'a', 'a', 'a', 1, 1, 1, $4)
        """,
        account_id, message_id, uuid4(), START,
    )  # fmt: skip
    for statement in (
        "INSERT INTO recipients (account_id, message_id, position, field, email) VALUES ($1, $2, 1, 'to', 'a@b.c')",
        "INSERT INTO bodies (account_id, message_id, mime) VALUES ($1, $2, 'a')",
        (
            "INSERT INTO ledger (account_id, message_id, position, kind, amount, at) VALUES"
            " ($1, $2, -1, 'reserve', 1, now()), ($1, $2, 1, 'settle', 1, now()), ($1, $2, 2, 'release', 1, now())"
        ),
        (
            "INSERT INTO attempts (account_id, message_id, position, fence, worker_id, started_at)"
            " VALUES ($1, $2, 1, 1, $1, now())"
        ),
        (
            "INSERT INTO reports (account_id, message_id, id, kind, detail, suppressed, shared, at)"
            " VALUES ($1, $2, $2, 'bounce', '', false, false, now())"
        ),
        "INSERT INTO search_index (account_id, term, message_id) VALUES ($1, 1, $2), ($1, 2, $2)",
    ):
        await connection.execute(statement, account_id, message_id)
    return message_id


async def insert_event(connection: Connection, account_id: UUID, message_id: UUID, days: int = 0) -> UUID:
    event_id = new_id(days)
    await connection.execute(
        "INSERT INTO events (account_id, id, message_id, position, type, created_at, body)"
        " VALUES ($1, $2, $3, 1, 'email.delivered', now(), 'a')",
        account_id, event_id, message_id,
    )  # fmt: skip
    return event_id


async def make(connection: Any, *days: int) -> None:
    for day in days:
        for table in partitions.TABLES:
            async with connection.transaction():
                await partitions.create(connection, Partition(DAY + timedelta(days=day), table))


async def is_needed(connection: Connection, table: str, days: int = 0) -> bool:
    async with connection.transaction():
        return await maintenance.is_needed(connection, Partition(DAY + timedelta(days=days), table))


async def reduce(connection: Connection, table: str, days: int = 0) -> Partition:
    """As maintenance does it."""
    async with connection.transaction():
        reduced = await maintenance.reduce(connection, Partition(DAY + timedelta(days=days), table))
    page: int | None = 0
    while page is not None:
        async with connection.transaction():
            page = await maintenance.forget_final(connection, reduced, page)
    return reduced


async def keys(connection: Connection, table: str) -> set[UUID]:
    return {row[0] for row in await connection.fetch(f"SELECT {partitions.key_of(table)} FROM {table}")}


@pytest.mark.parametrize("days", [-1, 0, 1])
async def test_open_mail_needs_the_messages_and_bodies_of_its_own_day(days: int, database: Database) -> None:
    async with database.connection() as connection:
        await schedule(connection, uuid4(), new_id(days))
        found = {table for table in ("messages", "bodies") if await is_needed(connection, table)}
        assert found == ({"messages", "bodies"} if days == 0 else set())
        assert not await is_needed(connection, "webhook_deliveries")


async def test_a_message_that_is_retained_needs_its_day_of_every_table(database: Database) -> None:
    async with database.connection() as connection:
        await make(connection, 0, 1)
        await insert_message(connection, uuid4(), 1)
        assert [table for table in MESSAGE_TABLES if await is_needed(connection, table)] == []
        await insert_message(connection, uuid4())
        assert [table for table in MESSAGE_TABLES if await is_needed(connection, table)] == list(MESSAGE_TABLES)


async def test_a_pending_webhook_delivery_needs_its_log_and_its_event_of_another_day(database: Database) -> None:
    account_id = uuid4()
    async with database.connection() as connection:
        await make(connection, 0, 1)
        event_id = await insert_event(connection, account_id, new_id(-20))
        await insert_event(connection, account_id, new_id(-20), 1)
        await call(connection, account_id, new_id(1), event_id)
        for table, days_needed in {"events": [0], "webhook_deliveries": [1]}.items():
            assert [days for days in (0, 1) if await is_needed(connection, table, days)] == days_needed


async def test_a_message_that_is_retained_needs_its_events_of_later_days(database: Database) -> None:
    account_id = uuid4()
    async with database.connection() as connection:
        await make(connection, 0, 1, 2)
        message_id = await insert_message(connection, account_id)
        needed = {await insert_event(connection, account_id, message_id, days) for days in (0, 2)}
        for days in (0, 1, 2):
            await insert_event(connection, account_id, new_id(-3), days)
            # The same message id of another account is another message.
            await insert_event(connection, uuid4(), message_id, days)
        assert [days for days in (0, 1, 2) if await is_needed(connection, "events", days)] == [0, 2]
        for days in (0, 2):
            await reduce(connection, "events", days)
        assert needed <= await keys(connection, "events")
        assert len(await keys(connection, "events")) == len(needed) + 2


async def test_a_reduced_day_has_what_is_needed_under_the_same_ids(database: Database) -> None:
    ours, theirs = uuid4(), uuid4()
    tables = ("messages", "bodies", *MESSAGE_TABLES)
    async with database.connection() as connection:
        await make(connection, 0)
        messages = [await insert_message(connection, account_id) for account_id in (ours, theirs) * 5]
        await schedule(connection, ours, messages[4])
        await schedule(connection, theirs, messages[6])
        rows = {
            table: await connection.fetch(
                f"SELECT * FROM {table} WHERE (account_id, {partitions.key_of(table)}) IN (($1, $2)) ORDER BY 1, 2, 3",
                ours, messages[4],
            )
            for table in tables
        }  # fmt: skip
        for table in tables:
            reduced = await reduce(connection, table)
            assert reduced in await partitions.attached(connection)
            assert Partition(DAY, table) not in await partitions.attached(connection)
            assert await keys(connection, table) == {messages[4]}, table
            found = await connection.fetch(f"SELECT * FROM {table} ORDER BY 1, 2, 3")
            assert found == rows[table]
        assert await partitions.detached(connection) == []


@pytest.mark.parametrize("table", partitions.TABLES)
async def test_a_reduced_day_is_like_its_table(table: str, database: Database) -> None:
    checks = "SELECT count(*) FROM pg_constraint WHERE conrelid = $1::regclass AND contype IN ('c', 'p')"
    indexes = "SELECT count(*) FROM pg_index WHERE indrelid = $1::regclass AND indisvalid"
    options = "SELECT reloptions FROM pg_class WHERE relname = $1"
    async with database.connection() as connection:
        await make(connection, 0, 1)
        reduced = await reduce(connection, table)
        for question in (checks, indexes, options):
            whole = await connection.fetchval(question, Partition(DAY + timedelta(days=1), table).name)
            assert await connection.fetchval(question, reduced.name) == whole


async def test_look_ups_by_id_open_only_the_reduced_day(database: Database) -> None:
    account_id = uuid4()
    async with database.connection() as connection:
        await make(connection, 0, 1)
        message_id = await insert_message(connection, account_id)
        await schedule(connection, account_id, message_id)
        await reduce(connection, "bodies")
        for sought, name in ((message_id, "bodies_20400229_stragglers"), (new_id(1), "bodies_20400301")):
            rows = await connection.fetch(
                f"EXPLAIN SELECT mime FROM bodies WHERE account_id = '{account_id}' AND message_id = '{sought}'"
            )
            (scan,) = [row[0] for row in rows if "Scan" in row[0]]
            assert f" on {name} " in scan


async def test_the_ledgers_sums_are_whole_however_many_parts_its_day_goes_in(database: Database) -> None:
    ours, theirs = uuid4(), uuid4()
    async with database.connection() as connection:

        async def sums() -> dict[UUID, list[int]]:
            """What is stored of each account: reserved, settled, released."""
            rows = await connection.fetch("SELECT account_id, reserved, settled, released FROM ledger_days")
            return {account_id: counts for account_id, *counts in rows}

        await make(connection, 0)
        messages = [await insert_message(connection, account_id) for account_id in (ours, theirs, ours, ours)]
        for number in (2, 3):
            await schedule(connection, ours, messages[number])
        await reduce(connection, "messages")
        reduced = await reduce(connection, "ledger")
        assert await sums() == {ours: [1, 1, 1], theirs: [1, 1, 1]}
        await connection.execute("DELETE FROM delivery_schedule WHERE message_id = $1", messages[2])
        async with connection.transaction():
            await maintenance.forget_final(connection, Partition(DAY, "messages", is_reduced=True), 0)
            await maintenance.forget_final(connection, reduced, 0)
        assert await sums() == {ours: [2, 2, 2], theirs: [1, 1, 1]}
        await partitions.detach(connection, reduced)
        async with connection.transaction():
            await partitions.drop(connection, reduced)
        assert await sums() == {ours: [3, 3, 3], theirs: [1, 1, 1]}


@pytest.mark.parametrize("table", ["messages", "bodies"])
async def test_a_table_in_use_is_left_untouched_before_others_time_out(table: str, database: Database) -> None:
    assert maintenance._LOCK_MILLISECONDS_MAX * 2 < LOCK_MILLISECONDS_MAX
    async with database.connection() as connection, database.connection() as reader:
        await make(connection, 0)
        message_id = await insert_message(connection, uuid4())
        async with reader.transaction():
            await reader.fetch(f"SELECT FROM {table} LIMIT 1")
            with pytest.raises(maintenance.TableInUse):
                await reduce(connection, table)
        assert await keys(connection, table) == {message_id}
        await reduce(connection, table)
        assert await keys(connection, table) == set()


async def test_a_day_that_is_held_is_not_replaced(database: Database) -> None:
    async with database.connection() as connection, database.connection() as reader:
        await make(connection, 0)
        async with reader.transaction(isolation="repeatable_read", readonly=True):
            await partitions.hold(reader)
            with pytest.raises(maintenance.TableInUse):
                await reduce(connection, "events")
        await reduce(connection, "events")


async def test_many_pages_are_deleted_in_batches(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_PAGES_BATCH", 2)
    account_id = uuid4()
    async with database.connection() as connection:
        await make(connection, 0)
        await connection.execute(
            "INSERT INTO recipients (account_id, message_id, position, field, email)"
            " SELECT $1, $2, position, 'to', repeat('a', 200) || '@example.org' FROM generate_series(1, 300) position",
            account_id, new_id(),
        )  # fmt: skip
        message_id = await insert_message(connection, account_id)
        await reduce(connection, "recipients")
        assert await keys(connection, "recipients") == {message_id}
