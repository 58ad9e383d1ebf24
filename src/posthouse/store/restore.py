"""The timeline on which the schedule is trusted, and the mail that is held after a restore.

Deliveries are claimed only on the trusted timeline. So nothing in a restored schedule is sent before the restore is
noticed and the mail is either trusted or held.

Service time is stored here too, as the processes last noted it, with the operator's acceptance of the database's time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import asyncpg

from posthouse.rules.ids import AccountId, MessageId, lowest_id
from posthouse.rules.restore import NOTED_WITHIN, RESTORE, NotedTime, TimelineFound
from posthouse.rules.service_time import TimeNote
from posthouse.store.postgres import Connection, required
from posthouse.store.statement import statement

# Held mail is due when it is released, and not before.
NEVER: Final = datetime(9999, 1, 1, tzinfo=UTC)
# A process that starts waits no longer than for a statement.
COUNTED_MAX: Final = 1_000_000
_HELD: Final = f"delivery_schedule WHERE held_since IS NOT NULL AND held_by = '{RESTORE}'"


@dataclass(frozen=True, slots=True)
class HeldAfterRestore:
    """The held mail, and the largest parts of it. `ages` are counts in the order of the given limits.

    `tried` had at least one attempt before; `operators` are also held by operators. `restored_to` is the last time that
    was noted in the restored database.
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


class ClockReading(NamedTuple):
    database_time: datetime
    note: TimeNote | None


# The cluster, and the first eight digits of a WAL file's name, which are the timeline.
IDENTITY: Final = (
    "(SELECT system_identifier::text FROM pg_control_system()) || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8)"
)
IS_TRUSTED: Final = f"(SELECT trusted = {IDENTITY} FROM restore_state)"

# A server that is still in recovery has no timeline yet, and takes no writes.
_IS_KNOWN: Final = f"""
SELECT CASE WHEN pg_is_in_recovery() THEN true ELSE coalesce({IDENTITY} IN (trusted, doubted), false) END
FROM restore_state
"""

_DOUBT: Final = f"""
UPDATE restore_state SET doubted = {IDENTITY}, doubted_at = clock_timestamp(),
    known_until = (SELECT service_time FROM service_clock)
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM restore_state WHERE doubted IS DISTINCT FROM {IDENTITY} FOR UPDATE SKIP LOCKED))
"""
_LOCK: Final = "SELECT FROM restore_state FOR UPDATE"
# Service time may be ahead of the database's.
_HOLD_BEFORE: Final = """
SELECT greatest(doubted_at, known_until + $1::interval) FROM restore_state WHERE trusted IS NULL
"""

_FIND: Final = f"""
SELECT service_time, acceptances, trusted IS NULL AS is_being_held,
    CASE WHEN trusted = {IDENTITY} THEN NULL WHEN doubted = {IDENTITY} THEN clock_timestamp() - doubted_at
        ELSE interval '0' END AS doubted_for,
    concat(current_setting('recovery_target'), current_setting('recovery_target_lsn'),
        current_setting('recovery_target_name'), current_setting('recovery_target_time'),
        current_setting('recovery_target_xid')) <> '' AS has_target
FROM service_clock, restore_state
"""

_TRUST: Final = f"""
UPDATE restore_state SET trusted = {IDENTITY}, doubted = NULL, doubted_at = NULL, known_until = NULL
WHERE trusted IS DISTINCT FROM {IDENTITY} RETURNING 1
"""
_TRUST_RESTORED: Final = statement(f"""
UPDATE restore_state SET trusted = {IDENTITY}, doubted = NULL, doubted_at = NULL, known_until = NULL,
    restored_at = :now, restored_to = known_until
WHERE trusted IS NULL RETURNING (SELECT count(*) FROM (SELECT FROM {_HELD} LIMIT {COUNTED_MAX}) held)
""")

# Mail that operators hold stays held by them. Claims belong to workers of the former server: their fences are raised
# too, and the attempts stay without an outcome.
_TO_HOLD: Final = "next_at < :never AND message_id < :before"
_HOLD: Final = statement(f"""
UPDATE delivery_schedule SET fence = fence + 1, next_at = :never, held_since = :now, held_by = '{RESTORE}',
    worker_id = NULL,
    due_at = CASE WHEN held_since IS NULL AND worker_id IS NULL THEN next_at ELSE :now END,
    paused = paused + CASE WHEN held_by IS NULL THEN interval '0' ELSE :now::timestamptz - held_since END
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM delivery_schedule WHERE {_TO_HOLD} ORDER BY next_at LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED))
RETURNING 1
""")
_IS_MAIL_TO_HOLD: Final = statement(f"SELECT EXISTS (SELECT FROM delivery_schedule WHERE {_TO_HOLD})")

