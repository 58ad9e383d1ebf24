"""Backups, as far as this service knows of them: when the last one was made."""

from datetime import datetime

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.shared.operator_log import OperatorLog
from posthouse.store import last_done
from posthouse.store.postgres import Database


class Backups:
    def __init__(self, *, database: Database, clock: Clock, chance: Chance) -> None:
        self._database = database
        self._clock = clock
        self._log = OperatorLog(chance)

    async def note(self) -> datetime:
        """A backup was made just now."""
        async with self._database.transaction() as tx:
            now = self._clock.now()
            await last_done.note(tx, last_done.BACKUP, now)
            await self._log.note(tx, "backup.noted", "database", now)
        return now
