"""Usage by hour and day: accepted mail and its results, counted from messages and events.

Nothing is counted while mail is accepted or delivered. A pass through the accounts, one window of time after another,
reads each message and each event once and adds to the counts; its progress is written in the same transaction, so
that an interruption neither counts anything twice nor skips it. A result belongs to the hour and day on which its
message was accepted. Mail that costs no credits is test mail, and is counted separately.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from typing import Final, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from posthouse.rules.ids import AccountId, lowest_id, time_of
from posthouse.rules.usage import BOUNDS_SECONDS, COUNTS, OTHER_VALUE, SplitKind, bounded_keys
from posthouse.store import partitions
from posthouse.store.postgres import Connection, Row, required, row_count
from posthouse.store.statement import statement

_Time = TypeVar("_Time", datetime, date)


@dataclass(frozen=True, slots=True)
class CountingProgress:
    """How far usage has been counted.

    For all accounts up to `counted_before`; in the current pass, up to `pass_before` for the accounts up to
    `pass_account_id`. Days before `recount_day` were counted a second time, and that day for the accounts up to
    `recount_account_id`. Days that began before `splits_since` are not counted by domain and tag.
    """

    counted_before: datetime
    pass_before: datetime
    pass_account_id: AccountId | None
    recount_day: date
    recount_account_id: AccountId | None
    splits_since: datetime

    def counted_to(self, account_id: AccountId) -> datetime:
        return (
            self.pass_before
            if self.pass_account_id is not None and account_id <= self.pass_account_id
            else self.counted_before
        )


@dataclass(frozen=True, slots=True)
class UsageCounts:
    """Recipients accepted in a period, and their results since."""

    accepted: int = 0
    delivered: int = 0
    bounced: int = 0
    failed: int = 0

    @property
    def open(self) -> int:
        """How many were not final when they were counted."""
        return max(0, self.accepted - self.delivered - self.bounced - self.failed)


def counts_sum(rows: Sequence[UsageCounts]) -> UsageCounts:
    return UsageCounts(
        accepted=sum([row.accepted for row in rows]),
        delivered=sum([row.delivered for row in rows]),
        bounced=sum([row.bounced for row in rows]),
        failed=sum([row.failed for row in rows]),
    )


@dataclass(frozen=True, slots=True)
class UsageRow:
    """The usage of an hour or a day."""

    live: UsageCounts = UsageCounts()
    test: UsageCounts = UsageCounts()


class ProviderDay(NamedTuple):
    """Results at one mailbox provider: how long they took (`counts`), and how long the delivered ones took."""

    day: date
    provider: str
    counts: list[int]
    delivered: int
    bounced: int
    failed: int
    delivered_counts: list[int]


class AcceptedCount(NamedTuple):
    """Recipients of one account's mail from this domain with these tags; both are None for all of its mail."""

    account_id: AccountId
    domain: str | None
    tags: Sequence[str] | None
    live: int
    test: int


class SplitGroup(NamedTuple):
    """What is counted by value."""

    account_id: AccountId
    day: date
    kind: SplitKind


# By value: how many were accepted and had each result, in the order of SPLIT_COUNTED.
SplitCounts: TypeAlias = dict[SplitGroup, dict[str, list[int]]]
SPLIT_COUNTED: Final = {"accepted": 0, "email.delivered": 1, "email.bounced": 2, "email.failed": 3}


class SplitCount(NamedTuple):
    """Usage by one domain or tag."""

    kind: SplitKind
    value: str
    counts: UsageCounts


class ResultCount(NamedTuple):
    """How many recipients of one account had this result, at this mail server, after this time, in such mail.

    `mx_host` is None where no server was reached, and `bucket` is the place in the histogram. `is_troubled`: live mail
    that was not delivered, or not at the first try.
    """

    account_id: AccountId
    hour: datetime
    is_test: bool
    kind: str
    mx_host: str | None
    bucket: int
    is_troubled: bool
    domain: str
    tags: Sequence[str] | None
    recipients: int


