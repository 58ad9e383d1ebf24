"""Figures of what is stored, for the metrics: measured again and again by one process, not by each.

A figure that can't be measured is taken away, so that no one reads an old one for a new one.
"""

from datetime import date, timedelta

from posthouse import metrics
from posthouse.clock import Clock
from posthouse.flows.shared.tickets import LEASE as TICKET_LEASE
from posthouse.rules import ids
from posthouse.rules.limits import PARTITION_DAYS_AHEAD
from posthouse.store import backlog, delivery_schedule, partitions, restore, search_index
from posthouse.store.partitions import Partition
from posthouse.store.postgres import Database


class QueueFigures:
    def __init__(self, *, database: Database, clock: Clock, ticket_lease: timedelta = TICKET_LEASE) -> None:
        self._database = database
        self._clock = clock
        self._ticket_lease = ticket_lease

    async def run(self) -> None:
        try:
            await self._measure()
        except BaseException:
            for figure in (
                metrics.QUEUE,
                metrics.QUEUE_OLDEST,
                metrics.HELD_AFTER_RESTORE,
                metrics.WEBHOOK_QUEUE,
                metrics.WEBHOOK_QUEUE_OLDEST,
                metrics.WORKERS,
            ):
                figure.clear()
            raise

    async def _measure(self) -> None:
        async with self._database.connection() as connection:
            now = self._clock.now()
            mail = await backlog.backlog(connection, now, now + self._ticket_lease)
            webhooks, webhooks_oldest_due_at = await backlog.due_webhooks(connection, now)
            restored = await restore.count_held(connection, backlog.COUNTED_MAX)
            workers = await delivery_schedule.living_workers(connection, now)
        for state in ("due", "leased", "claimed", "later", "held"):
            metrics.QUEUE.set(getattr(mail, state).number, state)
        metrics.QUEUE_OLDEST.set((now - (mail.oldest_due_at or now)).total_seconds())
        metrics.HELD_AFTER_RESTORE.set(restored)
        metrics.WEBHOOK_QUEUE.set(webhooks.number)
        metrics.WEBHOOK_QUEUE_OLDEST.set((now - (webhooks_oldest_due_at or now)).total_seconds())
        metrics.WORKERS.set(workers)


class StorageFigures:
    def __init__(self, *, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def run(self) -> None:
        try:
            await self._measure()
        except BaseException:
            for figure in (metrics.PARTITIONS, metrics.DAYS_AHEAD, metrics.SEARCH_LAG):
                figure.clear()
            raise

    async def _measure(self) -> None:
        async with self._database.connection() as connection:
            now = self._clock.now()
            attached = await partitions.attached(connection)
            progress = await search_index.progress(connection)
        metrics.PARTITIONS.replace(
            {(table,): sum(partition.table == table for partition in attached) for table in partitions.TABLES}
        )
        metrics.DAYS_AHEAD.set(_days_ahead(set(attached), now.date()))
        if progress is not None:
            behind = now - ids.time_of(min(progress.messages_to, progress.events_to))
            metrics.SEARCH_LAG.set(max(0.0, behind.total_seconds()))


def _days_ahead(attached: set[Partition], today: date) -> int:
    """The days after today, one after another, for which every table has a partition; -1 without today's."""
    ahead = -1
    while ahead <= PARTITION_DAYS_AHEAD and all(
        Partition(today + timedelta(days=ahead + 1), table) in attached for table in partitions.TABLES
    ):
        ahead += 1
    return ahead
