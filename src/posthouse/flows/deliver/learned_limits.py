"""Learned limits of a worker's lanes: written soon after each limit change, and read often, so that all workers know
them.

The pauses of lanes that operators ordered are read as well.

A limit change that is not written when its worker dies is lost, and learned again from the next refusal.
"""

import asyncio
from collections import deque
from collections.abc import Set
from datetime import datetime, timedelta
from typing import Final

from posthouse.flows.shared.context import Context
from posthouse.rules.learned_limits import LaneScope, LearnedLimits, LimitChange, reconciled
from posthouse.store import lanes, learned_limits
from posthouse.store.learned_limits import StoredLearnedLimits

# A bound on limit changes that could not be written yet: the oldest are dropped, but not the learned limits.
UNWRITTEN_MAX: Final = 10_000
# A change is visible once it is committed, up to this long after its timestamp.
OVERLAP: Final = timedelta(seconds=30)
BEGINNING: Final = datetime.fromisoformat("2000-01-01T00:00:00+00:00")


class LearnedLimitsSync:
    def __init__(self, context: Context) -> None:
        self._database = context.database
        self._clock = context.clock
        self._known: dict[LaneScope, StoredLearnedLimits] = {}
        self._changed: dict[LaneScope, LearnedLimits] = {}
        self._limit_changes: deque[LimitChange] = deque(maxlen=UNWRITTEN_MAX)
        self._read_at = BEGINNING
        self._turn = asyncio.Lock()

    @property
    def are_read(self) -> bool:
        return self._read_at > BEGINNING

    def limits_of(self, scope: LaneScope) -> LearnedLimits | None:
        """None for a lane that has learned nothing."""
        known = self._known.get(scope)
        return self._changed.get(scope) or (known.limits if known else None)

    def learn(self, limit_change: LimitChange) -> None:
        self._changed[limit_change.scope] = limit_change.after
        self._limit_changes.append(limit_change)

    async def write(self) -> dict[LaneScope, LearnedLimits]:
        """Write what this worker learned; returns limits that differ from it, because others learned as well."""
        async with self._turn:
            return await self._write() if self._changed else {}

    async def read(self) -> tuple[dict[LaneScope, LearnedLimits], Set[str]]:
        """What others learned since the last time, and the names of all paused lanes."""
        async with self._turn:
            now = self._clock.now()
            async with self._database.connection() as connection:
                found = await learned_limits.changed_after(connection, self._read_at)
                paused = await lanes.pauses(connection)
            self._read_at = now - OVERLAP
            changed = {}
            for stored in found:
                # Versions start over after maintenance has forgotten a lane's learned limits. What this worker learned
                # in the meantime builds on the former version: the two are reconciled when it is written.
                if self._known.get(stored.scope) != stored and stored.scope not in self._changed:
                    self._known[stored.scope] = stored
                    changed[stored.scope] = stored.limits
            return changed, {pause.lane for pause in paused}

    async def _write(self) -> dict[LaneScope, LearnedLimits]:
        changed, self._changed = self._changed, {}
        limit_changes, self._limit_changes = self._limit_changes, deque(maxlen=UNWRITTEN_MAX)
        now = self._clock.now()
        written: dict[LaneScope, StoredLearnedLimits] = {}
        try:
            async with self._database.transaction() as tx:
                for scope, stored in (await learned_limits.locked(tx, changed, now)).items():
                    learned = self._merged(stored, changed[scope])
                    version = 1 if stored is None else stored.version + 1
                    written[scope] = StoredLearnedLimits(scope, learned, version, now)
                await learned_limits.change(tx, {scope: stored.limits for scope, stored in written.items()}, now)
                await learned_limits.record(tx, limit_changes)
        except BaseException:
            self._changed = changed | self._changed
            self._limit_changes = deque([*limit_changes, *self._limit_changes], maxlen=UNWRITTEN_MAX)
            raise
        # What this worker learned in the meantime builds on the former version.
        current = {
            scope: stored
            for scope, stored in written.items()
            if stored.limits == changed[scope] or scope not in self._changed
        }
        self._known |= current
        return {scope: stored.limits for scope, stored in current.items() if stored.limits != changed[scope]}

    def _merged(self, stored: StoredLearnedLimits | None, learnt: LearnedLimits) -> LearnedLimits:
        if stored is None:
            return learnt
        known = self._known.get(stored.scope)
        if known is not None and known.version == stored.version:
            return learnt
        return reconciled(stored.limits, learnt, known.limits if known else None)
