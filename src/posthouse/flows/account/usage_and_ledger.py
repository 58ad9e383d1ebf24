"""An account's credits, limits, usage and ledger."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final, assert_never
from uuid import UUID

from posthouse.clock import Clock
from posthouse.flows.shared.account_limits import Defaults, working_copy
from posthouse.flows.shared.page import Page
from posthouse.flows.shared.snapshot import snapshot
from posthouse.rules import ids, rate_limit, send_quota, usage
from posthouse.rules import reputation as reputation_rules
from posthouse.rules.ids import AccountId, MessageId, lowest_id
from posthouse.rules.rate_limit import Rate, RateReading
from posthouse.rules.refusal import invalid, unreadable_cursor
from posthouse.rules.send_quota import WarmupReading
from posthouse.rules.usage import Percentiles as Percentiles
from posthouse.store import acceptance, accounts, backlog, ledger, reputation
from posthouse.store import usage as usage_store
from posthouse.store.accounts import AccountRow
from posthouse.store.backlog import AccountBacklog as AccountBacklog
from posthouse.store.ledger import Kind as Kind
from posthouse.store.ledger import LedgerEntry as LedgerEntry
from posthouse.store.ledger import LedgerPosition, LedgerRange
from posthouse.store.ledger import RecipientResult as RecipientResult
from posthouse.store.postgres import Connection, Database
from posthouse.store.usage import UsageDay as UsageDay

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


@dataclass(frozen=True, slots=True)
class ProviderUsage:
    provider: str
    results: int
    percentiles: Percentiles


@dataclass(frozen=True, slots=True)
class DayUsage:
    counts: UsageDay
    providers: Sequence[ProviderUsage]


@dataclass(frozen=True, slots=True)
class UsageView:
    """`counted_to`: all that happened before is in the numbers; None when nothing was counted yet."""

    days: Sequence[DayUsage]
    providers: Sequence[ProviderUsage]
    waiting: AccountBacklog
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

    async def account(self, account_id: AccountId) -> AccountSummary:
        async with snapshot(self._database) as connection:
            account = await accounts.find_by_id(connection, account_id)
            standing = await reputation.account_reputation(connection, account_id)
            if account is None or standing is None:
                raise RuntimeError("an account is gone, which none ever is")
            granted = await accounts.granted(connection, account_id)
            waiting = await backlog.waiting(connection, account_id)
            row = await acceptance.read(connection, account_id)
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
        )

    async def usage(
        self, account_id: AccountId, *, days: str | None = None, first: str | None = None, last: str | None = None
    ) -> UsageView:
        """Every day that is asked for, the newest first, those without mail as well."""
        since, until = usage.day_range(days, first, last, self._clock.now().astimezone(UTC).date())
        async with snapshot(self._database) as connection:
            state = await usage_store.state(connection)
            counted = await usage_store.days(connection, account_id, since, until)
            latency = await usage_store.latency(connection, account_id, since, until)
            waiting = await backlog.waiting(connection, account_id)
        by_day: defaultdict[date, dict[str, Sequence[int]]] = defaultdict(dict)
        by_provider: defaultdict[str, list[Sequence[int]]] = defaultdict(list)
        for row in latency:
            by_day[row.day][row.provider] = row.counts
            by_provider[row.provider].append(row.counts)
        asked = [until - _DAY * number for number in range((until - since).days + 1)]
        return UsageView(
            days=[DayUsage(counted.get(day, UsageDay(day)), _providers(by_day[day])) for day in asked],
            providers=_providers({name: usage.sum_histograms(several) for name, several in by_provider.items()}),
            waiting=waiting,
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


def _providers(histograms: Mapping[str, Sequence[int]]) -> list[ProviderUsage]:
    """The provider with the most results first."""
    read = [(name, sum(counts), usage.percentiles(counts)) for name, counts in histograms.items()]
    found = [ProviderUsage(name, results, found) for name, results, found in read if found is not None]
    return sorted(found, key=lambda used: (-used.results, used.provider))


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
