"""Bodies: PostgreSQL compresses them, and gives back the same bytes."""

import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from posthouse.rules.ids import AccountId, MessageId, new_message_id
from posthouse.store import messages
from posthouse.store.postgres import Database

ACCOUNT = AccountId(uuid4())
LINE = b"Your parcel has left our warehouse and should reach you within two working days.\r\n"

_HAS_LZ4 = "SELECT 'lz4' = ANY(enumvals) FROM pg_settings WHERE name = 'default_toast_compression'"
_STORED = "SELECT pg_column_size(mime), pg_column_compression(mime) FROM bodies WHERE message_id = $1"


async def store(tx: Any, mime: bytes) -> MessageId:
    message_id = new_message_id(datetime.now(UTC), uuid4().bytes[:10])
    await tx.execute("INSERT INTO bodies (account_id, message_id, mime) VALUES ($1, $2, $3)", ACCOUNT, message_id, mime)
    return message_id


@pytest.fixture
async def tx(database: Database) -> AsyncIterator[Any]:
    async with database.transaction() as tx:
        if not await tx.fetchval(_HAS_LZ4):
            pytest.skip("this PostgreSQL has no lz4")
        yield tx


@pytest.mark.parametrize("size", [0, 1, 2_000, 3_000, 8_000, 30_000, 1_000_000])
async def test_a_body_is_read_as_it_was_stored(size: int, tx: Any) -> None:
    for mime in ((LINE * (size // len(LINE) + 1))[:size], random.Random(size).randbytes(size)):
        message_id = await store(tx, mime)
        assert await messages.whole_body(tx, ACCOUNT, message_id) == mime
        assert await messages.body_beginning(tx, ACCOUNT, message_id, 1_000) == mime[:1_000]
        assert await tx.fetchval("SELECT octet_length(mime) FROM bodies WHERE message_id = $1", message_id) == size


async def test_what_takes_more_than_a_quarter_of_a_page_is_compressed(tx: Any) -> None:
    size, method = await tx.fetchrow(_STORED, await store(tx, LINE * 30))
    assert (size < 500, method) == (True, "lz4")
    size, method = await tx.fetchrow(_STORED, await store(tx, LINE * 10))
    assert (size > 10 * len(LINE), method) == (True, None)
    # What doesn't become smaller stays as it is.
    assert (await tx.fetchrow(_STORED, await store(tx, random.Random(1).randbytes(3_000))))[1] is None
