"""Lane reports: the state of each worker's lanes, written every few seconds for operators.

Lanes live in the workers' memory; the service itself doesn't read these rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import nlargest
from typing import Final, NamedTuple
from uuid import UUID

from posthouse.store.postgres import Connection, required, storable
from posthouse.store.statement import statement

LANES_REPORTED_MAX: Final = 200
# Five reports missed: the worker is gone or stuck.
SHOWN_FOR: Final = timedelta(seconds=10)
KEPT_FOR: Final = timedelta(hours=1)
REPLY_CHARACTERS_MAX: Final = 300
_LANES_READ_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class LaneState:
    """One lane of one worker. Totals are since the worker began; `last_reply` is the last SMTP reply."""

    lane: str
    waiting: int
    in_flight: int
    connections: int
    delivered_total: int
    deferred_total: int
    paused_until: datetime | None
    last_reply: str | None


class LaneTotals(NamedTuple):
    """Of all workers that report, since they began."""

    workers: int
    delivered: int
    deferred: int


@dataclass(frozen=True, slots=True)
class LaneReport:
    worker_id: UUID
    reported_at: datetime
    state: LaneState


# A row of a dead worker that is locked is being deleted by another process.
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

_READ: Final = """
SELECT worker_id, reported_at, lane, waiting, in_flight, connections, delivered_total, deferred_total,
    paused_until, last_reply
FROM lane_reports WHERE reported_at > $1 {condition} ORDER BY lane, worker_id LIMIT $2
"""
_READ_ALL: Final = _READ.format(condition="")
# IS TRUE keeps it from becoming a join, which would compare each row with each name; so the names are hashed.
_READ_SOME: Final = _READ.format(condition="AND (lane IN (SELECT unnest($3::text[]))) IS TRUE")

_TOTALS: Final = """
SELECT count(DISTINCT worker_id), coalesce(sum(delivered_total), 0)::bigint, coalesce(sum(deferred_total), 0)::bigint
FROM lane_reports WHERE reported_at > $1
"""


async def report(tx: Connection, worker_id: UUID, states: Sequence[LaneState], now: datetime) -> None:
    """The worker's lanes are these, and no others; of very many, the busiest."""
    busiest = nlargest(LANES_REPORTED_MAX, states, key=_activity)
    await tx.execute(
        *_REPORT.bind(
            worker_id=worker_id,
            now=now,
            forgotten_before=now - KEPT_FOR,
            lanes=[state.lane for state in busiest],
            waiting=[state.waiting for state in busiest],
            in_flight=[state.in_flight for state in busiest],
            connections=[state.connections for state in busiest],
            delivered_totals=[state.delivered_total for state in busiest],
            deferred_totals=[state.deferred_total for state in busiest],
            paused_until=[state.paused_until for state in busiest],
            last_replies=[storable(state.last_reply, REPLY_CHARACTERS_MAX) for state in busiest],
        )
    )


async def read(connection: Connection, since: datetime, lanes: Sequence[str] | None = None) -> list[LaneReport]:
    """What was reported after `since`, by lane; of all lanes, or of these."""
    if lanes is None:
        rows = await connection.fetch(_READ_ALL, since, _LANES_READ_MAX)
    else:
        rows = await connection.fetch(_READ_SOME, since, _LANES_READ_MAX, lanes)
    return [LaneReport(row["worker_id"], row["reported_at"], LaneState(*tuple(row)[2:])) for row in rows]


async def totals(connection: Connection, since: datetime) -> LaneTotals:
    return LaneTotals(*required(await connection.fetchrow(_TOTALS, since)))


def _activity(state: LaneState) -> tuple[int, bool, int]:
    return state.waiting + state.in_flight, state.paused_until is not None, state.delivered_total
