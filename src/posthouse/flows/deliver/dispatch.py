"""Dispatch: publishes tickets for what is due, and makes the claims of dead workers due again.

Intake itself publishes the tickets for new mail. Dispatch handles retries and lost tickets.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

import structlog

from posthouse import crash, metrics
from posthouse.clock import Clock
from posthouse.flows.shared.tickets import KIND_NAMES, Tickets
from posthouse.rules.claim import WORKER_LEASE
from posthouse.rules.ticket import Ticket
from posthouse.store import delivery_schedule, webhook_schedule
from posthouse.store.postgres import Connection, Database
from posthouse.wire.stream import TicketKind

log = structlog.get_logger(__name__)

# The more rows are leased together, the more of them share a page of a long schedule, and the less each costs. But a
# worker that claims such a row at the same time must wait, and gives up after half a second (`lock_timeout`).
DISPATCH_BATCH_MIN: Final = 1_000
DISPATCH_BATCH_MAX: Final = 8_000
LEASE_SECONDS_MAX: Final = 0.4
# After this many tickets, other tasks get to run.
PUBLISH_BATCH_MAX: Final = 1_000
# While this many messages are in the stream, more would only repeat the same tickets. Their work is still due when
# the workers have caught up.
BACKLOG_MAX: Final = 10_000
# Intake publishes new mail directly, and could keep the stream full for days. So this many of the recipients that
# have been due the longest are published all the same, this often.
FORCED_BATCH: Final = 100
FORCED_SECONDS: Final = 10.0
# In normal operation the database's time and ours drift apart by less than this.
JUMP_SECONDS_MAX: Final = 2.0
# After a longer gap between two checks it is not known whether the database was available all the time.
UNSEEN_SECONDS_MAX: Final = 10.0

_MAIL: Final = ("dispatch.leased", "dispatch.before_publish", "dispatch.published")
_CALLS: Final = ("dispatch.calls_leased", "dispatch.before_publish_of_calls", "dispatch.calls_published")


class Dispatch:
    def __init__(
        self, *, database: Database, clock: Clock, tickets: Tickets, worker_lease: timedelta = WORKER_LEASE
    ) -> None:
        self._database = database
        self._clock = clock
        self._tickets = tickets
        self._worker_lease_seconds = worker_lease.total_seconds()
        self._batch_max = dict.fromkeys(TicketKind, DISPATCH_BATCH_MIN)
        self._was_idle = dict.fromkeys(TicketKind, False)
        self._forced_at = dict.fromkeys(TicketKind, clock.monotonic())
        self._sure_since: float | None = None
        self._last_check: tuple[datetime, float] | None = None

    def is_idle(self, kind: TicketKind) -> bool:
        """Whether the last step found nothing due."""
        return self._was_idle[kind]

    async def step(self) -> int:
        """Lease due mail, commit, publish; returns how many. From DISPATCH_BATCH_MIN on, there may be more."""
        return await self._dispatch(TicketKind.DELIVER, delivery_schedule.lease_due, _MAIL)

    async def step_calls(self) -> int:
        """The same for webhooks."""
        return await self._dispatch(TicketKind.NOTIFY, webhook_schedule.lease_due, _CALLS)

    async def _dispatch(
        self,
        kind: TicketKind,
        lease_due: Callable[[Connection, datetime, datetime, int], Awaitable[Sequence[Ticket]]],
        points: tuple[str, str, str],
    ) -> int:
        self._was_idle[kind] = False
        backlog = await self._tickets.backlog(kind)
        metrics.STREAM_PENDING.set(backlog, KIND_NAMES[kind])
        capacity = BACKLOG_MAX - backlog
        if capacity <= 0:
            capacity = self._forced_capacity(kind)
        if not capacity:
            return 0
        # If this raises, the next step starts with few again.
        batch_max, self._batch_max[kind] = self._batch_max[kind], DISPATCH_BATCH_MIN
        now = self._clock.now()
        async with self._database.transaction() as tx:
            began = self._clock.monotonic()
            due = await lease_due(tx, now, now + self._tickets.lease, min(capacity, batch_max))
            if due:
                crash.point(points[0])
        if len(due) == batch_max:
            self._batch_max[kind] = batch_after(batch_max, self._clock.monotonic() - began)
        if due:
            crash.point(points[1])
            for start in range(0, len(due), PUBLISH_BATCH_MAX):
                self._tickets.publish(due[start : start + PUBLISH_BATCH_MAX])
                await asyncio.sleep(0)
            crash.point(points[2])
        self._was_idle[kind] = not due
        return len(due)

    def _forced_capacity(self, kind: TicketKind) -> int:
        now = self._clock.monotonic()
        if now - self._forced_at[kind] < FORCED_SECONDS:
            return 0
        self._forced_at[kind] = now
        return FORCED_BATCH

    async def reclaim(self) -> int:
        """Make the claims of dead workers due now; returns how many.

        Workers renew their leases in the same database. While it was unavailable none of them could, and a jump of
        its clock ends leases of living workers. So no worker counts as dead before the database has been available,
        and its clock steady, for a whole lease.
        """
        sure_since, self._sure_since = self._sure_since, None
        self._note_gap()
        # If this raises, the wait starts again.
        async with self._database.transaction() as tx:
            now = self._clock.monotonic()
            if sure_since is None or self._last_check is None:
                sure_since = now
            is_sure = now - sure_since >= self._worker_lease_seconds
            reclaimed = await _reclaimed(tx, self._clock.now()) if is_sure else 0
            if reclaimed:
                crash.point("reclaim.before_commit")
        self._sure_since = sure_since
        self._last_check = self._clock.now(), self._clock.monotonic()
        if reclaimed:
            crash.point("reclaim.after_commit")
            log.warning("claims_taken_back", claims=reclaimed)
            metrics.RECLAIMED.count(by=reclaimed)
        return reclaimed

    def _note_gap(self) -> None:
        if self._last_check is None:
            return
        then, then_seconds = self._last_check
        passed = self._clock.monotonic() - then_seconds
        jump = (self._clock.now() - then).total_seconds() - passed
        if abs(jump) > JUMP_SECONDS_MAX:
            log.warning("database_time_jumped", seconds=round(jump, 1))
            self._last_check = None
        elif passed > UNSEEN_SECONDS_MAX:
            log.warning("dispatch_was_stopped", seconds=round(passed, 1))
            self._last_check = None


def batch_after(batch_max: int, seconds: float) -> int:
    """How many rows to lease next: more if twice this many would not take too long."""
    if seconds > LEASE_SECONDS_MAX:
        return DISPATCH_BATCH_MIN
    return min(2 * batch_max, DISPATCH_BATCH_MAX) if 2 * seconds <= LEASE_SECONDS_MAX else batch_max


async def _reclaimed(tx: Connection, now: datetime) -> int:
    # Webhooks first: making the mail's claims due also deletes the dead workers.
    return await webhook_schedule.reclaim_expired_workers(tx, now) + await delivery_schedule.reclaim_expired_workers(
        tx, now
    )
