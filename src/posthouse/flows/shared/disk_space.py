"""Disk space: whether there is room for more mail.

A PostgreSQL whose disk is full stops, and may not start again. So while there is still room, requests by which
customers store more are refused; delivery, its results, upkeep and reading go on. Flows that store something call
`require`, which costs nothing: the space is measured in the background.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import structlog

from posthouse.rules.disk_space import FreeMark, Mark, UsedMark, no_room
from posthouse.rules.refusal import Refusal
from posthouse.store import doctor
from posthouse.store.postgres import Database

log = structlog.get_logger(__name__)


class Gauge(NamedTuple):
    """Something that is measured; `measure` may raise an OSError or a Refusal."""

    name: str
    mark: Mark
    measure: Callable[[], Awaitable[int]]


class DiskSpace:
    """Without gauges nothing is measured, and there is always room."""

    def __init__(self, gauges: Sequence[Gauge] = ()) -> None:
        self.gauges = tuple(gauges)
        self.is_low = False
        self._low: set[str] = set()

    def require(self) -> None:
        """Raises when there is no room for what a customer wants to store."""
        if self.is_low:
            raise no_room()

    async def check(self) -> None:
        """Measure each gauge; a gauge that can't be read keeps its last state."""
        for gauge in self.gauges:
            try:
                measured = await gauge.measure()
            except (OSError, Refusal) as error:
                log.warning("storage_not_measured", gauge=gauge.name, cause=repr(error.__cause__ or error))
                continue
            was_low = gauge.name in self._low
            if gauge.mark.is_low(measured, was_low=was_low) is was_low:
                continue
            self._low ^= {gauge.name}
            log.warning(
                "storage_has_room" if was_low else "storage_is_low",
                gauge=gauge.name,
                measured_bytes=measured,
                room_again_at_bytes=gauge.mark.again_bytes,
            )
        self.is_low = bool(self._low)


def volume(directory: str, free_bytes_min: int) -> Gauge:
    """The volume that the directory lies on."""

    async def free_bytes() -> int:
        # A volume over a network may be slow.
        found = await asyncio.to_thread(os.statvfs, directory)
        # PostgreSQL can't use what is reserved for root.
        return found.f_bavail * found.f_frsize

    return Gauge(f"volume of {directory}", FreeMark(free_bytes_min), free_bytes)


def size(database: Database, bytes_max: int) -> Gauge:
    """The whole database, with its indexes."""

    async def used_bytes() -> int:
        async with database.connection() as connection:
            return await doctor.database_bytes(connection)

    return Gauge("database", UsedMark(bytes_max), used_bytes)
