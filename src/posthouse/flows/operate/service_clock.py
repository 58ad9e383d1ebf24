"""Service time for operators: whether the database's clock is believed, and its acceptance."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from posthouse.chance import Chance
from posthouse.clock import DatabaseClock, host_time
from posthouse.flows.shared.operator_log import OperatorLog
from posthouse.store import service_clock
from posthouse.store.postgres import Database


@dataclass(frozen=True, slots=True)
class ClockState:
    """`step` is how far the database's clock is ahead of service time, while that is not believed."""

    service_time: datetime
    database_time: datetime
    host_time: datetime
    step: timedelta | None


class ServiceClock:
    def __init__(self, *, database: Database, clock: DatabaseClock, chance: Chance) -> None:
        self._database = database
        self._clock = clock
        self._log = OperatorLog(chance)

    async def state(self) -> ClockState:
        async with self._database.connection() as connection:
            reading = await service_clock.read(connection)
        return ClockState(self._clock.now(), reading.database_time, host_time(), self._clock.step)

    async def accept(self) -> None:
        """Make the database's time service time; every process follows within seconds."""
        async with self._database.transaction() as tx:
            await service_clock.accept(tx)
            step = self._clock.step
            detail = {"step_seconds": 0 if step is None else round(step.total_seconds())}
            await self._log.note(tx, "clock.accepted", "database", self._clock.now(), detail)
