"""What lanes have learnt, for operators: to read, to undo, and to pin."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from posthouse.clock import Clock
from posthouse.rules import standing as rules
from posthouse.rules.lane import PROVIDERS, LaneLimits
from posthouse.rules.refusal import Code, Refusal, invalid
from posthouse.rules.standing import Change, Lesson, Place, Standing
from posthouse.store import standings
from posthouse.store.postgres import Connection, Database
from posthouse.store.standings import StoredLesson as StoredLesson
from posthouse.store.standings import StoredStanding as StoredStanding


@dataclass(frozen=True, slots=True)
class LaneView:
    """A lane that has learnt nothing has no standings."""

    lane: str
    at: datetime
    standings: Sequence[StoredStanding]
    lessons: Sequence[StoredLesson]
    begins_at: float


class Lanes:
    def __init__(self, *, database: Database, clock: Clock, lane_limits: LaneLimits) -> None:
        self._database = database
        self._clock = clock
        self._limits = lane_limits

    async def log(self, lane: str | None, count: int) -> Sequence[StoredLesson]:
        """The latest lessons, newest first."""
        async with self._database.connection() as connection:
            return await standings.log(connection, None if lane is None else _lane(lane), count)

    async def explain(self, lane: str, count: int) -> LaneView:
        """What holds for a lane, and the lessons that led to it."""
        name = _lane(lane)
        async with self._database.connection() as connection:
            found = await standings.of_lane(connection, name)
            lessons = await standings.log(connection, name, count)
        return LaneView(name, self._clock.now(), found, lessons, self._limits.of(name).standing.per_second)

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
        if not 0 < per_second <= self._limits.of(_lane(lane)).per_second:
            most = self._limits.of(_lane(lane)).per_second
            raise invalid(f"A rate is above 0, and at most the setting's {most:g} mails a second.")
        async with self._database.transaction() as tx:
            return await self._change(tx, Place(ip, _lane(lane)), lambda known: rules.pinned(known, per_second))

    async def unpin(self, lane: str, ip: str = "") -> Lesson:
        async with self._database.transaction() as tx:
            return await self._change(tx, Place(ip, _lane(lane)), rules.unpinned)

    async def _change(self, tx: Connection, place: Place, change: Callable[[Standing], Change]) -> Lesson:
        now = self._clock.now()
        stored = (await standings.locked(tx, [place], now))[place]
        before = self._limits.of(place.lane).standing if stored is None else stored.standing
        kind, after = change(before)
        await standings.change(tx, {place: after}, now)
        lesson = Lesson(now, place, kind, before, after)
        await standings.record(tx, [lesson])
        return lesson


def _lane(given: str) -> str:
    name = given.strip().lower()
    if name not in PROVIDERS and "." not in name:
        raise invalid(f"{given!r} is no lane: give a domain, or one of {', '.join(PROVIDERS)}.")
    return name
