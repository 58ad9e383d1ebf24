"""Lanes for operators: what they have learnt, to read, to undo and to pin; pauses, and their end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Final

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.shared.operator_log import OperatorLog
from posthouse.rules import standing as rules
from posthouse.rules.actor import OPERATOR, Actor
from posthouse.rules.lane import PROVIDERS, LaneLimits
from posthouse.rules.refusal import Code, Refusal, invalid
from posthouse.rules.standing import Change, Lesson, Place, Standing
from posthouse.store import lane_list, lane_pauses, lane_reports, standings
from posthouse.store.delivery_schedule import PAUSE_KNOWN_WITHIN
from posthouse.store.lane_list import FirstLanes as FirstLanes
from posthouse.store.lane_pauses import LanePause as LanePause
from posthouse.store.lane_reports import LaneReport as LaneReport
from posthouse.store.postgres import Connection, Database
from posthouse.store.standings import StoredLesson as StoredLesson
from posthouse.store.standings import StoredStanding as StoredStanding

WOKEN_AT_ONCE_MAX: Final = 1_000
LONG_AGO: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class LaneView:
    """A lane that has learnt nothing has no standings."""

    lane: str
    at: datetime
    standings: Sequence[StoredStanding]
    lessons: Sequence[StoredLesson]
    begins_at: float


@dataclass(frozen=True, slots=True)
class LaneList:
    """All that is known of lanes: where mail waits, what was learnt, what is paused."""

    at: datetime
    reports: Sequence[LaneReport]
    standings: Sequence[StoredStanding]
    pauses: Sequence[LanePause]


class Lanes:
    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        chance: Chance,
        lane_limits: LaneLimits,
        actor: Actor = OPERATOR,
    ) -> None:
        self._database = database
        self._clock = clock
        self._log = OperatorLog(chance, actor)
        self._limits = lane_limits

    async def log(self, lane: str | None, count: int) -> Sequence[StoredLesson]:
        """The latest lessons, newest first."""
        async with self._database.connection() as connection:
            return await standings.log(connection, None if lane is None else _lane(lane), count)

    async def explain(self, lane: str, count: int) -> LaneView:
        """What holds for a lane, and the lessons that led to it."""
        name = _lane(lane)
        async with self._database.connection() as connection:
            found = await standings.of_lanes(connection, [name])
            lessons = await standings.log(connection, name, count)
        return LaneView(name, self._clock.now(), found, lessons, self._limits.of(name).standing.per_second)

    async def all(self) -> LaneList:
        now = self._clock.now()
        async with self._database.connection() as connection:
            return LaneList(
                now,
                await lane_reports.read(connection, now - lane_reports.SHOWN_FOR),
                await standings.changed_after(connection, LONG_AGO),
                await lane_pauses.find_all(connection),
            )

    async def first(self, count: int, *, part: str = "", stopped_first: bool = False) -> FirstLanes:
        """The busiest whose names have the part; before those what rests, if asked. `shown` puts pauses first."""
        if "\0" in part:
            raise invalid("`lane`: no lane's name has a NUL character.")
        since = self._clock.now() - lane_reports.SHOWN_FOR
        async with self._database.connection() as connection:
            return await lane_list.first(
                connection, since, count, part=part.strip().lower(), stopped_first=stopped_first
            )

    async def shown(self, names: Sequence[str], count: int, *, part: str = "") -> LaneList:
        """So many: the paused whose names have the part, then these."""
        async with self._database.connection() as connection:
            pauses = [pause for pause in await lane_pauses.find_all(connection) if part.strip().lower() in pause.lane]
            first = dict.fromkeys([*(pause.lane for pause in pauses), *names])
            return await self._known(connection, list(first)[:count], pauses)

    async def one(self, lane: str) -> LaneList:
        """Empty unless it has mail, has learnt something or is paused."""
        async with self._database.connection() as connection:
            return await self._known(connection, [_lane(lane)], await lane_pauses.find_all(connection))

    async def _known(self, connection: Connection, names: Sequence[str], pauses: Sequence[LanePause]) -> LaneList:
        now = self._clock.now()
        return LaneList(
            now,
            await lane_reports.read(connection, now - lane_reports.SHOWN_FOR, names),
            await standings.of_lanes(connection, names),
            [pause for pause in pauses if pause.lane in names],
        )

    async def pause(self, lane: str, reason: str) -> None:
        """No session begins in the lane until it is resumed; every worker knows within seconds."""
        name, now = _lane(lane), self._clock.now()
        async with self._database.transaction() as tx:
            if not await lane_pauses.begin(tx, name, reason, now):
                raise Refusal(Code.CONFLICT, f"{name} is paused already: `posthouse lane list` says since when.")
            await self._log.note(tx, "lane.paused", name, now, {"reason": reason})

    async def resume(self, lane: str) -> int:
        """What waited for the lane is due within seconds; return how many recipients."""
        name, now = _lane(lane), self._clock.now()
        async with self._database.transaction() as tx:
            was_paused = await lane_pauses.end(tx, name)
            if was_paused:
                await self._log.note(tx, "lane.resumed", name, now)
        woken = 0
        while True:
            async with self._database.transaction() as tx:
                now = self._clock.now()
                count = await lane_pauses.wake(tx, name, now, now + PAUSE_KNOWN_WITHIN, WOKEN_AT_ONCE_MAX)
            woken += count
            if not count:
                break
        if not was_paused and not woken:
            raise Refusal(Code.CONFLICT, f"{name} is not paused: `posthouse lane list` shows what is.")
        return woken

    async def undo(self, lesson_id: int) -> Lesson:
        """The standing is as before the lesson, whose cause teaches nothing for a day."""
        async with self._database.transaction() as tx:
            found = await standings.lesson(tx, lesson_id)
            if found is None:
                raise Refusal(Code.NOT_FOUND, f"There is no lesson {lesson_id}: `posthouse lane log` shows them.")
            now = self._clock.now()
            return await self._change(tx, found.lesson.place, lambda _: rules.undone(found.lesson, now))

    async def pin(self, lane: str, per_second: float, ip: str = "") -> Lesson:
        """The lane keeps this rate, whatever is refused."""
        most = self._limits.of(_lane(lane)).per_second
        if not rules.PER_SECOND_MIN <= per_second <= most:
            raise invalid(
                f"`per_second` is from {rules.PER_SECOND_MIN:g} to at most the setting's {most:g} mails a second."
            )
        async with self._database.transaction() as tx:
            return await self._change(tx, _place(ip, lane), lambda known: rules.pinned(known, per_second))

    async def unpin(self, lane: str, ip: str = "") -> Lesson:
        async with self._database.transaction() as tx:
            return await self._change(tx, _place(ip, lane), rules.unpinned)

    async def _change(self, tx: Connection, place: Place, change: Callable[[Standing], Change]) -> Lesson:
        now = self._clock.now()
        stored = (await standings.locked(tx, [place], now))[place]
        before = self._limits.of(place.lane).standing if stored is None else stored.standing
        kind, after = change(before)
        await standings.change(tx, {place: after}, now)
        lesson = Lesson(now, place, kind, before, after)
        await standings.record(tx, [lesson])
        target = f"{place.lane} from {place.ip}" if place.ip else place.lane
        await self._log.note(tx, f"lane.{kind}", target, now, {"per_second": f"{after.per_second:g}"})
        return lesson


def _place(ip: str, lane: str) -> Place:
    try:
        return Place(str(ip_address(ip.partition("%")[0])) if ip else "", _lane(lane))
    except ValueError:
        raise invalid(f"`address`: {ip!r} is no address: give one of ours, as 192.0.2.1, or none.") from None


def _lane(given: str) -> str:
    name = given.strip().lower()
    if name not in PROVIDERS and "." not in name:
        raise invalid(f"`lane`: {given!r} is no lane: give a domain, or one of {', '.join(PROVIDERS)}.")
    return name
