"""Time, passed in: flows ask a Clock, rules receive its answer."""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """The time of day, aware, in UTC; never earlier than the answer before."""

    def monotonic(self) -> float:
        """Seconds that only ever go forward, for ages and deadlines."""


class DatabaseClock:
    """Database time, sampled now and then, carried forward by the monotonic clock.

    All processes that share a database then agree on the time, however wrong their hosts are: a host
    two seconds off would otherwise be refused by the rate limiter, or let a key live too long.
    """

    def __init__(self) -> None:
        self._anchor = datetime.now(UTC)
        self._anchored_at = time.monotonic()
        self._latest = self._anchor

    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> datetime:
        reading = self._anchor + timedelta(seconds=time.monotonic() - self._anchored_at)
        self._latest = max(self._latest, reading)
        return self._latest

    def anchor(self, database_time: datetime, asked_at: float) -> None:
        """Take over a sample; half of the round trip had passed when the database read its clock."""
        answered_at = time.monotonic()
        self._anchor = database_time
        self._anchored_at = (asked_at + answered_at) / 2
