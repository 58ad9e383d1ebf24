"""A read of everything as it was at one moment."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from posthouse.store.postgres import Connection, Database


@asynccontextmanager
async def snapshot(database: Database) -> AsyncIterator[Connection]:
    async with (
        database.connection() as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        yield connection
