"""Counts each account's usage from its messages and events, apart from delivery.

A step counts some accounts for a window of time in one short transaction, together with its progress. A window ends a
minute ago: no event is committed that late. A message may be, if the process that accepts it stalls between giving it
an id and storing it. So a day is closed an hour after its end: what was accepted on it is counted once more, whole.
"""

from collections import Counter, defaultdict
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import Final, NamedTuple

from posthouse.clock import Clock
from posthouse.rules import ids, usage
from posthouse.rules.ids import AccountId
from posthouse.store import events
from posthouse.store import usage as usage_store
from posthouse.store.partitions import bounds
from posthouse.store.postgres import Database
from posthouse.store.usage import CountingProgress as State
from posthouse.store.usage import ResultCount

# The most that is counted at once, also when the counter is behind: no statement may take long at any rate of mail.
WINDOW_LONGEST: Final = timedelta(minutes=1)
SETTLED_AFTER: Final = timedelta(seconds=60)
CLOSED_AFTER: Final = timedelta(hours=1)
# Longer than the API can ask for.
LATENCY_KEPT: Final = timedelta(days=40)
ACCOUNTS_A_STEP: Final = 200
# A run ends after this many steps even if it is behind, for instance after an upgrade with 30 days of mail.
STEPS_A_RUN_MAX: Final = 5_000
ROWS_FORGOTTEN_AT_ONCE: Final = 5_000
_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)


class CountingRun(NamedTuple):
    """What a run did."""

    steps: int = 0
    closed: int = 0
    forgotten: int = 0


class UsageCounter:
    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        accounts_a_step: int = ACCOUNTS_A_STEP,
        window_longest: timedelta = WINDOW_LONGEST,
    ) -> None:
        self._database = database
        self._clock = clock
        self._window_longest = window_longest
        self._accounts_a_step = accounts_a_step

    async def run(self) -> CountingRun:
        """Counts up to a minute ago, closes days that are over, deletes old latencies."""
        now = self._clock.now()
        async with self._database.connection() as connection:
            bound = ids.time_of(await events.settled_before(connection, now - SETTLED_AFTER))
            if await usage_store.state(connection) is None:
                await usage_store.begin(connection, bound)
        steps = closed = 0
        while steps < STEPS_A_RUN_MAX and await self.step(bound):
            steps += 1
        while closed < STEPS_A_RUN_MAX and await self.close():
            closed += 1
        async with self._database.transaction() as tx:
            forgotten = await usage_store.forget_latency(tx, now.date() - LATENCY_KEPT, ROWS_FORGOTTEN_AT_ONCE)
        return CountingRun(steps, closed, forgotten)

    async def step(self, bound: datetime) -> bool:
        """Count the next accounts; False if there is nothing to do, or another process does it."""
        async with self._database.transaction() as tx:
            state = await usage_store.lock(tx)
            if state is None:
                return False
            if state.low == state.high:
                state = replace(state, high=usage.count_until(state.low, bound, self._window_longest))
                if state.low == state.high:
                    return False
            found = await usage_store.accounts_after(tx, state.walked_to, self._accounts_a_step)
            if found:
                accepted = await usage_store.accepted(tx, found, state.low, state.high)
                results = await usage_store.results(tx, found, state.low, state.high)
                days: defaultdict[tuple[AccountId, date], Counter[str]] = defaultdict(Counter)
                for account_id, recipients in accepted.items():
                    days[account_id, state.low.date()]["accepted"] += recipients
                histograms = _add_results(results, days)
                await usage_store.add(tx, days, histograms)
            await usage_store.advance(tx, _after(state, found, is_last=len(found) < self._accounts_a_step))
        return True

    async def close(self) -> bool:
        """Count once more what the next accounts sent on a day that is over; False if there is nothing to do."""
        async with self._database.connection() as connection:
            state = await usage_store.state(connection)
            if state is None or state.low < bounds(state.closing)[1] + CLOSED_AFTER:
                return False
            found = await usage_store.accounts_after(connection, state.closed_to, self._accounts_a_step)
            accepted: Counter[AccountId] = Counter()
            begin, end = bounds(state.closing)
            while begin < end:
                # By the hour, so that no statement reads a large account's whole day.
                accepted.update(await usage_store.accepted(connection, found, begin, begin + _HOUR))
                begin += _HOUR
        async with self._database.transaction() as tx:
            locked = await usage_store.lock(tx)
            if locked is None or (locked.closing, locked.closed_to) != (state.closing, state.closed_to):
                return False
            await usage_store.set_accepted(tx, state.closing, accepted)
            if len(found) < self._accounts_a_step:
                locked = replace(locked, closing=state.closing + _DAY, closed_to=None)
            else:
                locked = replace(locked, closed_to=found[-1])
            await usage_store.advance(tx, locked)
        return True


def _after(state: State, counted: list[AccountId], *, is_last: bool) -> State:
    if is_last:
        return replace(state, low=state.high, walked_to=None)
    return replace(state, walked_to=counted[-1])


def _add_results(
    results: list[ResultCount], days: defaultdict[tuple[AccountId, date], Counter[str]]
) -> dict[tuple[AccountId, date, str], list[int]]:
    """Add the results to their days; returns the latencies by mailbox provider."""
    histograms: defaultdict[tuple[AccountId, date, str], list[int]] = defaultdict(lambda: [0] * usage.COUNTS)
    for result in results:
        days[result.account_id, result.day][result.kind.removeprefix("email.")] += result.recipients
        # No server, no latency.
        if result.exchange is not None:
            histograms[result.account_id, result.day, usage.provider_of(result.exchange)][result.bucket] += (
                result.recipients
            )
    return histograms
