"""Counts each account's usage, and the reasons of its troubles, from its messages and events, apart from delivery.

A step counts some accounts for a window of time in one short transaction, together with its progress. A window ends a
minute ago: no event is committed that late. A message may be, if the process that accepts it stalls between giving it
an id and storing it. So a day is closed an hour after its end: what was accepted on it is counted once more, whole.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Final, NamedTuple

from posthouse.clock import Clock
from posthouse.rules import ids, usage
from posthouse.rules.ids import AccountId
from posthouse.store import events, provider_delays, usage_reasons
from posthouse.store import usage as usage_store
from posthouse.store.partitions import bounds
from posthouse.store.postgres import Connection, Database
from posthouse.store.usage import AcceptedCount, ProviderCounts, ResultCount
from posthouse.store.usage import CountingProgress as State

# The most that is counted at once, also when the counter is behind: no statement may take long at any rate of mail.
WINDOW_LONGEST: Final = timedelta(minutes=1)
SETTLED_AFTER: Final = timedelta(seconds=60)
CLOSED_AFTER: Final = timedelta(hours=1)
# Longer than the API can ask for.
DETAILS_KEPT: Final = timedelta(days=40)
HOURS_KEPT: Final = timedelta(days=8)
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
        """Counts up to a minute ago, closes days that are over, deletes old details."""
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
            oldest = now.date() - DETAILS_KEPT
            forgotten = await usage_store.forget(tx, oldest, now - HOURS_KEPT, ROWS_FORGOTTEN_AT_ONCE)
            forgotten += await usage_reasons.forget(tx, oldest, ROWS_FORGOTTEN_AT_ONCE)
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
                await self._count(tx, found, state.low, state.high)
            await usage_store.advance(tx, _after(state, found, is_last=len(found) < self._accounts_a_step))
        return True

    async def _count(self, tx: Connection, account_ids: list[AccountId], low: datetime, high: datetime) -> None:
        accepted = await usage_store.accepted(tx, account_ids, low, high)
        results = await usage_store.results(tx, account_ids, low, high)
        await usage_store.add(tx, _by_hour(usage.hour_of(low), accepted, results), _by_provider(results))
        await provider_delays.add(tx, usage.hour_of(low), _delivered_by_provider(results))
        troubled = sorted({result.account_id for result in results if result.is_troubled})
        if troubled:
            await usage_reasons.add(tx, await usage_reasons.found(tx, troubled, low, high))

    async def close(self) -> bool:
        """Count once more what the next accounts sent on a day that is over; False if there is nothing to do."""
        async with self._database.connection() as connection:
            state = await usage_store.state(connection)
            if state is None or state.low < bounds(state.closing)[1] + CLOSED_AFTER:
                return False
            found = await usage_store.accounts_after(connection, state.closed_to, self._accounts_a_step)
            accepted: dict[tuple[AccountId, datetime], AcceptedCount] = {}
            hour, end = bounds(state.closing)
            while hour < end:
                # By the hour, so that no statement reads a large account's whole day.
                for account_id, counts in (await usage_store.accepted(connection, found, hour, hour + _HOUR)).items():
                    accepted[account_id, hour] = counts
                hour += _HOUR
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


def _by_hour(
    hour: datetime, accepted: Mapping[AccountId, AcceptedCount], results: Sequence[ResultCount]
) -> dict[tuple[AccountId, datetime], Counter[str]]:
    """What was accepted in this hour, and the results in the hours of their messages."""
    hours: defaultdict[tuple[AccountId, datetime], Counter[str]] = defaultdict(Counter)
    for account_id, counts in accepted.items():
        hours[account_id, hour].update(accepted=counts.live, test_accepted=counts.test)
    for result in results:
        kind = result.kind.removeprefix("email.")
        hours[result.account_id, result.hour][f"test_{kind}" if result.is_test else kind] += result.recipients
    return hours


def _delivered_by_provider(results: Sequence[ResultCount]) -> dict[str, list[int]]:
    """Of all accounts, after which time; in the hour of the delivery."""
    providers: defaultdict[str, list[int]] = defaultdict(lambda: [0] * usage.COUNTS)
    for result in results:
        if result.kind == "email.delivered" and result.exchange is not None and not result.is_test:
            providers[usage.provider_of(result.exchange)][result.bucket] += result.recipients
    return providers


def _by_provider(results: Sequence[ResultCount]) -> dict[tuple[AccountId, date, str], ProviderCounts]:
    providers: defaultdict[tuple[AccountId, date, str], ProviderCounts] = defaultdict(ProviderCounts)
    for result in results:
        # No server, no latency.
        if result.exchange is None or result.is_test:
            continue
        day = result.hour.astimezone(UTC).date()
        counts = providers[result.account_id, day, usage.provider_of(result.exchange)]
        kind = result.kind.removeprefix("email.")
        counts.results[kind] += result.recipients
        counts.counts[result.bucket] += result.recipients
        if kind == "delivered":
            counts.delivered_counts[result.bucket] += result.recipients
    return providers
