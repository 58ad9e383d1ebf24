"""A worker's lease: for how long its claims are its own, and until when it may rely on that."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

WORKER_LEASE: Final = timedelta(seconds=30)
# Whoever takes claims back reads another clock than the worker: the last part of a lease is nobody's.
MARGIN_PART: Final = 0.2


@dataclass(slots=True)
class Lease:
    """As the worker itself sees it, in seconds that never go back.

    A lease that was renewed too late may have been taken for dead in between, with all that was claimed
    under it. So each uninterrupted stretch is an era of its own, and a claim is good only in its own era.
    """

    seconds: float
    era: int = 0
    _good_until: float = float("-inf")

    def renewed(self, asked_at: float, heard_at: float) -> None:
        """It was renewed by a request sent at `asked_at`: the new lease began no earlier than that.

        However early it was asked for, before it was granted the old one may have been taken for dead.
        """
        if heard_at >= self._good_until:
            self.era += 1
        self._good_until = max(self._good_until, asked_at + self.seconds * (1 - MARGIN_PART))

    def is_good(self, era: int, now: float) -> bool:
        return era == self.era and now < self._good_until
