"""The backlog: how much of the schedule is due, claimed, postponed or held, counted up to a bound.

A monitor may read a schedule of a million rows every second, so each count stops at the bound and says that there
is more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from posthouse.rules.ids import AccountId
from posthouse.store.postgres import Connection, required

COUNTED_MAX: Final = 10_000
# In the text of the statement: the planner takes an unknown limit for a tenth of the table.
_READ_MAX: Final = COUNTED_MAX + 1


class BoundedCount(NamedTuple):
    """The exact number or, if the bound was reached, a lower bound."""

    number: int
    is_more: bool


@dataclass(frozen=True, slots=True)
class Backlog:
    """The recipients that are not final, each in one count.

    A lease is only a `next_at` that is near: `leased` also counts recipients that were deferred until about then.
    """

    due: BoundedCount
    leased: BoundedCount
    claimed: BoundedCount
    later: BoundedCount
    held: BoundedCount
    oldest_due_at: datetime | None

    @property
    def is_more(self) -> bool:
        """Whether a count reached the bound."""
        return any(count.is_more for count in (self.due, self.leased, self.claimed, self.later, self.held))


@dataclass(frozen=True, slots=True)
class AccountBacklog:
    """An account's mail that is not final, counted up to a bound, which sets `is_more`.

    Deferred recipients were tried and will be tried again; both kinds may be held. `credits` are those reserved for all
    of it.
    """

    queued: int
    deferred: int
    held: int
    credits: int
    is_more: bool


class QueueShare(NamedTuple):
    """Mail for a destination or of an account; `waiting` includes held mail."""

    name: str
    account_id: AccountId | None
    waiting: int
    held: int


@dataclass(frozen=True, slots=True)
class QueueShares:
    """The shares of the mail that is due soonest or held longest, up to the bound, which sets `is_more`."""

    destinations: Sequence[QueueShare]
    accounts: Sequence[QueueShare]
    is_more: bool


# Each inner query walks one index in its order and stops at the bound. Rows that don't belong to a count are removed
# afterwards: searching for more that do could read the whole schedule. Several statements, so that each is short.
_DUE: Final = f"""
SELECT count(*) FILTER (WHERE worker_id IS NULL AND held_since IS NULL), count(*),
    min(next_at) FILTER (WHERE worker_id IS NULL AND held_since IS NULL)
FROM (SELECT worker_id, held_since, next_at FROM delivery_schedule WHERE next_at <= $1
      ORDER BY next_at LIMIT {_READ_MAX}) read_rows
"""
_LEASED: Final = f"""
SELECT count(*) FILTER (WHERE worker_id IS NULL AND held_since IS NULL), count(*)
FROM (SELECT worker_id, held_since FROM delivery_schedule WHERE next_at > $1 AND next_at <= $2
      ORDER BY next_at LIMIT {_READ_MAX}) read_rows
"""
_LATER: Final = f"""
SELECT count(*) FILTER (WHERE worker_id IS NULL AND held_since IS NULL), count(*)
FROM (SELECT worker_id, held_since FROM delivery_schedule
    WHERE next_at > $1 ORDER BY next_at LIMIT {_READ_MAX}) read_rows
"""
_CLAIMED_AND_HELD: Final = f"""
SELECT claimed.*, held.* FROM
    (SELECT count(*) FROM (
        SELECT FROM delivery_schedule
            WHERE worker_id IS NOT NULL ORDER BY worker_id LIMIT {_READ_MAX}) read_rows) claimed,
    (SELECT count(*) FROM (
        SELECT FROM delivery_schedule
            WHERE held_since IS NOT NULL ORDER BY held_since LIMIT {_READ_MAX}) read_rows) held
"""


_DUE_WEBHOOKS: Final = f"""
SELECT count(*) FILTER (WHERE worker_id IS NULL), count(*), min(next_at) FILTER (WHERE worker_id IS NULL)
FROM (SELECT worker_id, next_at FROM webhook_schedule WHERE next_at <= $1 ORDER BY next_at LIMIT {_READ_MAX}) read_rows
"""

# A lower bound than above: these rows are also grouped.
SHARED_MAX: Final = 4_000
_SHARED_READ_MAX: Final = SHARED_MAX + 1
# As above: the mail that is due soonest and the mail that is held longest.
_SHARES: Final = f"""
WITH soonest AS MATERIALIZED (
    SELECT account_id, destination, held_since FROM delivery_schedule ORDER BY next_at LIMIT {_SHARED_READ_MAX}),
held AS MATERIALIZED (
    SELECT account_id, destination, held_since FROM delivery_schedule WHERE held_since IS NOT NULL
    ORDER BY held_since LIMIT {_SHARED_READ_MAX}),
