"""Claims: how long they belong to a worker, and how long one waits for others to share its transaction."""

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

WORKER_LEASE: Final = timedelta(seconds=30)
# Dispatch reads another clock when it ends leases, so a worker does not rely on the last part of its lease.
LEASE_MARGIN_PART: Final = 0.2

# A batch counts the arrivals of this time.
ARRIVALS_SECONDS: Final = 1.0
# An item in a batch of this size costs little more than one in a larger batch.
ENOUGH_ITEMS: Final = 20
# If fewer than this are expected to arrive meanwhile, waiting isn't worth it.
EXPECTED_ITEMS_MIN: Final = 0.5


@dataclass(slots=True)
class Lease:
    """A worker's lease on its claims as the worker sees it, in monotonic seconds.

    If a lease is renewed too late, dispatch may have ended it in between and released its claims. So each uninterrupted
    period is a separate era, and a claim is good only in its era.
    """

    seconds: float
    era: int = 0
    _good_until: float = float("-inf")

    def renewed(self, asked_at: float, heard_at: float) -> None:
        """Note a renewal by a request sent at `asked_at`: the new lease began no earlier than that.

        If the answer came after the old lease's end, the old lease may have been ended first.
        """
        if heard_at >= self._good_until:
            self.era += 1
        self._good_until = max(self._good_until, asked_at + self.seconds * (1 - LEASE_MARGIN_PART))

    def is_good(self, era: int, now: float) -> bool:
        return era == self.era and now < self._good_until


class BatchDelay:
    """How long a batch waits for more items, where no client waits for it. `now` is a monotonic time in seconds.

    A transaction costs PostgreSQL nearly the same for one item as for ten. So while few items arrive, a batch waits for
    more of them. When so few arrive that waiting would be in vain, or enough that the batch is large anyway, it waits
    no longer than it must.
    """

    __slots__ = ("_noted_at", "_seconds_max", "_seconds_min", "_seen")

    def __init__(self, seconds_min: float = 0.0, seconds_max: float = 0.0) -> None:
        self._seconds_min = seconds_min
        self._seconds_max = max(seconds_min, seconds_max)
        # Arrivals; the older they are, the less they count.
        self._seen = 0.0
        self._noted_at = float("-inf")

    @property
    def seconds_min(self) -> float:
        return self._seconds_min

    def note_arrivals(self, count: int, now: float) -> None:
        """This many items have arrived since the last note."""
        self._seen = self._left(now) + count
        self._noted_at = now

    def seconds(self, now: float) -> float:
        """How long a batch that begins now waits."""
        per_second = self._left(now) / ARRIVALS_SECONDS
        if per_second * self._seconds_max < EXPECTED_ITEMS_MIN:
            return self._seconds_min
        return max(self._seconds_min, min(self._seconds_max, ENOUGH_ITEMS / per_second))

    def _left(self, now: float) -> float:
        return self._seen * math.exp((self._noted_at - now) / ARRIVALS_SECONDS)
