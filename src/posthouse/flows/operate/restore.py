"""After a restore: whether PostgreSQL continues what was known, and what is held until an operator has seen it.

Each process looks again and again (`check`), and notes service time; the note is what it remembers. The first that
finds a restored database holds everything that was accepted before, in steps; meanwhile nothing is claimed.
"""

import asyncio
from datetime import datetime, timedelta
from typing import Final

import structlog

from posthouse.chance import Chance
from posthouse.clock import DatabaseClock
from posthouse.flows.shared.operator_log import OperatorLog
from posthouse.rules.refusal import invalid
from posthouse.rules.restore import Continuity, NotedTime, judge
from posthouse.store import delivery_schedule, restore, service_clock
from posthouse.store.postgres import Connection, Database
from posthouse.store.restore import HeldAfterRestore as HeldAfterRestore

log = structlog.get_logger(__name__)

STEP: Final = 1_000
AGES: Final = (timedelta(minutes=10), timedelta(hours=1), timedelta(hours=6), timedelta(days=1))
ROWS_MAX: Final = 20
# Until a transaction that had locked the rest has ended.
LOCKED_SECONDS: Final = 0.5
ADVICE: Final = "What was accepted before is held: see `posthouse restore show`."


class RestoreCheck:
    """One for each process. With `holds` off, every timeline is trusted."""

    def __init__(self, *, database: Database, clock: DatabaseClock, chance: Chance, holds: bool = True) -> None:
        self._database = database
        self._clock = clock
        self._hold = _Hold(database, clock, chance)
        self._holds = holds
        self._remembered: NotedTime | None = None

    async def check(self) -> None:
        """Trust the timeline, or hold what the schedule has; then note service time."""
        async with self._database.transaction() as tx:
            continuity = await self._judged(tx)
            if continuity is Continuity.UNKNOWN:
                # Without a note: it would look as if nothing were missing.
                return
            if continuity is not Continuity.TRUSTED:
                await restore.lock(tx)
                continuity = await self._judged(tx)
            if continuity is Continuity.RESTORED:
                await restore.distrust(tx)
            elif continuity is Continuity.PROMOTED:
                await restore.trust(tx)
            noted = NotedTime(self._clock.now(), self._clock.acceptances)
            if continuity is not Continuity.RESTORED:
                await service_clock.note(tx, noted.service_time, noted.acceptances)
        if continuity is Continuity.RESTORED:
            self._remembered = None
            await self._hold.everything()
        else:
            self._remembered = noted
        if continuity is Continuity.PROMOTED:
            log.warning("timeline_trusted")

    async def _judged(self, tx: Connection) -> Continuity:
        found = await restore.find(tx)
        if not self._holds and not found.is_being_held:
            return Continuity.TRUSTED if found.doubted_for is None else Continuity.PROMOTED
        return judge(self._remembered, found)


class Restores:
    """For operators."""

    def __init__(self, *, database: Database, clock: DatabaseClock, chance: Chance) -> None:
        self._database = database
        self._clock = clock
        self._hold = _Hold(database, clock, chance)

    async def begin(self) -> int:
        """Hold everything that was accepted before now; return how many recipients.

        Refused while workers run: what they send at this moment would be held as well, and its results lost.
        """
        async with self._database.connection() as connection:
            workers = await delivery_schedule.living_workers(connection, self._clock.now())
        if workers:
            raise invalid(f"{workers} delivery workers have a lease: stop them, and wait until it has ended.")
        async with self._database.transaction() as tx:
            await restore.lock(tx)
            await restore.distrust(tx)
        return await self._hold.everything()

    async def held(self) -> HeldAfterRestore:
        async with self._database.connection() as connection:
            return await restore.held(connection, self._clock.now(), AGES, ROWS_MAX)


class _Hold:
    def __init__(self, database: Database, clock: DatabaseClock, chance: Chance) -> None:
        self._database = database
        self._clock = clock
        self._log = OperatorLog(chance)

    async def everything(self) -> int:
        """Hold it in steps, and trust the timeline; return how many recipients this process held."""
        total = 0
        while True:
            async with self._database.transaction() as tx:
                now = self._clock.now()
                before = await restore.hold_before(tx)
                if before is None:  # another process has done the rest
                    return total
                count = await restore.hold(tx, before, now, STEP)
                total += count
                if not count and not await restore.is_left(tx, before):
                    await self._trust(tx, now)
                    return total
            if not count:
                await asyncio.sleep(LOCKED_SECONDS)

    async def _trust(self, tx: Connection, now: datetime) -> None:
        recipients = await restore.trust_restored(tx, now)
        if recipients is not None:
            # In the same transaction: what other processes remember is missing no longer.
            await service_clock.note(tx, now, self._clock.acceptances)
            await self._log.note(tx, "restore.held", "database", now, {"recipients": recipients})
            log.error("mail_held_after_restore", recipients=recipients, advice=ADVICE)
