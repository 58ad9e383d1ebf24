"""Checks that a process repeats: the database's time, changes to its control cache, and disk space."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import structlog

from posthouse import metrics
from posthouse.clock import DatabaseClock
from posthouse.compose.context import context_of
from posthouse.compose.database import learn_time_of, open_database
from posthouse.config import Settings
from posthouse.entrypoints.workers import repeated
from posthouse.flows.accept.last_used import LastUsed
from posthouse.flows.operate.restore import RestoreCheck
from posthouse.flows.shared.context import Context
from posthouse.flows.shared.disk_space import DiskSpace
from posthouse.rules import service_time
from posthouse.rules.limits import LAST_USED_SECONDS
from posthouse.rules.refusal import Refusal
from posthouse.store.control_cache import ControlCache
from posthouse.store.postgres import Database

log = structlog.get_logger(__name__)

CLOCK_PAUSE_SECONDS: Final = 5.0
CONTROL_CACHE_PAUSE_SECONDS: Final = 1.0
# Mail that arrives between two checks must still fit on the disk.
DISK_SPACE_PAUSE_SECONDS: Final = 3.0


@asynccontextmanager
async def service_clock(settings: Settings) -> AsyncIterator[DatabaseClock]:
    """Service time for all parts of a process, over a separate connection."""
    clock = DatabaseClock()
    async with (
        open_database(settings, connections_max=1, clock=clock) as database,
        synchronized(settings, clock, database),
    ):
        yield clock


@asynccontextmanager
async def synchronized(settings: Settings, clock: DatabaseClock, database: Database) -> AsyncIterator[None]:
    """Keep the clock in step with the database's time, and notice a restored database."""
    check = restore_check(settings, context_of(settings, database, clock), clock)

    async def synchronize_clock() -> None:
        await synchronize(clock, database, check)

    async with repeated(synchronize_clock, pause_seconds=CLOCK_PAUSE_SECONDS):
        yield


def restore_check(settings: Settings, context: Context, clock: DatabaseClock) -> RestoreCheck:
    return RestoreCheck(context, clock=clock, holds=settings.database.hold_after_restore)


async def synchronize(clock: DatabaseClock, database: Database, check: RestoreCheck) -> None:
    """Read the database's time, and note service time for processes that start."""
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
async def refreshed(control_cache: ControlCache) -> AsyncIterator[None]:
    """Drop changed entries from the cache within a second or two."""
    async with repeated(control_cache.forget_changes, pause_seconds=CONTROL_CACHE_PAUSE_SECONDS):
        yield


@asynccontextmanager
async def measured(disk_space: DiskSpace) -> AsyncIterator[None]:
    """Measure the disk space every few seconds."""
    if not disk_space.gauges:
        yield
        return
    async with repeated(disk_space.check, pause_seconds=DISK_SPACE_PAUSE_SECONDS):
        yield


@asynccontextmanager
async def noted(last_used: LastUsed) -> AsyncIterator[None]:
    """Write times of last use at intervals, and when the process stops."""
    try:
        async with repeated(last_used.write, pause_seconds=LAST_USED_SECONDS):
            yield
    finally:
        with suppress(Refusal):  # PostgreSQL may be down by then, and these times are not worth a wait
            await last_used.write()
