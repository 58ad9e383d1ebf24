"""How long a batch waits for more items, where no client waits for it.

A transaction costs PostgreSQL nearly the same for one item as for ten. So while few items come, a batch waits for
more of them; when so few come that it would wait in vain, or so many that it is large anyway, it waits no longer than
it must.
"""

import math
from typing import Final

# The time over which arrivals are counted.
SEEN_SECONDS: Final = 1.0
# As many in a batch cost little more each than in a larger one.
ENOUGH: Final = 20
# Fewer than this are expected to come meanwhile: not worth the wait.
WORTHWHILE: Final = 0.5


class Linger:
    """`now` is a monotonic time in seconds."""

    __slots__ = ("_noted_at", "_seconds_max", "_seconds_min", "_seen")

    def __init__(self, seconds_min: float = 0.0, seconds_max: float = 0.0) -> None:
        self._seconds_min = seconds_min
        self._seconds_max = max(seconds_min, seconds_max)
        # Arrivals, of which the older count less and less.
        self._seen = 0.0
        self._noted_at = float("-inf")

    @property
    def seconds_min(self) -> float:
        return self._seconds_min

    def note(self, now: float) -> None:
        """An item has come."""
        self._seen = self._left(now) + 1
        self._noted_at = now

    def seconds(self, now: float) -> float:
        """For how long a batch waits that begins now."""
        per_second = self._left(now) / SEEN_SECONDS
        if per_second * self._seconds_max < WORTHWHILE:
            return self._seconds_min
        return max(self._seconds_min, min(self._seconds_max, ENOUGH / per_second))

    def _left(self, now: float) -> float:
        return self._seen * math.exp((self._noted_at - now) / SEEN_SECONDS)
