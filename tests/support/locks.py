"""Locks that tests hold, and when the service waits for them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from tests.support.eventually import eventually
from tests.support.service import Tenant

# Not of `pg_stat_activity`, which stays the same within a transaction.
_WAITING: Final = "SELECT count(*) FROM pg_locks WHERE NOT granted"


async def lock_waits(connection: Any, sessions: int = 1) -> None:
    """Return once this many sessions wait for a lock."""
    await eventually(lambda: connection.fetchval(_WAITING), lambda number: bool(number >= sessions))


@asynccontextmanager
async def locked_account(tenant: Tenant) -> AsyncIterator[Any]:
    """Hold the lock on an account's row, so that its requests wait; the connection that holds it.

    A request that waits gives up after half a second of the service's own patience.
    """
    async with tenant.service.pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM accounts WHERE id = $1 FOR UPDATE", tenant.id)
        yield connection
