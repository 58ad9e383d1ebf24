"""An account's credits, limits, usage and ledger."""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Final, assert_never
from uuid import UUID

from posthouse.flows.shared.account_limits import Defaults, working_copy
from posthouse.flows.shared.context import Context, Flow
from posthouse.flows.shared.page import Page
from posthouse.rules import explanation, ids, rate_limit, send_quota, usage
from posthouse.rules import reputation as reputation_rules
from posthouse.rules.credential import IMPERSONATION_MAX
from posthouse.rules.explanation import Explanation
from posthouse.rules.ids import AccountId, MessageId, UserId, lowest_id
from posthouse.rules.rate_limit import Rate, RateReading
from posthouse.rules.refusal import Code, Refusal, invalid, unreadable_cursor
from posthouse.rules.reputation import ReputationFigures, ReputationVerdict
from posthouse.rules.send_quota import WarmupReading
from posthouse.rules.usage import Interval, ReasonCount, ReasonKey, SplitKind, Step
from posthouse.rules.usage import Percentiles as Percentiles
from posthouse.store import acceptance, accounts, audit_log, backlog, ledger, reputation, usage_reasons
from posthouse.store import usage as usage_store
from posthouse.store.accounts import AccountRow
from posthouse.store.backlog import AccountBacklog as AccountBacklog
from posthouse.store.ledger import Kind as Kind
from posthouse.store.ledger import LedgerEntry as LedgerEntry
from posthouse.store.ledger import LedgerPosition, LedgerRange
from posthouse.store.ledger import RecipientResult as RecipientResult
from posthouse.store.partitions import snapshot
from posthouse.store.postgres import Connection
from posthouse.store.reputation import AccountReputation
from posthouse.store.usage import ProviderDay, SplitCount
from posthouse.store.usage import UsageCounts as UsageCounts
from posthouse.store.usage import UsageRow as UsageRow

CACHED_FOR: Final = timedelta(minutes=1)
ACCOUNTS_CACHED_MAX: Final = 1_000
# As many as are counted in a day.
SPLIT_SHOWN_MAX: Final = usage.KEYS_A_DAY_MAX
_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)
_BEGINNING: Final = UUID(int=0)
# An entry's id is also its cursor: the id in its place, followed by its position, counted from zero.
_POSITION_DIGITS: Final = 2


@dataclass(frozen=True, slots=True)
class ReputationReading:
    """`forgiven_at`: mail before a lifted suspension doesn't count."""

    figures: ReputationFigures
    verdict: ReputationVerdict
    counted_at: datetime
    counted_since: datetime
    forgiven_at: datetime | None

    def is_current(self, account: AccountReputation, now: datetime) -> bool:
        return self.forgiven_at == account.since and now < self.counted_at + CACHED_FOR


@dataclass(slots=True)
class _CachedReading:
    """Requests for one account take turns, and all but the first find the cached figures."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    reading: ReputationReading | None = None


class ReputationReadings(Flow):
    """An account's reputation figures for itself, counted at most once a minute in each process.

    Counting the results of a large account's day takes a third of a second, and a page asks repeatedly.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._cached: OrderedDict[AccountId, _CachedReading] = OrderedDict()

    async def reading_of(self, account: AccountReputation) -> ReputationReading | None:
        """None if the account's mail takes too long to count."""
        cached = self._cached.setdefault(account.account_id, _CachedReading())
        self._cached.move_to_end(account.account_id)
        while len(self._cached) > ACCOUNTS_CACHED_MAX:
            self._cached.popitem(last=False)
        async with cached.lock:
            if cached.reading is None or not cached.reading.is_current(account, self._clock.now()):
                try:
                    cached.reading = await self._count(account)
                except Refusal as refusal:
                    if refusal.code is not Code.TEMPORARY_FAILURE:
                        raise
                    return None
            return cached.reading

    async def _count(self, account: AccountReputation) -> ReputationReading:
        now = self._clock.now()
        since = reputation_rules.counted_since(account.since, now)
        async with self._database.connection() as connection:
            figures = await reputation.figures(connection, account.account_id, since)
        return ReputationReading(figures, reputation_rules.judge(*figures), now, since, account.since)


