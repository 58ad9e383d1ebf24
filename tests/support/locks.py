"""Locks that tests hold, and when the service waits for them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from tests.support.eventually import eventually
from tests.support.service import Tenant

# Not of `pg_stat_activity`, which stays the same within a transaction.
_WAITING: Final = "SELECT count(*) FROM pg_locks WHERE NOT granted"

# Shorter than the half second after which a request that waits for a lock gives up.
_HELD_SECONDS: Final = 0.3


async def lock_waits(connection: Any, sessions: int = 1, *, unless: asyncio.Future[Any] | None = None) -> None:
    """Returns once this many sessions wait for a lock, or `unless` is done."""
    await eventually(lambda: connection.fetchval(_WAITING), lambda n: bool(n >= sessions or (unless and unless.done())))


@asynccontextmanager
async def locked_account(tenant: Tenant) -> AsyncIterator[Any]:
    """Holds the lock on an account's row, so that its requests wait; returns the connection that holds it.

    A request that waits gives up after the service's own timeout of half a second.
    """
    async with tenant.service.pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM accounts WHERE id = $1 FOR UPDATE", tenant.id)
        yield connection


@asynccontextmanager
async def briefly_locked_account(tenant: Tenant) -> AsyncIterator[None]:
    """Holds the lock on an account's row for a moment, by PostgreSQL's clock: no pause of the test makes it longer."""
    async with tenant.service.pool.acquire() as connection:
        await connection.execute("BEGIN")
        await connection.execute("SELECT FROM accounts WHERE id = $1 FOR UPDATE", tenant.id)
        release = asyncio.ensure_future(connection.execute(f"SELECT pg_sleep({_HELD_SECONDS}); COMMIT"))
        yield
        await release
