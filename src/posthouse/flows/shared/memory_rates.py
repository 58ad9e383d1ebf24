"""A rate limit per key in the memory of this process, for requests that leave nothing in the database.

Each process counts by itself: this bounds what a client can make a process do, and is no price.
"""

from collections.abc import Hashable
from datetime import datetime
from typing import Final, Generic, TypeVar

from posthouse.rules import rate_limit
from posthouse.rules.rate_limit import Rate, RateReading, RateWait

KEYS_MAX: Final = 10_000

Key = TypeVar("Key", bound=Hashable)


class MemoryRates(Generic[Key]):
    def __init__(self, *, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._full_at: dict[Key, datetime] = {}

    def take(self, key: Key, rate: Rate, now: datetime) -> RateReading | RateWait:
        """Take one request from the key's rate; a RateWait has taken nothing."""
        taken = rate_limit.take(rate, self._full_at.get(key, now), now)
        if isinstance(taken, RateReading):
            self._note(key, taken.full_at, now)
        return taken

    def charge(self, key: Key, rate: Rate, now: datetime, count: int) -> None:
        """Take what was used already: later requests wait for it."""
        self._note(key, rate_limit.charge(rate, self._full_at.get(key, now), now, count), now)

    def reading(self, key: Key, rate: Rate, now: datetime) -> RateReading:
        return rate_limit.reading(rate, self._full_at.get(key, now), now)

    def _note(self, key: Key, full_at: datetime, now: datetime) -> None:
        if len(self._full_at) >= self._keys_max:
            self._make_room(now)
        self._full_at[key] = full_at

    def _make_room(self, now: datetime) -> None:
        """Forget keys whose whole burst is available again; if there is none, forget all."""
        self._full_at = {key: full_at for key, full_at in self._full_at.items() if full_at > now}
        if len(self._full_at) >= self._keys_max:
            self._full_at.clear()
