"""An account's credits, limits, usage and ledger."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final, assert_never
from uuid import UUID

from posthouse.clock import Clock
from posthouse.flows.account.reputation_figures import ReputationReading as ReputationReading
from posthouse.flows.account.reputation_figures import ReputationReadings
from posthouse.flows.shared.account_limits import Defaults, working_copy
from posthouse.flows.shared.page import Page
from posthouse.flows.shared.snapshot import snapshot
from posthouse.rules import explanation, ids, rate_limit, send_quota, usage
from posthouse.rules import reputation as reputation_rules
from posthouse.rules.explanation import Explanation
from posthouse.rules.ids import AccountId, MessageId, lowest_id
from posthouse.rules.operator import VISIT_MAX
from posthouse.rules.rate_limit import Rate, RateReading
from posthouse.rules.reason_count import ReasonCount, ReasonKey
from posthouse.rules.refusal import invalid, unreadable_cursor
from posthouse.rules.send_quota import WarmupReading
from posthouse.rules.usage import Interval
from posthouse.rules.usage import Percentiles as Percentiles
from posthouse.store import acceptance, accounts, audit_log, backlog, ledger, reputation, usage_reasons
from posthouse.store import usage as usage_store
from posthouse.store.accounts import AccountRow
from posthouse.store.backlog import AccountBacklog as AccountBacklog
from posthouse.store.ledger import Kind as Kind
from posthouse.store.ledger import LedgerEntry as LedgerEntry
from posthouse.store.ledger import LedgerPosition, LedgerRange
from posthouse.store.ledger import RecipientResult as RecipientResult
from posthouse.store.postgres import Connection, Database
from posthouse.store.usage import ProviderDay
from posthouse.store.usage import UsageCounts as UsageCounts
from posthouse.store.usage import UsageRow as UsageRow

_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)
_BEGINNING: Final = UUID(int=0)
# An entry's id is also its cursor: the id in its place, followed by its position from zero on.
_POSITION_DIGITS: Final = 2


@dataclass(frozen=True, slots=True)
class AccountSummary:
    account: AccountRow
    granted: int
    waiting: AccountBacklog
    rate: Rate
    reading: RateReading
    warmup: WarmupReading
    # When the day of the warm-up ends.
    midnight: datetime
    warned_at: datetime | None
    is_reputation_exempt: bool
    # None when it could not be counted in time.
    reputation: ReputationReading | None
    # While an operator visits it.
    visited_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class ProviderUsage:
    """`percentiles` are of the time to any final result, `to_delivered` of the delivered ones; None without any."""

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
class UsageView:
    """`hours` is None unless they were asked for.

    `counted_to`: all that happened before is in the numbers; None when nothing was counted yet.
    """

    days: Sequence[DayUsage]
    hours: Sequence[HourUsage] | None
    providers: Sequence[ProviderUsage]
    waiting: AccountBacklog
    counted_to: datetime | None


@dataclass(frozen=True, slots=True)
class ReasonView:
    """Why so many recipients bounced, failed or were deferred at a mailbox provider. `code` is None without a reply."""

    provider: str
    result: str
    code: str | None
    count: int
    example_id: MessageId
    explanation: Explanation


@dataclass(frozen=True, slots=True)
class ReasonsView:
    """`waiting` is deferred now and not final; `is_shortened`: rare reasons are left out."""

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


class UsageAndLedger:
    def __init__(self, *, database: Database, clock: Clock, defaults: Defaults) -> None:
        self._database = database
        self._clock = clock
        self._defaults = defaults
        self._reputation = ReputationReadings(database=database, clock=clock)

    async def account(self, account_id: AccountId) -> AccountSummary:
        async with snapshot(self._database) as connection:
            account = await accounts.find_by_id(connection, account_id)
            standing = await reputation.account_reputation(connection, account_id)
            if account is None or standing is None:
                raise RuntimeError("an account is gone, which none ever is")
            granted = await accounts.granted(connection, account_id)
            waiting = await backlog.waiting(connection, account_id)
            row = await acceptance.read(connection, account_id)
            visited_at = await audit_log.last_visited(connection, account_id, self._clock.now() - VISIT_MAX)
        reading = await self._reputation.of(standing)
        now = self._clock.now()
        sending = working_copy(row, self._defaults)
        is_warning = reputation_rules.is_warning(standing.warned_at, standing.since, now)
        return AccountSummary(
            account=account,
            granted=granted,
            waiting=waiting,
            rate=sending.rate,
            reading=rate_limit.reading(sending.rate, sending.full_at, now),
            warmup=send_quota.warmup_reading(sending, now),
            midnight=_start(now.astimezone(UTC).date() + _DAY),
            warned_at=standing.warned_at if is_warning else None,
            is_reputation_exempt=standing.exempt,
            reputation=reading,
            visited_until=None if visited_at is None else visited_at + VISIT_MAX,
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
        """Every day and, if asked for, every hour of them until now; the newest first, those without mail as well."""
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
            waiting=waiting,
            counted_to=None if state is None else state.counted_to(account_id),
        )

    async def reasons(
        self, account_id: AccountId, *, days: str | None = None, first: str | None = None, last: str | None = None
    ) -> ReasonsView:
        """Why mail that was accepted on these days was not delivered at once, the most frequent reasons first."""
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
        """The newest message first, grants at their time; a message that the account doesn't have has no entries."""
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
            # Days that were counted before an upgrade have none.
            delivered = usage.sum_histograms([row.delivered_counts for row in of_days if row.delivered_counts])
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
            return credits_, f"{'Granted' if credits_ > 0 else 'Taken back'}: {entry.reason}"
        case Kind.RESERVE:
            recipients = "its one recipient" if credits_ == 1 else f"each of its {credits_} recipients"
            return -credits_, f"The message was accepted: a credit for {recipients} is set aside."
        case Kind.SETTLE:
            return 0, f"Spent: {_fate(fate, 'the recipient got it, or was tried to the end')}"
        case Kind.RELEASE:
            if fate is not None and fate.status == "failed":
                return credits_, f"Given back: {fate.response or 'the message was given up before it was tried'}."
            return credits_, f"Given back: {_fate(fate, 'the recipient was refused for good')}"
        case Kind.DAY:
            settled, released = others
            return released - credits_, (
                f"The sum of a day whose entries are no longer stored: {credits_} set aside, {settled} spent, "
                f"{released} given back."
            )
        case _:
            assert_never(entry.kind)


_WORDS: Final = {
    "delivered": "the recipient's server took the message",
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
