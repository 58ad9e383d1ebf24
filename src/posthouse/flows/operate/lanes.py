"""Lanes for operators: read, undo and pin what they have learned; pause and resume them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from itertools import groupby
from typing import Final, NamedTuple
from uuid import UUID

from posthouse.flows.shared.context import Context, Flow
from posthouse.rules import learned_limits as rules
from posthouse.rules.lane import PROVIDERS, LaneLimits
from posthouse.rules.learned_limits import Change, LaneScope, LaneState, LearnedLimits, LimitChange
from posthouse.rules.refusal import Code, Refusal, invalid
from posthouse.rules.route import is_relay_lane
from posthouse.store import lanes, learned_limits
from posthouse.store.delivery_schedule import PAUSE_KNOWN_WITHIN
from posthouse.store.lanes import FirstLanes as FirstLanes
from posthouse.store.lanes import LanePause as LanePause
from posthouse.store.lanes import LaneReport as LaneReport
from posthouse.store.learned_limits import StoredLearnedLimits as StoredLearnedLimits
from posthouse.store.learned_limits import StoredLimitChange as StoredLimitChange
from posthouse.store.postgres import Connection

WOKEN_BATCH_MAX: Final = 1_000
LONG_AGO: Final = datetime(2000, 1, 1, tzinfo=UTC)

# A worker's share of a lane.
Part = tuple[UUID, str]


@dataclass(frozen=True, slots=True)
class LaneView:
    """A lane that has learned nothing has no learned limits."""

    lane: str
    at: datetime
    learned_limits: Sequence[StoredLearnedLimits]
    limit_changes: Sequence[StoredLimitChange]
    begins_at: float


@dataclass(frozen=True, slots=True)
class LaneList:
    """All that is known about lanes: where mail waits, what they learned, what is paused."""

    at: datetime
    reports: Sequence[LaneReport]
    learned_limits: Sequence[StoredLearnedLimits]
    pauses: Sequence[LanePause]


class Lanes(Flow):
    def __init__(self, context: Context, *, lane_limits: LaneLimits) -> None:
        super().__init__(context)
        self._limits = lane_limits

    async def log(self, lane: str | None, count: int) -> Sequence[StoredLimitChange]:
        """The latest limit changes, newest first."""
        async with self._database.connection() as connection:
            return await learned_limits.log(connection, None if lane is None else _lane(lane), count)

    async def explain(self, lane: str, count: int) -> LaneView:
        """The learned limits of a lane, and the limit changes that led to them."""
        name = _lane(lane)
        async with self._database.connection() as connection:
            found = await learned_limits.of_lanes(connection, [name])
            limit_changes = await learned_limits.log(connection, name, count)
        return LaneView(name, self._clock.now(), found, limit_changes, self._limits.limits_of(name).learned.per_second)

    async def all(self) -> LaneList:
        now = self._clock.now()
        async with self._database.connection() as connection:
            return LaneList(
                now,
                await lanes.reports(connection, now - lanes.REPORTS_SHOWN_FOR),
                await learned_limits.changed_after(connection, LONG_AGO),
                await lanes.pauses(connection),
            )

    async def first(self, count: int, *, part: str = "", stopped_first: bool = False) -> FirstLanes:
        """The busiest lanes whose names contain the part; resting ones first, if asked. `shown` puts pauses first."""
        if "\0" in part:
            raise invalid("`lane`: a lane's name can't contain a NUL character.")
        since = self._clock.now() - lanes.REPORTS_SHOWN_FOR
        async with self._database.connection() as connection:
            return await lanes.first_lanes(
                connection, since, count, part=part.strip().lower(), stopped_first=stopped_first
            )

    async def shown(self, names: Sequence[str], count: int, *, part: str = "") -> LaneList:
        """This many lanes: the paused ones whose names contain the part, then the given ones."""
        async with self._database.connection() as connection:
            pauses = [pause for pause in await lanes.pauses(connection) if part.strip().lower() in pause.lane]
            first = dict.fromkeys([*(pause.lane for pause in pauses), *names])
            return await self._known(connection, list(first)[:count], pauses)

    async def one(self, lane: str) -> LaneList:
        """Empty unless it has mail, has learned something or is paused."""
        async with self._database.connection() as connection:
            return await self._known(connection, [_lane(lane)], await lanes.pauses(connection))

    async def _known(self, connection: Connection, names: Sequence[str], pauses: Sequence[LanePause]) -> LaneList:
        now = self._clock.now()
        return LaneList(
            now,
            await lanes.reports(connection, now - lanes.REPORTS_SHOWN_FOR, names),
            await learned_limits.of_lanes(connection, names),
            [pause for pause in pauses if pause.lane in names],
        )

    async def pause(self, lane: str, reason: str) -> None:
        """Start no session in the lane until it is resumed; every worker knows within seconds."""
        name, now = _lane(lane), self._clock.now()
        async with self._database.transaction() as tx:
            if not await lanes.begin_pause(tx, name, reason, now):
                raise Refusal(Code.CONFLICT, f"{name} is already paused: `posthouse lane list` says since when.")
            await self._operator_log.add_entry(tx, "lane.paused", name, now, {"reason": reason})

    async def resume(self, lane: str) -> int:
        """End the pause: recipients that waited for the lane are due within seconds; returns how many."""
        name, now = _lane(lane), self._clock.now()
        async with self._database.transaction() as tx:
            was_paused = await lanes.end_pause(tx, name)
            if was_paused:
                await self._operator_log.add_entry(tx, "lane.resumed", name, now)
        woken = 0
        while True:
            async with self._database.transaction() as tx:
                now = self._clock.now()
                count = await lanes.wake_paused(tx, name, now, now + PAUSE_KNOWN_WITHIN, WOKEN_BATCH_MAX)
            woken += count
            if not count:
                break
        if not was_paused and not woken:
            raise Refusal(Code.CONFLICT, f"{name} is not paused: `posthouse lane list` shows which lanes are.")
        return woken

    async def undo(self, limit_change_id: int) -> LimitChange:
        """Restore the learned limits from before the limit change, whose cause has no effect for a day."""
        async with self._database.transaction() as tx:
            found = await learned_limits.limit_change(tx, limit_change_id)
            if found is None:
                raise Refusal(
                    Code.NOT_FOUND, f"There is no limit change {limit_change_id}: `posthouse lane log` shows them."
                )
            now = self._clock.now()
            return await self._change(tx, found.change.scope, lambda _: rules.undone(found.change, now))

    async def pin(self, lane: str, per_second: float, ip: str = "") -> LimitChange:
        """Keep the lane at this rate, whatever is refused."""
        most = self._limits.limits_of(_lane(lane)).per_second
        if not rules.PER_SECOND_MIN <= per_second <= most:
            raise invalid(
                f"`per_second` is from {rules.PER_SECOND_MIN:g} to at most the setting's {most:g} messages per second."
            )
        async with self._database.transaction() as tx:
            return await self._change(tx, _place(ip, lane), lambda known: rules.pinned(known, per_second))

    async def unpin(self, lane: str, ip: str = "") -> LimitChange:
        async with self._database.transaction() as tx:
            return await self._change(tx, _place(ip, lane), rules.unpinned)

    async def _change(self, tx: Connection, scope: LaneScope, change: Callable[[LearnedLimits], Change]) -> LimitChange:
        now = self._clock.now()
        stored = (await learned_limits.locked(tx, [scope], now))[scope]
        before = self._limits.limits_of(scope.lane).learned if stored is None else stored.limits
        kind, after = change(before)
        await learned_limits.change(tx, {scope: after}, now)
        limit_change = LimitChange(now, scope, kind, before, after)
        await learned_limits.record(tx, [limit_change])
        target = f"{scope.lane} from {scope.ip}" if scope.ip else scope.lane
        await self._operator_log.add_entry(tx, f"lane.{kind}", target, now, {"per_second": f"{after.per_second:g}"})
        return limit_change


def _place(ip: str, lane: str) -> LaneScope:
    try:
        return LaneScope(str(ip_address(ip.partition("%")[0])) if ip else "", _lane(lane))
    except ValueError:
        raise invalid(f"`address`: {ip!r} is not an IP address: give one of ours, like 192.0.2.1, or none.") from None


def _lane(given: str) -> str:
    name = given.strip().lower()
    if name not in PROVIDERS and "." not in name and not is_relay_lane(name):
        raise invalid(f"`lane`: {given!r} is not a lane: give a domain, or one of {', '.join(PROVIDERS)}.")
    return name


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
    """Where mail waits, what the lanes learned, what is paused.

    `per_second` and `ceiling` are the strictest of its addresses; totals count since the workers started.
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


