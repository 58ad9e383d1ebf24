"""Time is passed in: flows read a Clock, and rules receive the time."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, Protocol

from posthouse.rules.service_time import ServiceTime, TimeNote, TimeSample

# Keeps running while the machine is suspended, if the system has such a clock, so a laptop's sleep is not a step.
_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    def now(self) -> datetime:
        """The current time, timezone-aware, in UTC; never earlier than the last reading."""

    def monotonic(self) -> float:
        """Seconds that never go backwards, for ages and deadlines."""


steady_seconds: Final = partial(time.clock_gettime, _STEADY)


def host_time() -> datetime:
    return datetime.now(UTC)


class DatabaseClock:
    """Service time: the database's time, sampled at intervals and trusted as `rules.service_time` decides."""

    def __init__(
        self, *, steady: Callable[[], float] = steady_seconds, host: Callable[[], datetime] = host_time
    ) -> None:
        self._steady = steady
        self._host = host
        self._time = ServiceTime(host(), steady())

    # Read a dozen times for each message: no call of our own around it.
    monotonic = staticmethod(time.monotonic)

    def now(self) -> datetime:
        return self._time.now(self._steady())

    @property
    def step(self) -> timedelta | None:
        """How far the database's clock is ahead of service time, while it is not trusted."""
        return self._time.step

    @property
    def acceptances(self) -> int:
        return self._time.acceptances

    def asked(self) -> float:
        """To be called before the database is queried for its time."""
        return self._steady()

    def learn(self, database_time: datetime, asked_at: float, note: TimeNote | None = None) -> None:
        """Take a sample, assuming that half of the round trip had passed when the database read its clock."""
        answered_at = self._steady()
        half = (answered_at - asked_at) / 2
        host = self._host() - timedelta(seconds=half)
        self._time.learn(TimeSample(asked_at + half, database_time, host, half, note))