@dataclass(frozen=True, slots=True)
class AccountSummary:
    account: AccountRow
    granted: int
    waiting: AccountBacklog
    rate: Rate
    reading: RateReading
    warmup: WarmupReading
    # The end of the warm-up's day.
    midnight: datetime
    warned_at: datetime | None
    is_reputation_exempt: bool
    # None if it could not be counted in time.
    reputation: ReputationReading | None
    # While an operator impersonates a viewer of it.
    impersonated_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class ProviderUsage:
    """`percentiles` are of the time to any final result, `to_delivered` only to a delivery; None without any."""

    provider: str
    results: int
    delivered: int
    bounced: int
    failed: int
    percentiles: Percentiles
    to_delivered: Percentiles | None


@dataclass(frozen=True, slots=True)
class DayUsage:
    day: date
    usage: UsageRow
    providers: Sequence[ProviderUsage]


@dataclass(frozen=True, slots=True)
class HourUsage:
    hour: datetime
    usage: UsageRow


@dataclass(frozen=True, slots=True)
class SplitUsage:
    """`value` is None for all values that are not counted or not shown separately."""

    value: str | None
    counts: UsageCounts


@dataclass(frozen=True, slots=True)
class UsageView:
    """`hours` is None unless they were requested.

    `counted_to`: all that happened before is in the numbers; None if nothing was counted yet.
    """

    days: Sequence[DayUsage]
    hours: Sequence[HourUsage] | None
    providers: Sequence[ProviderUsage]
    domains: Sequence[SplitUsage]
    tags: Sequence[SplitUsage]
    # The first day that is counted by domain and tag; None if nothing was counted yet.
    split_from: date | None
    waiting: AccountBacklog
    counted_to: datetime | None


@dataclass(frozen=True, slots=True)
class ReasonView:
    """Why `count` recipients bounced, failed or were deferred at a mailbox provider. `code` is None without a reply."""

    provider: str
    result: str
    code: str | None
    count: int
    example_id: MessageId
    explanation: Explanation


@dataclass(frozen=True, slots=True)
class ReasonsView:
    """`waiting` is deferred now and not final; `is_shortened`: rare reasons are omitted."""

    reasons: Sequence[ReasonView]
    is_shortened: bool
    waiting: Sequence[ReasonView]
    counted_to: datetime | None


@dataclass(frozen=True, slots=True)
class ExplainedEntry:
    """`amount` is the change of the available credits, which are the sum of all amounts."""

    id: str
    entry: LedgerEntry
    amount: int
    why: str
    fate: RecipientResult | None