# Reads a day without an index: this runs once in the life of an installation.
_OLDEST_MESSAGE: Final = "SELECT id FROM messages WHERE id >= $1 AND id < $2 ORDER BY id LIMIT 1"
_OLDEST_EVENT: Final = "SELECT id FROM events WHERE id >= $1 AND id < $2 ORDER BY id LIMIT 1"
_OLDEST: Final = (_OLDEST_MESSAGE, _OLDEST_EVENT)
_BEGIN: Final = """
INSERT INTO usage_counter_progress (counted_before, pass_before, recount_day, splits_since) VALUES ($1, $1, $2, $3)
ON CONFLICT DO NOTHING
"""
_STATE: Final = """
SELECT counted_before, pass_before, pass_account_id, recount_day, recount_account_id, splits_since
FROM usage_counter_progress
"""
_STATE_LOCKED: Final = _STATE + " FOR NO KEY UPDATE SKIP LOCKED"
_ADVANCE: Final = statement("""
UPDATE usage_counter_progress SET counted_before = :counted_before, pass_before = :pass_before,
    pass_account_id = :pass_account_id, recount_day = :recount_day, recount_account_id = :recount_account_id
""")

_ACCOUNTS: Final = "SELECT id FROM accounts WHERE id > $1 ORDER BY id LIMIT $2"

# The domain of a sender such as `Ada <ada@example.com>`.
_DOMAIN: Final = "lower(rtrim(split_part(sender, '@', -1), '> '))"
_ACCEPTED: Final = f"""
SELECT asked.account_id, accepted.*
FROM unnest($1::uuid[]) asked(account_id)
CROSS JOIN LATERAL (
    SELECT CASE WHEN $4 THEN {_DOMAIN} END AS domain, CASE WHEN $4 THEN tags END AS tags,
        coalesce(sum(recipient_count) FILTER (WHERE credits_reserved > 0), 0)::bigint AS live,
        coalesce(sum(recipient_count) FILTER (WHERE credits_reserved = 0), 0)::bigint AS test
    FROM messages WHERE account_id = asked.account_id AND id >= $2 AND id < $3 GROUP BY 1, 2) accepted
"""

# A message's id begins with the milliseconds since 1970, which select its partition and so its day; its delivery time
# is counted from when it was accepted or was to be sent. A message that is often postponed has many attempts, and the
# last one decided. The first attempt has fence 1.
_RESULTS: Final = statement(f"""
SELECT asked.account_id, result.*
FROM unnest(:account_ids::uuid[]) asked(account_id)
CROSS JOIN LATERAL (
    SELECT to_timestamp(('x' || left(replace(message.id::text, '-', ''), 12))::bit(48)::bigint / 3600000 * 3600)
               AS hour,
           message.is_test, event.type AS kind, attempt.mx_host,
           width_bucket(extract(epoch FROM event.created_at - message.due_at)::float8, :bounds::float8[]) AS bucket,
           NOT message.is_test AND (event.type <> 'email.delivered' OR coalesce(attempt.fence, 0) > 1) AS is_troubled,
           message.domain, message.tags, count(*)
    FROM (
        SELECT message_id, position, type, created_at FROM events
        WHERE account_id = asked.account_id AND id >= :lowest AND id < :before AND message_id IS NOT NULL) event
    CROSS JOIN LATERAL (
        SELECT id, coalesce(send_at, created_at) AS due_at, credits_reserved = 0 AS is_test, {_DOMAIN} AS domain, tags
        FROM messages
        WHERE account_id = asked.account_id AND id = event.message_id LIMIT 1) message
    LEFT JOIN LATERAL (
        SELECT mx_host, fence FROM attempts
        WHERE account_id = asked.account_id AND message_id = event.message_id AND position = event.position
        ORDER BY fence DESC LIMIT 1) attempt ON true
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8) result
""")

