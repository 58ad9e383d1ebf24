"""Usage by day: accepted mail and its results, counted from messages and events into a row a day.

Nothing is counted where mail is accepted or delivered. A pass through the accounts, a window of time after the other,
reads each message and each event once and adds to the counts; its progress is written in the same transaction, so
that an interruption neither counts anything twice nor skips it. A result belongs to the day on which its
message was accepted. Mail that costs no credits is not counted.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final, NamedTuple
from uuid import UUID

from posthouse.rules.ids import AccountId, lowest_id, time_of
from posthouse.rules.usage import BOUNDS_SECONDS
from posthouse.store import partitions
from posthouse.store.postgres import Connection
from posthouse.store.statement import statement


@dataclass(frozen=True, slots=True)
class CountingProgress:
    """How far the counting has come: of all accounts to `low`, of those up to `walked_to` to `high`.

    Days before `closing` are closed; of that day itself, the accounts up to `closed_to`.
    """

    low: datetime
    high: datetime
    walked_to: AccountId | None
    closing: date
    closed_to: AccountId | None

    def counted_to(self, account_id: AccountId) -> datetime:
        return self.high if self.walked_to is not None and account_id <= self.walked_to else self.low


@dataclass(frozen=True, slots=True)
class UsageDay:
    day: date
    accepted: int = 0
    delivered: int = 0
    bounced: int = 0
    failed: int = 0

    @property
    def open(self) -> int:
        """Not final when it was counted."""
        return max(0, self.accepted - self.delivered - self.bounced - self.failed)


class LatencyDay(NamedTuple):
    day: date
    provider: str
    counts: list[int]


class ResultCount(NamedTuple):
    """So many recipients of one account had this result, at this mail server, in this time.

    `exchange` is None where no server was reached, and `bucket` is the place in the histogram.
    """

    account_id: AccountId
    day: date
    kind: str
    exchange: str | None
    bucket: int
    recipients: int


# Of a day, without an index: this runs once in the life of an installation.
_OLDEST_MESSAGE: Final = "SELECT id FROM messages WHERE id >= $1 AND id < $2 ORDER BY id LIMIT 1"
_OLDEST_EVENT: Final = "SELECT id FROM events WHERE id >= $1 AND id < $2 ORDER BY id LIMIT 1"
_OLDEST: Final = (_OLDEST_MESSAGE, _OLDEST_EVENT)
_BEGIN: Final = """
INSERT INTO reckoning (low, high, closing) VALUES ($1, $1, $2) ON CONFLICT DO NOTHING
"""
_STATE: Final = "SELECT low, high, walked_to, closing, closed_to FROM reckoning"
_STATE_LOCKED: Final = _STATE + " FOR NO KEY UPDATE SKIP LOCKED"
_ADVANCE: Final = statement(
    "UPDATE reckoning SET low = :low, high = :high, walked_to = :walked_to, closing = :closing, closed_to = :closed_to"
)

_ACCOUNTS: Final = "SELECT id FROM accounts WHERE id > $1 ORDER BY id LIMIT $2"

_ACCEPTED: Final = """
SELECT asked.account_id, accepted.recipients
FROM unnest($1::uuid[]) asked(account_id)
CROSS JOIN LATERAL (
    SELECT sum(recipient_count)::bigint AS recipients FROM messages
    WHERE account_id = asked.account_id AND id >= $2 AND id < $3 AND credits_reserved > 0) accepted
