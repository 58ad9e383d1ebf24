"""Content that is to be forgotten: its body is deleted once all recipients of its message are final, page by page."""

from collections.abc import AsyncIterator
from uuid import UUID

import pytest_asyncio

from posthouse.flows.operate.maintenance import forget_contents
from posthouse.store.postgres import Database
from tests.support.accept_flow import AcceptFlow, Sender, new_sender, open_accept_flow
from tests.support.clock import SettableClock
from tests.support.operator_client import Operator


@pytest_asyncio.fixture
async def accept_flow(database_url: str) -> AsyncIterator[AcceptFlow]:
    async with open_accept_flow(database_url, SettableClock()) as opened:
        yield opened


async def accepted(accept_flow: AcceptFlow, sender: Sender, key: str, **fields: object) -> UUID:
    return (await accept_flow.accept(sender, key, sender.draft(2, **fields))).message_id


async def left(database: Database, table: str) -> set[UUID]:
    async with database.connection() as connection:
        return {row["message_id"] for row in await connection.fetch(f"SELECT message_id FROM {table}")}


async def set_open(database: Database, message_id: UUID, count: int) -> None:
    async with database.transaction() as tx:
        await tx.execute(
            "UPDATE messages SET open_count = $2, delivered_count = recipient_count - $2,"
            " status = CASE WHEN $2 = 0 THEN 'delivered' ELSE 'queued' END,"
            " billing_status = CASE WHEN $2 = 0 THEN 'settled' ELSE 'reserved' END WHERE id = $1",
            message_id, count,
        )  # fmt: skip


async def test_a_body_stays_until_the_last_recipient_is_final(
    database: Database, accept_flow: AcceptFlow, operator: Operator
) -> None:
    sender, other = await new_sender(operator, "acme"), await new_sender(operator, "other")
    forgotten = [await accepted(accept_flow, sender, f"f{number}", content="forget") for number in range(5)]
    forgotten.append(await accepted(accept_flow, other, "theirs", content="forget"))
    kept = await accepted(accept_flow, sender, "kept")
    assert await left(database, "bodies_to_delete") == set(forgotten)
    assert await forget_contents(database, 2) == 0

    for message_id in (forgotten[0], forgotten[5], kept):
        await set_open(database, message_id, 1)
    assert await forget_contents(database, 2) == 0
    for message_id in (forgotten[0], forgotten[5], kept):
        await set_open(database, message_id, 0)
    assert await forget_contents(database, 2) == 2
    assert await left(database, "bodies") == {*forgotten[1:5], kept}
    assert await left(database, "bodies_to_delete") == set(forgotten[1:5])

    for message_id in forgotten[1:5]:
        await set_open(database, message_id, 0)
    assert (await forget_contents(database, 2), await forget_contents(database, 2)) == (4, 0)
    assert await left(database, "bodies") == {kept}


async def test_what_is_dropped_with_its_day_is_forgotten(
    database: Database, accept_flow: AcceptFlow, operator: Operator
) -> None:
    sender = await new_sender(operator, "acme")
    message_id = await accepted(accept_flow, sender, "old", content="forget")
    async with database.transaction() as tx:
        for table, column in (("messages", "id"), ("bodies", "message_id")):
            await tx.execute(f"DELETE FROM {table} WHERE {column} = $1", message_id)
    assert await forget_contents(database) == 1
    assert await left(database, "bodies_to_delete") == set()
