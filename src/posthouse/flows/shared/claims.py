"""Claims: what a worker does with its tickets in PostgreSQL, from the claim to the recorded outcome.

It is the same for mail and webhooks; only `ClaimStore` differs. Claims and outcomes of many tickets share their
transactions, and nothing inside one waits for the network. A claim is valid while the worker's lease is, and an outcome
counts only while its fence is current. A ticket is acknowledged last. Whatever is lost on the way, the schedule makes
due again.

The worker remembers what it has claimed and not yet recorded. If the connection breaks during a claim's COMMIT, rows
may be claimed for this worker without its knowledge. It is then *unsure*: the next claim first releases all rows of
this worker that it does not know of, in the same transaction (decision 0013).
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

import structlog

from posthouse import crash, metrics
from posthouse.clock import Clock
from posthouse.flows.shared.background_tasks import BackgroundTasks
from posthouse.flows.shared.group_commit import GroupCommit, together_or_apart
from posthouse.flows.shared.tickets import HeldTickets, Item, TicketT
from posthouse.flows.shared.worker_lease import SendPermit, WorkerLease
from posthouse.rules import limits
from posthouse.rules.claim import BatchDelay
from posthouse.rules.refusal import Refusal
from posthouse.rules.ticket import Ticket
from posthouse.store.postgres import Connection, Database
from posthouse.wire.stream import StreamMessage

log = structlog.get_logger(__name__)

# How long a ticket stays in the stream when PostgreSQL can't be reached.
STORAGE_AWAY_SECONDS: Final = 2.0


class KeyedClaim(Protocol):
    """`key` begins with the account and ends with the fence; what precedes the fence names the row."""

    @property
    def key(self) -> tuple[object, ...]: ...

    @property
    def fence(self) -> int: ...


class KeyedOutcome(Protocol):
    @property
    def key(self) -> tuple[object, ...]: ...

    @property
    def result(self) -> StrEnum: ...


ClaimedT = TypeVar("ClaimedT", bound=KeyedClaim)
OutcomeT = TypeVar("OutcomeT", bound=KeyedOutcome)


class Postponement(NamedTuple, Generic[TicketT]):
    """`is_held`: the account is suspended, outbound mail is captured, or the lane `held_by` is paused."""

    ticket: TicketT
    next_at: datetime
    is_held: bool = False
    held_by: str | None = None


class Recorded(NamedTuple, Generic[OutcomeT]):
    """`late` outcomes came after another claim or record, and changed nothing. `tickets` are to be published.

    `settled` and `released` are credits.
    """

    late: Sequence[OutcomeT]
    tickets: Sequence[Ticket] = ()
    settled: int = 0
    released: int = 0


@dataclass(frozen=True, slots=True)
class CrashPoints:
    """The names of the crash points around each step; an empty name is none."""

    before_claim_commit: str
    after_claim_commit: str
    before_record_commit: str
    after_record_commit: str
    before_ack: str
    after_ack: str
    before_postpone_commit: str = ""
    after_postpone_commit: str = ""


class ClaimStore(ABC, Generic[TicketT, ClaimedT, OutcomeT]):
    """The statements for one kind of work, each inside the transaction `tx`."""

    kind: str  # its name in the metrics
    points: CrashPoints

    @abstractmethod
    async def claim(
        self, tx: Connection, worker_id: UUID, tickets: Sequence[TicketT], now: datetime
    ) -> Sequence[ClaimedT]:
        """Claim the rows whose fence is still the ticket's."""

    @abstractmethod
    async def release_unknown(
        self, tx: Connection, worker_id: UUID, known: Collection[ClaimedT], now: datetime
    ) -> None:
        """Make the worker's claims that are not among the known ones due now."""

    @abstractmethod
    async def record(self, tx: Connection, outcomes: Sequence[OutcomeT], now: datetime) -> Recorded[OutcomeT]: ...

    @abstractmethod
    async def postpone(self, tx: Connection, postponements: Sequence[Postponement[TicketT]], now: datetime) -> None: ...

    @abstractmethod
    def log_fields(self, work: TicketT | OutcomeT) -> Mapping[str, str]:
        """The fields that identify the work in a log line."""

    def is_claimed_alone(self, claimed: ClaimedT) -> bool:
        """Whether it can't be claimed together with the others of its group."""
        del claimed
        return False

    def publish(self, tickets: Sequence[Ticket]) -> None:
        """Publish the tickets that a committed record has created."""


class _NotTogetherError(Exception):
    """A group was claimed whose members must be claimed one by one."""


