"""PostgreSQL for a process: connections, its clock, its control cache, and whether the disk has room."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import structlog

from posthouse.clock import DatabaseClock
from posthouse.config import Settings
from posthouse.config.storage import AUTO
from posthouse.entrypoints.workers import repeated
from posthouse.flows.shared.disk_space import DiskSpace, server_volume, size, volume
from posthouse.rules import service_time
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import revision, service_clock
from posthouse.store.control_cache import ControlCache
from posthouse.store.postgres import STATEMENT_SECONDS_MAX, Connection, Database

log = structlog.get_logger(__name__)

CLOCK_PAUSE_SECONDS: Final = 5.0
CONTROL_CACHE_PAUSE_SECONDS: Final = 1.0
# Mail that arrives between two checks must still fit on the disk.
DISK_SPACE_PAUSE_SECONDS: Final = 3.0
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
) -> AsyncIterator[Database]:
    database = await Database.open(
        settings.database.url,
        connections_max=connections_max or settings.database.pool_max,
        statement_seconds_max=statement_seconds_max,
        patience=settings.database.patience,
        allow_unsafe=allow_unsafe or settings.database.allow_unsafe,
        on_connect=None if clock is None else partial(_learn_time, clock),
    )
    try:
        yield database
    finally:
        await database.close()


@asynccontextmanager
async def synchronized(clock: DatabaseClock, database: Database) -> AsyncIterator[None]:
    """The clock follows the database's time."""

    async def synchronize_clock() -> None:
        await synchronize(clock, database)

    async with repeated(synchronize_clock, pause_seconds=CLOCK_PAUSE_SECONDS):
        yield


async def synchronize(clock: DatabaseClock, database: Database) -> None:
    """Learn the database's time, and note service time for processes that start."""
    was_held = clock.step
    async with database.connection() as connection:
        await _learn_time(clock, connection)
        await service_clock.note(connection, clock.now(), clock.acceptances)
    if clock.step is not None and was_held is None:
        seconds = round(clock.step.total_seconds(), 1)
        log.error("database_time_stepped", seconds=seconds, advice=service_time.explain(clock.step))
    elif clock.step is None and was_held is not None:
        log.warning("database_time_is_right_again")


async def learn_time(clock: DatabaseClock, database: Database) -> None:
    async with database.connection() as connection:
        await _learn_time(clock, connection)


async def _learn_time(clock: DatabaseClock, connection: Connection) -> None:
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


@asynccontextmanager
async def refreshed(control_cache: ControlCache) -> AsyncIterator[ControlCache]:
    """The cache drops changed entries within a second or two."""
    async with repeated(control_cache.forget_changes, pause_seconds=CONTROL_CACHE_PAUSE_SECONDS):
        yield control_cache


def disk_space(settings: Settings, database: Database) -> DiskSpace:
    gauges = []
    directory, free_bytes_min = settings.disk_space.directory, settings.disk_space.free_bytes_min
    if directory == AUTO:
        if settings.database.is_on_this_machine:
            gauges.append(server_volume(database, free_bytes_min))
    elif directory:
        gauges.append(volume(directory, free_bytes_min))
    if settings.disk_space.database_bytes_max:
        gauges.append(size(database, settings.disk_space.database_bytes_max))
    return DiskSpace(gauges)


@asynccontextmanager
async def checked_disk_space(settings: Settings, database: Database) -> AsyncIterator[DiskSpace]:
    """The disk space as of a few seconds ago at most."""
    made = disk_space(settings, database)
    if not made.gauges:
        yield made
        return
    async with repeated(made.check, pause_seconds=DISK_SPACE_PAUSE_SECONDS):
        yield made
