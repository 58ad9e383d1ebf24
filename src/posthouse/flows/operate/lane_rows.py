"""Lanes as operators see them: the workers' reports, what was learnt, and pauses, in one row each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from posthouse.rules.standing import LaneState

if TYPE_CHECKING:
    from posthouse.flows.operate.lanes import LaneList
    from posthouse.rules.standing import Standing
    from posthouse.store.lane_reports import LaneReport

# A worker's share of a lane.
Part = tuple[UUID, str]


@dataclass(frozen=True, slots=True)
class LaneRow:
    """A lane as all workers together see it; `per_second` is None until two reports were seen."""

    lane: str
    workers: int
    waiting: int
    in_flight: int
    connections: int
    delivered_total: int
    deferred_total: int
    per_second: float | None
    paused_until: datetime | None
    last_reply: str | None


class ListedLane(NamedTuple):
    """Where mail waits, what was learnt, what is paused.

    `per_second` and `ceiling` are the strictest of its addresses; totals count since the workers began.
    """

    lane: str
    state: str
    waiting: int
    in_flight: int
    connections: int
    delivered_total: int
    deferred_total: int
    per_second: float | None
    ceiling: float | None
    rests_until: datetime | None
    pinned: bool
    since: datetime | None
    reason: str | None
    last_reply: str | None


def merged(reports: "Sequence[LaneReport]", rates: Mapping[Part, float | None]) -> list[LaneRow]:
    """The lanes, each once, the busiest first."""
    rows = []
    by_lane = sorted(reports, key=lambda report: report.state.lane)
    for lane, group in groupby(by_lane, key=lambda report: report.state.lane):
        parts = sorted(group, key=lambda report: report.reported_at, reverse=True)
        states = [part.state for part in parts]
        known = [rate for part in parts if (rate := rates.get((part.worker_id, lane))) is not None]
        rows.append(
            LaneRow(
                lane=lane,
                workers=len(parts),
                waiting=sum(state.waiting for state in states),
                in_flight=sum(state.in_flight for state in states),
                connections=sum(state.connections for state in states),
                delivered_total=sum(state.delivered_total for state in states),
                deferred_total=sum(state.deferred_total for state in states),
                per_second=sum(known) if known else None,
                paused_until=max((state.paused_until for state in states if state.paused_until), default=None),
                last_reply=next((state.last_reply for state in states if state.last_reply), None),
            )
        )
    return sorted(rows, key=lambda row: (-(row.waiting + row.in_flight), -(row.per_second or 0), row.lane))


def listed(found: "LaneList") -> list[ListedLane]:
    """The paused first, then the busiest."""
    reports = {row.lane: row for row in merged(found.reports, {})}
    learnt: dict[str, list[Standing]] = {}
    for row in found.standings:
        if row.place.branch is not None:
            continue
        learnt.setdefault(row.place.lane, []).append(row.standing)
    pauses = {row.lane: row for row in found.pauses}
    rows = []
    for name in reports.keys() | learnt.keys() | pauses.keys():
        report, standings, paused = reports.get(name), learnt.get(name, []), pauses.get(name)
        strictest = min(standings, key=lambda standing: standing.per_second, default=None)
        rows.append(
            ListedLane(
                lane=name,
                state="paused" if paused else _state(standings),
                waiting=report.waiting if report else 0,
                in_flight=report.in_flight if report else 0,
                connections=report.connections if report else 0,
                delivered_total=report.delivered_total if report else 0,
                deferred_total=report.deferred_total if report else 0,
                per_second=None if strictest is None else round(strictest.per_second, 3),
                ceiling=min((known.ceiling for known in standings if known.ceiling is not None), default=None),
                rests_until=_rests_until(standings, found.at),
                pinned=any(standing.is_pinned for standing in standings),
                since=paused.since if paused else None,
                reason=paused.reason if paused else None,
                last_reply=report.last_reply if report else None,
            )
        )
    return sorted(rows, key=lambda row: (row.state != "paused", -row.waiting, row.lane))


def _rests_until(standings: "Sequence[Standing]", now: datetime) -> datetime | None:
    """The end of the longest rest or block that is not over."""
    ends = (known.paused_until for known in standings if known.state is not LaneState.OPEN)
    return max((end for end in ends if end is not None and end > now), default=None)


def _state(standings: "Sequence[Standing]") -> str:
    """Of several addresses', the gravest."""
    states = {standing.state for standing in standings}
    for state in (LaneState.BLOCKED, LaneState.RESTING):
        if state in states:
            return state
    return LaneState.OPEN