_COUNTED: Final = (
    "accepted",
    "delivered",
    "bounced",
    "failed",
    "test_accepted",
    "test_delivered",
    "test_bounced",
    "test_failed",
)
# In the order of their keys: two transactions that add to the same rows must not deadlock.
_ADD: Final = """
INSERT INTO {table} AS kept (account_id, {key}, accepted, delivered, bounced, failed,
    test_accepted, test_delivered, test_bounced, test_failed)
SELECT * FROM unnest($1::uuid[], $2::{type}[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[],
    $8::bigint[], $9::bigint[], $10::bigint[])
ORDER BY 1, 2
ON CONFLICT (account_id, {key}) DO UPDATE SET accepted = kept.accepted + excluded.accepted,
    delivered = kept.delivered + excluded.delivered, bounced = kept.bounced + excluded.bounced,
    failed = kept.failed + excluded.failed, test_accepted = kept.test_accepted + excluded.test_accepted,
    test_delivered = kept.test_delivered + excluded.test_delivered,
    test_bounced = kept.test_bounced + excluded.test_bounced, test_failed = kept.test_failed + excluded.test_failed
"""
_ADD_DAYS: Final = _ADD.format(table="usage_days", key="day", type="date")
_ADD_HOURS: Final = _ADD.format(table="usage_hours", key="hour", type="timestamptz")
_ADD_PROVIDERS: Final = statement("""
INSERT INTO usage_latency AS kept (account_id, day, provider, counts, delivered, bounced, failed, delivered_counts)
SELECT account_id, day, provider, counts::bigint[], delivered, bounced, failed, delivered_counts::bigint[]
FROM unnest(:account_ids::uuid[], :days::date[], :providers::text[], :counts::text[], :delivered::bigint[],
    :bounced::bigint[], :failed::bigint[], :delivered_counts::text[]) more(account_id, day, provider, counts, delivered,
    bounced, failed, delivered_counts)
ORDER BY 1, 2, 3
ON CONFLICT (account_id, day, provider) DO UPDATE SET delivered = kept.delivered + excluded.delivered,
    bounced = kept.bounced + excluded.bounced, failed = kept.failed + excluded.failed,
    counts = ARRAY(SELECT old + new FROM unnest(kept.counts, excluded.counts) WITH ORDINALITY
        both_of(old, new, place) ORDER BY place),
    delivered_counts = ARRAY(SELECT old + new
        FROM unnest(kept.delivered_counts, excluded.delivered_counts) WITH ORDINALITY
        both_of(old, new, place) ORDER BY place)
""")
_KNOWN_VALUES: Final = """
SELECT account_id, kept.day, kind, value
FROM unnest($1::uuid[], $2::date[]) asked(account_id, day)
JOIN usage_splits kept USING (account_id, day)
"""
_ADD_SPLITS: Final = """
INSERT INTO usage_splits AS kept (account_id, day, kind, value, accepted, delivered, bounced, failed)
SELECT * FROM unnest($1::uuid[], $2::date[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[],
    $8::bigint[])
ORDER BY 1, 2, 3, 4
ON CONFLICT (account_id, day, kind, value) DO UPDATE SET accepted = kept.accepted + excluded.accepted,
    delivered = kept.delivered + excluded.delivered, bounced = kept.bounced + excluded.bounced,
    failed = kept.failed + excluded.failed
"""
_SET_ACCEPTED: Final = """
INSERT INTO {table} AS kept (account_id, {key}, accepted, test_accepted)
SELECT * FROM unnest($1::uuid[], $2::{type}[], $3::bigint[], $4::bigint[])
ORDER BY 1, 2
ON CONFLICT (account_id, {key}) DO UPDATE SET accepted = excluded.accepted, test_accepted = excluded.test_accepted
    WHERE (kept.accepted, kept.test_accepted) <> (excluded.accepted, excluded.test_accepted)
"""
_SET_ACCEPTED_DAYS: Final = _SET_ACCEPTED.format(table="usage_days", key="day", type="date")
_SET_ACCEPTED_HOURS: Final = _SET_ACCEPTED.format(table="usage_hours", key="hour", type="timestamptz")
_FORGET: Final = """
DELETE FROM {table} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {table} WHERE {key} < $1 ORDER BY {key} LIMIT $2))
"""
_FORGET_PROVIDERS: Final = _FORGET.format(table="usage_latency", key="day")
_FORGET_SPLITS: Final = _FORGET.format(table="usage_splits", key="day")
_FORGET_HOURS: Final = _FORGET.format(table="usage_hours", key="hour")

_DAYS: Final = f"""
SELECT day, {", ".join(_COUNTED)} FROM usage_days WHERE account_id = $1 AND day >= $2 AND day <= $3
"""
_HOURS: Final = f"""
SELECT hour, {", ".join(_COUNTED)} FROM usage_hours WHERE account_id = $1 AND hour >= $2 AND hour < $3
"""
_OF_ALL: Final = """
SELECT coalesce(sum(accepted), 0)::bigint, coalesce(sum(delivered), 0)::bigint, coalesce(sum(bounced), 0)::bigint,
    coalesce(sum(failed), 0)::bigint, count(*)
FROM usage_hours WHERE hour >= $1
"""
_PROVIDERS: Final = """
SELECT day, provider, counts, delivered, bounced, failed, delivered_counts FROM usage_latency
WHERE account_id = $1 AND day >= $2 AND day <= $3 ORDER BY day, provider
"""
_SPLITS: Final = """
SELECT kind, value, sum(accepted)::bigint, sum(delivered)::bigint, sum(bounced)::bigint, sum(failed)::bigint
FROM usage_splits WHERE account_id = $1 AND day >= $2 AND day <= $3 GROUP BY 1, 2 ORDER BY 3 DESC, 2
"""


