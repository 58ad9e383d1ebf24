"""Databases that one test after another uses, emptied in between, with the connections to them.

Milliseconds of processor time: a copy of the template 50 with its drop, each first connection to it 15, because its
backend knows no table yet; emptying a database takes 5.
"""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from io import BytesIO
from typing import Any, Final, TypeVar

import asyncpg
import pytest

from posthouse.store.postgres import Database
from tools.private_postgres import PrivatePostgres

Result = TypeVar("Result")

TEMPLATE: Final = "posthouse_template"
# How rows are found must not depend on earlier tests: PostgreSQL plans for up to ten pages as for an empty table.
BYTES_MAX: Final = 10 * 8192
# Changes with every table, index and trigger, and with ANALYZE.
_SCHEMA: Final = "SELECT count(*), sum(xmin::text::bigint), sum(reltuples) FROM pg_class"
_END_OTHERS: Final = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND pid <> ALL ($1)
"""
# OFFSET 0: the size, which is asked of the file system, is asked once.
_WRITTEN: Final = """
SELECT relname, bytes FROM (
    SELECT relname, pg_relation_size(oid) AS bytes FROM pg_class
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace OFFSET 0
) AS tables WHERE bytes > 0
"""
# Triggers and foreign keys are off, and what a test left locked is not waited for.
_EMPTYING: Final = {"session_replication_role": "replica", "lock_timeout": "1000"}
_SEQUENCES: Final = """
SELECT setval(format('%I.%I', schemaname, sequencename)::regclass, start_value, false)
FROM pg_sequences WHERE last_value IS NOT NULL
"""


class KeptPools:
    """While `keep` lasts, closing a `Database` of this event loop leaves its connections to the next one that is opened
    with the same arguments."""

    def __init__(self) -> None:
        self._idle: defaultdict[Hashable, list[Any]] = defaultdict(list)
        self._keys: dict[Any, Hashable] = {}

    @contextmanager
    def keep(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        opened, closed = Database.open.__func__, Database.close  # type: ignore[attr-defined]

        async def open_database(cls: type[Database], /, url: str, **how: Any) -> Database:
            key = (url, *sorted(how.items()))
            is_kept = asyncio.get_running_loop() is loop and how.get("on_connect") is None and not how.get("standbys")
            if is_kept and self._idle[key]:
                return cls(self._idle[key].pop(), how.get("timeout_factor", 1.0))
            database: Database = await opened(cls, url, **how)
            if is_kept:
                self._keys[database._pool] = key
            return database

        async def close(database: Database) -> None:
            pool = database._pool
            if pool in self._keys and not database._being_given_up and pool.get_size() == pool.get_idle_size():
                self._idle[self._keys[pool]].append(pool)
            else:
                self._keys.pop(pool, None)
                await closed(database)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Database, "open", classmethod(open_database))
            patch.setattr(Database, "close", close)
            yield

    def backends(self, url: str) -> list[int]:
        """The process ids of the kept connections to this database."""
        return [
            holder._con.get_server_pid()
            for pool in self._of(url)
            for holder in pool._holders
            if holder._con is not None and not holder._con.is_closed()
        ]

    def forget(self, url: str) -> None:
        """Ends them: the database is dropped."""
        for pool in self._of(url):
            pool.terminate()
            self._keys.pop(pool)
        for key in [key for key in self._idle if key[0] == url]:  # type: ignore[index]
            del self._idle[key]

    async def close(self) -> None:
        for pool in list(itertools.chain.from_iterable(self._idle.values())):
            await pool.close()
        self._idle.clear()

    def _of(self, url: str) -> list[Any]:
        return [pool for key, pools in self._idle.items() if key[0] == url for pool in pools]  # type: ignore[index]


class Databases:
    """Copies of the template. Of each, one connection on its own thread empties it before the next test uses it.

    CPU per copy of 12 MB in memory: 24 ms with FILE_COPY and 8 ms to drop, 46 and 14 ms with WAL_LOG; a `psql`
    for each statement adds 20 ms. With 256 MB of shared buffers, which DROP searches, it is half as much again.
    """

    def __init__(self, cluster: PrivatePostgres, pools: KeptPools) -> None:
        self._pools = pools
        self._cluster = cluster
        self._numbers = itertools.count(1)
        self._thread = ThreadPoolExecutor(1, "databases")
        self._runner = asyncio.Runner()
        self._connections: dict[str, asyncpg.Connection] = {}
        self._free: list[str] = []
        self._first_rows: dict[str, bytes] = {}
        self._first_schema: asyncpg.Record | None = None

    def make(self) -> str:
        while self._free:
            url = self._free.pop()
            if self._run(self._empty(url, self._pools.backends(url))):
                return url
            self._pools.forget(url)
            self._run(self._drop(url))
        return self._run(self._create())

    def release(self, url: str) -> None:
        self._free.append(url)

    def close(self) -> None:
        for connection in self._connections.values():
            self._run(connection.close())
        self._thread.submit(self._runner.close).result()
        self._thread.shutdown()

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._thread.submit(self._runner.run, work).result()

    async def _create(self) -> str:
        if self._first_schema is None:
            await self._read_template()
        name = f"test_{next(self._numbers)}"
        server = await self._connection(self._cluster.url())
        await server.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY FILE_COPY")
        return self._cluster.url(name)

    async def _drop(self, url: str) -> None:
        if url in self._connections:
            self._connections.pop(url).terminate()
        server = await self._connection(self._cluster.url())
        await server.execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")

    async def _read_template(self) -> None:
        connection = await asyncpg.connect(self._cluster.url(TEMPLATE))
        self._first_schema = await connection.fetchrow(_SCHEMA)
        self._first_rows = await _rows(connection)
        await connection.close()

    async def _empty(self, url: str, kept: list[int]) -> bool:
        """False if it can't be used again."""
        try:
            connection = await self._connection(url)
            await connection.fetch(_END_OTHERS, kept)
            written = await connection.fetch(_WRITTEN)
            if await connection.fetchrow(_SCHEMA) != self._first_schema:
                return False
            if any(row["bytes"] > BYTES_MAX for row in written):
                return False
            await _replace(connection, written, self._first_rows)
            await connection.execute(_SEQUENCES)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
            return False
        return True

    async def _connection(self, url: str) -> asyncpg.Connection:
        if url not in self._connections:
            self._connections[url] = await asyncpg.connect(url, server_settings=_EMPTYING)
        return self._connections[url]


