"""Changes under /v1: whether an account may make another now.

Each account has a rate, counted in the memory of this process like that of refused senders (decision record 0024).
While disk space is low, changes that would store more are refused; those that free space, end access or change
something in place are not.
"""

from typing import Final

from posthouse.clock import Clock
from posthouse.flows.shared.disk_space import DiskSpace
from posthouse.flows.shared.shares import Rates
from posthouse.rules import limits
from posthouse.rules.ids import AccountId
from posthouse.rules.rate_limit import Rate

DEFAULT_RATE: Final = Rate(limits.WRITES_PER_SECOND, limits.WRITES_BURST)


class WriteRateLimit:
    def __init__(self, *, clock: Clock, rate: Rate = DEFAULT_RATE, disk_space: DiskSpace | None = None) -> None:
        self._clock = clock
        self._rate = rate
        self._allowed = f"An account may make {rate.per_second} changes a second, in bursts of up to {rate.burst}"
        self._disk_space = disk_space or DiskSpace()
        self._rates: Rates[AccountId] = Rates()

    def require(self, account_id: AccountId, *, stores: bool) -> None:
        """Raises if the account makes changes too fast, or if there is no space for what this one stores."""
        self._rates.require(account_id, self._rate, self._clock.now(), self._allowed, has_headers=True)
        if stores:
            self._disk_space.require()