WHERE accepted.recipients IS NOT NULL
"""

# A message's id begins with the milliseconds since 1970, which pick its partition and so its day; how long it took
# is counted from when it was accepted. What is postponed often has many attempts, and the last has decided.
_RESULTS: Final = statement("""
SELECT asked.account_id, result.*
FROM unnest(:account_ids::uuid[]) asked(account_id)
CROSS JOIN LATERAL (
    SELECT (to_timestamp(('x' || left(replace(message.id::text, '-', ''), 12))::bit(48)::bigint / 1000.0)
                AT TIME ZONE 'UTC')::date AS day,
           event.type AS kind, attempt.exchange,
           width_bucket(extract(epoch FROM event.created_at - message.created_at)::float8, :bounds::float8[]) AS bucket,
           count(*)
    FROM (
        SELECT message_id, position, type, created_at FROM events
        WHERE account_id = asked.account_id AND id >= :lowest AND id < :before AND message_id IS NOT NULL) event
    CROSS JOIN LATERAL (
        SELECT id, created_at FROM messages
        WHERE account_id = asked.account_id AND id = event.message_id AND credits_reserved > 0 LIMIT 1) message
    LEFT JOIN LATERAL (
        SELECT exchange FROM attempts
        WHERE account_id = asked.account_id AND message_id = event.message_id AND position = event.position
        ORDER BY fence DESC LIMIT 1) attempt ON true
    GROUP BY 1, 2, 3, 4) result
""")

# In the order of their keys: two transactions that add to the same rows must not deadlock.
_ADD_DAYS: Final = statement("""
INSERT INTO usage_days AS kept (account_id, day, accepted, delivered, bounced, failed)
SELECT * FROM unnest(:account_ids::uuid[], :days::date[], :accepted::bigint[], :delivered::bigint[],
    :bounced::bigint[], :failed::bigint[])
    more(account_id, day, accepted, delivered, bounced, failed)
ORDER BY 1, 2
ON CONFLICT (account_id, day) DO UPDATE SET accepted = kept.accepted + excluded.accepted,
    delivered = kept.delivered + excluded.delivered, bounced = kept.bounced + excluded.bounced,
    failed = kept.failed + excluded.failed
""")
_ADD_LATENCY: Final = statement("""
INSERT INTO usage_latency AS kept (account_id, day, provider, counts)
SELECT account_id, day, provider, counts::bigint[]
FROM unnest(:account_ids::uuid[], :days::date[], :providers::text[], :counts::text[]) more(account_id, day,
    provider, counts)
ORDER BY 1, 2, 3
ON CONFLICT (account_id, day, provider) DO UPDATE SET counts = ARRAY(
    SELECT old + new FROM unnest(kept.counts, excluded.counts) WITH ORDINALITY both_of(old, new, place) ORDER BY place)
""")
_SET_ACCEPTED: Final = """
INSERT INTO usage_days AS kept (account_id, day, accepted)
SELECT account_id, $1, accepted FROM unnest($2::uuid[], $3::bigint[]) given(account_id, accepted)
ORDER BY 1
ON CONFLICT (account_id, day) DO UPDATE SET accepted = excluded.accepted WHERE kept.accepted <> excluded.accepted
"""
_FORGET_LATENCY: Final = """
DELETE FROM usage_latency WHERE ctid = ANY(ARRAY(SELECT ctid FROM usage_latency WHERE day < $1 ORDER BY day LIMIT $2))
"""

_DAYS: Final = """
SELECT day, accepted, delivered, bounced, failed FROM usage_days WHERE account_id = $1 AND day >= $2 AND day <= $3
"""
_LATENCY: Final = """
SELECT day, provider, counts FROM usage_latency WHERE account_id = $1 AND day >= $2 AND day <= $3 ORDER BY day, provider
"""


async def begin(connection: Connection, otherwise: datetime) -> None:
    """Counting begins with the oldest mail that is stored, or then; once it has begun, this changes nothing."""
    low = await _oldest(connection) or otherwise
    await connection.execute(_BEGIN, low, low.date())


async def _oldest(connection: Connection) -> datetime | None:
    for day in sorted({partition.day for partition in await partitions.attached(connection)}):
        begin, end = partitions.bounds(day)
        found = [await connection.fetchval(oldest, lowest_id(begin), lowest_id(end)) for oldest in _OLDEST]
        if any(found):
            return min([time_of(row_id) for row_id in found if row_id is not None])
    return None


async def state(connection: Connection) -> CountingProgress | None:
    """None when nothing was ever counted."""
    row = await connection.fetchrow(_STATE)
    return None if row is None else CountingProgress(*row)


async def lock(tx: Connection) -> CountingProgress | None:
    """None when it hasn't begun, or another process counts at this moment."""
    row = await tx.fetchrow(_STATE_LOCKED)
    return None if row is None else CountingProgress(*row)


