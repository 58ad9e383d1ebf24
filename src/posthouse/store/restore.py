"""The timeline on which the schedule is trusted, and the mail that is held after a restore.

A delivery is claimed on the trusted timeline alone. So nothing that a restored schedule holds is sent before it is
found out, and either trusted or held.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import asyncpg

from posthouse.rules.ids import AccountId, MessageId, lowest_id
from posthouse.rules.restore import NOTED_WITHIN, RESTORE, NotedTime, TimelineFound
from posthouse.store.postgres import Connection, required
from posthouse.store.statement import statement

# What is held is due when it is released, and not before.
NEVER: Final = datetime(9999, 1, 1, tzinfo=UTC)

# The cluster, and the first eight digits of a WAL file's name, which are the timeline.
IDENTITY: Final = (
    "(SELECT system_identifier::text FROM pg_control_system()) || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8)"
)
IS_TRUSTED: Final = f"(SELECT trusted = {IDENTITY} FROM trusted_timeline)"

# A server that is still in recovery has no timeline of its own yet, and takes no writes.
_IS_KNOWN: Final = f"""
SELECT CASE WHEN pg_is_in_recovery() THEN true ELSE coalesce({IDENTITY} IN (trusted, doubted), false) END
FROM trusted_timeline
"""

_DOUBT: Final = f"""
UPDATE trusted_timeline SET doubted = {IDENTITY}, doubted_at = clock_timestamp(),
    known_until = (SELECT service_time FROM service_clock)
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM trusted_timeline WHERE doubted IS DISTINCT FROM {IDENTITY} FOR UPDATE SKIP LOCKED))
"""
_LOCK: Final = "SELECT FROM trusted_timeline FOR UPDATE"
# Service time may be ahead of the database's.
_HOLD_BEFORE: Final = """
SELECT greatest(doubted_at, known_until + $1::interval) FROM trusted_timeline WHERE trusted IS NULL
"""

_FIND: Final = f"""
SELECT service_time, acceptances, trusted IS NULL AS is_being_held,
    CASE WHEN trusted = {IDENTITY} THEN NULL WHEN doubted = {IDENTITY} THEN clock_timestamp() - doubted_at
        ELSE interval '0' END AS doubted_for,
    concat(current_setting('recovery_target'), current_setting('recovery_target_lsn'),
        current_setting('recovery_target_name'), current_setting('recovery_target_time'),
        current_setting('recovery_target_xid')) <> '' AS has_target
FROM service_clock, trusted_timeline
"""

_TRUST: Final = f"""
UPDATE trusted_timeline SET trusted = {IDENTITY}, doubted = NULL, doubted_at = NULL, known_until = NULL
WHERE trusted IS DISTINCT FROM {IDENTITY} RETURNING 1
"""
# A process that starts doesn't wait longer than for a statement.
COUNTED_MAX: Final = 1_000_000
_HELD: Final = f"schedule WHERE held_since IS NOT NULL AND held_by = '{RESTORE}'"
_TRUST_RESTORED: Final = statement(f"""
UPDATE trusted_timeline SET trusted = {IDENTITY}, doubted = NULL, doubted_at = NULL, known_until = NULL,
    restored_at = :now, restored_to = known_until
WHERE trusted IS NULL RETURNING (SELECT count(*) FROM (SELECT FROM {_HELD} LIMIT {COUNTED_MAX}) held)
""")

# What operators hold stays theirs. Claims are those of workers that ended with the former server: their fence is
# raised too, and the attempts stay without an outcome.
_TO_HOLD: Final = "next_at < :never AND message_id < :before"
_HOLD: Final = statement(f"""
UPDATE schedule SET fence = fence + 1, next_at = :never, held_since = :now, held_by = '{RESTORE}', worker_id = NULL,
    due_at = CASE WHEN held_since IS NULL AND worker_id IS NULL THEN next_at ELSE :now END,
    paused = paused + CASE WHEN held_by IS NULL THEN interval '0' ELSE :now::timestamptz - held_since END
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM schedule WHERE {_TO_HOLD} ORDER BY next_at LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED))
RETURNING 1
""")
_IS_LEFT: Final = statement(f"SELECT EXISTS (SELECT FROM schedule WHERE {_TO_HOLD})")

_TOTALS: Final = f"""
SELECT count(*), count(DISTINCT message_id), count(*) FILTER (WHERE attempt_count > 0),
    (SELECT count(*) FROM schedule WHERE held_since IS NOT NULL AND held_by = 'operator')
FROM {_HELD}
"""
_BY_ACCOUNT: Final = f"""
SELECT id, name, held.count FROM (SELECT account_id, count(*) FROM {_HELD} GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT $1) held
JOIN accounts ON id = account_id ORDER BY 3 DESC, 1
"""
_BY_DESTINATION: Final = f"SELECT destination, count(*) FROM {_HELD} GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT $1"
# The first twelve digits of an id are the milliseconds of its acceptance.
_BY_AGE: Final = f"""
SELECT width_bucket(('x' || lpad(left(replace(message_id::text, '-', ''), 12), 16, '0'))::bit(64)::bigint, $1) AS place,
    count(*)
