"""Standings of a worker's lanes: written soon after each lesson, and read so often that all workers know them.

So are the pauses of lanes that operators ordered.

A lesson that is not written when its worker dies is lost; the next refusal teaches it again.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Set
from datetime import datetime, timedelta
from typing import Final

from posthouse.clock import Clock
from posthouse.rules.standing import Lesson, Place, Standing, reconciled
from posthouse.store import lane_pauses, standings
from posthouse.store.postgres import Database
from posthouse.store.standings import StoredStanding

# Of lessons that could not be written yet, the oldest are dropped; the standings themselves are not.
UNWRITTEN_MAX: Final = 10_000
# A change is seen when it is committed, up to so long after its time.
OVERLAP: Final = timedelta(seconds=30)
BEGINNING: Final = datetime.fromisoformat("2000-01-01T00:00:00+00:00")


class Standings:
    """`adopt` gets each standing that another process changed, and `pause` the names of all paused lanes."""

    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        adopt: Callable[[Place, Standing], None],
        pause: Callable[[Set[str]], None] = lambda _: None,
    ) -> None:
        self._database = database
        self._clock = clock
        self._adopt = adopt
        self._pause = pause
        self._known: dict[Place, StoredStanding] = {}
        self._changed: dict[Place, Standing] = {}
        self._lessons: deque[Lesson] = deque(maxlen=UNWRITTEN_MAX)
        self._read_at = BEGINNING
        self._turn = asyncio.Lock()

    @property
    def are_read(self) -> bool:
        return self._read_at > BEGINNING

    def of(self, place: Place) -> Standing | None:
        """None for a lane that has learnt nothing."""
        known = self._known.get(place)
        return self._changed.get(place) or (known.standing if known else None)

    def learn(self, lesson: Lesson) -> None:
        self._changed[lesson.place] = lesson.after
        self._lessons.append(lesson)

    async def synchronize(self) -> None:
        """Write what was learnt here, and read what was learnt elsewhere."""
        async with self._turn:
            await self._synchronize()

    async def _synchronize(self) -> None:
        if self._changed:
            await self._write()
        now = self._clock.now()
        async with self._database.connection() as connection:
            found = await standings.changed_after(connection, self._read_at)
            paused = await lane_pauses.find_all(connection)
        self._pause({pause.lane for pause in paused})
        self._read_at = now - OVERLAP
        for stored in found:
            # Versions begin anew after upkeep has forgotten a standing. What was learnt here meanwhile was learnt from
            # the one before: the two are reconciled when it is written.
            if self._known.get(stored.place) != stored and stored.place not in self._changed:
                self._known[stored.place] = stored
                self._adopt(stored.place, stored.standing)

    async def _write(self) -> None:
        changed, self._changed = self._changed, {}
        lessons, self._lessons = self._lessons, deque(maxlen=UNWRITTEN_MAX)
        now = self._clock.now()
        written: dict[Place, StoredStanding] = {}
        try:
            async with self._database.transaction() as tx:
                for place, stored in (await standings.locked(tx, changed, now)).items():
                    standing = self._merged(stored, changed[place])
                    version = 1 if stored is None else stored.version + 1
                    written[place] = StoredStanding(place, standing, version, now)
                await standings.change(tx, {place: stored.standing for place, stored in written.items()}, now)
                await standings.record(tx, lessons)
        except BaseException:
            self._changed = changed | self._changed
            self._lessons = deque([*lessons, *self._lessons], maxlen=UNWRITTEN_MAX)
            raise
        for place, stored in written.items():
            is_as_learnt = stored.standing == changed[place]
            # What was learnt here meanwhile was learnt from the one before.
            if is_as_learnt or place not in self._changed:
                self._known[place] = stored
                if not is_as_learnt:
                    self._adopt(place, stored.standing)

    def _merged(self, stored: StoredStanding | None, learnt: Standing) -> Standing:
        if stored is None:
            return learnt
        known = self._known.get(stored.place)
        if known is not None and known.version == stored.version:
            return learnt
        return reconciled(stored.standing, learnt, known.standing if known else None)
