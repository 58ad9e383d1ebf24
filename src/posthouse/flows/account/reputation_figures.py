"""An account's reputation figures for itself, counted at most once a minute in each process.

Counting the results of a large account's day takes a third of a second, and a page asks again and again.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from posthouse.clock import Clock
from posthouse.rules import reputation as rules
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Code, Refusal
from posthouse.rules.reputation import ReputationFigures, ReputationVerdict
from posthouse.store import reputation
from posthouse.store.postgres import Database
from posthouse.store.reputation import AccountReputation

KEPT_FOR: Final = timedelta(minutes=1)
ACCOUNTS_KEPT_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class ReputationReading:
    """`forgiven_at`: mail before a lifted suspension doesn't count."""

    figures: ReputationFigures
    verdict: ReputationVerdict
    counted_at: datetime
    counted_since: datetime
    forgiven_at: datetime | None

    def is_current(self, standing: AccountReputation, now: datetime) -> bool:
        return self.forgiven_at == standing.since and now < self.counted_at + KEPT_FOR


@dataclass(slots=True)
class _Kept:
    """Requests for one account count in turn, and all but the first find the reading."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    reading: ReputationReading | None = None


class ReputationReadings:
    def __init__(self, *, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._kept: OrderedDict[AccountId, _Kept] = OrderedDict()

    async def of(self, standing: AccountReputation) -> ReputationReading | None:
        """None when the account's mail takes too long to count."""
        kept = self._kept.setdefault(standing.account_id, _Kept())
        self._kept.move_to_end(standing.account_id)
        while len(self._kept) > ACCOUNTS_KEPT_MAX:
            self._kept.popitem(last=False)
        async with kept.lock:
            if kept.reading is None or not kept.reading.is_current(standing, self._clock.now()):
                try:
                    kept.reading = await self._count(standing)
                except Refusal as refusal:
                    if refusal.code is not Code.TEMPORARY_FAILURE:
                        raise
                    return None
            return kept.reading

    async def _count(self, standing: AccountReputation) -> ReputationReading:
        now = self._clock.now()
        since = rules.counted_since(standing.since, now)
        async with self._database.connection() as connection:
            figures = await reputation.figures(connection, standing.account_id, since)
        return ReputationReading(figures, rules.judge(*figures), now, since, standing.since)
