"""What maintenance deletes and reduces, and when it and other regular tasks were last done."""

from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

import asyncpg

from posthouse.rules.ids import AccountId, MessageId
from posthouse.store import partitions
from posthouse.store.partitions import Partition
from posthouse.store.postgres import Connection, row_count
from posthouse.store.statement import delete_some

# When regular tasks were last done: maintenance, a backup.


MAINTENANCE: Final = "maintenance"
BACKUP: Final = "backup"

_NOTE_RUN: Final = """
INSERT INTO task_runs (name, at) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET at = greatest(task_runs.at, excluded.at)
"""
# A newer run of the same kind replaces the one before.
_NOTE_FIRST_RUN: Final = """
WITH ended AS (DELETE FROM task_runs WHERE starts_with(name, $1) AND name <> $2)
INSERT INTO task_runs (name, at) VALUES ($2, $3)
ON CONFLICT (name) DO UPDATE SET at = task_runs.at RETURNING at
"""


async def note_run(tx: Connection, name: str, at: datetime) -> None:
    await tx.execute(_NOTE_RUN, name, at)


async def note_first(tx: Connection, kind: str, name: str, at: datetime) -> datetime:
    """When this name, which begins with `kind`, was noted for the first time."""
    first: datetime = await tx.fetchval(_NOTE_FIRST_RUN, kind, name, at)
    return first


async def task_runs(connection: Connection) -> dict[str, datetime]:
    return {row["name"]: row["at"] for row in await connection.fetch("SELECT name, at FROM task_runs")}


# Expired idempotency keys.


_DELETE_EXPIRED_KEYS: Final = delete_some(
    "idempotency", "account_id, credential_id, key", "expires_at <= $1 ORDER BY expires_at"
)


async def delete_expired_keys(tx: Connection, now: datetime, count_max: int) -> int:
    return row_count(await tx.execute(_DELETE_EXPIRED_KEYS, now, count_max))


# Bodies that are deleted once their messages are final.


class BodyToDelete(NamedTuple):
    account_id: AccountId
    message_id: MessageId
    # Its message has no open recipient, or is no longer stored.
    is_final: bool


# The beginning of the first page.
FIRST_BODY: Final = (AccountId(UUID(int=0)), MessageId(UUID(int=0)))

# A subquery for each row, so that PostgreSQL opens only one day's partition for each.
_BODIES_TO_DELETE: Final = """
SELECT account_id, message_id, coalesce((
    SELECT open_count = 0 FROM messages
    WHERE account_id = waiting.account_id AND id = waiting.message_id LIMIT 1), true) AS is_final
FROM bodies_to_delete waiting WHERE (account_id, message_id) > ($1, $2) ORDER BY account_id, message_id LIMIT $3
"""
# The bounds keep PostgreSQL from opening the partitions of other days.
_DELETE_BODIES: Final = """
DELETE FROM bodies
WHERE account_id = ANY($1::uuid[]) AND message_id = ANY($2::uuid[]) AND message_id >= $3 AND message_id <= $4
"""
_DELETE_MARKS: Final = """
DELETE FROM bodies_to_delete WHERE account_id = ANY($1::uuid[]) AND message_id = ANY($2::uuid[])
"""


async def bodies_to_delete(
    connection: Connection, after: tuple[AccountId, MessageId], limit: int
) -> list[BodyToDelete]:
    """The next messages whose content is to be forgotten, in the order of their keys."""
    return [BodyToDelete(*row) for row in await connection.fetch(_BODIES_TO_DELETE, *after, limit)]


async def delete_bodies(tx: Connection, contents: list[BodyToDelete]) -> None:
    """Delete the bodies of these messages."""
    account_ids = list({content.account_id for content in contents})
    message_ids = [content.message_id for content in contents]
    await tx.execute(_DELETE_BODIES, account_ids, message_ids, min(message_ids), max(message_ids))
    await tx.execute(_DELETE_MARKS, account_ids, message_ids)


# Stragglers: rows past their retention that open mail or a pending webhook delivery still needs.
#
# They don't keep the rest of their day: a day that has some is *reduced* to them. Their ids and the bounds of their
# partition stay the same, so a lookup by id finds them as before, and no other statement of the service treats them
# differently.
#
# Bodies, events and the search index are most of a day's bytes, and their rows never change. Their stragglers are
# copied into a small table, which replaces the partition in the same transaction: while it copies, only writers of
# the old day wait, and all others wait only for the replacement. In the other tables, whose rows may change with any
# result, the rest of the day is deleted in place, in batches that nothing waits for.


REPLACED: Final = frozenset({"bodies", "events", "endpoint_events", "search_index"})
# How much a statement reads and deletes at a time, in pages of 8 KB.
_PAGES_BATCH: Final = 1_000

# The service's own statements wait longer than this for a lock, so that none of them fails because of a replacement.
_LOCK_MILLISECONDS_MAX: Final = 150
_STATEMENT_SECONDS_MAX: Final = 600.0
# The service's settings forbid reading a whole table.
_WHOLE_TABLE_SETTINGS: Final = f"""
SET LOCAL lock_timeout = {_LOCK_MILLISECONDS_MAX}; SET LOCAL statement_timeout = '{_STATEMENT_SECONDS_MAX:.0f}s';
SET LOCAL plan_cache_mode = auto; SET LOCAL enable_seqscan = on; SET LOCAL enable_hashjoin = on
"""

