"""The warm-up of addresses, for operators: how far each is in each lane, and why."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from posthouse.clock import Clock
from posthouse.rules import address_warm_up
from posthouse.rules.address_warm_up import AddressWarmUp, WarmUpDay
from posthouse.store import allowances
from posthouse.store.postgres import Database

ROWS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class WarmUpView:
    """An address in a lane, today: `used` of its allowance, of which `taken` were taken so far."""

    ip: str
    warm_up: AddressWarmUp
    used: int
    taken: int
    slow: int


class AddressWarmUps:
    def __init__(self, *, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def list_today(self) -> Sequence[WarmUpView]:
        """Where nothing was sent today yet, as it will be with the first mail."""
        async with self._database.connection() as connection:
            rows = await allowances.list_all(connection, ROWS_MAX)
        today = self._clock.now().date()
        views = []
        for row in rows:
            if row.warm_up is None:
                continue
            warm_up = address_warm_up.restored(row.place.lane, row.warm_up)
            days = (today - row.day).days
            if days > 0:
                day = WarmUpDay(row.taken, row.slow, was_blocked=row.was_blocked)
                warm_up = address_warm_up.after_days(warm_up, day, days)
                views.append(WarmUpView(row.place.ip, warm_up, 0, 0, 0))
            else:
                views.append(WarmUpView(row.place.ip, warm_up, row.given, row.taken, row.slow))
        return views
