"""After a restore: checks whether PostgreSQL continues the known timeline, and holds mail until an operator decides.

Each process checks repeatedly (`check`), and notes service time; the note is what it remembers. The first that finds a
restored database holds everything that was accepted before, in steps. Until that is done, nothing is claimed. Operators
see here whether the database's clock is trusted, and accept its time.
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog

from posthouse.clock import DatabaseClock, host_time
from posthouse.flows.shared.context import Context, Flow
from posthouse.rules.refusal import invalid
from posthouse.rules.restore import Continuity, NotedTime, judge
from posthouse.store import delivery_schedule, maintenance, restore
from posthouse.store.postgres import Connection
from posthouse.store.restore import HeldAfterRestore as HeldAfterRestore

log = structlog.get_logger(__name__)

STEP: Final = 1_000
AGES: Final = (timedelta(minutes=10), timedelta(hours=1), timedelta(hours=6), timedelta(days=1))
ROWS_MAX: Final = 20
# The pause until a transaction that had locked the remaining rows has ended.
LOCKED_SECONDS: Final = 0.5
ADVICE: Final = "What was accepted before is held: see `posthouse restore show`."


class RestoreCheck(Flow):
    """One for each process. Without `holds`, every timeline is trusted."""

    _clock: DatabaseClock

    def __init__(self, context: Context, *, clock: DatabaseClock, holds: bool = True) -> None:
        super().__init__(context)
        self._clock = clock
        self._hold = _Hold(context, clock=clock)
        self._holds = holds
        self._remembered: NotedTime | None = None

    async def check(self) -> None:
        """Trust the timeline, or hold everything in the schedule; then note service time."""
        async with self._database.transaction() as tx:
            continuity = await self._judged(tx)
            if continuity is Continuity.UNKNOWN:
                # Without noting the time, or it would look as if nothing were missing.
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
                await restore.note_service_time(tx, noted.service_time, noted.acceptances)
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


class Restores(Flow):
    """Backups that were made, and the state of the restore, for operators."""

    _clock: DatabaseClock

    def __init__(self, context: Context, *, clock: DatabaseClock) -> None:
        super().__init__(context)
        self._clock = clock
        self._hold = _Hold(context, clock=clock)

    async def begin(self) -> int:
        """Hold everything that was accepted before now; returns how many recipients.

        Refused while workers run: mail that they are sending would be held as well, and its results lost.
        """
        async with self._database.connection() as connection:
            workers = await delivery_schedule.living_workers(connection, self._clock.now())
        if workers:
            raise invalid(f"{workers} delivery workers have a lease: stop them, and wait until their leases end.")
        async with self._database.transaction() as tx:
            await restore.lock(tx)
            await restore.distrust(tx)
        return await self._hold.everything()

    async def note_backup(self) -> datetime:
        """Note that a backup was just made."""
        async with self._database.transaction() as tx:
            now = self._clock.now()
            await maintenance.note_run(tx, maintenance.BACKUP, now)
            await self._operator_log.add_entry(tx, "backup.noted", "database", now)
        return now

    async def held(self) -> HeldAfterRestore:
        async with self._database.connection() as connection:
            return await restore.held(connection, self._clock.now(), AGES, ROWS_MAX)


class _Hold(Flow):
    _clock: DatabaseClock

    def __init__(self, context: Context, *, clock: DatabaseClock) -> None:
        super().__init__(context)
        self._clock = clock

    async def everything(self) -> int:
        """Hold everything in steps, and trust the timeline; returns how many recipients this process held."""
        total = 0
        while True:
            async with self._database.transaction() as tx:
                now = self._clock.now()
                before = await restore.hold_before(tx)
                if before is None:  # another process has done the rest
                    return total
                count = await restore.hold(tx, before, now, STEP)
                total += count
                if not count and not await restore.is_mail_to_hold(tx, before):
                    await self._trust(tx, now)
                    return total
            if not count:
                await asyncio.sleep(LOCKED_SECONDS)

    async def _trust(self, tx: Connection, now: datetime) -> None:
        recipients = await restore.trust_restored(tx, now)
        if recipients is not None:
            # In the same transaction, so that other processes no longer find missing what they remember.
            await restore.note_service_time(tx, now, self._clock.acceptances)
            await self._operator_log.add_entry(tx, "restore.held", "database", now, {"recipients": recipients})
            log.error("mail_held_after_restore", recipients=recipients, advice=ADVICE)


@dataclass(frozen=True, slots=True)
class ClockState:
    """`step` is how far the database's clock is ahead of service time, while it is not trusted."""

    service_time: datetime
    database_time: datetime
    host_time: datetime
    step: timedelta | None


class ServiceClock(Flow):
    _clock: DatabaseClock

    def __init__(self, context: Context, *, clock: DatabaseClock) -> None:
        super().__init__(context)
        self._clock = clock

    async def state(self) -> ClockState:
        async with self._database.connection() as connection:
            reading = await restore.read_clock(connection)
        return ClockState(self._clock.now(), reading.database_time, host_time(), self._clock.step)

    async def accept(self) -> None:
        """Make the database's time the service time; every process follows within seconds."""
        async with self._database.transaction() as tx:
            await restore.accept_clock(tx)
            step = self._clock.step
            detail = {"step_seconds": 0 if step is None else round(step.total_seconds())}
            await self._operator_log.add_entry(tx, "clock.accepted", "database", self._clock.now(), detail)
