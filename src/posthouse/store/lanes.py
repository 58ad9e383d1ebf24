"""Lanes as workers report them, and pauses of lanes."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

from posthouse.store.postgres import Connection, required, storable
from posthouse.store.statement import statement

# Lane reports: the state of each worker's lanes, written every few seconds for operators.
#
# Lanes live in the workers' memory; the service itself doesn't read these rows.


# A worker reports at most this many.
LANES_REPORTED_MAX: Final = 200
# After five missed reports, the worker is dead or stuck.
REPORTS_SHOWN_FOR: Final = timedelta(seconds=10)
REPORTS_KEPT_FOR: Final = timedelta(hours=1)
REPLY_CHARACTERS_MAX: Final = 300
_LANES_READ_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class ReportedLane:
    """One lane of one worker. Totals are since the worker started; `last_reply` is the last SMTP reply."""

    lane: str
    waiting: int
    in_flight: int
    connections: int
    delivered_total: int
    deferred_total: int
    paused_until: datetime | None
    last_reply: str | None


class LaneTotals(NamedTuple):
    """Totals of all workers that report, since they started."""

    workers: int
    delivered: int
    deferred: int


@dataclass(frozen=True, slots=True)
class LaneReport:
    worker_id: UUID
    reported_at: datetime
    state: ReportedLane


# A locked row of a dead worker is being deleted by another process.
_REPORT: Final = statement("""
WITH forgotten AS (
    DELETE FROM lane_reports WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM lane_reports WHERE worker_id <> :worker_id
            AND reported_at < :forgotten_before FOR UPDATE SKIP LOCKED))
), gone AS (
    DELETE FROM lane_reports WHERE worker_id = :worker_id AND lane <> ALL(:lanes::text[])
)
INSERT INTO lane_reports (worker_id, lane, waiting, in_flight, connections, delivered_total, deferred_total,
    paused_until, last_reply, reported_at)
SELECT :worker_id, report.*, :now
FROM unnest(:lanes::text[], :waiting::integer[], :in_flight::integer[], :connections::integer[],
    :delivered_totals::bigint[], :deferred_totals::bigint[],
    :paused_until::timestamptz[], :last_replies::text[]) report
ON CONFLICT (worker_id, lane) DO UPDATE SET waiting = excluded.waiting, in_flight = excluded.in_flight,
    connections = excluded.connections, delivered_total = excluded.delivered_total,
    deferred_total = excluded.deferred_total, paused_until = excluded.paused_until,
    last_reply = excluded.last_reply, reported_at = excluded.reported_at
""")

_REPORTS: Final = """
SELECT worker_id, reported_at, lane, waiting, in_flight, connections, delivered_total, deferred_total,
    paused_until, last_reply
FROM lane_reports WHERE reported_at > $1 {condition} ORDER BY lane, worker_id LIMIT $2
"""
_ALL_REPORTS: Final = _REPORTS.format(condition="")
# IS TRUE keeps it from becoming a join, which would compare each row with each name; so the names are hashed.
_REPORTS_OF_LANES: Final = _REPORTS.format(condition="AND (lane IN (SELECT unnest($3::text[]))) IS TRUE")

_TOTALS: Final = """
SELECT count(DISTINCT worker_id), coalesce(sum(delivered_total), 0)::bigint, coalesce(sum(deferred_total), 0)::bigint
FROM lane_reports WHERE reported_at > $1
"""


async def report(tx: Connection, worker_id: UUID, states: Sequence[ReportedLane], now: datetime) -> None:
    """Replace the worker's reports by these."""
    await tx.execute(
        *_REPORT.bind(
            worker_id=worker_id,
            now=now,
            forgotten_before=now - REPORTS_KEPT_FOR,
            lanes=[state.lane for state in states],
            waiting=[state.waiting for state in states],
            in_flight=[state.in_flight for state in states],
            connections=[state.connections for state in states],
            delivered_totals=[state.delivered_total for state in states],
            deferred_totals=[state.deferred_total for state in states],
            paused_until=[state.paused_until for state in states],
            last_replies=[storable(state.last_reply, REPLY_CHARACTERS_MAX) for state in states],
        )
    )


async def reports(connection: Connection, since: datetime, lanes: Sequence[str] | None = None) -> list[LaneReport]:
    """The reports after `since`, by lane; of all lanes, or of these."""
    if lanes is None:
        rows = await connection.fetch(_ALL_REPORTS, since, _LANES_READ_MAX)
    else:
        rows = await connection.fetch(_REPORTS_OF_LANES, since, _LANES_READ_MAX, lanes)
    return [LaneReport(row["worker_id"], row["reported_at"], ReportedLane(*tuple(row)[2:])) for row in rows]