class Claims(Generic[TicketT, ClaimedT, OutcomeT]):
    """One instance for each process and kind of work. Nothing may be claimed before the lease was renewed once."""

    def __init__(
        self,
        store: ClaimStore[TicketT, ClaimedT, OutcomeT],
        kind: type[TicketT],
        *,
        database: Database,
        clock: Clock,
        lease: WorkerLease,
        claim_batch_delay: BatchDelay,
        record_batch_delay: BatchDelay,
    ) -> None:
        self._store: ClaimStore[TicketT, ClaimedT, OutcomeT] = store
        self._points = store.points
        self._database = database
        self._clock = clock
        self._lease = lease
        self._held: HeldTickets[TicketT] = HeldTickets(kind, clock.monotonic)
        self._claiming: GroupCommit[Sequence[TicketT], list[ClaimedT]] = GroupCommit(
            self._claim_batch, batch_delay=claim_batch_delay
        )
        self._recording: GroupCommit[Sequence[OutcomeT], None] = GroupCommit(
            self._record_batch, batch_delay=record_batch_delay
        )
        self._postponing: GroupCommit[Sequence[Postponement[TicketT]], None] = GroupCommit(self._postpone_batch)
        # By their keys without the fence.
        self._known: dict[tuple[object, ...], ClaimedT] = {}
        self._is_unsure = False
        self.is_stopping = False
        self.tasks = BackgroundTasks()

    @property
    def worker_id(self) -> UUID:
        return self._lease.id

    @property
    def capacity(self) -> int:
        """How many more tickets this worker can hold."""
        return 0 if self.is_stopping else self._held.capacity

    @property
    def is_idle(self) -> bool:
        """Whether this worker holds no ticket."""
        return self._held.is_empty

    def permit(self, seconds_max: float) -> SendPermit:
        """To be created before the claim, so that the claim is not older than its permit."""
        return self._lease.permit(seconds_max)

    async def take_tickets(self, messages: Iterable[StreamMessage]) -> list[Item[TicketT]]:
        return await self._held.take_tickets(messages)

    async def renew(self) -> None:
        await self._lease.renew()
        if self._is_unsure:
            await self._claiming.submit(())  # claims nothing, but releases unknown rows

    async def heartbeat(self) -> None:
        await self._held.heartbeat()

    async def drain(self, waiting: Iterable[Item[TicketT]], seconds: float) -> None:
        """Give back waiting tickets, let running work finish, and retire the worker.

        Everything is recorded, unless PostgreSQL stays unavailable: then the end of the lease makes it due again.
        """
        self.is_stopping = True
        await self._held.release_tickets(waiting)
        await self.tasks.finish(seconds)
        await self._lease.retire()

    def claim(self, tickets: Sequence[TicketT]) -> Awaitable[list[ClaimedT]]:
        """The claims for a group of tickets, without those of late tickets.

        If the members of a group must be claimed one by one, only the first is claimed.
        """
        return self._claiming.submit(tickets, tickets[0].account_id if tickets else None, len(tickets))

    def hurry(self) -> None:
        """Shorten the delay, because others wait for what is being claimed."""
        self._claiming.hurry()

    async def record(self, outcomes: Sequence[OutcomeT]) -> None:
        """Retry however long PostgreSQL is unavailable: sent mail can't be withdrawn, so its outcome must be stored."""
        if not outcomes:
            return
        while True:
            try:
                await self._recording.submit(outcomes, outcomes[0].key[0], len(outcomes))
            except Refusal:
                await asyncio.sleep(STORAGE_AWAY_SECONDS / 2)
                continue
            except Exception:
                # The attempt stays counted and without an outcome; the schedule makes it due again.
                log.exception("outcome_not_recorded", **self._store.log_fields(outcomes[0]))
                metrics.UNRECORDED.count(self._store.kind, by=len(outcomes))
            break
        self.forget(outcomes)

    def forget(self, outcomes: Iterable[OutcomeT]) -> None:
        """Forget these claims."""
        for outcome in outcomes:
            self._known.pop(outcome.key[:-1], None)

    async def postpone(self, postponements: Sequence[Postponement[TicketT]]) -> None:
        """Void tickets that were not claimed, and make their rows due later."""
        for start in range(0, len(postponements), limits.GROUP_COMMIT_RECIPIENTS_MAX):
            part = postponements[start : start + limits.GROUP_COMMIT_RECIPIENTS_MAX]
            await self._postponing.submit(part, recipients=len(part))

    async def postpone_items(self, late: Sequence[tuple[Item[TicketT], float]]) -> None:
        """Postpone tickets for which there is no space, each by its seconds."""
        now = self._clock.now()
        items = [item for item, _ in late]
        try:
            await self.postpone([Postponement(item.ticket, now + timedelta(seconds=seconds)) for item, seconds in late])
        except Refusal:
            await self._held.release_tickets(items, STORAGE_AWAY_SECONDS)
            return
        except Exception:
            # The schedule makes them due again all the same.
            log.exception("not_postponed", tickets=len(items))
        await self._held.acknowledge(items)

    async def acknowledge(self, items: Iterable[Item[TicketT]]) -> None:
        crash.point(self._points.before_ack)
        await self._held.acknowledge(items)
        crash.point(self._points.after_ack)

    async def release_tickets(self, items: Iterable[Item[TicketT]]) -> None:
        await self._held.release_tickets(items)

    async def give_up(self, items: Sequence[Item[TicketT]], fault: Exception) -> None:
        """Give up tickets whose work failed before there was an outcome."""
        if isinstance(fault, Refusal):
            # PostgreSQL is unavailable: the stream delivers the tickets again when it may be back.
            log.debug("claim_refused", cause=repr(fault.__cause__))
            await self._held.release_tickets(items, STORAGE_AWAY_SECONDS)
            return
        # The fault is ours, and would repeat immediately, so the schedule decides when to try again.
        fields = self._store.log_fields(items[0].ticket) if items else {}
        log.error("claim_failed", exc_info=fault, **fields)
        await self._held.acknowledge(items)

    async def _claim_batch(self, batch: Sequence[Sequence[TicketT]]) -> list[list[ClaimedT] | BaseException]:
        return await together_or_apart(batch, self._claim)

    async def _claim(self, batch: Sequence[Sequence[TicketT]]) -> list[list[ClaimedT] | BaseException]:
        tickets = [ticket for group in batch for ticket in group]
        was_unsure, self._is_unsure = self._is_unsure, True
        now = self._clock.now()
        try:
            async with self._database.transaction() as tx:
                if was_unsure:
                    await self._store.release_unknown(tx, self.worker_id, self._known.values(), now)
                found = await self._store.claim(tx, self.worker_id, tickets, now)
                # The fence is part of the key: an older ticket for the same row may be next to the one that counted.
                by_key = {_ticket_key(claimed): claimed for claimed in found}
                groups = [[by_key[ticket.key] for ticket in group if ticket.key in by_key] for group in batch]
                together = [group for group in groups if len(group) > 1]
                if any(self._store.is_claimed_alone(group[0]) for group in together):
                    raise _NotTogetherError
                crash.point(self._points.before_claim_commit)
        except _NotTogetherError:
            # Rolled back: nothing is claimed, and now it is known which groups must be reduced to one member.
            self._is_unsure = was_unsure
            return await self._claim([self._narrowed(*pair) for pair in zip(batch, groups, strict=True)])
        crash.point(self._points.after_claim_commit)
        self._is_unsure = False
        self._known |= {claimed.key[:-1]: claimed for claimed in found}
        return list(groups)

    def _narrowed(self, tickets: Sequence[TicketT], claimed: Sequence[ClaimedT]) -> Sequence[TicketT]:
        if not claimed or not self._store.is_claimed_alone(claimed[0]):
            return tickets
        return [ticket for ticket in tickets if is_claim_of(claimed[0], ticket)]

    async def _record_batch(self, batch: Sequence[Sequence[OutcomeT]]) -> list[BaseException | None]:
        return await together_or_apart(batch, self._record)

    async def _record(self, batch: Sequence[Sequence[OutcomeT]]) -> list[BaseException | None]:
        async with self._database.transaction() as tx:
            outcomes = [outcome for group in batch for outcome in group]
            recorded = await self._store.record(tx, outcomes, self._clock.now())
            crash.point(self._points.before_record_commit)
        crash.point(self._points.after_record_commit)
        metrics.CREDITS.count("settled", by=recorded.settled)
        metrics.CREDITS.count("released", by=recorded.released)
        self._store.publish(recorded.tickets)
        for late in recorded.late:
            metrics.LATE.count(self._store.kind)
            log.warning("outcome_came_late", result=late.result.value, **self._store.log_fields(late))
        return [None] * len(batch)

    async def _postpone_batch(self, batch: Sequence[Sequence[Postponement[TicketT]]]) -> list[BaseException | None]:
        async with self._database.transaction() as tx:
            await self._store.postpone(tx, [late for group in batch for late in group], self._clock.now())
            crash.point(self._points.before_postpone_commit)
        crash.point(self._points.after_postpone_commit)
        metrics.POSTPONED.count(self._store.kind, by=sum(map(len, batch)))
        return [None] * len(batch)


def is_claim_of(claimed: KeyedClaim, ticket: Ticket) -> bool:
    """Whether it was claimed by this ticket."""
    return ticket.key == _ticket_key(claimed)


def _ticket_key(claimed: KeyedClaim) -> tuple[object, ...]:
    # The claim has raised the fence by one.
    return *claimed.key[:-1], claimed.fence - 1