async def begin(connection: Connection, otherwise: datetime) -> None:
    """Begin counting with the oldest stored mail, or then; if counting has begun already, this changes nothing."""
    low = await _oldest(connection) or otherwise
    await connection.execute(_BEGIN, low, low.date(), datetime.combine(low.date(), time(), UTC))


async def _oldest(connection: Connection) -> datetime | None:
    for day in sorted({partition.day for partition in await partitions.attached(connection)}):
        begin, end = partitions.bounds(day)
        found = [await connection.fetchval(oldest, lowest_id(begin), lowest_id(end)) for oldest in _OLDEST]
        if any(found):
            return min([time_of(row_id) for row_id in found if row_id is not None])
    return None


async def state(connection: Connection) -> CountingProgress | None:
    """None if nothing was ever counted."""
    row = await connection.fetchrow(_STATE)
    return None if row is None else CountingProgress(*row)


async def lock(tx: Connection) -> CountingProgress | None:
    """None if counting hasn't begun, or another process is counting at this moment."""
    row = await tx.fetchrow(_STATE_LOCKED)
    return None if row is None else CountingProgress(*row)


async def advance(tx: Connection, to: CountingProgress) -> None:
    await tx.execute(*_ADVANCE.bind_row(to))


async def accounts_after(connection: Connection, account_id: AccountId | None, limit: int) -> list[AccountId]:
    rows = await connection.fetch(_ACCOUNTS, account_id or UUID(int=0), limit)
    return [row["id"] for row in rows]


async def accepted(
    connection: Connection, account_ids: Sequence[AccountId], low: datetime, high: datetime, *, is_split: bool
) -> list[AcceptedCount]:
    """How many recipients were accepted from `low` until before `high`; `is_split`: by domain and tags."""
    rows = await connection.fetch(_ACCEPTED, account_ids, lowest_id(low), lowest_id(high), is_split)
    return [AcceptedCount(*row) for row in rows]


async def results(
    connection: Connection, account_ids: Sequence[AccountId], low: datetime, high: datetime
) -> list[ResultCount]:
    """The results of events between the two ids, whenever their mail was accepted."""
    rows = await connection.fetch(
        *_RESULTS.bind(account_ids=account_ids, lowest=lowest_id(low), before=lowest_id(high), bounds=BOUNDS_SECONDS)
    )
    return [ResultCount(*row) for row in rows]


@dataclass(slots=True)
class ProviderCounts:
    """Results at a mailbox provider, to be added."""

    results: Counter[str] = field(default_factory=Counter)
    counts: list[int] = field(default_factory=lambda: [0] * COUNTS)
    delivered_counts: list[int] = field(default_factory=lambda: [0] * COUNTS)


async def add(
    tx: Connection,
    hours: Mapping[tuple[AccountId, datetime], Counter[str]],
    providers: Mapping[tuple[AccountId, date, str], ProviderCounts],
) -> None:
    """The results to add: first by hour, with the kinds of `usage_hours`; second by day and mailbox provider."""
    if hours:
        days: defaultdict[tuple[AccountId, date], Counter[str]] = defaultdict(Counter)
        for (account_id, hour), counts in hours.items():
            days[account_id, hour.astimezone(UTC).date()].update(counts)
        await tx.execute(_ADD_HOURS, *_columns(hours))
        await tx.execute(_ADD_DAYS, *_columns(days))
    if providers:
        await tx.execute(
            *_ADD_PROVIDERS.bind(
                account_ids=[account_id for account_id, _, _ in providers],
                days=[day for _, day, _ in providers],
                providers=[provider for _, _, provider in providers],
                counts=[_array(more.counts) for more in providers.values()],
                delivered=[more.results["delivered"] for more in providers.values()],
                bounced=[more.results["bounced"] for more in providers.values()],
                failed=[more.results["failed"] for more in providers.values()],
                delivered_counts=[_array(more.delivered_counts) for more in providers.values()],
            )
        )


def add_counts(values: dict[str, list[int]], value: str, counts: Sequence[int]) -> None:
    known = values.get(value)
    values[value] = [*counts] if known is None else [count + more for count, more in zip(known, counts, strict=True)]