# The schedules contain everything that is not final. Rows of a message are kept as long as the message's own row:
# whatever is recorded meanwhile, either all of them exist or none.
_OPEN_MAIL: Final = "FROM delivery_schedule WHERE message_id >= '{low}' AND message_id < '{high}'"
_KEPT_MESSAGE: Final = "FROM messages WHERE id >= '{low}' AND id < '{high}'"
_PENDING_WEBHOOK: Final = "FROM webhook_schedule WHERE id >= '{low}' AND id < '{high}'"
_IS_OPEN: Final = "EXISTS (SELECT {source} AND account_id = stored.account_id AND message_id = stored.{key})"
_IS_KEPT: Final = "EXISTS (SELECT {source} AND account_id = stored.account_id AND id = stored.{key})"

# A pending webhook delivery needs its event. An event may belong to a later day than its message.
_IS_SENT: Final = (
    "stored.id IN (SELECT event_id FROM webhook_schedule WHERE event_id >= '{low}' AND event_id < '{high}')"
)
_IS_NEEDED_EVENT: Final = f"""
{_IS_SENT}
OR EXISTS (SELECT FROM messages WHERE account_id = stored.account_id AND id = stored.message_id AND id < '{{high}}')
"""


class TableInUse(RuntimeError):  # noqa: N818 (reads as what it says)
    """A table could not be locked in a short time. Nothing was changed; a later run reduces the day."""


async def is_needed(tx: Connection, partition: Partition) -> bool:
    """Whether anything from the day is needed.

    A message that is kept needs its day in every table, even without rows: some will be inserted.
    """
    await tx.execute(_WHOLE_TABLE_SETTINGS)
    return bool(await tx.fetchval(f"SELECT EXISTS (SELECT {_reason(partition)})", timeout=_STATEMENT_SECONDS_MAX))


async def reduce(tx: Connection, partition: Partition) -> Partition:
    """Mark the day as reduced; in tables whose rows never change, replace it by its stragglers."""
    reduced = Partition(partition.day, partition.table, is_reduced=True)
    await tx.execute(_WHOLE_TABLE_SETTINGS)
    try:
        if partition.table in REPLACED:
            await _replace(tx, partition, reduced)
        else:
            await tx.execute(f"ALTER TABLE {partition.name} RENAME TO {reduced.name}")
    except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as fault:
        raise TableInUse(str(fault)) from fault
    return reduced


async def _replace(tx: Connection, partition: Partition, reduced: Partition) -> None:
    await partitions.create_apart(tx, reduced)
    # With this check PostgreSQL doesn't read the rows again when it attaches them.
    of_the_day = _with_bounds("{key} >= '{low}' AND {key} < '{high}'", partition)
    await tx.execute(f"ALTER TABLE {reduced.name} ADD CONSTRAINT of_the_day CHECK ({of_the_day})")
    await tx.execute(f"LOCK TABLE {partition.name} IN SHARE ROW EXCLUSIVE MODE")
    copy = f"INSERT INTO {reduced.name} SELECT stored.* FROM {partition.name} stored WHERE {_is_needed(partition)}"
    await tx.execute(copy, timeout=_STATEMENT_SECONDS_MAX)
    await tx.execute(f"ALTER TABLE {partition.table} DETACH PARTITION {partition.name}")
    await tx.execute(f"DROP TABLE {partition.name}")
    await partitions.attach(tx, reduced)
    await tx.execute(f"ALTER TABLE {reduced.name} DROP CONSTRAINT of_the_day")


async def forget_final(tx: Connection, reduced: Partition, first_page: int) -> int | None:
    """Delete what is not needed from this page on, some pages at a time; return the next page, None after the last.

    The sums of the ledger's entries are kept.
    """
    end = first_page + _PAGES_BATCH
    pages: int = await tx.fetchval("SELECT pg_relation_size($1::regclass) / 8192", reduced.name)
    await tx.execute(_WHOLE_TABLE_SETTINGS)
    delete = (
        f"DELETE FROM {reduced.name} stored WHERE ctid >= '({first_page},0)' AND ctid < '({end},0)'"
        f" AND ({_is_needed(reduced)}) IS NOT TRUE"
    )
    if reduced.table == "ledger":
        await partitions.fold(tx, reduced, f"{delete} RETURNING *")
    else:
        await tx.execute(delete, timeout=_STATEMENT_SECONDS_MAX)
    return end if end < pages else None


def _reason(partition: Partition) -> str:
    """The condition that keeps the day: rows in one of these tables."""
    match partition.table:
        case "messages" | "bodies":
            source = _OPEN_MAIL
        case "webhook_deliveries":
            source = _PENDING_WEBHOOK
        case "events":
            source = f"FROM {partition.name} stored WHERE {_IS_NEEDED_EVENT}"
        case "endpoint_events":
            source = f"FROM {partition.name} stored WHERE {_IS_SENT}"
        case _:
            source = _KEPT_MESSAGE
    return _with_bounds(source, partition)


def _is_needed(partition: Partition) -> str:
    """Whether a `stored` row of the day is needed."""
    match partition.table:
        case "events":
            return _with_bounds(_IS_NEEDED_EVENT, partition)
        case "endpoint_events":
            return _with_bounds(_IS_SENT, partition)
        case "messages" | "bodies":
            condition = _IS_OPEN
        case _:
            condition = _IS_KEPT
    return condition.format(source=_reason(partition), key=partitions.key_of(partition.table))


def _with_bounds(text: str, partition: Partition) -> str:
    low, high = partition.ids
    return text.format(low=low, high=high, key=partitions.key_of(partition.table))
