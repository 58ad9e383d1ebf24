"""Counts each account's usage and the reasons of its failures from its messages and events, separately from delivery.

A step counts some accounts for a window of time, in one short transaction together with its progress. A window ends a
minute ago, because no event is committed that late. A message may be, if the process that accepts it stalls between
giving it an id and storing it. So a day is closed an hour after its end: all mail accepted on it is counted once more.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Final, NamedTuple

import structlog

from posthouse.flows.shared.context import Context, Flow
from posthouse.rules import ids, usage
from posthouse.rules import usage as rules
from posthouse.rules.ids import AccountId
from posthouse.rules.usage import Percentiles, SplitKind, percentiles
from posthouse.store import events, provider_delays, usage_reasons
from posthouse.store import usage as usage_store
from posthouse.store.partitions import bounds
from posthouse.store.postgres import Connection
from posthouse.store.provider_delays import KnownDelay as KnownDelay
from posthouse.store.usage import (
    SPLIT_COUNTED,
    AcceptedCount,
    ProviderCounts,
    ResultCount,
    SplitCounts,
    SplitGroup,
    add_counts,
)
from posthouse.store.usage import CountingProgress as State

# The longest window of one step, also when the counter is behind: no statement may take long at any rate of mail.
WINDOW_LONGEST: Final = timedelta(minutes=1)
SETTLED_AFTER: Final = timedelta(seconds=60)
CLOSED_AFTER: Final = timedelta(hours=1)
# Longer than the API can ask for.
DETAILS_KEPT: Final = timedelta(days=40)
HOURS_KEPT: Final = timedelta(days=8)
ACCOUNTS_A_STEP: Final = 200
# A run ends after this many steps even if it is behind, for instance after an upgrade with 30 days of mail.
STEPS_A_RUN_MAX: Final = 5_000
ROWS_FORGOTTEN_BATCH: Final = 5_000
_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)
log = structlog.get_logger(__name__)
ADVICE: Final = "posthouse lane explain PROVIDER shows what its lane has learned, posthouse queue top what is waiting"


class CountingRun(NamedTuple):
    """What a run did."""

    steps: int = 0
    closed: int = 0
    forgotten: int = 0


class UsageCounter(Flow):
    def __init__(
        self, context: Context, *, accounts_a_step: int = ACCOUNTS_A_STEP, window_longest: timedelta = WINDOW_LONGEST
    ) -> None:
        super().__init__(context)
        self._window_longest = window_longest
        self._accounts_a_step = accounts_a_step

    async def run(self) -> CountingRun:
        """Count up to a minute ago, close days that are over, and delete old details."""
        now = self._clock.now()
        async with self._database.connection() as connection:
            bound = ids.time_of(await events.settled_before(connection, now - SETTLED_AFTER))
            if await usage_store.state(connection) is None:
                await usage_store.begin(connection, bound)
        steps = closed = 0
        while steps < STEPS_A_RUN_MAX and await self.step(bound):
            steps += 1
        while closed < STEPS_A_RUN_MAX and await self.recount_step():
            closed += 1
        async with self._database.transaction() as tx:
            oldest = now.date() - DETAILS_KEPT
            forgotten = await usage_store.forget(tx, oldest, now - HOURS_KEPT, ROWS_FORGOTTEN_BATCH)
            forgotten += await usage_reasons.forget(tx, oldest, ROWS_FORGOTTEN_BATCH)
        return CountingRun(steps, closed, forgotten)

    async def step(self, bound: datetime) -> bool:
        """Count the next accounts; False if there is nothing to do, or another process does it."""
        async with self._database.transaction() as tx:
            state = await usage_store.lock(tx)
            if state is None:
                return False
            if state.counted_before == state.pass_before:
                state = replace(state, pass_before=usage.count_until(state.counted_before, bound, self._window_longest))
                if state.counted_before == state.pass_before:
                    return False
            found = await usage_store.accounts_after(tx, state.pass_account_id, self._accounts_a_step)
            if found:
                await self._count(tx, found, state)
            await usage_store.advance(tx, _after(state, found, is_last=len(found) < self._accounts_a_step))
        return True

    async def _count(self, tx: Connection, account_ids: list[AccountId], state: State) -> None:
        low, high = state.counted_before, state.pass_before
        accepted = await usage_store.accepted(tx, account_ids, low, high, is_split=True)
        results = await usage_store.results(tx, account_ids, low, high)
        await usage_store.add(tx, _by_hour(usage.hour_of(low), accepted, results), _by_provider(results))
        split_from = usage.first_whole_day(state.splits_since)
        await usage_store.add_splits(tx, _by_split(usage.hour_of(low), accepted, results, split_from))
        await provider_delays.add(tx, usage.hour_of(low), _delivered_by_provider(results))
        troubled = sorted({result.account_id for result in results if result.is_troubled})
        if troubled:
            await usage_reasons.add(tx, await usage_reasons.found(tx, troubled, low, high))

    async def recount_step(self) -> bool:
        """Count again what the next accounts sent on a day that is over; False if there is nothing to do."""
        async with self._database.connection() as connection:
            state = await usage_store.state(connection)
            if state is None or state.counted_before < bounds(state.recount_day)[1] + CLOSED_AFTER:
                return False
            found = await usage_store.accounts_after(connection, state.recount_account_id, self._accounts_a_step)
            accepted: list[tuple[datetime, AcceptedCount]] = []
            hour, end = bounds(state.recount_day)
            while hour < end:
                # Hour by hour, so that no statement reads a large account's whole day.
                counts = await usage_store.accepted(connection, found, hour, hour + _HOUR, is_split=False)
                accepted += [(hour, count) for count in counts]
                hour += _HOUR
        async with self._database.transaction() as tx:
            locked = await usage_store.lock(tx)
            if locked is None or (locked.recount_day, locked.recount_account_id) != (
                state.recount_day,
                state.recount_account_id,
            ):
                return False
            await usage_store.set_accepted(tx, state.recount_day, accepted)
            if len(found) < self._accounts_a_step:
                locked = replace(locked, recount_day=state.recount_day + _DAY, recount_account_id=None)
            else:
                locked = replace(locked, recount_account_id=found[-1])
            await usage_store.advance(tx, locked)
        return True


def _after(state: State, counted: list[AccountId], *, is_last: bool) -> State:
    if is_last:
        return replace(state, counted_before=state.pass_before, pass_account_id=None)
    return replace(state, pass_account_id=counted[-1])


def _by_hour(
    hour: datetime, accepted: Sequence[AcceptedCount], results: Sequence[ResultCount]
) -> dict[tuple[AccountId, datetime], Counter[str]]:
    """The messages accepted in this hour, and results, which count in the hours of their messages."""
    hours: defaultdict[tuple[AccountId, datetime], Counter[str]] = defaultdict(Counter)
    for counts in accepted:
        hours[counts.account_id, hour].update(accepted=counts.live, test_accepted=counts.test)
    for result in results:
        kind = result.kind.removeprefix("email.")
        hours[result.account_id, result.hour][f"test_{kind}" if result.is_test else kind] += result.recipients
    return hours


def _by_split(
    hour: datetime, accepted: Sequence[AcceptedCount], results: Sequence[ResultCount], split_from: date
) -> SplitCounts:
    """Live mail by domain and tag, for days from `split_from` on; a message with several tags counts for each."""
    # First what is alike: there may be as many results as messages.
    alike: dict[tuple[AccountId, datetime, str | None, tuple[str, ...]], list[int]] = {}
    for count in accepted:
        if count.live:
            alike[count.account_id, hour, count.domain, tuple(count.tags or ())] = [count.live, 0, 0, 0]
    for result in results:
        if not result.is_test:
            key = result.account_id, result.hour, result.domain, tuple(result.tags or ())
            counts = alike.get(key)
            if counts is None:
                counts = alike[key] = [0, 0, 0, 0]
            counts[SPLIT_COUNTED[result.kind]] += result.recipients
    splits: SplitCounts = {}
    for (account_id, at, domain, tags), counts in alike.items():
        day = at.astimezone(UTC).date()
        if day >= split_from:
            add_counts(splits.setdefault(SplitGroup(account_id, day, SplitKind.DOMAIN), {}), domain or "", counts)
            for tag in set(tags):
                add_counts(splits.setdefault(SplitGroup(account_id, day, SplitKind.TAG), {}), tag, counts)
    return splits


def _delivered_by_provider(results: Sequence[ResultCount]) -> dict[str, list[int]]:
    """For all accounts, how long deliveries took; counted in the hour of the delivery."""
    providers: defaultdict[str, list[int]] = defaultdict(lambda: [0] * usage.COUNTS)
    for result in results:
        if result.kind == "email.delivered" and result.mx_host is not None and not result.is_test:
            providers[usage.provider_of(result.mx_host)][result.bucket] += result.recipients
    return providers


def _by_provider(results: Sequence[ResultCount]) -> dict[tuple[AccountId, date, str], ProviderCounts]:
    providers: defaultdict[tuple[AccountId, date, str], ProviderCounts] = defaultdict(ProviderCounts)
    for result in results:
        # Simulated mail has no server, and so no latency.
        if result.mx_host is None or result.is_test:
            continue
        day = result.hour.astimezone(UTC).date()
        counts = providers[result.account_id, day, usage.provider_of(result.mx_host)]
        kind = result.kind.removeprefix("email.")
        counts.results[kind] += result.recipients
        counts.counts[result.bucket] += result.recipients
        if kind == "delivered":
            counts.delivered_counts[result.bucket] += result.recipients
    return providers


class DelayRun(NamedTuple):
    """What a run noted."""

    begun: int = 0
    ended: int = 0


class ProviderLatency(NamedTuple):
    """The time from acceptance to delivery."""

    provider: str
    delivered: int
    times: Percentiles


class ProviderDelays(Flow):
    """Notes when a mailbox provider takes mail much later than in the week before, in the log and for the operator."""

    async def known(self) -> Sequence[KnownDelay]:
        """The current delays, the oldest first."""
        async with self._database.connection() as connection:
            return await provider_delays.known(connection)

    async def latency(self) -> Sequence[ProviderLatency]:
        """Mail that was delivered in this hour and the one before, the slowest provider first."""
        now = self._clock.now()
        async with self._database.connection() as connection:
            recent = await provider_delays.sums(connection, rules.recent_since(now), now)
        found = [(provider, sum(counts), percentiles(counts)) for provider, counts in recent.items()]
        rows = [ProviderLatency(provider, count, times) for provider, count, times in found if times is not None]
        return sorted(rows, key=lambda row: (-row.times.p95, row.provider))

    async def run(self) -> DelayRun:
        """Compare recent deliveries with the week before."""
        now = self._clock.now()
        since = rules.recent_since(now)
        begun = ended = 0
        async with self._database.transaction() as tx:
            known = {found.provider for found in await provider_delays.known(tx)}
            recent = await provider_delays.sums(tx, since, now)
            asked = [provider for provider, counts in recent.items() if rules.may_be_delayed(counts)]
            week = await provider_delays.sums(tx, since - rules.WEEK, since, asked) if asked else {}
            for provider in sorted({*asked, *known}):
                delay = rules.delay_of(recent.get(provider, ()), week.get(provider, ()), is_delayed=provider in known)
                if delay is not None:
                    is_new = await provider_delays.put(tx, provider, delay, now)
                    begun += is_new
                    if is_new:
                        log.warning("provider_is_delayed", provider=provider, **delay._asdict(), advice=ADVICE)
                elif await provider_delays.remove(tx, provider):
                    ended += 1
                    log.info("provider_is_delayed_no_more", provider=provider)
            await provider_delays.forget(tx, since - rules.WEEK)
        return DelayRun(begun, ended)
