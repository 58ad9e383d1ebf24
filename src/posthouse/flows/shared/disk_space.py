"""Disk space: whether more mail can be stored.

PostgreSQL stops when its disk is full, and may not start again. So requests by which customers store more are refused
while there is still some space; delivery, its results, maintenance and reading continue. Flows that store something
call `require`, which costs nothing, because the space is measured in the background.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

import structlog

from posthouse import metrics
from posthouse.rules.disk_space import FreeMark, Mark, UsedMark, no_capacity
from posthouse.rules.refusal import Refusal
from posthouse.store import doctor
from posthouse.store.postgres import Database

log = structlog.get_logger(__name__)


# Where packages put PostgreSQL's data, for a database user who may not query the directory.
_USUAL_DIRECTORIES: Final = ("/var/lib/postgresql", "/var/lib/pgsql", "/var/lib/postgres")
NOT_MEASURED: Final = "set disk_space.directory, or disk_space.database_bytes_max if PostgreSQL is on another machine"


class Gauge(NamedTuple):
    """Something to measure. `measure` may raise an OSError or a Refusal; it returns None if the thing isn't here."""

    name: str
    mark: Mark
    measure: Callable[[], Awaitable[int | None]]


class DiskSpace:
    """Without gauges nothing is measured, and nothing is refused."""

    def __init__(self, gauges: Sequence[Gauge] = ()) -> None:
        self.gauges = tuple(gauges)
        self.is_low = False
        self._low: set[str] = set()
        self._not_found: set[str] = set()

    def require(self) -> None:
        """Raises if there is no space for what a customer wants to store."""
        if self.is_low:
            raise no_capacity()

    async def check(self) -> None:
        """Measure each gauge; a gauge that can't be read keeps its last state."""
        for gauge in self.gauges:
            try:
                measured = await gauge.measure()
            except (OSError, Refusal) as error:
                log.warning("storage_not_measured", gauge=gauge.name, cause=repr(error.__cause__ or error))
                continue
            if measured is None:
                if gauge.name not in self._not_found:
                    self._not_found.add(gauge.name)
                    log.warning("storage_not_checked", gauge=gauge.name, advice=NOT_MEASURED)
                continue
            was_low = gauge.name in self._low
            if gauge.mark.is_low(measured, was_low=was_low) is was_low:
                continue
            self._low ^= {gauge.name}
            log.warning(
                "storage_has_space" if was_low else "storage_is_low",
                gauge=gauge.name,
                measured_bytes=measured,
                capacity_again_at_bytes=gauge.mark.again_bytes,
            )
        self.is_low = bool(self._low)
        if len(self._not_found) < len(self.gauges):
            metrics.STORAGE_LOW.set(self.is_low)


def volume(directory: str, free_bytes_min: int) -> Gauge:
    """The volume that contains the directory."""

    async def free_bytes() -> int:
        # A network volume may be slow.
        return await asyncio.to_thread(_free_bytes, directory)

    return Gauge(f"volume of {directory}", FreeMark(free_bytes_min), free_bytes)


def server_volume(database: Database, free_bytes_min: int) -> Gauge:
    """The volume of PostgreSQL's data, for a PostgreSQL on this machine."""
    directory = ""

    async def free_bytes() -> int | None:
        nonlocal directory
        if not directory:
            async with database.connection() as connection:
                named = await doctor.data_directory(connection)
            candidates = [named] if named else _USUAL_DIRECTORIES
            # The directory of a server in a container may not exist here.
            directory = next(filter(os.path.exists, candidates), "")
        return await asyncio.to_thread(_free_bytes, directory) if directory else None

    return Gauge("volume of PostgreSQL's data", FreeMark(free_bytes_min), free_bytes)


def _free_bytes(directory: str) -> int:
    found = os.statvfs(directory)
    # PostgreSQL can't use the space that is reserved for root.
    return found.f_bavail * found.f_frsize


def size(database: Database, bytes_max: int) -> Gauge:
    """The whole database, with its indexes."""

    async def used_bytes() -> int:
        async with database.connection() as connection:
            return await doctor.database_bytes(connection)

    return Gauge("database", UsedMark(bytes_max), used_bytes)