FROM {_HELD} GROUP BY 1 ORDER BY 1 DESC
"""
# Operators hold until the same time; the rest of the schedule is not read, and nothing before a restore.
_COUNT: Final = f"""
SELECT count(*) FROM (
    SELECT FROM schedule WHERE next_at = $1 AND held_by = '{RESTORE}'
        AND (SELECT restored_at IS NOT NULL FROM trusted_timeline) LIMIT $2) held
"""
_LAST: Final = "SELECT restored_at, restored_to FROM trusted_timeline"


@dataclass(frozen=True, slots=True)
class HeldAfterRestore:
    """What is held, and the largest parts of it. `ages` are counts in the order of the given limits.

    `tried` had at least one attempt before; `operators` are held by operators besides. `restored_to` is when the
    restored database had last noted the time.
    """

    restored_at: datetime | None
    restored_to: datetime | None
    recipients: int
    messages: int
    tried: int
    operators: int
    accounts: Sequence[tuple[AccountId, str, int]]
    destinations: Sequence[tuple[str, int]]
    ages: Sequence[int]


async def note_unknown(connection: Connection) -> None:
    """For each new connection, before it is used: from when on a timeline is in doubt."""
    try:
        is_known = await connection.fetchval(_IS_KNOWN)
    except asyncpg.UndefinedTableError:
        return
    if is_known is False:
        # A new connection waits neither for a standby nor for another connection that notes the same.
        async with connection.transaction():
            await connection.execute("SET LOCAL synchronous_commit = off")
            await connection.execute(_DOUBT)


async def is_trusted(connection: Connection) -> bool:
    return bool(await connection.fetchval(f"SELECT {IS_TRUSTED}"))


async def find(connection: Connection) -> TimelineFound:
    row = required(await connection.fetchrow(_FIND))
    noted = None if row["service_time"] is None else NotedTime(row["service_time"], row["acceptances"])
    return TimelineFound(noted, row["doubted_for"], row["is_being_held"], row["has_target"])


async def trust(tx: Connection) -> bool:
    """What the schedule holds is due as it says; False if it is trusted already."""
    return await tx.fetchval(_TRUST) is not None


async def lock(tx: Connection) -> None:
    """One process at a time decides whether a timeline is trusted."""
    await tx.execute(_LOCK)


async def distrust(tx: Connection) -> None:
    """From now on nothing is claimed, until everything is held."""
    await tx.execute(_DOUBT)
    await tx.execute("UPDATE trusted_timeline SET trusted = NULL")


async def hold_before(tx: Connection) -> MessageId | None:
    """All lower ids are to be held; None if a timeline is trusted."""
    before: datetime | None = await tx.fetchval(_HOLD_BEFORE, NOTED_WITHIN)
    return None if before is None else MessageId(lowest_id(before))


async def hold(tx: Connection, before: MessageId, now: datetime, limit: int) -> int:
    """Hold up to `limit` recipients; return how many."""
    return len(await tx.fetch(*_HOLD.bind(before=before, now=now, never=NEVER, limit=limit)))


async def is_left(tx: Connection, before: MessageId) -> bool:
    """Whether something is to be held that another transaction had locked."""
    found: bool = await tx.fetchval(*_IS_LEFT.bind(before=before, never=NEVER))
    return found


async def trust_restored(tx: Connection, now: datetime) -> int | None:
    """Everything is held: how many recipients, up to COUNTED_MAX. None if another process said so first."""
    held: int | None = await tx.fetchval(*_TRUST_RESTORED.bind(now=now))
    return held


async def count_held(connection: Connection, limit: int) -> int:
    """How many recipients are held after a restore, no further than the limit."""
    number: int = await connection.fetchval(_COUNT, NEVER, limit)
    return number


async def held(connection: Connection, now: datetime, ages: Sequence[timedelta], rows_max: int) -> HeldAfterRestore:
    """`ages` are limits, the shortest first; what is older than the last is counted behind them."""
    restored_at, restored_to = required(await connection.fetchrow(_LAST))
    recipients, messages, tried, operators = required(await connection.fetchrow(_TOTALS))
    limits = [int((now - age).timestamp() * 1000) for age in reversed(ages)]
    counts = {row["place"]: row["count"] for row in await connection.fetch(_BY_AGE, limits)}
    return HeldAfterRestore(
        restored_at=restored_at,
        restored_to=restored_to,
        recipients=recipients,
        messages=messages,
        tried=tried,
        operators=operators,
        accounts=[(row[0], row[1], row[2]) for row in await connection.fetch(_BY_ACCOUNT, rows_max)],
        destinations=[(row[0], row[1]) for row in await connection.fetch(_BY_DESTINATION, rows_max)],
        ages=[counts.get(place, 0) for place in range(len(ages), -1, -1)],
    )
