"""Stragglers: rows past their retention that open mail or a pending webhook delivery still needs.

They don't keep their day. A day that has some is *reduced* to them. Their ids and the bounds of their partition stay
the same, so a look-up by id finds them as before, and no other statement of the service knows of them.

Bodies, events and the search index are most of a day's bytes, and their rows never change. Their stragglers are
copied into a small table, which takes the partition's place in the same transaction: while it copies, only writers of
the old day wait, and all others for the replacement alone. Of the other tables, whose rows results change at any time,
the rest of the day is deleted in place, in batches that nothing waits for.
"""

from typing import Final

import asyncpg

from posthouse.store import partitions
from posthouse.store.partitions import Partition
from posthouse.store.postgres import Connection

REPLACED: Final = frozenset({"bodies", "events", "endpoint_events", "catalogue"})
# What a statement reads and deletes at a time, in pages of 8 KB.
_PAGES_AT_ONCE: Final = 1_000

# The service's own statements wait longer than this for a lock, so that none of them fails because of a replacement.
_LOCK_MILLISECONDS_MAX: Final = 150
_SECONDS_MAX: Final = 600.0
# The service's settings forbid to read a table as a whole.
_SETTINGS: Final = f"""
SET LOCAL lock_timeout = {_LOCK_MILLISECONDS_MAX}; SET LOCAL statement_timeout = '{_SECONDS_MAX:.0f}s';
SET LOCAL plan_cache_mode = auto; SET LOCAL enable_seqscan = on; SET LOCAL enable_hashjoin = on
"""

# The schedules hold everything that is not final. What belongs to a message is kept as long as the message's own row:
# whatever is recorded meanwhile, all of its rows are there or none is.
_OPEN_MAIL: Final = "FROM schedule WHERE message_id >= '{low}' AND message_id < '{high}'"
_KEPT_MESSAGE: Final = "FROM messages WHERE id >= '{low}' AND id < '{high}'"
_PENDING: Final = "FROM calls WHERE id >= '{low}' AND id < '{high}'"
_IS_OPEN: Final = "EXISTS (SELECT {source} AND account_id = stored.account_id AND message_id = stored.{key})"
_IS_KEPT: Final = "EXISTS (SELECT {source} AND account_id = stored.account_id AND id = stored.{key})"

# A webhook delivery that is pending needs its event. An event of mail is of a later day than its message.
_IS_SENT: Final = "stored.id IN (SELECT event_id FROM calls WHERE event_id >= '{low}' AND event_id < '{high}')"
_IS_NEEDED_EVENT: Final = f"""
{_IS_SENT}
OR EXISTS (SELECT FROM messages WHERE account_id = stored.account_id AND id = stored.message_id AND id < '{{high}}')
"""


class TableInUse(RuntimeError):  # noqa: N818 (reads as what it says)
    """A table could not be locked in a short time. Nothing was changed; a later run reduces the day."""


async def is_needed(tx: Connection, partition: Partition) -> bool:
    """Whether anything of the day is needed.

    A message that is kept needs its day of every table, rows or not: some will be inserted.
    """
    await tx.execute(_SETTINGS)
    return bool(await tx.fetchval(f"SELECT EXISTS (SELECT {_reason(partition)})", timeout=_SECONDS_MAX))


async def reduce(tx: Connection, partition: Partition) -> Partition:
    """Mark the day as reduced, and replace it by its stragglers where rows never change."""
    reduced = Partition(partition.day, partition.table, is_reduced=True)
    await tx.execute(_SETTINGS)
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
    # With this check PostgreSQL doesn't read the rows once more when it attaches them.
    of_the_day = _with_bounds("{key} >= '{low}' AND {key} < '{high}'", partition)
    await tx.execute(f"ALTER TABLE {reduced.name} ADD CONSTRAINT of_the_day CHECK ({of_the_day})")
    await tx.execute(f"LOCK TABLE {partition.name} IN SHARE ROW EXCLUSIVE MODE")
    copy = f"INSERT INTO {reduced.name} SELECT stored.* FROM {partition.name} stored WHERE {_is_needed(partition)}"
    await tx.execute(copy, timeout=_SECONDS_MAX)
    await tx.execute(f"ALTER TABLE {partition.table} DETACH PARTITION {partition.name}")
    await tx.execute(f"DROP TABLE {partition.name}")
    await partitions.attach(tx, reduced)
    await tx.execute(f"ALTER TABLE {reduced.name} DROP CONSTRAINT of_the_day")


async def forget_final(tx: Connection, reduced: Partition, first_page: int) -> int | None:
    """Delete what is not needed from this page on, some pages at a time; return the next page, None after the last.

    The sums of the ledger's entries are kept.
    """
    end = first_page + _PAGES_AT_ONCE
    pages: int = await tx.fetchval("SELECT pg_relation_size($1::regclass) / 8192", reduced.name)
    await tx.execute(_SETTINGS)
    delete = (
        f"DELETE FROM {reduced.name} stored WHERE ctid >= '({first_page},0)' AND ctid < '({end},0)'"
        f" AND ({_is_needed(reduced)}) IS NOT TRUE"
    )
    if reduced.table == "ledger":
        await partitions.fold(tx, reduced, f"{delete} RETURNING *")
    else:
        await tx.execute(delete, timeout=_SECONDS_MAX)
    return end if end < pages else None


def _reason(partition: Partition) -> str:
    """What keeps the day: rows of one of these tables."""
    match partition.table:
        case "messages" | "bodies":
            source = _OPEN_MAIL
        case "webhook_deliveries":
            source = _PENDING
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
