"""A worker's lease: how long its claims are its own, and until when the worker may rely on that."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

WORKER_LEASE: Final = timedelta(seconds=30)
# Dispatch reads another clock when it ends leases, so a worker does not rely on the last part of its own.
MARGIN_PART: Final = 0.2


@dataclass(slots=True)
class Lease:
    """As the worker sees it, in monotonic seconds.

    If a lease is renewed too late, dispatch may have ended it in between and released its claims. So each
    uninterrupted period is an era of its own, and a claim is good only in its own era.
    """

    seconds: float
    era: int = 0
    _good_until: float = float("-inf")

    def renewed(self, asked_at: float, heard_at: float) -> None:
        """It was renewed by a request sent at `asked_at`: the new lease began no earlier than that.

        If the answer came after the old lease's end, the old lease may have been ended first.
        """
        if heard_at >= self._good_until:
            self.era += 1
        self._good_until = max(self._good_until, asked_at + self.seconds * (1 - MARGIN_PART))

    def is_good(self, era: int, now: float) -> bool:
        return era == self.era and now < self._good_until
