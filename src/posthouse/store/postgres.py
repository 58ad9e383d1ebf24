"""Connections to PostgreSQL: their settings, its advisory locks, and the refusals for when it is unavailable."""

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Protocol
from uuid import UUID

import asyncpg
from asyncpg.pgproto import pgproto

from posthouse import metrics
from posthouse.rules.disk_space import no_capacity
from posthouse.rules.refusal import Code, Refusal
from posthouse.store.hosts import WritableHost


class Row(Protocol):
    """A row, read by column name, by number, or whole; the functions that read it give its values their types."""

    def __getitem__(self, key: str | int, /) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...
    def keys(self) -> Iterable[str]: ...


class Transaction(AbstractAsyncContextManager[None], Protocol):
    async def start(self) -> None: ...
    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...


class Connection(Protocol):
    """The part of an asyncpg connection that we use, since it has no types of its own."""

    async def fetch(self, query: str, /, *arguments: object) -> Sequence[Row]: ...
    async def fetchrow(self, query: str, /, *arguments: object) -> Row | None: ...
    async def fetchval(self, query: str, /, *arguments: object, timeout: float | None = None) -> Any: ...  # noqa: ASYNC109
    async def execute(self, query: str, /, *arguments: object, timeout: float | None = None) -> str: ...  # noqa: ASYNC109
    async def copy_records_to_table(
        self, table_name: str, /, *, columns: Sequence[str], records: Iterable[Sequence[object]]
    ) -> str: ...
    def terminate(self) -> None: ...
    def transaction(self, *, isolation: str | None = None, readonly: bool = False) -> Transaction: ...


def required(row: Row | None) -> Row:
    """The row of a statement that always returns a row."""
    if row is None:
        raise LookupError("a row that must be there is not")
    return row


def row_count(status: str) -> int:
    """How many rows a statement changed, from the status that PostgreSQL returns."""
    return int(status.rpartition(" ")[2])


# Together these limits keep an answer under five seconds even when PostgreSQL hangs: a statement is given up, then its
# connection.
CONNECT_SECONDS_MAX: Final = 1.5
ACQUIRE_SECONDS_MAX: Final = 1.5
STATEMENT_SECONDS_MAX: Final = 2.0
# PostgreSQL ends a statement that takes too long; this much later we stop waiting for it.
_ANSWER_SECONDS_MORE: Final = 0.5
LOCK_MILLISECONDS_MAX: Final = 500
# Within a transaction: then the process hangs, and others need its locks.
IDLE_MILLISECONDS_MAX: Final = 10_000
# How long a check that there are enough standbys is trusted.
STANDBYS_CHECK_SECONDS: Final = 5.0

# Prepared once, planned once: generic plans halve the cost of small batches. They are safe only while
# nothing tempts the planner away from the primary keys, so scans and large joins are switched off.
SETTINGS: Final = {
    "application_name": "posthouse",
    "timezone": "UTC",
    "synchronous_commit": "on",
    "lock_timeout": str(LOCK_MILLISECONDS_MAX),
    "idle_in_transaction_session_timeout": str(IDLE_MILLISECONDS_MAX),
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}

_UNAVAILABLE: Final = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    # asyncpg's error for a connection that PostgreSQL is closing.
    asyncpg.InternalClientError,
    # PostgreSQL hangs: it would have ended a statement that only takes long.
    TimeoutError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
)
_TEMPORARY: Final = (
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    # A migration ran meanwhile; the statement is prepared again the next time.
    asyncpg.InvalidCachedStatementError,
)


class StandbysMissing(RuntimeError):  # noqa: N818 (reads as what it says)
    """PostgreSQL waits for fewer standbys than it must: its commits could be lost with its machine."""


class UnsafeDatabase(RuntimeError):  # noqa: N818 (reads as what it says)
    """With the settings of PostgreSQL, a commit would not survive a crash."""


def as_refusal(fault: BaseException) -> Refusal | None:
    """The refusal for a temporary failure of PostgreSQL; None for a fault of ours."""
    # A cancelled statement is an "operator intervention" to PostgreSQL: the temporary ones come first.
    if isinstance(fault, _TEMPORARY):
        return Refusal(Code.TEMPORARY_FAILURE, "The service was busy for a moment: try again.", 1)
    if isinstance(fault, asyncpg.CheckViolationError) and str(fault).startswith("no partition of relation"):
        return Refusal(
            Code.SERVICE_UNAVAILABLE, "The service has no room for today's mail: its operator must run maintenance.", 60
        )
    if isinstance(fault, asyncpg.DiskFullError):
        return no_capacity()
    if isinstance(fault, StandbysMissing):
        return Refusal(Code.SERVICE_UNAVAILABLE, "The service's storage has no standby right now: try again soon.", 2)
    # A wrong argument is an InterfaceError too, and a ValueError: that is a fault.
    if isinstance(fault, _UNAVAILABLE) and not isinstance(fault, ValueError):
        return Refusal(Code.SERVICE_UNAVAILABLE, "The service can't reach its storage right now: try again soon.", 2)
    return None


