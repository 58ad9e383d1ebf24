"""Delivery: a ticket in hand becomes an attempt on record, a mail on the wire, and an outcome on record.

Claim, carry, record, and no network inside a transaction. A bundle of tickets is claimed when its lane grants
it a turn; claims and outcomes of many mails share their transactions. The claim stands on the worker's lease:
before the final dot the lease must still be good, and an outcome counts only while its fence does. A ticket
is acknowledged last. Whatever is lost on the way, the calendar brings back.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

import structlog

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.gathering import Gatherer
from posthouse.flows.letters import Letters
from posthouse.flows.sorting import Bundle, Queue, SortingOffice
from posthouse.flows.tickets import Item, items_of
from posthouse.rules import event, ids, lane, outcome, retry, simulator
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.lane import LaneLimits, Limits, Served, Slot
from posthouse.rules.lease import WORKER_LEASE, Lease
from posthouse.rules.outcome import Broken, GivenUp, Happening, Replied, Stage, Suppressed
from posthouse.rules.refusal import Refusal
from posthouse.rules.retry import Schedule
from posthouse.rules.ticket import DeliveryTicket
from posthouse.store import claims, deliveries, lane_reports, schedule
from posthouse.store.claims import Claimed
from posthouse.store.deliveries import Event, Outcome, Result
from posthouse.store.directory import Directory
from posthouse.store.lane_reports import LaneState
from posthouse.store.postgres import Database
from posthouse.store.schedule import Key, Postponement
from posthouse.wire.carrier import Carriage, Carrier
from posthouse.wire.dns import Resolver
from posthouse.wire.stream import Delivery as Carried

log = structlog.get_logger(__name__)

# Tickets in hand, waiting for their turn or being carried.
HELD_MAX: Final = 20_000
HEARTBEAT_AFTER_SECONDS: Final = 15.0
# Longer than the longest attempt: whatever a living worker forgot is due again then.
CLAIM_LONGEST: Final = timedelta(minutes=60)
CARRY_LONGEST_SECONDS: Final = 55 * 60.0
# How soon a suspended account's mail is looked at again.
HOLD_LOOK: Final = timedelta(minutes=5)
STORAGE_AWAY_SECONDS: Final = 2.0
# Nobody stands by while mail is claimed and recorded: a transaction that waits this long is shared by more of it.
LINGER_SECONDS: Final = 0.02
# A mail that couldn't be made ready (its key can't be opened): a fault of ours, and no attempt of its own.
UNREADY: Final = timedelta(minutes=1)
# Bodies that don't come along with their claims, in memory at a time.
LARGE_BODIES_MAX: Final = 32
# Nobody's server is behind the simulator.
SIMULATOR_LIMITS: Final = Limits(per_second=10_000.0, burst=10_000, connections_start=50, connections_max=50)
CUT_SHORT: Final = "the service was stopped"
FAULT_OF_OURS: Final = "the service failed"

_Work = TypeVar("_Work")
_Done = TypeVar("_Done")


@dataclass(slots=True)
class _Leave:
    """Whether the final dot may be written; asked once, at the last moment."""

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
        return self.is_given


class _Happened(NamedTuple):
    """What became of one recipient; no happening means that nothing was tried, and it may be at `again_at`."""

    claimed: Claimed
    happening: Happening | None
    carriage: Carriage | None = None
    again_at: datetime | None = None


class Delivery:
    def __init__(
        self,
        *,
        database: Database,
        directory: Directory,
        clock: Clock,
        chance: Chance,
        resolver: Resolver,
        carrier: Carrier,
        letters: Letters,
        simulator_domain: str,
        lane_limits: LaneLimits,
        retries: Schedule = retry.DELIVERY,
        sessions_max: int = 500,
        worker_lease: timedelta = WORKER_LEASE,
    ) -> None:
        self.worker_id = UUID(bytes=chance.bytes(16))
        self._database = database
        self._directory = directory
        self._clock = clock
        self._chance = chance
        self._carrier = carrier
        self._simulator_domain = simulator_domain
        self._retries = retries
        self._worker_lease = worker_lease
        self._lease = Lease(worker_lease.total_seconds())
        simulated = {simulator_domain: SIMULATOR_LIMITS}
        self._office = SortingOffice(
            clock=clock,
            resolver=resolver,
            lane_limits=replace(lane_limits, by_lane={**lane_limits.by_lane, **simulated}),
            sessions_max=sessions_max,
            own_lane=simulator_domain,
            start=self._deliver,
            put_off=self._put_off,
        )
        self._claiming: Gatherer[Sequence[DeliveryTicket], list[Claimed]] = Gatherer(
            self._claim_batch, linger_seconds=LINGER_SECONDS
        )
        self._recording: Gatherer[Sequence[Outcome], None] = Gatherer(self._record_batch, linger_seconds=LINGER_SECONDS)
        self._postponing: Gatherer[Sequence[Postponement], None] = Gatherer(self._postpone_batch)
        self._held: dict[Key, tuple[Item, float]] = {}
        self._known_claims: set[tuple[AccountId, MessageId, int]] = set()
        # A claim whose commit was not heard of may hold recipients that nobody here knows of.
        self._is_unsure = False
        self._is_stopping = False
        self._letters = letters
        self._large_bodies = asyncio.Semaphore(LARGE_BODIES_MAX)

    @property
    def room(self) -> int:
        """How many more tickets this worker can take in hand."""
        return 0 if self._is_stopping else HELD_MAX - len(self._held)

    async def offer(self, carried: Iterable[Carried]) -> None:
        """Take tickets in hand. One that is in hand already, or can't be read, is dropped."""
        now = self._clock.monotonic()
        items = []
        for one in carried:
            for item in await items_of(one):
                key = _key(item.ticket)
                if key in self._held:
                    await item.carried.ack()
                    continue
                self._held[key] = item, now
                items.append(item)
        self._office.sort(items)

    async def renew(self) -> None:
        """The worker, and with it its claims, live on."""
        asked_at = self._clock.monotonic()
        async with self._database.transaction() as tx:
            await schedule.renew_worker(tx, self.worker_id, self._clock.now() + self._worker_lease)
        self._lease.renewed(asked_at, self._clock.monotonic())
        if self._is_unsure:
            await self._claiming.submit((), 0)  # nothing new, but what is unknown is let go

    async def heartbeat(self) -> None:
        """The stream learns which tickets are still in hand, and doesn't give them to someone else."""
        now = self._clock.monotonic()
        for key, (item, since) in list(self._held.items()):
            if now - since >= HEARTBEAT_AFTER_SECONDS and key in self._held:
                self._held[key] = item, now
                await item.carried.working()

    def share(self, held: int, shards: int) -> None:
        """This worker holds so many of the stream's shards; its part of the providers' lanes is the same."""
        self._office.share(max(1, round(shards / held)) if held else 1)

    async def report(self) -> None:
        """Write down how the lanes stand, for whoever looks."""
        now, seconds = self._clock.now(), self._clock.monotonic()
        states = []
        for queue in self._office.queues:
            pause = queue.lane.pause_left(seconds)
            states.append(
                LaneState(
                    lane=queue.name,
                    waiting=queue.waiting,
                    in_flight=queue.lane.in_use,
                    connections=queue.lane.connections,
                    delivered_total=queue.counts.delivered,
                    deferred_total=queue.counts.deferred,
                    paused_until=now + timedelta(seconds=pause) if pause else None,
                    last_reply=queue.counts.last_reply,
                )
            )
        async with self._database.transaction() as tx:
            await lane_reports.report(tx, self.worker_id, states, now)

    async def settle(self) -> None:
        """Return when everything in hand has come to its end."""
        while self._office.tasks:
            await asyncio.wait(self._office.tasks)

    async def drain(self, seconds: float) -> None:
        """Give back what waits, let finish what is on its way, and withdraw what doesn't in time.

        Nothing is left unrecorded but, if the database stays away, what the lease's end gives back.
        """
        self._is_stopping = True
        for item in self._office.close():
            await self._give_back(item)
        if self._office.tasks:
            _, unfinished = await asyncio.wait(self._office.tasks, timeout=seconds * 2 / 3)
            for task in unfinished:
                task.cancel()
            if unfinished:
                await asyncio.wait(unfinished, timeout=seconds / 3)
        try:
            async with asyncio.timeout(STORAGE_AWAY_SECONDS), self._database.transaction() as tx:
                await schedule.retire_worker(tx, self.worker_id)
        except (Refusal, TimeoutError):
            log.warning("worker_not_retired", worker=str(self.worker_id))

    # From a turn in the lane to the ticket's end.

    async def _deliver(self, queue: Queue, slot: Slot, bundle: Bundle) -> None:
        served = Served.OTHERWISE
        happened: list[_Happened] = []
        try:
            items = await self._held_back_apart(bundle)
            leave = self._leave()
            claimed = await self._claiming.submit([item.ticket for item in items], 0) if items else []
            happened, served = await self._carry(queue, bundle, claimed, leave)
        except Refusal as refusal:
            # The database is away: tickets come again when it may be back.
            log.info("claim_refused", cause=repr(refusal.__cause__))
            for item in bundle.items:
                await self._give_back(item, STORAGE_AWAY_SECONDS)
            return
        except Exception:
            # A fault of ours, which the next ticket may meet again: no sooner than the calendar says.
            log.exception("claim_failed", message=ids.text(ids.MESSAGE, bundle.message_id))
            for item in bundle.items:
                await self._done_with(item)
            return
        finally:
            self._office.leave_slot(queue, slot, served)
        outcomes = [self._outcome(one) for one in happened]
        self._count(queue, outcomes)
        await self._record(outcomes)
        for item in bundle.items:
            await self._done_with(item)

    async def _held_back_apart(self, bundle: Bundle) -> list[Item]:
        """What of the bundle is to be claimed: all of it, unless its account is suspended and so its mail is held."""
        if not await self._directory.is_suspended(bundle.account_id):
            return bundle.items
        now = self._clock.now()
        keys = [_key(item.ticket) for item in bundle.items]
        async with self._database.connection() as connection:
            over = await schedule.held_too_long(connection, keys, now)
        later = now + HOLD_LOOK * (0.5 + self._chance.fraction())
        held = [Postponement(*key, next_at=later, is_held=True) for key in keys if key not in over]
        if held:
            await self._postponing.submit(held, 0)
        return [item for item in bundle.items if _key(item.ticket) in over]

    async def _carry(
        self, queue: Queue, bundle: Bundle, claimed: Sequence[Claimed], leave: _Leave
    ) -> tuple[list[_Happened], Served]:
        happened = [_Happened(one, Suppressed()) for one in claimed if one.is_suppressed]
        happened += [_Happened(one, self._given_up(one)) for one in claimed if one.is_over and not one.is_suppressed]
        tried = [one for one in claimed if not one.is_suppressed and not one.is_over]
        if not tried:
            return happened, Served.OTHERWISE
        if bundle.destination == self._simulator_domain:
            happened += [_Happened(one, simulator.rehearse(one.email, bundle.destination)) for one in tried]
            return happened, Served.WELL
        message = tried[0].message
        if message.mime_bytes is None:
            happened += [_Happened(one, GivenUp("the message is no longer stored")) for one in tried]
            return happened, Served.OTHERWISE
        carriage = await self._carried(bundle, tried, leave)
        if carriage is None:
            again_at = self._clock.now() + (timedelta(0) if leave.is_refused or self._is_stopping else UNREADY)
            happened += [_Happened(one, None, None, again_at) for one in tried]
            return happened, Served.OTHERWISE
        happened += [
            _Happened(one, happening, carriage) for one, happening in zip(tried, carriage.happenings, strict=True)
        ]
        return happened, _served(queue.name, carriage)

    async def _carried(self, bundle: Bundle, tried: Sequence[Claimed], leave: _Leave) -> Carriage | None:
        """What the destination said; None when the mail was withdrawn, or never made ready, and nothing was tried."""
        try:
            async with nullcontext() if tried[0].message.mime is not None else self._large_bodies:
                parcel = await self._letters.parcel(tried)
                carriage = await self._carrier.carry(bundle.destination, parcel, leave)
        except asyncio.CancelledError:
            if not self._is_stopping:
                raise
            reason = CUT_SHORT
        except Exception:
            log.exception("mail_not_carried", message=ids.text(ids.MESSAGE, bundle.message_id))
            reason = FAULT_OF_OURS
        else:
            return None if leave.is_refused else carriage
        # What may have arrived is remembered as such; everything else never happened.
        return Carriage((Broken(Stage.DOT, reason),) * len(tried)) if leave.is_given else None

    def _leave(self) -> _Leave:
        monotonic = self._clock.monotonic
        return _Leave(self._lease, self._lease.era, monotonic() + CARRY_LONGEST_SECONDS, monotonic)

    # What follows.

    def _given_up(self, claimed: Claimed) -> GivenUp:
        if claimed.attempt_count >= self._retries.attempts_max:
            return GivenUp(f"it was tried {claimed.attempt_count} times, and not every time brought an answer")
        if claimed.held >= retry.HOLD_MAX:
            return GivenUp("it was held for 7 days because the account was suspended")
        return GivenUp("it could not be delivered in the time that a message may take")

    def _outcome(self, happened: _Happened) -> Outcome:
        claimed, happening, carriage, again_at = happened
        now = self._clock.now()
        if happening is None:
            return Outcome(*claimed.key, Result.POSTPONED, next_at=again_at or now)
        verdict = outcome.judge(happening)
        consequence = outcome.follow(
            verdict,
            attempts=claimed.attempt_count,
            accepted_at=claimed.message.created_at,
            now=now,
            random=self._chance.fraction(),
            held=claimed.held,
            schedule=self._retries,
        )
        result = Result(consequence.status)
        return Outcome(
            *claimed.key,
            result,
            event=self._event(claimed, result, verdict, now) if result.is_final else None,
            next_at=consequence.next_at,
            suppress=verdict.suppress,
            is_ambiguous=verdict.ambiguous,
            exchange=carriage.exchange if carriage else None,
            address=carriage.address if carriage else None,
            tls=carriage.tls if carriage else None,
            stage=happening.stage if isinstance(happening, Replied | Broken) else None,
            code=verdict.code,
            response=verdict.text,
        )

    def _event(self, claimed: Claimed, result: Result, verdict: outcome.Verdict, now: datetime) -> Event:
        event_id = ids.new_id(now, self._chance.bytes(ids.RANDOM_BYTES))
        kind = event.Type(f"email.{result}")
        body = event.body(
            event_id=event_id,
            type=kind,
            created_at=now,
            message_id=claimed.message_id,
            position=claimed.position,
            to=claimed.email,
            sender=claimed.message.envelope_sender,
            subject=claimed.message.subject,
            smtp_code=verdict.code,
            smtp_response=verdict.text,
        )
        return Event(event_id, kind, body)

    def _count(self, queue: Queue, outcomes: Sequence[Outcome]) -> None:
        for one in outcomes:
            queue.counts.delivered += one.result is Result.DELIVERED
            queue.counts.deferred += one.result is Result.DEFERRED
            if one.response is not None:
                queue.counts.last_reply = one.response if one.code is None else f"{one.code} {one.response}"

    # Tickets.

    def _put_off(self, late: list[tuple[Item, float]]) -> None:
        self._office.spawn(self._postpone(late))

    async def _postpone(self, late: list[tuple[Item, float]]) -> None:
        now = self._clock.now()
        postponements = [
            Postponement(*_key(item.ticket), next_at=now + timedelta(seconds=seconds)) for item, seconds in late
        ]
        try:
            await self._postponing.submit(postponements, 0)
        except Refusal:
            for item, _ in late:
                await self._give_back(item, STORAGE_AWAY_SECONDS)
            return
        except Exception:
            # The calendar brings them back all the same.
            log.exception("not_postponed", recipients=len(late))
        for item, _ in late:
            await self._done_with(item)

    async def _done_with(self, item: Item) -> None:
        self._held.pop(_key(item.ticket), None)
        await item.carried.ack()

    async def _give_back(self, item: Item, delay_seconds: float = 0.0) -> None:
        self._held.pop(_key(item.ticket), None)
        await item.carried.release(delay_seconds)

    # What many mails share.

    async def _record(self, outcomes: Sequence[Outcome]) -> None:
        """However long the database is away: what happened to a mail can't be made undone, so it is told."""
        while outcomes:
            try:
                await self._recording.submit(outcomes, 0)
                break
            except Refusal:
                await asyncio.sleep(STORAGE_AWAY_SECONDS / 2)
            except Exception:
                # Nobody will know: it counts as an attempt without a report, and is tried again in time.
                log.exception("outcome_not_recorded", message=ids.text(ids.MESSAGE, outcomes[0].message_id))
                break
        for one in outcomes:
            self._known_claims.discard(one.key[:3])

    async def _claim_batch(self, batch: Sequence[Sequence[DeliveryTicket]]) -> list[list[Claimed] | BaseException]:
        return await _together_or_apart(batch, self._claim)

    async def _claim(self, batch: Sequence[Sequence[DeliveryTicket]]) -> list[list[Claimed] | BaseException]:
        tickets = [ticket for tickets in batch for ticket in tickets]
        was_unsure, self._is_unsure = self._is_unsure, True
        now = self._clock.now()
        async with self._database.transaction() as tx:
            if was_unsure:
                await schedule.let_go(tx, self.worker_id, self._known_claims, now)
            found = await claims.claim(tx, self.worker_id, tickets, now, now + CLAIM_LONGEST, self._retries)
        self._is_unsure = False
        self._known_claims.update(one.key[:3] for one in found)
        # By the fence as well: beside the ticket that counted there may be an older one for the same recipient.
        by_key: dict[Key, Claimed] = {(*one.key[:3], one.fence - 1): one for one in found}
        return [[by_key[key] for ticket in tickets if (key := _key(ticket)) in by_key] for tickets in batch]

    async def _record_batch(self, batch: Sequence[Sequence[Outcome]]) -> list[BaseException | None]:
        return await _together_or_apart(batch, self._write_outcomes)

    async def _write_outcomes(self, batch: Sequence[Sequence[Outcome]]) -> list[BaseException | None]:
        async with self._database.transaction() as tx:
            recorded = await deliveries.record(tx, [one for outcomes in batch for one in outcomes], self._clock.now())
        for late in recorded.late:
            log.warning("outcome_came_late", message=ids.text(ids.MESSAGE, late.message_id), result=late.result.value)
        return [None] * len(batch)

    async def _postpone_batch(self, batch: Sequence[Sequence[Postponement]]) -> list[BaseException | None]:
        async with self._database.transaction() as tx:
            await schedule.postpone(tx, [one for late in batch for one in late], self._clock.now())
        return [None] * len(batch)


