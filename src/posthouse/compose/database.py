"""PostgreSQL for a process: its connections, its time, and whether its tables are there."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from posthouse.clock import DatabaseClock
from posthouse.config import Settings
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import restore, revision, service_clock
from posthouse.store.postgres import STATEMENT_SECONDS_MAX, Connection, Database

# No client waits while partitions are dropped or keys deleted.
MAINTENANCE_SECONDS_MAX: Final = 30.0
# Nor while outcomes are recorded; but a statement that takes longer than this delays everything behind it.
RECORD_SECONDS_MAX: Final = 10.0
# Of an HTTP process's connections: intake runs one batch at a time, and reads credentials and used keys beside it.
INTAKE_PART: Final = 0.4


def divided(connections_max: int) -> tuple[int, int]:
    """The connections for intake and for all other requests, so that neither waits for the other; at least one each."""
    for_intake = max(1, round(connections_max * INTAKE_PART))
    return for_intake, max(1, connections_max - for_intake)


@asynccontextmanager
async def open_database(
    settings: Settings,
    *,
    connections_max: int | None = None,
    statement_seconds_max: float = STATEMENT_SECONDS_MAX,
    allow_unsafe: bool = False,
    clock: DatabaseClock | None = None,
    kind: type[Database] = Database,
) -> AsyncIterator[Database]:
    database = await kind.open(
        settings.database.url,
        connections_max=connections_max or settings.database.pool_max,
        statement_seconds_max=statement_seconds_max,
        patience=settings.database.patience,
        allow_unsafe=allow_unsafe or settings.database.allow_unsafe,
        standbys=settings.database.standbys,
        on_connect=None if clock is None else partial(_learn, clock),
    )
    try:
        yield database
    finally:
        await database.close()


async def _learn(clock: DatabaseClock, connection: Connection) -> None:
    await learn_time_of(clock, connection)
    await restore.note_unknown(connection)


async def learn_time(clock: DatabaseClock, database: Database) -> None:
    async with database.connection() as connection:
        await learn_time_of(clock, connection)


async def learn_time_of(clock: DatabaseClock, connection: Connection) -> None:
    asked_at = clock.asked()
    reading = await service_clock.read(connection)
    clock.learn(reading.database_time, asked_at, reading.note)


async def require_tables(database: Database) -> None:
    async with database.connection() as connection:
        applied, newest = await revision.applied(connection), revision.newest()
    if applied is None:
        raise Refusal(Code.SERVICE_UNAVAILABLE, "The database has no tables yet: run `posthouse migrate`.")
    if applied < newest:
        text = f"The database's tables are older than this version ({applied}, not {newest}): run `posthouse migrate`."
        raise Refusal(Code.SERVICE_UNAVAILABLE, text)
