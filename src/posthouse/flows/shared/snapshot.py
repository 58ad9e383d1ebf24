"""A read of everything as it was at one moment."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from posthouse.store import partitions
from posthouse.store.postgres import Connection, Database


@asynccontextmanager
async def snapshot(database: Database, *, holds_days: bool = False) -> AsyncIterator[Connection]:
    """With `holds_days` no day is reduced to its stragglers meanwhile: the snapshot would not see these."""
    async with (
        database.connection() as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        if holds_days:
            await partitions.hold(connection)
        yield connection
