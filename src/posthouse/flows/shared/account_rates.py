"""A rate limit per account in the memory of this process, for requests that leave nothing in the database.

Each process counts by itself: this bounds what an account can make a process do, and is no price.
"""

from datetime import datetime
from typing import Final

from posthouse.rules import rate_limit
from posthouse.rules.ids import AccountId
from posthouse.rules.rate_limit import Rate, RateReading, RateWait

ACCOUNTS_MAX: Final = 10_000


class AccountRates:
    def __init__(self, *, accounts_max: int = ACCOUNTS_MAX) -> None:
        self._accounts_max = accounts_max
        self._full_at: dict[AccountId, datetime] = {}

    def take(self, account_id: AccountId, rate: Rate, now: datetime) -> RateReading | RateWait:
        """Take one request from the account's rate; a RateWait has taken nothing."""
        taken = rate_limit.take(rate, self._full_at.get(account_id, now), now)
        if isinstance(taken, RateReading):
            if len(self._full_at) >= self._accounts_max:
                self._make_room(now)
            self._full_at[account_id] = taken.full_at
        return taken

    def reading(self, account_id: AccountId, rate: Rate, now: datetime) -> RateReading:
        return rate_limit.reading(rate, self._full_at.get(account_id, now), now)

    def _make_room(self, now: datetime) -> None:
        """Forget accounts whose whole burst is available again; if there is none, forget all."""
        self._full_at = {account_id: full_at for account_id, full_at in self._full_at.items() if full_at > now}
        if len(self._full_at) >= self._accounts_max:
            self._full_at.clear()
