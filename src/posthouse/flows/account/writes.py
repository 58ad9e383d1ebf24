"""Changes under /v1: whether an account may make another now.

Each account has a rate, counted in the memory of this process like that of refused senders (decision record 0024).
While disk space is low, what would store more is refused; what frees space, ends access or changes in place is not.
"""

from typing import Final

from posthouse.clock import Clock
from posthouse.flows.shared.disk_space import DiskSpace
from posthouse.flows.shared.memory_rates import MemoryRates
from posthouse.rules import limits, role, send_quota
from posthouse.rules.ids import AccountId
from posthouse.rules.rate_limit import Rate, RateWait
from posthouse.rules.refusal import Code, Refusal

DEFAULT_RATE: Final = Rate(limits.WRITES_PER_SECOND, limits.WRITES_BURST)


class Writes:
    def __init__(self, *, clock: Clock, rate: Rate = DEFAULT_RATE, disk_space: DiskSpace | None = None) -> None:
        self._clock = clock
        self._rate = rate
        self._disk_space = disk_space or DiskSpace()
        self._rates: MemoryRates[AccountId] = MemoryRates()

    def require(self, account_id: AccountId, operation: str) -> None:
        """Raises when the account makes changes too fast, or this one would store more than there is space for."""
        now = self._clock.now()
        rate = self._rate
        taken = self._rates.take(account_id, rate, now)
        if isinstance(taken, RateWait):
            raise Refusal(
                Code.RATE_LIMITED,
                f"An account may make {rate.per_second} changes a second and {rate.burst} at once: try again in "
                f"{taken.seconds} s.",
                retry_after_seconds=taken.seconds,
                headers=send_quota.rate_headers(rate, self._rates.reading(account_id, rate, now)),
            )
        if operation in role.STORING:
            self._disk_space.require()
