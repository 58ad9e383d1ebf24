"""The schedule of deliveries: due recipients are leased; those that a worker lost, or can't try now, become due again.

Only a row's `next_at` makes it due. A lease and a claim move it into the future, and when a worker dies it is moved
back. The fence goes up whenever a ticket was used or has become wrong: at a claim, a postponement, a deferral. A lease
doesn't raise it, so that a late ticket still finds its row, and the second of two finds it claimed.

Statements that wait for rows lock them in the order of their keys; those that can take a row in the next pass
skip locked rows. A row's place (its ctid) may be used only by a later statement of the transaction that locked it.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

from posthouse.rules.ids import AccountId, MessageId, time_of
from posthouse.rules.retry import HOLD_MAX
from posthouse.rules.ticket import DeliveryTicket
from posthouse.store import lanes
from posthouse.store.postgres import Connection
from posthouse.store.statement import statement

RECLAIMED_BATCH_MAX: Final = 1_000
# By then every worker knows that a lane's pause has begun or ended.
PAUSE_KNOWN_WITHIN: Final = timedelta(seconds=5)

# Account, message, position, fence.
RecipientKey = tuple[AccountId, MessageId, int, int]
# The place of a row: its block, and its number there.
RowLocation = tuple[int, int]
# The arguments of an `unnest`: an array for each column.
Columns = list[list[object]]


class DeliveryPostponement(NamedTuple):
    """A ticket's recipient can't be tried before `next_at`, for a reason other than the destination.

    `is_held`: the account is suspended, outbound mail is captured, or the lane `held_by` is paused.
    """

    account_id: AccountId
    message_id: MessageId
    position: int
    fence: int
    next_at: datetime
    is_held: bool = False
    held_by: str | None = None


# Finding places and changing rows are two steps, so that no plan can read the table for each of them. A row
# that changes between the two is taken in the next pass.
LEASE: Final = """
UPDATE delivery_schedule SET next_at = $2, worker_id = NULL
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM delivery_schedule WHERE next_at <= $1 ORDER BY next_at LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED))
RETURNING account_id, message_id, position, fence, destination, sender, source_ip, coalesce(is_list, false),
    bounce_at
"""

# A worker without a row is dead: its row may have been deleted while a claim of it was under way.
RECLAIM: Final = """
UPDATE delivery_schedule SET next_at = $1, worker_id = NULL
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM delivery_schedule
    WHERE worker_id IS NOT NULL AND worker_id <> ALL(ARRAY(SELECT id FROM workers WHERE expires_at > $1))
    LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED))
RETURNING 1
"""

FORGET_WORKERS: Final = """
DELETE FROM workers WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM workers WHERE expires_at <= $1 FOR UPDATE SKIP LOCKED))
"""

# Rows that are being recorded or claimed at this moment are not lost.
RELEASE_UNKNOWN: Final = statement("""
UPDATE delivery_schedule SET next_at = :now, worker_id = NULL
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM delivery_schedule
    WHERE worker_id = :worker_id AND (account_id, message_id, position) NOT IN (
        SELECT account_id, message_id, position FROM unnest(:known::recipient_key[]))
    FOR NO KEY UPDATE SKIP LOCKED))
RETURNING 1
""")

RENEW: Final = """
INSERT INTO workers (id, expires_at) VALUES ($1, $2)
ON CONFLICT (id) DO UPDATE SET expires_at = greatest(workers.expires_at, excluded.expires_at)
"""

# The limit keeps the lookup inside, key by key, whatever the planner believes about the table's size.
LOCK: Final = statement("""
SELECT asked.number, due.place
FROM unnest(:keys::recipient_key[]) WITH ORDINALITY asked(account_id, message_id, position, fence, number)
CROSS JOIN LATERAL (
    SELECT ctid AS place FROM delivery_schedule
    WHERE account_id = asked.account_id AND message_id = asked.message_id AND position = asked.position
      AND fence = asked.fence
    LIMIT 1 FOR NO KEY UPDATE) due
""")

RESUME: Final = """
UPDATE delivery_schedule SET next_at = $2
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM delivery_schedule
    WHERE account_id = $1 AND held_since IS NOT NULL AND held_by IS NULL AND next_at > $2
    LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED))
RETURNING 1
"""

# How long the account of `due` was suspended since acceptance or `send_at`, whatever was done with its mail meanwhile.
SUSPENDED_TIME: Final = """
    SELECT coalesce(sum(least(coalesce(ended_at, :now), :now) - greatest(started_at, scheduled.counts_from)),
        interval '0') AS time
    FROM suspensions
    WHERE account_id = due.account_id AND started_at < :now::timestamptz
      AND coalesce(ended_at, :now) > scheduled.counts_from
"""

HELD_TOO_LONG: Final = statement(f"""
SELECT due.number
FROM unnest(:keys::recipient_key[], :accepted_at::timestamptz[])
    WITH ORDINALITY due(account_id, message_id, position, fence, accepted_at, number)
CROSS JOIN LATERAL (
    SELECT coalesce(send_at, due.accepted_at) AS counts_from FROM delivery_schedule
    WHERE account_id = due.account_id AND message_id = due.message_id AND position = due.position
      AND fence = due.fence
    LIMIT 1) scheduled
