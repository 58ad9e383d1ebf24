"""Time, passed in: flows read a Clock, rules receive the time."""

import time
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

# Seconds that two clocks drift apart in a second; ten times the drift of ordinary clocks.
DRIFT_MAX: Final = 0.0005


class Clock(Protocol):
    def now(self) -> datetime:
        """The time of day, aware, in UTC; never earlier than the last reading."""

    def monotonic(self) -> float:
        """Seconds that only ever go forward, for ages and deadlines."""


class DatabaseClock:
    """Database time, sampled at intervals, carried forward by the monotonic clock.

    All processes that share a database then agree on the time, however wrong their hosts are: a host
    two seconds off would otherwise be refused by the rate limiter, or let a key live too long.
    """

    def __init__(self) -> None:
        self._anchor = datetime.now(UTC)
        self._anchored_at = time.monotonic()
        self._latest = self._anchor
        self._is_anchored = False
        self._doubt_seconds = 0.0

    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> datetime:
        reading = self._anchor + timedelta(seconds=time.monotonic() - self._anchored_at)
        self._latest = max(self._latest, reading)
        return self._latest

    def anchor(self, database_time: datetime, asked_at: float) -> None:
        """Take a sample; half of the round trip had passed when the database read its clock.

        The first sample replaces the host's time, even by an earlier time: a host that is ahead must not
        keep the service in its future. After that, time never goes back. A slow answer makes a
        sample doubtful: it counts only if the last sample, by its age, is more doubtful, or can't be true any more.
        """
        answered_at = time.monotonic()
        middle = (asked_at + answered_at) / 2
        doubt = (answered_at - asked_at) / 2
        age = middle - self._anchored_at
        present_doubt = self._doubt_seconds + abs(age) * DRIFT_MAX
        difference = abs((database_time - self._anchor).total_seconds() - age)
        if self._is_anchored and doubt > present_doubt and difference <= doubt + present_doubt:
            return
        self._anchor = database_time
        self._anchored_at = middle
        self._doubt_seconds = doubt
        if not self._is_anchored:
            self._latest = database_time
            self._is_anchored = True
