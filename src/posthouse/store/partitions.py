"""Daily partitions of the large tables: made ahead, dropped behind."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from posthouse.rules.ids import lowest_id
from posthouse.store.postgres import Connection

TABLES: Final = (
    "messages",
    "recipients",
    "bodies",
    "ledger",
    "attempts",
    "reports",
    "events",
    "webhook_deliveries",
    "catalogue",
)

# A mail of ordinary size stays in its row, uncompressed: half the cost of PostgreSQL's own choice to
# compress anything over 2 KB and to put it into a second table.
# What is written again soon after finds room for its new version on the same page.
_SETTINGS: Final = {
    "bodies": "WITH (toast_tuple_target = 8160)",
    "messages": "WITH (fillfactor = 90)",
    "attempts": "WITH (fillfactor = 50)",
    "webhook_deliveries": "WITH (fillfactor = 50)",
}

_ATTACHED: Final = """
SELECT child.relname AS name, inhdetachpending AS is_detaching
FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid JOIN pg_class parent ON parent.oid = inhparent
WHERE parent.oid = ANY($1::regclass[])
"""

# A day that was detached and not yet dropped, because the process died or a lock took too long.
_DETACHED: Final = rf"""
SELECT relname AS name FROM pg_class
WHERE relkind = 'r' AND NOT relispartition AND relnamespace = current_schema()::regnamespace
  AND relname ~ '^({"|".join(TABLES)})_\d{{8}}$'
"""

# The schedules hold everything that is not final: nothing below the bound means that all of it is. What is still
# to be sent to a webhook needs its event; its log needs neither mail nor event.
_UNFINISHED_MAIL: Final = "SELECT EXISTS (SELECT FROM schedule WHERE message_id < $1)"
_UNFINISHED_EVENTS: Final = (
    "SELECT EXISTS (SELECT FROM schedule WHERE message_id < $1) OR EXISTS (SELECT FROM calls WHERE event_id < $1)"
)
_UNFINISHED_WEBHOOK_DELIVERIES: Final = "SELECT EXISTS (SELECT FROM calls WHERE id < $1)"
_UNFINISHED: Final = {"events": _UNFINISHED_EVENTS, "webhook_deliveries": _UNFINISHED_WEBHOOK_DELIVERIES}

_FOLD_LEDGER: Final = """
INSERT INTO ledger_days (account_id, day, reserved, settled, released)
SELECT account_id, $1::date,
       coalesce(sum(amount) FILTER (WHERE kind = 'reserve'), 0),
       coalesce(sum(amount) FILTER (WHERE kind = 'settle'), 0),
       coalesce(sum(amount) FILTER (WHERE kind = 'release'), 0)
FROM {name} GROUP BY account_id
ON CONFLICT (account_id, day) DO NOTHING
"""


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    day: date
    table: str

    @property
    def name(self) -> str:
        return f"{self.table}_{self.day:%Y%m%d}"


def bounds(day: date) -> tuple[datetime, datetime]:
    start = datetime.combine(day, time(), UTC)
    return start, start + timedelta(days=1)


def _named(name: str) -> Partition:
    table, _, day = name.rpartition("_")
    return Partition(datetime.strptime(day, "%Y%m%d").replace(tzinfo=UTC).date(), table)


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
    """Create it apart and then attach it: readers and writers of the table are not blocked."""
    low, high = (lowest_id(bound) for bound in bounds(partition.day))
    # Names and bounds come from a date and a fixed list: nothing of a request is in these statements.
    await tx.execute(
        f"CREATE TABLE {partition.name} (LIKE {partition.table} INCLUDING ALL) {_SETTINGS.get(partition.table, '')}"
    )
    await tx.execute(
        f"ALTER TABLE {partition.table} ATTACH PARTITION {partition.name} FOR VALUES FROM ('{low}') TO ('{high}')"
    )


async def is_finished(connection: Connection, partition: Partition) -> bool:
    """Whether nothing of that day, or of the days before it, is still to be tried.

    A day of mail waits for its recipients, a day of webhook deliveries for these, and a day of events for both.
    """
    _, end = bounds(partition.day)
    return not await connection.fetchval(_UNFINISHED.get(partition.table, _UNFINISHED_MAIL), lowest_id(end))


async def detach(connection: Connection, partition: Partition) -> None:
    """Outside any transaction: readers and writers of the other days go on meanwhile."""
    await connection.execute(f"ALTER TABLE {partition.table} DETACH PARTITION {partition.name} CONCURRENTLY")


async def finish_detaching(connection: Connection, partition: Partition) -> None:
    await connection.execute(f"ALTER TABLE {partition.table} DETACH PARTITION {partition.name} FINALIZE")


async def drop(tx: Connection, partition: Partition) -> None:
    """Drop a detached day; the sums of a ledger's day are kept, in the same transaction."""
    if partition.table == "ledger":
        await tx.execute(_FOLD_LEDGER.format(name=partition.name), partition.day)
    await tx.execute(f"DROP TABLE {partition.name}")