_TOTALS: Final = f"""
SELECT count(*), count(DISTINCT message_id), count(*) FILTER (WHERE attempt_count > 0),
    (SELECT count(*) FROM delivery_schedule WHERE held_since IS NOT NULL AND held_by = 'operator')
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
# Operators hold until the same time; the rest of the schedule is not read, and before a restore nothing is.
_COUNT: Final = f"""
SELECT count(*) FROM (
    SELECT FROM delivery_schedule WHERE next_at = $1 AND held_by = '{RESTORE}'
        AND (SELECT restored_at IS NOT NULL FROM restore_state) LIMIT $2) held
"""
_LAST: Final = "SELECT restored_at, restored_to FROM restore_state"

_READ_CLOCK: Final = "SELECT clock_timestamp() AS database_time, service_time, noted_at, acceptances FROM service_clock"
_DATABASE_TIME: Final = "SELECT clock_timestamp()"

# A process that does not know of an acceptance yet must not overwrite it with the former time.
_NOTE_SERVICE_TIME: Final = statement("""
UPDATE service_clock SET service_time = :service_time, noted_at = clock_timestamp()
WHERE acceptances = :acceptances AND (service_time IS NULL OR service_time < :service_time)
""")

_ACCEPT_CLOCK: Final = """
UPDATE service_clock SET service_time = clock_timestamp(), noted_at = clock_timestamp(), acceptances = acceptances + 1
"""


async def note_unknown(connection: Connection) -> None:
    """Called for each new connection before it is used: notes since when a timeline is in doubt."""
    try:
        is_known = await connection.fetchval(_IS_KNOWN)
    except asyncpg.UndefinedTableError:
        return
    if is_known is False:
        # A new connection must wait neither for a standby nor for another connection that notes the same.
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
    """Trust the timeline: the schedule is followed as it is. False if it is trusted already."""
    return await tx.fetchval(_TRUST) is not None


async def lock(tx: Connection) -> None:
    """Lock the decision: one process at a time decides whether a timeline is trusted."""
    await tx.execute(_LOCK)


async def distrust(tx: Connection) -> None:
    """Begin to hold: nothing is claimed until everything is held."""
    await tx.execute(_DOUBT)
    await tx.execute("UPDATE restore_state SET trusted = NULL")


async def hold_before(tx: Connection) -> MessageId | None:
    """The id below which all mail is to be held; None if the timeline is trusted."""
    before: datetime | None = await tx.fetchval(_HOLD_BEFORE, NOTED_WITHIN)
    return None if before is None else MessageId(lowest_id(before))


async def hold(tx: Connection, before: MessageId, now: datetime, limit: int) -> int:
    """Hold up to `limit` recipients; return how many."""
    return len(await tx.fetch(*_HOLD.bind(before=before, now=now, never=NEVER, limit=limit)))


async def is_mail_to_hold(tx: Connection, before: MessageId) -> bool:
    """Whether rows are still to be held, because other transactions had locked them."""
    found: bool = await tx.fetchval(*_IS_MAIL_TO_HOLD.bind(before=before, never=NEVER))
    return found


async def trust_restored(tx: Connection, now: datetime) -> int | None:
    """Note that everything is held: returns how many recipients, up to COUNTED_MAX. None if it was noted already."""
    held: int | None = await tx.fetchval(*_TRUST_RESTORED.bind(now=now))
    return held


async def count_held(connection: Connection, limit: int) -> int:
    """How many recipients are held after a restore, counted up to the limit."""
    number: int = await connection.fetchval(_COUNT, NEVER, limit)
    return number


async def held(connection: Connection, now: datetime, ages: Sequence[timedelta], rows_max: int) -> HeldAfterRestore:
    """`ages` are limits, the shortest first; mail older than the last limit is counted after them."""
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


async def read_clock(connection: Connection) -> ClockReading:
    """The database's time and the last note; no note if there is none yet, or no tables."""
    try:
        row = await connection.fetchrow(_READ_CLOCK)
    except asyncpg.UndefinedTableError:
        row = None
    if row is None:
        return ClockReading(await connection.fetchval(_DATABASE_TIME), None)
    if row["service_time"] is None:
        return ClockReading(row["database_time"], None)
    return ClockReading(row["database_time"], TimeNote(row["service_time"], row["noted_at"], row["acceptances"]))


async def note_service_time(connection: Connection, service_time: datetime, acceptances: int) -> None:
    await connection.execute(*_NOTE_SERVICE_TIME.bind(service_time=service_time, acceptances=acceptances))


async def accept_clock(connection: Connection) -> None:
    """Make the database's time the service time."""
    await connection.execute(_ACCEPT_CLOCK)
