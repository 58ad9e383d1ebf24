"""Locks that let one process at a time do a piece of upkeep.

They belong to the session, not to a transaction: a partition can't be detached concurrently inside one. So a pooled
connection that could not be unlocked must not live on: it would hold the lock for as long as it is in use, and the
work would be skipped everywhere. Closing it makes PostgreSQL release the lock.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Final

from posthouse.store.postgres import Connection

_LOCK: Final = "SELECT pg_try_advisory_lock(hashtext($1))"
_UNLOCK: Final = "SELECT pg_advisory_unlock(hashtext($1))"


class LockName(StrEnum):
    """Processes of an older version ask for the same texts: they never change."""

    PARTITIONS = "posthouse.partitions"
    SEARCH_INDEX = "posthouse.catalogue"
    ALERTS = "posthouse.alerts"


@asynccontextmanager
async def try_lock(connection: Connection, name: LockName) -> AsyncIterator[bool]:
    """Whether this session got the lock, which it then holds until the end; False while another has it."""
    is_held = await _ask(connection, _LOCK, name)
    try:
        yield is_held
    finally:
        if is_held:
            await _ask(connection, _UNLOCK, name)


async def _ask(connection: Connection, query: str, name: LockName) -> bool:
    try:
        return bool(await connection.fetchval(query, name))
    except BaseException:
        # Whether the lock is held now is unknown: the answer was lost, or the task was cancelled.
        connection.terminate()
        raise