def advice(fault: BaseException | None) -> str:
    """What an operator can do if PostgreSQL can't be used."""
    match fault:
        case asyncpg.InvalidPasswordError():
            return "PostgreSQL runs, and refuses the password: correct it in database.url"
        case asyncpg.InvalidAuthorizationSpecificationError():
            return (
                "PostgreSQL runs, and refuses the user: correct it in database.url, create it (`createuser`), or let "
                "it in (pg_hba.conf)"
            )
        case asyncpg.InvalidCatalogNameError():
            return "PostgreSQL runs, and has no such database: create it (`createdb`), or correct it in database.url"
        case socket.gaierror():
            return "correct the host in database.url: no address is known for it"
        case asyncpg.TooManyConnectionsError():
            return "PostgreSQL has no connection left: raise its max_connections, or lower database.pool_max"
        case StandbysMissing():
            return str(fault)
        case asyncpg.TargetServerAttributeNotMatched():
            return "promote a standby, or start the primary: no host of database.url takes writes"
        case asyncpg.InsufficientPrivilegeError():
            return "let the user of database.url do this: the database must be its own"
        case _:
            return "start PostgreSQL, and see that database.url names its host and port"


def storable(text: str | None, characters_max: int | None = None) -> str | None:
    """PostgreSQL accepts no NUL and no lone surrogate, and one bad text would fail a whole group commit."""
    if text is None:
        return None
    text = text[:characters_max]
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def fast_uuid(data: bytes) -> UUID:
    """The client library's UUID type, as in rows: it is faster to create, compare, hash and send."""
    made: UUID = pgproto.UUID(data)
    return made


class Database:
    """A pool of connections with the same settings; transactions are READ COMMITTED and short."""

    def __init__(self, pool: Any, timeout_factor: float = 1.0, standbys: int = 0) -> None:
        self._pool = pool
        self._acquire_seconds_max = ACQUIRE_SECONDS_MAX * timeout_factor
        self._standbys = standbys
        self._standbys_checked_at = -STANDBYS_CHECK_SECONDS
        self._in_use: set[Connection] = set()
        self._being_given_up: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        connections_max: int = 10,
        statement_seconds_max: float = STATEMENT_SECONDS_MAX,
        timeout_factor: float = 1.0,
        allow_unsafe: bool = False,
        standbys: int = 0,
        on_connect: Callable[[Connection], Awaitable[None]] | None = None,
    ) -> "Database":
        """Connects on first use, so that a process can start while PostgreSQL is away.

        `on_connect` gets each connection before it is used, so that a process that can write knows the database's
        time. `timeout_factor` multiplies every timeout. A server whose commits wait for fewer than `standbys` standbys
        is refused.
        """

        async def check(connection: Connection) -> None:
            await _require_durability(connection, allow_unsafe)
            if standbys:
                await _require_standbys(connection, standbys)
            if on_connect is not None:
                await on_connect(connection)

        statement_seconds_max *= timeout_factor
        host = WritableHost(url)
        pool = await asyncpg.create_pool(
            url,
            connect=host.connect,
            min_size=0,
            max_size=connections_max,
            timeout=CONNECT_SECONDS_MAX * timeout_factor,
            command_timeout=statement_seconds_max + _ANSWER_SECONDS_MORE,
            max_inactive_connection_lifetime=60,
            server_settings={
                **SETTINGS,
                "lock_timeout": str(int(LOCK_MILLISECONDS_MAX * timeout_factor)),
                "idle_in_transaction_session_timeout": str(int(IDLE_MILLISECONDS_MAX * timeout_factor)),
                "statement_timeout": str(int(statement_seconds_max * 1000)),
            },
            init=check,
            reset=_no_reset,
        )
        database = cls(pool, timeout_factor, standbys)
        host.when_promoted = database.leave_former_primary
        return database

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        asked_at = time.perf_counter()
        try:
            connection = await self._pool.acquire(timeout=self._acquire_seconds_max)
            metrics.DATABASE_WAIT.observe(time.perf_counter() - asked_at)
            self._in_use.add(connection)
            try:
                if self._standbys:
                    await self._check_standbys(connection)
                yield connection
            except (TimeoutError, StandbysMissing):
                # The server hangs, waits for a standby or has none: the same applies to its other connections.
                await self._pool.expire_connections()
                self._give_up(connection)
                raise
            except BaseException:
                await self._pool.release(connection)
                raise
            finally:
                self._in_use.discard(connection)
            await self._pool.release(connection)
        except Refusal:
            raise
        except Exception as fault:
            refusal = as_refusal(fault)
            if refusal is None:
                raise
            metrics.DATABASE_REFUSALS.count(refusal.code.value)
            raise refusal from fault

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        async with self.connection() as connection:
            transaction = connection.transaction()
            await transaction.start()
            try:
                yield connection
            except TimeoutError:
                raise  # `connection` gives it up: a server that hangs would not answer ROLLBACK either
            except BaseException:
                await transaction.rollback()
                raise
            await transaction.commit()

    async def leave_former_primary(self) -> None:
        """Close connections after another server took over: a frozen one would hold up each statement for long."""
        await self._pool.expire_connections()
        for connection in list(self._in_use):
            with suppress(asyncpg.InterfaceError):  # it was closed meanwhile, and its user has not noticed yet
                connection.terminate()

    async def _check_standbys(self, connection: Connection) -> None:
        now = time.monotonic()
        if now - self._standbys_checked_at >= STANDBYS_CHECK_SECONDS:
            await _require_standbys(connection, self._standbys)
            self._standbys_checked_at = now

    def _give_up(self, connection: Connection) -> None:
        """Close it soon: until then PostgreSQL is asked to cancel the running statement, which may hold locks."""

        async def close() -> None:
            with suppress(Exception):
                await connection.execute("ROLLBACK")  # begins when the cancellation was answered, or fails with it
            connection.terminate()
            await self._pool.release(connection)

        task = asyncio.create_task(close())
        self._being_given_up.add(task)
        task.add_done_callback(self._being_given_up.discard)

    async def close(self) -> None:
        try:
            await asyncio.wait_for(self._pool.close(), STATEMENT_SECONDS_MAX)
        except TimeoutError:
            self._pool.terminate()