async def add_splits(tx: Connection, splits: SplitCounts) -> None:
    """Only one transaction at a time adds: the one that holds the counter's progress."""
    if not splits:
        return
    days = sorted({(group.account_id, group.day) for group in splits})
    known: defaultdict[SplitGroup, set[str]] = defaultdict(set)
    asked = [account_id for account_id, _ in days], [day for _, day in days]
    for account_id, day, kind, value in await tx.fetch(_KNOWN_VALUES, *asked):
        known[SplitGroup(account_id, day, SplitKind(kind))].add(value)
    rows: list[tuple[object, ...]] = []
    for group, values in splits.items():
        bounded: dict[str, list[int]] = {}
        totals = {value: sum(counts) for value, counts in values.items()}
        for value, target in bounded_keys(known[group], totals, lambda _: OTHER_VALUE).items():
            add_counts(bounded, target, values[value])
        rows += [(*group, value, *counts) for value, counts in bounded.items()]
    await tx.execute(_ADD_SPLITS, *zip(*rows, strict=True))


def _columns(rows: Mapping[tuple[AccountId, _Time], Counter[str]]) -> list[Sequence[object]]:
    keys: list[Sequence[object]] = [[account_id for account_id, _ in rows], [time for _, time in rows]]
    return keys + [[counts[name] for counts in rows.values()] for name in _COUNTED]


async def of_all(connection: Connection, since: datetime) -> tuple[UsageCounts, int]:
    """Live mail of all accounts that was accepted since the beginning of an hour, and from how many rows."""
    *counts, rows_read = required(await connection.fetchrow(_OF_ALL, since))
    return UsageCounts(*counts), rows_read


async def set_accepted(tx: Connection, day: date, accepted: Sequence[tuple[datetime, AcceptedCount]]) -> None:
    """The recipients accepted in the hours of a day."""
    sums: defaultdict[AccountId, Counter[str]] = defaultdict(Counter)
    for _, counts in accepted:
        sums[counts.account_id].update(live=counts.live, test=counts.test)
    await tx.execute(
        _SET_ACCEPTED_HOURS,
        [counts.account_id for _, counts in accepted],
        [hour for hour, _ in accepted],
        [counts.live for _, counts in accepted],
        [counts.test for _, counts in accepted],
    )
    await tx.execute(
        _SET_ACCEPTED_DAYS,
        list(sums),
        [day] * len(sums),
        [counts["live"] for counts in sums.values()],
        [counts["test"] for counts in sums.values()],
    )


async def forget(tx: Connection, details_before: date, hours_before: datetime, limit: int) -> int:
    """Returns how many rows were deleted; the days are kept."""
    deleted = [
        await tx.execute(_FORGET_PROVIDERS, details_before, limit),
        await tx.execute(_FORGET_SPLITS, details_before, limit),
        await tx.execute(_FORGET_HOURS, hours_before, limit),
    ]
    return sum([row_count(status) for status in deleted])


def _array(counts: Iterable[int]) -> str:
    return "{" + ",".join(map(str, counts)) + "}"


async def days(connection: Connection, account_id: AccountId, first: date, last: date) -> dict[date, UsageRow]:
    """The days on which anything was accepted."""
    return {row["day"]: _row(row) for row in await connection.fetch(_DAYS, account_id, first, last)}


async def hours(
    connection: Connection, account_id: AccountId, begin: datetime, end: datetime
) -> dict[datetime, UsageRow]:
    """The hours in which anything was accepted, from `begin` until before `end`."""
    return {row["hour"]: _row(row) for row in await connection.fetch(_HOURS, account_id, begin, end)}


async def providers(connection: Connection, account_id: AccountId, first: date, last: date) -> list[ProviderDay]:
    return [ProviderDay(*row) for row in await connection.fetch(_PROVIDERS, account_id, first, last)]


async def splits(connection: Connection, account_id: AccountId, first: date, last: date) -> list[SplitCount]:
    """The sums of these days, the value with the most recipients first."""
    return [
        SplitCount(SplitKind(kind), value, UsageCounts(*counts))
        for kind, value, *counts in await connection.fetch(_SPLITS, account_id, first, last)
    ]


def _row(row: Row) -> UsageRow:
    _, *counts = row
    return UsageRow(UsageCounts(*counts[:4]), UsageCounts(*counts[4:]))
