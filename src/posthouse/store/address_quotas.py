"""Quotas: how much mail an address may send in a lane today, how much was granted, and how it ended.

A worker is granted some of it at a time, in a transaction that locks the row: all workers together never get more. What
a worker had been granted and had not sent when it died is lost for that hour.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from posthouse.rules.ids import lowest_id
from posthouse.rules.learned_limits import LaneScope
from posthouse.store.postgres import Connection, Row, row_count
from posthouse.store.statement import statement


@dataclass(frozen=True, slots=True)
class AddressQuotaRow:
    """The counts belong to `day`, and `granted_this_hour` to its `hour`. `warm_up` is None for a relay."""

    scope: LaneScope
    day: date
    hour: int
    granted: int
    granted_this_hour: int
    accepted: int
    slowed: int
    was_blocked: bool
    warm_up: Mapping[str, Any] | None


_COLUMNS: Final = "ip, lane, day, hour, granted, granted_this_hour, accepted, slowed, was_blocked, warm_up"

# In one order: two workers that lock the same rows must not wait for each other.
_MAKE: Final = """
INSERT INTO address_quotas (ip, lane, day, hour)
SELECT ip, lane, $3, $4 FROM unnest($1::text[], $2::text[]) wanted(ip, lane) ORDER BY ip, lane
ON CONFLICT DO NOTHING
"""
_LOCK: Final = f"""
SELECT {_COLUMNS} FROM address_quotas JOIN unnest($1::text[], $2::text[]) wanted(ip, lane) USING (ip, lane)
ORDER BY ip, lane FOR UPDATE OF address_quotas
"""
_CHANGE: Final = statement("""
UPDATE address_quotas SET day = :day, hour = :hour, granted = :granted, granted_this_hour = :granted_this_hour,
    accepted = :accepted,
    slowed = :slowed, was_blocked = :was_blocked, warm_up = :warm_up::jsonb
WHERE ip = :ip AND lane = :lane
""")
_LIST: Final = f"SELECT {_COLUMNS} FROM address_quotas ORDER BY ip, lane LIMIT $1"
_FORGET: Final = """
DELETE FROM address_quotas WHERE (ip, lane) IN (SELECT ip, lane FROM address_quotas WHERE day < $1 LIMIT $2)
"""

# By the server that took the mail: an attempt does not name its lane.
_COMPLAINTS: Final = """
SELECT attempt.mx_host FROM reports
CROSS JOIN LATERAL (
    SELECT mx_host FROM attempts
    WHERE account_id = reports.account_id AND message_id = reports.message_id AND outcome = 'delivered'
      AND source_ip = $1 AND position = coalesce(reports.position, position)
    LIMIT 1) attempt
WHERE kind = 'complaint' AND at >= $2 AND at < $3 AND message_id >= $4
LIMIT $5
"""
# Mail is complained about within days.
_COMPLAINED_WITHIN: Final = timedelta(days=7)
COMPLAINTS_READ_MAX: Final = 10_000


async def complained_at(connection: Connection, ip: str, day: date) -> list[str]:
    """The server of each mail from this address that was complained about on a day."""
    begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
    oldest = lowest_id(begin - _COMPLAINED_WITHIN)
    rows = await connection.fetch(_COMPLAINTS, ip, begin, begin + timedelta(days=1), oldest, COMPLAINTS_READ_MAX)
    return [row["mx_host"] for row in rows if row["mx_host"] is not None]


async def locked(tx: Connection, scopes: Iterable[LaneScope], day: date, hour: int) -> list[AddressQuotaRow]:
    """The rows of these addresses and lanes, locked; missing ones are inserted first."""
    wanted = sorted(set(scopes))
    ips, lanes = [scope.ip for scope in wanted], [scope.lane for scope in wanted]
    await tx.execute(_MAKE, ips, lanes, day, hour)
    return [_row(row) for row in await tx.fetch(_LOCK, ips, lanes)]


async def change(tx: Connection, row: AddressQuotaRow) -> None:
    await tx.execute(
        *_CHANGE.bind_row(
            row, ip=row.scope.ip, lane=row.scope.lane, warm_up=None if row.warm_up is None else json.dumps(row.warm_up)
        )
    )


async def list_all(connection: Connection, count: int) -> list[AddressQuotaRow]:
    return [_row(row) for row in await connection.fetch(_LIST, count)]


async def forget(tx: Connection, before: date, limit: int) -> int:
    """Delete the rows of those that have sent nothing since that day: they start again."""
    return row_count(await tx.execute(_FORGET, before, limit))


def _row(row: Row) -> AddressQuotaRow:
    kept = row["warm_up"]
    return AddressQuotaRow(
        LaneScope(row["ip"], row["lane"]),
        day=row["day"],
        hour=row["hour"],
        granted=row["granted"],
        granted_this_hour=row["granted_this_hour"],
        accepted=row["accepted"],
        slowed=row["slowed"],
        was_blocked=row["was_blocked"],
        warm_up=None if kept is None else json.loads(kept),
    )