def listed(found: LaneList) -> list[ListedLane]:
    """The paused first, then the busiest."""
    reports = {row.lane: row for row in merged(found.reports, {})}
    learnt: dict[str, list[LearnedLimits]] = {}
    for row in found.learned_limits:
        if row.scope.branch is not None:
            continue
        learnt.setdefault(row.scope.lane, []).append(row.limits)
    pauses = {row.lane: row for row in found.pauses}
    rows = []
    for name in reports.keys() | learnt.keys() | pauses.keys():
        report, learned_limits, paused = reports.get(name), learnt.get(name, []), pauses.get(name)
        strictest = min(learned_limits, key=lambda learned: learned.per_second, default=None)
        rows.append(
            ListedLane(
                lane=name,
                state="paused" if paused else _state(learned_limits),
                waiting=report.waiting if report else 0,
                in_flight=report.in_flight if report else 0,
                connections=report.connections if report else 0,
                delivered_total=report.delivered_total if report else 0,
                deferred_total=report.deferred_total if report else 0,
                per_second=None if strictest is None else round(strictest.per_second, 3),
                ceiling=min((known.ceiling for known in learned_limits if known.ceiling is not None), default=None),
                rests_until=_rests_until(learned_limits, found.at),
                pinned=any(learned.is_pinned for learned in learned_limits),
                since=paused.since if paused else None,
                reason=paused.reason if paused else None,
                last_reply=report.last_reply if report else None,
            )
        )
    return sorted(rows, key=lambda row: (row.state != "paused", -row.waiting, row.lane))


def _rests_until(learned_limits: "Sequence[LearnedLimits]", now: datetime) -> datetime | None:
    """The end of the longest current pause or block."""
    ends = (known.paused_until for known in learned_limits if known.state is not LaneState.OPEN)
    return max((end for end in ends if end is not None and end > now), default=None)


def _state(learned_limits: "Sequence[LearnedLimits]") -> str:
    """The most serious of several addresses' states."""
    states = {learned.state for learned in learned_limits}
    for state in (LaneState.BLOCKED, LaneState.RESTING):
        if state in states:
            return state
    return LaneState.OPEN
