"""A worker's lease: while it is valid, the worker owns its claims, and may do what can't be withdrawn."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

import structlog

from posthouse import crash, metrics
from posthouse.clock import Clock
from posthouse.randomness import Randomness
from posthouse.rules.claim import WORKER_LEASE, Lease
from posthouse.rules.refusal import Refusal
from posthouse.store import delivery_schedule
from posthouse.store.postgres import Database

log = structlog.get_logger(__name__)

RETIRE_SECONDS_MAX: Final = 2.0


@dataclass(slots=True)
class SendPermit:
    """Whether the step that can't be withdrawn may be taken; checked once, immediately before it."""

    lease: Lease
    era: int
    good_until: float
    monotonic: Callable[[], float]
    is_given: bool = False
    is_refused: bool = False

    def __call__(self) -> bool:
        now = self.monotonic()
        self.is_given = self.lease.is_good(self.era, now) and now < self.good_until
        self.is_refused = not self.is_given
        if self.is_refused:
            metrics.WITHDRAWN.count()
        return self.is_given


class WorkerLease:
    """One instance for each process and kind of work. Nothing may be claimed under it before it was renewed once.

    The connections of `database` must not have to wait for those that claim and record.
    """

    def __init__(
        self, *, database: Database, clock: Clock, randomness: Randomness, lease: timedelta = WORKER_LEASE
    ) -> None:
        self.id = UUID(bytes=randomness.bytes(16))
        self._database = database
        self._clock = clock
        self._length = lease
        self._lease = Lease(lease.total_seconds())

    async def renew(self) -> None:
        asked_at = self._clock.monotonic()
        async with self._database.transaction() as tx:
            await delivery_schedule.renew_worker(tx, self.id, self._clock.now() + self._length)
            crash.point("worker.before_renewal")
        crash.point("worker.renewed")
        era = self._lease.era
        self._lease.renewed(asked_at, self._clock.monotonic())
        if 0 < era < self._lease.era:
            metrics.LEASE_LOSSES.count()
            log.warning("worker_lease_lost", worker=str(self.id))

    def permit(self, seconds_max: float) -> SendPermit:
        """To be created before the claim is sent, because a claim must not be older than its permit."""
        monotonic = self._clock.monotonic
        return SendPermit(self._lease, self._lease.era, monotonic() + seconds_max, monotonic)

    async def retire(self) -> None:
        """End the lease: remaining claims are due again after the next check for expired workers."""
        try:
            async with asyncio.timeout(RETIRE_SECONDS_MAX), self._database.transaction() as tx:
                await delivery_schedule.retire_worker(tx, self.id)
                crash.point("worker.before_retirement")
            crash.point("worker.retired")
        except (Refusal, TimeoutError):
            log.warning("worker_not_retired", worker=str(self.id))