async def totals(connection: Connection, since: datetime) -> LaneTotals:
    return LaneTotals(*required(await connection.fetchrow(_TOTALS, since)))


# Which of thousands of lanes an operator sees first: the busiest. Details of each are read separately.


# Each part returns no more rows than are asked for, so that only these are combined; the last part is used only if
# there are too few.
_FIRST_LANES: Final = statement("""
WITH reported AS MATERIALIZED (
    SELECT lane, sum(waiting) AS waiting FROM lane_reports
    WHERE reported_at > :since AND (:part::text = '' OR strpos(lane, :part) > 0)
    GROUP BY lane ORDER BY sum(waiting) DESC, lane LIMIT :limit)
SELECT lane, (SELECT count(*) FROM lane_reports) + (SELECT count(*) FROM learned_limits) AS rows_read FROM (
    (SELECT lane, 0 AS rank, 0::bigint AS waiting FROM learned_limits
     WHERE :stopped_first AND limits ->> 'state' IN ('resting', 'blocked')
       AND (:part::text = '' OR strpos(lane, :part) > 0)
     ORDER BY changed_at DESC LIMIT :limit)
    UNION ALL
    SELECT lane, 1, waiting FROM reported
    UNION ALL
    (SELECT DISTINCT lane, 2, 0::bigint FROM learned_limits
     WHERE (SELECT count(*) FROM reported) < :limit AND (:part::text = '' OR strpos(lane, :part) > 0)
     ORDER BY lane LIMIT :limit)) found
GROUP BY lane ORDER BY min(rank), max(waiting) DESC, lane LIMIT :limit
""")


class FirstLanes(NamedTuple):
    """The first lanes, and how many rows were read to find them."""

    names: Sequence[str]
    rows_read: int


async def first_lanes(
    connection: Connection, since: datetime, limit: int, *, part: str, stopped_first: bool
) -> FirstLanes:
    """Lanes whose names contain `part` and that have reports after `since` or learned limits."""
    rows = await connection.fetch(*_FIRST_LANES.bind(since=since, limit=limit, part=part, stopped_first=stopped_first))
    return FirstLanes([row["lane"] for row in rows], rows[0]["rows_read"] if rows else 0)


# Lanes that operators paused, and the mail that waits for them.
#
# A worker that holds mail for a paused lane locks the pause meanwhile, so that none is held after its end.


@dataclass(frozen=True, slots=True)
class LanePause:
    lane: str
    since: datetime
    reason: str


_PAUSES: Final = "SELECT lane, since, reason FROM lane_pauses ORDER BY lane"

_BEGIN_PAUSE: Final = statement("""
INSERT INTO lane_pauses (lane, since, reason) VALUES (:lane, :now, :reason) ON CONFLICT DO NOTHING RETURNING 1
""")

_LOCK_PAUSES: Final = "SELECT lane FROM lane_pauses WHERE lane = ANY($1::text[]) ORDER BY lane FOR SHARE"

_WAKE_PAUSED: Final = statement("""
UPDATE delivery_schedule SET next_at = :due_at, paused = paused + (:now::timestamptz - held_since), held_since = NULL,
    held_by = NULL
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM delivery_schedule
    WHERE held_since IS NOT NULL AND held_by = :lane LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED))
RETURNING 1
""")


async def pauses(connection: Connection) -> list[LanePause]:
    return [LanePause(*row) for row in await connection.fetch(_PAUSES)]


async def begin_pause(tx: Connection, lane: str, reason: str, now: datetime) -> bool:
    """Pause the lane. False if it is paused already."""
    return await tx.fetchval(*_BEGIN_PAUSE.bind(lane=lane, reason=reason, now=now)) is not None


async def end_pause(tx: Connection, lane: str) -> bool:
    """End the pause. False if the lane isn't paused."""
    return await tx.fetchval("DELETE FROM lane_pauses WHERE lane = $1 RETURNING 1", lane) is not None


async def lock_pauses(tx: Connection, lanes: Collection[str]) -> set[str]:
    """Which of these are paused; their pauses are locked until the transaction ends."""
    return {row["lane"] for row in await tx.fetch(_LOCK_PAUSES, list(lanes))}


async def wake_paused(tx: Connection, lane: str, now: datetime, due_at: datetime, limit: int) -> int:
    """Make mail that waits for the lane due then; return how many. If it is `limit`, there may be more."""
    return len(await tx.fetch(*_WAKE_PAUSED.bind(lane=lane, now=now, due_at=due_at, limit=limit)))