read_rows AS NOT MATERIALIZED (SELECT * FROM soonest WHERE held_since IS NULL UNION ALL SELECT * FROM held)
(SELECT 'destination' AS kind, destination AS name, NULL::uuid AS account_id, count(*) AS waiting,
    count(held_since) AS held, greatest((SELECT count(*) FROM soonest), (SELECT count(*) FROM held)) AS rows_read
 FROM read_rows GROUP BY destination ORDER BY waiting DESC, destination LIMIT $1)
UNION ALL
SELECT 'account', accounts.name, shares.account_id, shares.waiting, shares.held, 0
FROM (SELECT account_id, count(*) AS waiting, count(held_since) AS held FROM read_rows
      GROUP BY account_id ORDER BY waiting DESC, account_id LIMIT $1) shares
JOIN accounts ON accounts.id = shares.account_id
"""

# The planner's statistics say that an account has few rows, which are then all read and sorted, however many it has:
# only without that choice does PostgreSQL walk the key and stop at the bound.
_DISABLE_BITMAP_SCANS: Final = "SELECT set_config('enable_bitmapscan', 'off', true)"
# Test mail waits as well, and has no credits reserved.
_WAITING: Final = f"""
SELECT coalesce(sum(open - deferred), 0)::bigint, coalesce(sum(deferred), 0)::bigint,
    coalesce(sum(held), 0)::bigint, coalesce(sum(open) FILTER (WHERE costs), 0)::bigint
FROM (
    SELECT message_id, count(*) AS open, count(held_since) AS held,
        count(*) FILTER (WHERE attempt_count > CASE WHEN worker_id IS NULL THEN 0 ELSE 1 END) AS deferred
    FROM (
        SELECT message_id, attempt_count, worker_id, held_since FROM delivery_schedule WHERE account_id = $1
        ORDER BY message_id, position LIMIT {_READ_MAX}) read_rows
    GROUP BY message_id) waiting
CROSS JOIN LATERAL (
    SELECT credits_reserved > 0 AS costs FROM messages
    WHERE account_id = $1 AND id = waiting.message_id LIMIT 1) message
"""


async def backlog(connection: Connection, now: datetime, leases_end: datetime) -> Backlog:
    """Leases end before `leases_end`. A recipient that changes meanwhile may be counted twice or not at all."""
    due, due_rows_read, oldest_due_at = required(await connection.fetchrow(_DUE, now))
    leased = _count(*required(await connection.fetchrow(_LEASED, now, leases_end)))
    later = _count(*required(await connection.fetchrow(_LATER, leases_end)))
    claimed, held = required(await connection.fetchrow(_CLAIMED_AND_HELD))
    return Backlog(
        due=_count(due, due_rows_read),
        leased=leased,
        claimed=_count(claimed, claimed),
        later=later,
        held=_count(held, held),
        oldest_due_at=oldest_due_at,
    )


async def shares(connection: Connection, count: int) -> QueueShares:
    """The accounts and the destinations of waiting mail; the first `count` of each, the largest first."""
    rows = await connection.fetch(_SHARES, count)
    found: dict[str, list[QueueShare]] = {"destination": [], "account": []}
    for row in rows:
        found[row["kind"]].append(QueueShare(row["name"], row["account_id"], row["waiting"], row["held"]))
    for each in found.values():
        each.sort(key=lambda share: (-share.waiting, share.name))
    is_more = any(row["rows_read"] > SHARED_MAX for row in rows)
    return QueueShares(found["destination"], found["account"], is_more)


async def due_webhooks(connection: Connection, now: datetime) -> tuple[BoundedCount, datetime | None]:
    """How many webhook deliveries are due, and since when the oldest of them is."""
    due, rows_read, oldest_due_at = required(await connection.fetchrow(_DUE_WEBHOOKS, now))
    return _count(due, rows_read), oldest_due_at


async def disable_bitmap_scans(tx: Connection) -> None:
    """For the rest of the transaction, an account's first rows are read by their key."""
    await tx.execute(_DISABLE_BITMAP_SCANS)


async def waiting(tx: Connection, account_id: AccountId) -> AccountBacklog:
    await disable_bitmap_scans(tx)
    queued, deferred, held, credits_reserved = required(await tx.fetchrow(_WAITING, account_id))
    return AccountBacklog(queued, deferred, held, credits_reserved, is_more=queued + deferred > COUNTED_MAX)


def _count(number: int, rows_read: int) -> BoundedCount:
    return BoundedCount(min(number, COUNTED_MAX), rows_read > COUNTED_MAX)
