"""Advisory locks: one session at a time, and none that outlives a failed unlock."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from posthouse.rules.refusal import Refusal
from posthouse.store.postgres import AdvisoryLock as LockName
from posthouse.store.postgres import Connection, Database
from posthouse.store.postgres import try_advisory_lock as try_lock
from tests.support.eventually import eventually


@pytest.fixture
async def outsider(database_url: str) -> AsyncIterator[Connection]:
    """A session that is not of the pool."""
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


class LosingAnswers:
    """A connection that sends the query and loses the answer."""

    def __init__(self, connection: Connection, query: str, fault: BaseException) -> None:
        self._connection = connection
        self._query = query
        self._fault = fault

    async def fetchval(self, query: str, *arguments: object) -> Any:
        if self._query == "pg_try_advisory_lock" and self._query in query:
            await self._connection.fetchval(query, *arguments)
        if self._query in query:
            raise self._fault
        return await self._connection.fetchval(query, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


async def test_only_one_session_gets_the_lock(database: Database) -> None:
    async with database.connection() as first, database.connection() as second:
        async with (
            try_lock(first, LockName.PARTITIONS) as is_held,
            try_lock(second, LockName.PARTITIONS) as is_held_too,
            try_lock(second, LockName.SEARCH_INDEX) as is_another_held,
        ):
            assert (is_held, is_held_too, is_another_held) == (True, False, True)
        async with try_lock(second, LockName.PARTITIONS) as is_held:
            assert is_held


async def test_a_process_that_dies_releases_its_lock(database_url: str, database: Database) -> None:
    dying = await asyncpg.connect(database_url)
    assert await dying.fetchval("SELECT pg_try_advisory_lock(hashtext('posthouse.partitions'))")
    dying.terminate()
    async with database.connection() as connection:
        await becomes_free(connection, LockName.PARTITIONS)


@pytest.mark.parametrize("name", LockName)
@pytest.mark.parametrize("query", ["pg_advisory_unlock", "pg_try_advisory_lock"])
async def test_a_failed_answer_leaves_no_pooled_session_with_the_lock(
    query: str, name: LockName, database: Database, outsider: Connection
) -> None:
    with pytest.raises(Refusal):
        await lock_and_lose(database, query, TimeoutError(), name)
    await becomes_free(outsider, name)
    async with database.connection() as connection, try_lock(connection, name) as is_held:
        assert is_held, "the pool has opened another connection"


async def test_a_task_cancelled_while_it_unlocks_leaves_no_lock(database: Database, outsider: Connection) -> None:
    with pytest.raises(asyncio.CancelledError):
        await lock_and_lose(database, "pg_advisory_unlock", asyncio.CancelledError(), LockName.PARTITIONS)
    await becomes_free(outsider, LockName.PARTITIONS)


async def test_work_that_fails_releases_the_lock_and_keeps_the_connection(
    database: Database, outsider: Connection
) -> None:
    async with database.connection() as connection:
        with pytest.raises(ZeroDivisionError):
            async with try_lock(connection, LockName.PARTITIONS):
                raise ZeroDivisionError
        assert await connection.fetchval("SELECT 1") == 1
        async with try_lock(outsider, LockName.PARTITIONS) as is_held:
            assert is_held


async def lock_and_lose(database: Database, query: str, fault: BaseException, name: LockName) -> None:
    async with database.connection() as connection:
        losing: Any = LosingAnswers(connection, query, fault)
        async with try_lock(losing, name):
            pass


async def becomes_free(connection: Connection, name: LockName) -> None:
    """PostgreSQL notices within moments that a session was closed."""

    async def is_free() -> bool:
        async with try_lock(connection, name) as is_held:
            return is_held

    await eventually(is_free)
