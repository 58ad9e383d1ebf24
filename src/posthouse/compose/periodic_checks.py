"""What a process checks again and again: the database's time, changes to its control cache, and the disk's room."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import structlog

from posthouse import metrics
from posthouse.chance import SystemChance
from posthouse.clock import DatabaseClock
from posthouse.compose.database import learn_time_of, open_database
from posthouse.config import Settings
from posthouse.config.storage import AUTO
from posthouse.entrypoints.workers import repeated
from posthouse.flows.operate.restore import RestoreCheck
from posthouse.flows.shared.disk_space import DiskSpace, server_volume, size, volume
from posthouse.rules import service_time
from posthouse.store.control_cache import ControlCache
from posthouse.store.postgres import Database

log = structlog.get_logger(__name__)

CLOCK_PAUSE_SECONDS: Final = 5.0
CONTROL_CACHE_PAUSE_SECONDS: Final = 1.0
# Mail that arrives between two checks must still fit on the disk.
DISK_SPACE_PAUSE_SECONDS: Final = 3.0


@asynccontextmanager
async def service_clock(settings: Settings) -> AsyncIterator[DatabaseClock]:
    """Service time for all parts of a process, over a connection of its own."""
    clock = DatabaseClock()
    async with (
        open_database(settings, connections_max=1, clock=clock) as database,
        synchronized(settings, clock, database),
    ):
        yield clock


@asynccontextmanager
async def synchronized(settings: Settings, clock: DatabaseClock, database: Database) -> AsyncIterator[None]:
    """The clock follows the database's time, and a restored database is noticed."""
    check = restore_check(settings, clock, database)

    async def synchronize_clock() -> None:
        await synchronize(clock, database, check)

    async with repeated(synchronize_clock, pause_seconds=CLOCK_PAUSE_SECONDS):
        yield


def restore_check(settings: Settings, clock: DatabaseClock, database: Database) -> RestoreCheck:
    return RestoreCheck(
        database=database, clock=clock, chance=SystemChance(), holds=settings.database.hold_after_restore
    )


async def synchronize(clock: DatabaseClock, database: Database, check: RestoreCheck) -> None:
    """Learn the database's time, and note service time for processes that start."""
    was_held = clock.step
    async with database.connection() as connection:
        await learn_time_of(clock, connection)
    await check.check()
    metrics.CLOCK_STEP.set(0.0 if clock.step is None else clock.step.total_seconds())
    if clock.step is not None and was_held is None:
        seconds = round(clock.step.total_seconds(), 1)
        log.error("database_time_stepped", seconds=seconds, advice=service_time.explain(clock.step))
    elif clock.step is None and was_held is not None:
        log.warning("database_time_is_right_again")


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