async def _no_reset(_: Connection) -> None:
    """No statement of ours leaves a session changed, so asking PostgreSQL to reset it would only cost a round trip."""


# ANY 2 (a, b, c), FIRST 2 (a, b), 2 (a, b, c); without a number it means one.
_STANDBYS: Final = re.compile(r"(?:(?:ANY|FIRST)\s+)?(?P<count>[0-9]+)\s*\(", re.IGNORECASE)


def standbys_awaited(synchronous_standby_names: str) -> int:
    """How many standbys must have a commit before it is answered."""
    names = synchronous_standby_names.strip()
    numbered = _STANDBYS.match(names)
    return int(numbered["count"]) if numbered else int(bool(names))


async def _require_standbys(connection: Connection, wanted: int) -> None:
    names: str = await connection.fetchval("SELECT current_setting('synchronous_standby_names')")
    if standbys_awaited(names) < wanted:
        raise StandbysMissing(
            f"set synchronous_standby_names of PostgreSQL, which is '{names}': database.standbys asks for a primary "
            f"that waits for {wanted} with each commit"
        )


async def _require_durability(connection: Connection, allow_unsafe: bool) -> None:
    fsync, full_page_writes = required(
        await connection.fetchrow("SELECT current_setting('fsync'), current_setting('full_page_writes')")
    )
    if not allow_unsafe and (fsync != "on" or full_page_writes != "on"):
        raise UnsafeDatabase(
            f"PostgreSQL runs with fsync={fsync} and full_page_writes={full_page_writes}, so an accepted "
            "message could be lost. Turn both on, or set database.allow_unsafe for development."
        )


# Locks that let one process at a time do a piece of maintenance.
#
# They belong to the session, not to a transaction: a partition can't be detached concurrently inside one. So a pooled
# connection that could not be unlocked must be closed: otherwise it would hold the lock for as long as it is in use,
# and the work would be skipped everywhere. Closing it makes PostgreSQL release the lock.


_TRY_ADVISORY_LOCK: Final = "SELECT pg_try_advisory_lock(hashtext($1))"
_ADVISORY_UNLOCK: Final = "SELECT pg_advisory_unlock(hashtext($1))"


class AdvisoryLock(StrEnum):
    """Processes of older versions use the same names, so the names never change."""

    PARTITIONS = "posthouse.partitions"
    SEARCH_INDEX = "posthouse.catalogue"
    ALERTS = "posthouse.alerts"


@asynccontextmanager
async def try_advisory_lock(connection: Connection, name: AdvisoryLock) -> AsyncIterator[bool]:
    """True if this session got the lock, which it holds until the end; False if another session has it."""
    is_held = await _ask_for_lock(connection, _TRY_ADVISORY_LOCK, name)
    try:
        yield is_held
    finally:
        if is_held:
            await _ask_for_lock(connection, _ADVISORY_UNLOCK, name)


async def _ask_for_lock(connection: Connection, query: str, name: AdvisoryLock) -> bool:
    try:
        return bool(await connection.fetchval(query, name))
    except BaseException:
        # Whether the lock is held now is unknown: the answer was lost, or the task was cancelled.
        connection.terminate()
        raise


# How long transactions of this service have been open: their rows may appear behind rows that are visible already.


_OLDEST_TRANSACTION: Final = """
SELECT min(xact_start) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = $1 AND pid <> pg_backend_pid()
"""


async def oldest_open_transaction(connection: Connection) -> datetime | None:
    """When the oldest open transaction began; None if there is none.

    Ask before rows are read: a transaction that ends between the two is then seen by the read.
    """
    began: datetime | None = await connection.fetchval(_OLDEST_TRANSACTION, SETTINGS["application_name"])
    return began