CROSS JOIN LATERAL ({SUSPENDED_TIME}) suspended
WHERE suspended.time >= :hold_max::interval
""")

POSTPONE: Final = statement("""
UPDATE delivery_schedule SET next_at = least(given.next_at, bounce_at), fence = fence + 1, worker_id = NULL,
    held_since = CASE WHEN NOT given.is_held THEN NULL
        WHEN delivery_schedule.held_by IS NOT DISTINCT FROM given.held_by THEN coalesce(delivery_schedule.held_since,
            :now) ELSE :now END,
    held_by = given.held_by, paused = paused + CASE WHEN delivery_schedule.held_by <> coalesce(given.held_by, '')
        THEN :now::timestamptz - delivery_schedule.held_since ELSE interval '0' END
FROM unnest(:places::tid[], :next_at::timestamptz[], :are_held::boolean[], :held_by::text[])
    given(place, next_at, is_held, held_by)
WHERE delivery_schedule.ctid = given.place
""")


async def lease_due(tx: Connection, now: datetime, lease_until: datetime, limit: int) -> list[DeliveryTicket]:
    """Tickets for due recipients, the longest due first; none of them gets another ticket before `lease_until`."""
    rows = await tx.fetch(LEASE, now, lease_until, limit)
    return [DeliveryTicket(*row) for row in rows]


async def reclaim_expired_workers(tx: Connection, now: datetime, limit: int = RECLAIMED_BATCH_MAX) -> int:
    """Make due what dead workers had claimed; return how many. If it is `limit`, there may be more."""
    reclaimed = len(await tx.fetch(RECLAIM, now, limit))
    await tx.execute(FORGET_WORKERS, now)
    return reclaimed


async def renew_worker(tx: Connection, worker_id: UUID, expires_at: datetime) -> None:
    """Extend the lease of the worker and its claims. A lease is never shortened."""
    await tx.execute(RENEW, worker_id, expires_at)


async def living_workers(connection: Connection, now: datetime) -> int:
    """How many workers have a valid lease."""
    living: int = await connection.fetchval("SELECT count(*) FROM workers WHERE expires_at > $1", now)
    return living


async def retire_worker(tx: Connection, worker_id: UUID) -> None:
    """End the worker's lease; what it still has claimed is reclaimed in the next pass."""
    await tx.execute("DELETE FROM workers WHERE id = $1", worker_id)


async def release_unknown(
    tx: Connection, worker_id: UUID, known: Iterable[tuple[AccountId, MessageId, int]], now: datetime
) -> int:
    """Make due what the worker has claimed without knowing it: the answer to a claim's commit was lost."""
    keys = [(*key, None) for key in known]
    released = await tx.fetch(*RELEASE_UNKNOWN.bind(worker_id=worker_id, now=now, known=keys))
    return len(released)


async def resume(tx: Connection, account_id: AccountId, due_at: datetime, limit: int) -> int:
    """Make the account's held recipients due at `due_at`; return how many. If it is `limit`, there may be more."""
    return len(await tx.fetch(RESUME, account_id, due_at, limit))


async def held_too_long(connection: Connection, keys: Sequence[RecipientKey], now: datetime) -> set[RecipientKey]:
    """The recipients whose account was suspended for HOLD_MAX or longer in all since they were accepted."""
    accepted_at = [time_of(key[1]) for key in keys]
    rows = await connection.fetch(*HELD_TOO_LONG.bind(now=now, hold_max=HOLD_MAX, keys=keys, accepted_at=accepted_at))
    return {keys[number - 1] for (number,) in rows}


async def lock(tx: Connection, keys: Iterable[RecipientKey]) -> dict[RecipientKey, RowLocation]:
    """Lock the rows whose fence is unchanged; return their places. Other rows are absent."""
    ordered = sorted(set(keys))
    if not ordered:
        return {}
    rows = await tx.fetch(*LOCK.bind(keys=ordered))
    return {ordered[row["number"] - 1]: row["place"] for row in rows}


async def postpone(tx: Connection, postponements: Iterable[DeliveryPostponement], now: datetime) -> int:
    """Postpone recipients that were not claimed: no attempt is counted, and their tickets become invalid.

    Returns how many were postponed; those that were claimed or postponed meanwhile stay as they are. Recipients that a
    lane's pause was to hold are due again soon if the pause is over. Recipients that a block holds are due when they
    are to bounce.
    """
    asked = {postponement[:4]: postponement for postponement in postponements}
    paused = {postponement.held_by for postponement in asked.values() if postponement.held_by is not None}
    if paused:
        over = paused - await lanes.lock_pauses(tx, paused)
        resumed = {key: late for key, late in asked.items() if late.held_by in over}
        asked |= {key: DeliveryPostponement(*key, now + PAUSE_KNOWN_WITHIN) for key in resumed}
    places = await lock(tx, asked)
    if places:
        await tx.execute(
            *POSTPONE.bind(
                now=now,
                places=list(places.values()),
                next_at=[asked[key].next_at for key in places],
                are_held=[asked[key].is_held for key in places],
                held_by=[asked[key].held_by for key in places],
            )
        )
    return len(places)


def columns(rows: Sequence[tuple[object, ...]], width: int = 0) -> Columns:
    """Rows as arrays; `width` says how many when there may be no rows."""
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(width)]


def id_bounds(keys: Iterable[RecipientKey]) -> tuple[MessageId, MessageId]:
    """The lowest and the highest message id: without them PostgreSQL would open every day's partition."""
    ids = [key[1] for key in keys]
    return min(ids), max(ids)
