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
        self._is_anchored = False

    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> datetime:
        reading = self._anchor + timedelta(seconds=time.monotonic() - self._anchored_at)
        self._latest = max(self._latest, reading)
        return self._latest

    def anchor(self, database_time: datetime, asked_at: float) -> None:
        """Take over a sample; half of the round trip had passed when the database read its clock.

        The first sample replaces the host's time, even by an earlier one: a host that is ahead must not
        hold the service in its future. After that, time never goes back.
        """
        answered_at = time.monotonic()
        self._anchor = database_time
        self._anchored_at = (asked_at + answered_at) / 2
        if not self._is_anchored:
            self._latest = database_time
            self._is_anchored = True
