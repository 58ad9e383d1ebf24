"""PostgreSQL for a process: its connections, its time, and whether its tables are there."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from posthouse.clock import DatabaseClock
from posthouse.config import Settings
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import restore, schema
from posthouse.store.postgres import STATEMENT_SECONDS_MAX, Connection, Database
from posthouse.store.postgres import UnsafeDatabase as UnsafeDatabase
from posthouse.store.postgres import advice as database_advice

# No client waits while partitions are dropped or keys deleted.
MAINTENANCE_SECONDS_MAX: Final = 30.0
# No client waits while outcomes are recorded, but a longer statement would delay everything after it.
RECORD_SECONDS_MAX: Final = 10.0
# Intake's share of an HTTP process's connections: it runs one batch at a time, and reads credentials and used keys.
INTAKE_PART: Final = 0.4


def divided(connections_max: int) -> tuple[int, int]:
    """Connections for intake and for all other requests, so that neither waits for the other; at least one each."""
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
        timeout_factor=settings.database.timeout_factor,
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
    reading = await restore.read_clock(connection)
    clock.learn(reading.database_time, asked_at, reading.note)


async def require_tables(database: Database) -> None:
    async with database.connection() as connection:
        applied, newest = await schema.applied_revision(connection), schema.newest_revision()
    if applied is None:
        raise Refusal(Code.SERVICE_UNAVAILABLE, "The database has no tables yet: run `posthouse migrate`.")
    if applied < newest:
        text = f"The database's tables are older than this version ({applied}, not {newest}): run `posthouse migrate`."
        raise Refusal(Code.SERVICE_UNAVAILABLE, text)


def why_unavailable(refusal: Refusal) -> str | None:
    """What PostgreSQL or the system said, and what to do about it; None if the refusal has another cause."""
    cause = refusal.__cause__
    lines = str(cause or "").strip().splitlines()
    if refusal.code is not Code.SERVICE_UNAVAILABLE or not lines:
        return None
    return f"PostgreSQL can't be used ({lines[0]}): {database_advice(cause)}."


async def migrate(settings: Settings) -> None:
    """Bring the tables up to date; refuses first if PostgreSQL is down or unsafe, or the tables can't be upgraded."""
    async with open_database(settings, connections_max=1) as database, database.connection() as connection:
        await schema.applied_revision(connection)
    await asyncio.to_thread(schema.migrate, settings.database.url)
