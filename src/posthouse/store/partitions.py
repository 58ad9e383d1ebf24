"""Daily partitions of the large tables: created in advance, and dropped after their retention."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final
from uuid import UUID

from posthouse.rules.ids import lowest_id
from posthouse.store.postgres import Connection, Database

TABLES: Final = (
    "messages",
    "recipients",
    "bodies",
    "ledger",
    "attempts",
    "reports",
    "events",
    "endpoint_events",
    "webhook_deliveries",
    "search_index",
)

# A message of ordinary size stays in its row: half the cost of PostgreSQL's default, which moves values over 2 KB to a
# second table. It is compressed where that is possible (decision record 0060).
# Rows that are updated soon after find space for their new version on the same page.
_SETTINGS: Final = {
    "bodies": "toast_tuple_target = 8160",
    "messages": "fillfactor = 90",
    "attempts": "fillfactor = 50",
    "webhook_deliveries": "fillfactor = 50",
}

_COMPRESSED: Final = "toast_tuple_target = 1024"

# Rows are frozen by the first autovacuum after they were written; otherwise every day that is kept would be read again
# to prevent wraparound.
_FROZEN: Final = "autovacuum_freeze_min_age = 0"

# The end of the name of a day that was reduced to its stragglers (see `stragglers`).
_REDUCED: Final = "_stragglers"

_ATTACHED: Final = """
SELECT child.relname AS name, inhdetachpending AS is_detaching
FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid JOIN pg_class parent ON parent.oid = inhparent
WHERE parent.oid = ANY($1::regclass[])
"""

# A day that was detached and not yet dropped, because the process died or a lock took too long.
_DETACHED: Final = rf"""
SELECT relname AS name FROM pg_class
WHERE relkind = 'r' AND NOT relispartition AND relnamespace = current_schema()::regnamespace
  AND relname ~ '^({"|".join(TABLES)})_\d{{8}}({_REDUCED})?$'
"""

_ARE_BODIES_COMPRESSED: Final = """
SELECT attcompression = 'l' FROM pg_attribute WHERE attrelid = 'bodies'::regclass AND attname = 'mime'
"""

FOLD_SECONDS_MAX: Final = 600.0

# A day's entries may be deleted in several parts, each in the transaction that adds up that part.
_FOLD_LEDGER: Final = """
WITH entries AS ({entries})
INSERT INTO ledger_days AS kept (account_id, day, reserved, settled, released)
SELECT account_id, $1::date,
       coalesce(sum(amount) FILTER (WHERE kind = 'reserve'), 0),
       coalesce(sum(amount) FILTER (WHERE kind = 'settle'), 0),
       coalesce(sum(amount) FILTER (WHERE kind = 'release'), 0)
FROM entries GROUP BY account_id ORDER BY account_id
ON CONFLICT (account_id, day) DO UPDATE SET reserved = kept.reserved + excluded.reserved,
    settled = kept.settled + excluded.settled, released = kept.released + excluded.released
"""


def key_of(table: str) -> str:
    """The column by which the table is partitioned."""
    return "id" if table in ("messages", "events", "endpoint_events", "webhook_deliveries") else "message_id"


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """A day of a table; `is_reduced`: it contains only rows that were still needed after its retention."""

    day: date
    table: str
    is_reduced: bool = False

    @property
    def name(self) -> str:
        return f"{self.table}_{self.day:%Y%m%d}{_REDUCED if self.is_reduced else ''}"

    @property
    def ids(self) -> tuple[UUID, UUID]:
        """The lowest id of the day, and that of the next day."""
        start, end = bounds(self.day)
        return lowest_id(start), lowest_id(end)


def bounds(day: date) -> tuple[datetime, datetime]:
    start = datetime.combine(day, time(), UTC)
    return start, start + timedelta(days=1)


def _named(name: str) -> Partition:
    table, _, day = name.removesuffix(_REDUCED).rpartition("_")
    date_of = datetime.strptime(day, "%Y%m%d").replace(tzinfo=UTC).date()
    return Partition(date_of, table, is_reduced=name.endswith(_REDUCED))


async def attached(connection: Connection) -> list[Partition]:
    rows = await connection.fetch(_ATTACHED, list(TABLES))
    return sorted(_named(row["name"]) for row in rows if not row["is_detaching"])


async def detaching(connection: Connection) -> list[Partition]:
    """Partitions whose detaching was started and interrupted."""
    rows = await connection.fetch(_ATTACHED, list(TABLES))
    return sorted(_named(row["name"]) for row in rows if row["is_detaching"])


async def detached(connection: Connection) -> list[Partition]:
    return sorted(_named(row["name"]) for row in await connection.fetch(_DETACHED))


async def create(tx: Connection, partition: Partition) -> None:
    """Create it separately and then attach it: readers and writers of the table are not blocked."""
    await create_apart(tx, partition)
    await attach(tx, partition)


async def create_apart(tx: Connection, partition: Partition) -> None:
    # Names and bounds come from a date and a fixed list: these statements contain nothing from a request.
    settings = _SETTINGS.get(partition.table)
    if partition.table == "bodies" and await tx.fetchval(_ARE_BODIES_COMPRESSED):
        settings = _COMPRESSED
    options = _FROZEN if settings is None else f"{_FROZEN}, {settings}"
    await tx.execute(f"CREATE TABLE {partition.name} (LIKE {partition.table} INCLUDING ALL) WITH ({options})")


async def attach(tx: Connection, partition: Partition) -> None:
    low, high = partition.ids
    await tx.execute(
        f"ALTER TABLE {partition.table} ATTACH PARTITION {partition.name} FOR VALUES FROM ('{low}') TO ('{high}')"
    )


async def hold(tx: Connection) -> None:
    """Keep days from being replaced until the transaction ends: its snapshot would not see their replacements."""
    await tx.execute(f"LOCK TABLE {', '.join(f'ONLY {table}' for table in TABLES)} IN ACCESS SHARE MODE")


async def detach(connection: Connection, partition: Partition) -> None:
    """Detach the day, outside any transaction: readers and writers of the other days continue meanwhile."""
    await connection.execute(f"ALTER TABLE {partition.table} DETACH PARTITION {partition.name} CONCURRENTLY")


async def finish_detaching(connection: Connection, partition: Partition) -> None:
    await connection.execute(f"ALTER TABLE {partition.table} DETACH PARTITION {partition.name} FINALIZE")


async def drop(tx: Connection, partition: Partition) -> None:
    """Drop a detached day; the sums of a ledger's day are kept, in the same transaction."""
    if partition.table == "ledger":
        await fold(tx, partition, f"SELECT * FROM {partition.name}")
    await tx.execute(f"DROP TABLE {partition.name}")


async def fold(tx: Connection, partition: Partition, entries: str) -> None:
    """Add these entries, which the transaction deletes, to the sums of their day."""
    await tx.execute(_FOLD_LEDGER.format(entries=entries), partition.day, timeout=FOLD_SECONDS_MAX)


# A read of all data as it was at one moment.


@asynccontextmanager
async def snapshot(database: Database, *, holds_days: bool = False) -> AsyncIterator[Connection]:
    """With `holds_days`, no day is reduced in the meantime: the snapshot would not see the rows that are kept."""
    async with (
        database.connection() as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        if holds_days:
            await hold(connection)
        yield connection
