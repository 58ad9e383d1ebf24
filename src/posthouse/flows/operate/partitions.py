"""The partitions of the large tables: made for the days ahead, dropped after their retention."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final

import structlog

from posthouse import crash
from posthouse.flows.shared.context import Context, Flow
from posthouse.rules import limits
from posthouse.store import maintenance, partitions, postgres
from posthouse.store.partitions import Partition
from posthouse.store.postgres import AdvisoryLock as LockName
from posthouse.store.postgres import Connection

log = structlog.get_logger(__name__)

DAYS_DROPPED_BATCH_MAX: Final = 2
FORGET_FINAL_INTERVAL: Final = timedelta(hours=6)
# In all other tables, a day waits until the messages of that day are dropped or reduced.
_INDEPENDENT: Final = frozenset({"messages", "bodies", "endpoint_events", "webhook_deliveries"})


@dataclass(frozen=True, slots=True)
class Retention:
    """How many days a partition is kept after its own day; bodies and events, as long as a replay could need them."""

    messages_days: int
    bodies_days: int
    webhooks_days: int = 7

    def days(self, table: str) -> int:
        match table:
            case "bodies":
                return self.bodies_days
            case "webhook_deliveries":
                return self.webhooks_days
            case "events" | "endpoint_events":
                return max(self.messages_days, self.webhooks_days)
            case _:
                return self.messages_days


class Partitions(Flow):
    def __init__(
        self,
        context: Context,
        *,
        retention: Retention,
        clock_step: Callable[[], timedelta | None] = lambda: None,
    ) -> None:
        """Nothing is dropped while `clock_step` says that the database's clock is not trusted."""
        super().__init__(context)
        self._retention = retention
        self._clock_step = clock_step
        self._forget_final_at: dict[Partition, datetime] = {}

    async def make(self) -> int:
        """Create every table's missing partitions for yesterday, today and the days ahead."""
        today = self._clock.now().date()
        days = [today + timedelta(days=ahead) for ahead in range(-1, limits.PARTITION_DAYS_AHEAD + 1)]
        wanted = [Partition(day, table) for day in days for table in partitions.TABLES]
        made = 0
        async with (
            self._database.connection() as connection,
            postgres.try_advisory_lock(connection, LockName.PARTITIONS) as is_held,
        ):
            if not is_held:
                return 0
            there = set(await partitions.attached(connection))
            for partition in wanted:
                if partition not in there:
                    async with connection.transaction():
                        await partitions.create(connection, partition)
                        crash.point("maintenance.before_partition")
                    crash.point("maintenance.partition_made")
                    made += 1
        return made

    async def drop(self, *, days_max: int | None = DAYS_DROPPED_BATCH_MAX) -> int:
        """Drop days past their retention, the oldest first; returns how many. Rows that are still needed are kept.

        At most `days_max` days of each table: normally it is one, and a mistake must not delete everything in one run.
        """
        if self._clock_step() is not None:
            return 0
        async with (
            self._database.connection() as connection,
            postgres.try_advisory_lock(connection, LockName.PARTITIONS) as is_held,
        ):
            if not is_held:
                return 0
            for partition in await partitions.detaching(connection):
                await partitions.finish_detaching(connection, partition)
            await self._take_down(connection, days_max)
            dropped = self._over(await partitions.detached(connection), days_max)
            for partition in dropped:
                async with connection.transaction():
                    await partitions.drop(connection, partition)
                    crash.point("maintenance.before_drop")
                crash.point("maintenance.dropped")
        return len(dropped)

    async def _take_down(self, connection: Connection, days_max: int | None) -> None:
        """Detach days past their retention; reduce days with rows that are still needed to those rows.

        Messages come first: what belongs to a message stays as long as the message's own row.
        """
        attached = await partitions.attached(connection)
        whole = {partition.day for partition in attached if partition.table == "messages" and not partition.is_reduced}
        taken: Counter[str] = Counter()
        for partition in self._over(attached, None):
            follows = partition.table not in _INDEPENDENT
            if taken[partition.table] == days_max or (follows and partition.day in whole):
                continue
            async with connection.transaction():
                is_needed = await maintenance.is_needed(connection, partition)
            if not is_needed:
                crash.point("maintenance.before_detaching")
                await partitions.detach(connection, partition)
                crash.point("maintenance.detached")
                self._forget_final_at.pop(partition, None)
            elif not await self._reduce(connection, partition):
                continue
            taken[partition.table] += not partition.is_reduced
            if partition.table == "messages":
                whole.discard(partition.day)

    async def _reduce(self, connection: Connection, partition: Partition) -> bool:
        """Reduce the day to the rows that are still needed; False if its table is in use for too long."""
        if partition.is_reduced:
            await self._forget_final(connection, partition)
            return True
        try:
            async with connection.transaction():
                reduced = await maintenance.reduce(connection, partition)
                crash.point("maintenance.before_reducing")
        except maintenance.TableInUse as fault:
            log.warning("partition_in_use", partition=partition.name, reason=str(fault))
            return False
        crash.point("maintenance.reduced")
        log.info("partition_reduced", partition=partition.name)
        await self._forget_final(connection, reduced)
        return True

    async def _forget_final(self, connection: Connection, reduced: Partition) -> None:
        """Delete what became final since then; not in every run, because that reads all remaining rows of the day."""
        now = self._clock.now()
        if now < self._forget_final_at.get(reduced, now):
            return
        self._forget_final_at[reduced] = now + FORGET_FINAL_INTERVAL
        page: int | None = 0
        while page is not None:
            async with connection.transaction():
                page = await maintenance.forget_final(connection, reduced, page)
                crash.point("maintenance.before_forgetting_final")
            crash.point("maintenance.forgotten_final")

    def _over(self, found: Iterable[Partition], days_max: int | None) -> list[Partition]:
        """The days past their retention, the oldest of each table."""
        over = [partition for partition in found if partition.day < self._last_kept(partition.table)]
        over.sort(key=lambda partition: (partition.day, partitions.TABLES.index(partition.table)))
        taken: Counter[str] = Counter()
        kept = []
        for partition in over:
            taken[partition.table] += 1
            if days_max is None or taken[partition.table] <= days_max:
                kept.append(partition)
        return kept

    def _last_kept(self, table: str) -> date:
        return self._clock.now().date() - timedelta(days=self._retention.days(table))