async def advance(tx: Connection, to: CountingProgress) -> None:
    await tx.execute(
        *_ADVANCE.bind(low=to.low, high=to.high, walked_to=to.walked_to, closing=to.closing, closed_to=to.closed_to)
    )


async def accounts_after(connection: Connection, account_id: AccountId | None, limit: int) -> list[AccountId]:
    rows = await connection.fetch(_ACCOUNTS, account_id or UUID(int=0), limit)
    return [row["id"] for row in rows]


async def accepted(
    connection: Connection, account_ids: Sequence[AccountId], low: datetime, high: datetime
) -> Mapping[AccountId, int]:
    """How many recipients' mail was accepted from `low` until before `high`, of each account that has any."""
    rows = await connection.fetch(_ACCEPTED, account_ids, lowest_id(low), lowest_id(high))
    return {row["account_id"]: row["recipients"] for row in rows}


async def results(
    connection: Connection, account_ids: Sequence[AccountId], low: datetime, high: datetime
) -> list[ResultCount]:
    """The results of events between the two, whenever their mail was accepted."""
    rows = await connection.fetch(
        *_RESULTS.bind(account_ids=account_ids, lowest=lowest_id(low), before=lowest_id(high), bounds=BOUNDS_SECONDS)
    )
    return [ResultCount(*row) for row in rows]


async def add(
    tx: Connection,
    days: Mapping[tuple[AccountId, date], Counter[str]],
    histograms: Mapping[tuple[AccountId, date, str], Sequence[int]],
) -> None:
    """The first by the kind: `accepted`, `delivered`, `bounced`, `failed`; the second by the provider."""
    if days:
        await tx.execute(
            *_ADD_DAYS.bind(
                account_ids=[account_id for account_id, _ in days],
                days=[day for _, day in days],
                accepted=[counts["accepted"] for counts in days.values()],
                delivered=[counts["delivered"] for counts in days.values()],
                bounced=[counts["bounced"] for counts in days.values()],
                failed=[counts["failed"] for counts in days.values()],
            )
        )
    if histograms:
        await tx.execute(
            *_ADD_LATENCY.bind(
                account_ids=[account_id for account_id, _, _ in histograms],
                days=[day for _, day, _ in histograms],
                providers=[provider for _, _, provider in histograms],
                counts=[_array(counts) for counts in histograms.values()],
            )
        )


async def set_accepted(tx: Connection, day: date, accepted: Mapping[AccountId, int]) -> None:
    await tx.execute(_SET_ACCEPTED, day, list(accepted), list(accepted.values()))


async def forget_latency(tx: Connection, before: date, limit: int) -> int:
    """Returns how many rows were deleted."""
    return int((await tx.execute(_FORGET_LATENCY, before, limit)).rpartition(" ")[2])


def _array(counts: Iterable[int]) -> str:
    return "{" + ",".join(map(str, counts)) + "}"


async def days(connection: Connection, account_id: AccountId, first: date, last: date) -> dict[date, UsageDay]:
    """Those on which anything was accepted."""
    rows = await connection.fetch(_DAYS, account_id, first, last)
    return {row["day"]: UsageDay(*row) for row in rows}


async def latency(connection: Connection, account_id: AccountId, first: date, last: date) -> list[LatencyDay]:
    return [LatencyDay(*row) for row in await connection.fetch(_LATENCY, account_id, first, last)]