class UsageAndLedger(Flow):
    def __init__(self, context: Context, *, defaults: Defaults) -> None:
        super().__init__(context)
        self._defaults = defaults
        self._reputation = ReputationReadings(context)

    async def first_steps(self, account_id: AccountId, user_id: UserId) -> Mapping[Step, datetime | None]:
        """When each step of a new account was done; None for steps that are not done."""
        async with snapshot(self._database) as connection:
            return await accounts.steps_done(connection, account_id, user_id)

    async def account(self, account_id: AccountId) -> AccountSummary:
        async with snapshot(self._database) as connection:
            account = await accounts.find_by_id(connection, account_id)
            status = await reputation.account_reputation(connection, account_id)
            if account is None or status is None:
                raise RuntimeError("an account is gone, although accounts are never deleted")
            granted = await accounts.granted(connection, account_id)
            waiting = await backlog.waiting(connection, account_id)
            row = await acceptance.read(connection, account_id)
            impersonated_at = await audit_log.last_impersonated(
                connection, account_id, self._clock.now() - IMPERSONATION_MAX
            )
        reading = await self._reputation.reading_of(status)
        now = self._clock.now()
        sending = working_copy(row, self._defaults)
        is_warning = reputation_rules.is_warning(status.warned_at, status.since, now)
        return AccountSummary(
            account=account,
            granted=granted,
            waiting=waiting,
            rate=sending.rate,
            reading=rate_limit.reading(sending.rate, sending.full_at, now),
            warmup=send_quota.warmup_reading(sending, now),
            midnight=_start(now.astimezone(UTC).date() + _DAY),
            warned_at=status.warned_at if is_warning else None,
            is_reputation_exempt=status.exempt,
            reputation=reading,
            impersonated_until=None if impersonated_at is None else impersonated_at + IMPERSONATION_MAX,
        )

    async def usage(
        self,
        account_id: AccountId,
        *,
        by: str = Interval.DAY,
        days: str | None = None,
        first: str | None = None,
        last: str | None = None,
    ) -> UsageView:
        """Every day and, if requested, every hour until now, newest first, including those without mail."""
        is_hourly = usage.parse_interval(by) is Interval.HOUR
        now = self._clock.now()
        days_max = usage.HOURLY_DAYS_MAX if is_hourly else usage.DAYS_MAX
        since, until = usage.day_range(days, first, last, now.astimezone(UTC).date(), days_max=days_max)
        begin, end = _start(since), min(_start(until) + _DAY, usage.hour_of(now) + _HOUR)
        async with snapshot(self._database) as connection:
            state = await usage_store.state(connection)
            counted = await usage_store.days(connection, account_id, since, until)
            hours = await usage_store.hours(connection, account_id, begin, end) if is_hourly else {}
            providers = await usage_store.providers(connection, account_id, since, until)
            splits = await usage_store.splits(connection, account_id, since, until)
            waiting = await backlog.waiting(connection, account_id)
        by_day: defaultdict[date, list[ProviderDay]] = defaultdict(list)
        for row in providers:
            by_day[row.day].append(row)
        asked = [until - _DAY * number for number in range((until - since).days + 1)]
        asked_hours = [end - _HOUR * number for number in range(1, max(0, (end - begin) // _HOUR) + 1)]
        return UsageView(
            days=[DayUsage(day, counted.get(day, UsageRow()), _providers(by_day[day])) for day in asked],
            hours=[HourUsage(hour, hours.get(hour, UsageRow())) for hour in asked_hours] if is_hourly else None,
            providers=_providers(providers),
            domains=_split(splits, SplitKind.DOMAIN),
            tags=_split(splits, SplitKind.TAG),
            split_from=None if state is None else usage.first_whole_day(state.splits_since),
            waiting=waiting,
            counted_to=None if state is None else state.counted_to(account_id),
        )

    async def reasons(
        self, account_id: AccountId, *, days: str | None = None, first: str | None = None, last: str | None = None
    ) -> ReasonsView:
        """Why mail accepted on these days was not delivered at the first attempt, most frequent reasons first."""
        since, until = usage.day_range(days, first, last, self._clock.now().astimezone(UTC).date())
        async with snapshot(self._database) as connection:
            state = await usage_store.state(connection)
            counted = await usage_reasons.of_days(connection, account_id, since, until)
            waiting = await usage_reasons.deferred_now(connection, account_id)
        return ReasonsView(
            reasons=[_reason(key, count) for key, count in counted[: usage_reasons.SHOWN_MAX]],
            is_shortened=len(counted) > usage_reasons.SHOWN_MAX,
            waiting=[
                _reason(key, count)
                for key, count in sorted(waiting.items(), key=lambda item: (-item[1].times, item[0]))
            ][: usage_reasons.SHOWN_MAX],
            counted_to=None if state is None else state.counted_to(account_id),
        )

    async def ledger(
        self,
        account_id: AccountId,
        limit: int,
        cursor: str | None = None,
        *,
        message_id: str | None = None,
        kind: str | None = None,
        first: str | None = None,
        last: str | None = None,
    ) -> Page[ExplainedEntry]:
        """The newest message first, grants at their time; an unknown message has no entries."""
        if kind is not None and kind not in list(Kind):
            raise invalid(f"`kind` is one of {', '.join(Kind)}.")
        tomorrow = self._clock.now().astimezone(UTC).date() + _DAY
        lowest = _BEGINNING if first is None else lowest_id(_start(usage.parse_day("from", first)))
        place = LedgerPosition(
            lowest_id(_start(tomorrow if last is None else usage.parse_day("to", last)) + _DAY), ledger.DAY_POSITION
        )
        if cursor is not None:
            place = min(place, _place(cursor))
        if message_id is not None:
            about = ids.parse(ids.MESSAGE, message_id)
            if about is None:
                return Page([], None)
            lowest = max(lowest, about)
            place = min(place, LedgerPosition(about, ledger.POSITION_END))
        if place.id < lowest:
            return Page([], None)
        async with snapshot(self._database) as connection:
            found = await ledger.below(
                connection, account_id, place, lowest, limit, None if kind is None else Kind(kind)
            )
            fates = await _fates(connection, account_id, found)
        entries = [_explained(entry, fates.get(entry.place)) for entry in found.entries]
        return Page(entries, None if found.read_to is None else _entry_id(found.read_to))


def _start(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def _providers(rows: Sequence[ProviderDay]) -> list[ProviderUsage]:
    """The sum of these rows; the provider with the most results first."""
    by_provider: defaultdict[str, list[ProviderDay]] = defaultdict(list)
    for row in rows:
        by_provider[row.provider].append(row)
    found = []
    for provider, of_days in by_provider.items():
        counts = usage.sum_histograms([row.counts for row in of_days])
        percentiles = usage.percentiles(counts)
        if percentiles is not None:
            delivered = usage.sum_histograms([row.delivered_counts for row in of_days])
            found.append(
                ProviderUsage(
                    provider=provider,
                    results=sum(counts),
                    delivered=sum([row.delivered for row in of_days]),
                    bounced=sum([row.bounced for row in of_days]),
                    failed=sum([row.failed for row in of_days]),
                    percentiles=percentiles,
                    to_delivered=usage.percentiles(delivered),
                )
            )
    return sorted(found, key=lambda used: (-used.results, used.provider))


def _split(counted: Sequence[SplitCount], kind: SplitKind) -> list[SplitUsage]:
    """The first values, and then the sum of all others."""
    of_kind = [count for count in counted if count.kind is kind]
    named = [count for count in of_kind if count.value != usage.OTHER_VALUE][:SPLIT_SHOWN_MAX]
    shown = [SplitUsage(count.value, count.counts) for count in named]
    others = [count.counts for count in of_kind if count not in named]
    return [*shown, SplitUsage(None, usage_store.counts_sum(others))] if others else shown


def _reason(key: ReasonKey, count: ReasonCount) -> ReasonView:
    explained = explanation.explain_result(key.result, key.reason)
    return ReasonView(key.provider, key.result, key.code or None, count.times, count.example_id, explained)


def _entry_id(place: LedgerPosition) -> str:
    return f"{ids.text(ids.LEDGER_ENTRY, place.id)}{place.position - ledger.DAY_POSITION:0{_POSITION_DIGITS}}"


def _place(given: str) -> LedgerPosition:
    position = given[-_POSITION_DIGITS:]
    found = ids.parse(ids.LEDGER_ENTRY, given[:-_POSITION_DIGITS])
    if found is None or not (position.isascii() and position.isdigit()):
        raise unreadable_cursor()
    return LedgerPosition(found, int(position) + ledger.DAY_POSITION)


async def _fates(
    connection: Connection, account_id: AccountId, found: LedgerRange
) -> Mapping[LedgerPosition, RecipientResult]:
    closing = [entry.place for entry in found.entries if entry.kind in (Kind.SETTLE, Kind.RELEASE)]
    return await ledger.recipient_results(connection, account_id, closing)


def _explained(entry: LedgerEntry, fate: RecipientResult | None) -> ExplainedEntry:
    amount, why = _effect(entry, fate)
    return ExplainedEntry(_entry_id(entry.place), entry, amount, why, fate)


def _effect(entry: LedgerEntry, fate: RecipientResult | None) -> tuple[int, str]:
    """The change of the available credits, and its reason in plain words."""
    credits_, *others = entry.credits
    match entry.kind:
        case Kind.GRANT:
            return credits_, f"{'Granted' if credits_ > 0 else 'Deducted'}: {entry.reason}"
        case Kind.RESERVE:
            recipients = "its recipient" if credits_ == 1 else f"each of its {credits_} recipients"
            return -credits_, f"Reserved: one credit for {recipients}."
        case Kind.SETTLE:
            return 0, f"Spent: {_fate(fate, 'the recipient got it, or was tried to the end')}"
        case Kind.RELEASE:
            if fate is not None and fate.status == "failed":
                return credits_, f"Returned: {fate.response or 'the message was given up before it was tried'}."
            return credits_, f"Returned: {_fate(fate, 'the recipient was refused for good')}"
        case Kind.DAY:
            settled, released = others
            return released - credits_, (
                f"The sum of a day whose entries are no longer stored: {credits_} reserved, {settled} spent, "
                f"{released} returned."
            )
        case _:
            assert_never(entry.kind)


_WORDS: Final = {
    "delivered": "the recipient's server accepted the message",
    "bounced": "the message was refused for good",
    "failed": "the message was tried until it was given up",
}


def _fate(fate: RecipientResult | None, otherwise: str) -> str:
    if fate is None:
        return f"{otherwise}."
    what = _WORDS.get(fate.status, otherwise)
    if fate.response is None:
        return f"{what}."
    said = fate.response if fate.code is None else f"{fate.code} {fate.response}"
    return f"{what}; last said: {said}"


def message_id_of(entry: LedgerEntry) -> MessageId | None:
    return MessageId(entry.place.id) if entry.place.position >= ledger.RESERVE_POSITION else None