async def _together_or_apart(
    batch: Sequence[_Work], work: Callable[[Sequence[_Work]], Awaitable[list[_Done | BaseException]]]
) -> list[_Done | BaseException]:
    """One transaction for all; where that fails for a reason that doesn't pass, one for each."""
    try:
        return await work(batch)
    except Refusal:
        raise
    except Exception as fault:
        if len(batch) == 1:
            return [fault]
    done: list[_Done | BaseException] = []
    for one in batch:
        try:
            done += await work([one])
        except Exception as fault:
            done.append(fault)
    return done


def _key(ticket: DeliveryTicket) -> Key:
    return ticket.account_id, ticket.message_id, ticket.position, ticket.fence


def _served(lane_name: str, carriage: Carriage) -> Served:
    happenings = carriage.happenings
    if any(isinstance(one, Replied) and one.reply.code == lane.PUSH_BACK_CODE for one in happenings):
        return Served.PUSHED_BACK
    if any(isinstance(one, Replied) and not outcome.judge(one).next_exchange for one in happenings):
        return Served.WELL
    # One domain of a provider that can't be reached says nothing about its others.
    is_alone = not lane.is_provider(lane_name)
    if is_alone and all(isinstance(one, Replied | Broken) and outcome.judge(one).next_exchange for one in happenings):
        return Served.UNREACHABLE
    return Served.OTHERWISE
