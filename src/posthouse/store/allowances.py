"""Allowances: how much mail an address may send in a lane today, how much it was given, and what became of it.

A worker is given some of it at a time, in a transaction that locks the row: all workers together never have more. What
a worker was given and did not send when it died is lost for the hour.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from posthouse.rules.ids import lowest_id
from posthouse.rules.standing import Place
from posthouse.store.postgres import Connection, Row
from posthouse.store.statement import statement


@dataclass(frozen=True, slots=True)
class AllowanceRow:
    """The counts are of `day`; `given_this_hour` of its `hour`. `warm_up` is None of a relay."""

    place: Place
    day: date
    hour: int
    given: int
    given_this_hour: int
    taken: int
    slow: int
    was_blocked: bool
    warm_up: Mapping[str, Any] | None


_COLUMNS: Final = "ip, lane, day, hour, given, given_this_hour, taken, slow, was_blocked, warm_up"

# In one order: two workers that lock the same rows must not wait for each other.
_MAKE: Final = """
INSERT INTO allowances (ip, lane, day, hour)
SELECT ip, lane, $3, $4 FROM unnest($1::text[], $2::text[]) wanted(ip, lane) ORDER BY ip, lane
ON CONFLICT DO NOTHING
"""
_LOCK: Final = f"""
SELECT {_COLUMNS} FROM allowances JOIN unnest($1::text[], $2::text[]) wanted(ip, lane) USING (ip, lane)
ORDER BY ip, lane FOR UPDATE OF allowances
"""
_CHANGE: Final = statement("""
UPDATE allowances SET day = :day, hour = :hour, given = :given, given_this_hour = :given_this_hour, taken = :taken,
    slow = :slow, was_blocked = :was_blocked, warm_up = :warm_up::jsonb
WHERE ip = :ip AND lane = :lane
""")
_LIST: Final = f"SELECT {_COLUMNS} FROM allowances ORDER BY ip, lane LIMIT $1"
_FORGET: Final = """
DELETE FROM allowances WHERE (ip, lane) IN (SELECT ip, lane FROM allowances WHERE day < $1 LIMIT $2)
"""

# By where the mail went: an attempt does not name its lane.
_COMPLAINTS: Final = """
SELECT attempt.exchange FROM reports
CROSS JOIN LATERAL (
    SELECT exchange FROM attempts
    WHERE account_id = reports.account_id AND message_id = reports.message_id AND outcome = 'delivered'
      AND source = $1 AND position = coalesce(reports.position, position)
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
    return [row["exchange"] for row in rows if row["exchange"] is not None]


async def locked(tx: Connection, places: Iterable[Place], day: date, hour: int) -> list[AllowanceRow]:
    """The rows of these, made where they were not there, as they are until the transaction ends."""
    wanted = sorted(set(places))
    ips, lanes = [place.ip for place in wanted], [place.lane for place in wanted]
    await tx.execute(_MAKE, ips, lanes, day, hour)
    return [_row(row) for row in await tx.fetch(_LOCK, ips, lanes)]


async def change(tx: Connection, row: AllowanceRow) -> None:
    await tx.execute(
        *_CHANGE.bind(
            ip=row.place.ip,
            lane=row.place.lane,
            day=row.day,
            hour=row.hour,
            given=row.given,
            given_this_hour=row.given_this_hour,
            taken=row.taken,
            slow=row.slow,
            was_blocked=row.was_blocked,
            warm_up=None if row.warm_up is None else json.dumps(row.warm_up),
        )
    )


async def list_all(connection: Connection, count: int) -> list[AllowanceRow]:
    return [_row(row) for row in await connection.fetch(_LIST, count)]


async def forget(tx: Connection, before: date, limit: int) -> int:
    """Those that nothing was sent by since that day: they begin anew."""
    return int((await tx.execute(_FORGET, before, limit)).rpartition(" ")[2])


def _row(row: Row) -> AllowanceRow:
    kept = row["warm_up"]
    return AllowanceRow(
        Place(row["ip"], row["lane"]),
        day=row["day"],
        hour=row["hour"],
        given=row["given"],
        given_this_hour=row["given_this_hour"],
        taken=row["taken"],
        slow=row["slow"],
        was_blocked=row["was_blocked"],
        warm_up=None if kept is None else json.loads(kept),
    )