@asynccontextmanager
async def kept_rows(url: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Brings back the rows that the database has now, whenever it is called."""
    connection = await asyncpg.connect(url, server_settings=_EMPTYING)
    rows = await _rows(connection)

    async def bring_back() -> None:
        await _replace(connection, await connection.fetch(_WRITTEN), rows)

    yield bring_back
    await connection.close()


async def _rows(connection: asyncpg.Connection) -> dict[str, bytes]:
    """Of each table, in PostgreSQL's own form."""
    found = {}
    for table, _ in await connection.fetch(_WRITTEN):
        rows = BytesIO()
        await connection.copy_from_table(table, output=rows, format="binary")
        found[table] = rows.getvalue()
    return found


async def _replace(connection: asyncpg.Connection, written: list[asyncpg.Record], rows: dict[str, bytes]) -> None:
    async with connection.transaction():
        await connection.execute("; ".join(f"DELETE FROM ONLY {table}" for table, _ in written))
        for table, of_table in rows.items():
            await connection.copy_to_table(table, source=BytesIO(of_table), format="binary")


@asynccontextmanager
async def no_task_left() -> AsyncIterator[None]:
    """What a test leaves running ends with it, although the event loop doesn't."""
    before = asyncio.all_tasks()
    yield
    rest = asyncio.all_tasks() - before - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
