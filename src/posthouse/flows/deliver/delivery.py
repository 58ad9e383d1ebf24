"""Delivery: a ticket in hand becomes an attempt on record, a mail on the wire, and an outcome on record.

Claim, carry, record, and no network inside a transaction. A bundle of tickets is claimed when its lane grants
it a turn; claims and outcomes of many mails share their transactions. The claim stands on the worker's lease:
before the final dot the lease must still be good, and an outcome counts only while its fence does. A ticket
is acknowledged last. Whatever is lost on the way, the calendar brings back.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

import structlog

from posthouse import crash
from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.deliver.lane_queues import Bundle, LaneQueue, LaneQueues
from posthouse.flows.deliver.outgoing_mail import OutgoingMail
from posthouse.flows.shared.batching import Batcher, submit_until_taken, together_or_apart
from posthouse.flows.shared.tickets import InHand, Item, Tickets
from posthouse.flows.shared.worker_lease import SendPermit, WorkerLease
from posthouse.rules import event, ids, lane, outcome, retry, simulator
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.lane import LaneLimits, Limits, Served, Slot
from posthouse.rules.lease import WORKER_LEASE
from posthouse.rules.outcome import AttemptResult, GivenUp, NoReply, Replied, Stage, Suppressed
from posthouse.rules.refusal import Refusal
from posthouse.rules.retry import Schedule
from posthouse.rules.ticket import DeliveryTicket
from posthouse.store import delivery_claims, delivery_outcomes, delivery_schedule, lane_reports
from posthouse.store.control_cache import ControlCache
from posthouse.store.delivery_claims import Claimed
from posthouse.store.delivery_outcomes import DeliveryResult, Event, Outcome
from posthouse.store.delivery_schedule import DeliveryPostponement, Key
from posthouse.store.lane_reports import LaneState
from posthouse.store.postgres import Database
from posthouse.wire.carrier import Carrier, CarrierResult
from posthouse.wire.dns import Resolver
from posthouse.wire.stream import StreamMessage as Carried

log = structlog.get_logger(__name__)

# Longer than the longest attempt, with the wait for an answer after the dot: whatever a living worker forgot is due
# again then.
CLAIM_LONGEST: Final = timedelta(minutes=60)
CARRY_LONGEST_SECONDS: Final = 45 * 60.0
# How soon a suspended account's mail is looked at again.
HOLD_LOOK: Final = timedelta(minutes=15)
STORAGE_AWAY_SECONDS: Final = 2.0
# An event is of the moment at which it is recorded, or of one shortly before.
EVENT_AGE_MAX: Final = timedelta(seconds=1)
# Nobody stands by while mail is claimed and recorded: a transaction that waits this long is shared by more of it.
LINGER_SECONDS: Final = 0.02
# A mail that couldn't be made ready (its key can't be opened): a fault of ours, and no attempt of its own.
UNREADY: Final = timedelta(minutes=1)
# Bodies that don't come along with their claims, in memory at a time; what finds no room tries again soon.
LARGE_BYTES_MAX: Final = 256 * 1024 * 1024
NO_ROOM: Final = timedelta(seconds=5)
# Nobody's server is behind the simulator.
SIMULATOR_LIMITS: Final = Limits(per_second=10_000.0, burst=10_000, connections_start=50, connections_max=50)
CUT_SHORT: Final = "the service was stopped"
FAULT_OF_OURS: Final = "the service failed"


class _Happened(NamedTuple):
    """What became of one recipient; no happening means that nothing was tried, and it may be at `again_at`."""

    claimed: Claimed
    happening: AttemptResult | None
    carriage: CarrierResult | None = None
    again_at: datetime | None = None


class _NotTogetherError(Exception):
    """Recipients were claimed together of whom each gets a letter of its own."""


class Delivery:
    def __init__(
        self,
        *,
        database: Database,
        control_cache: ControlCache,
        clock: Clock,
        chance: Chance,
        resolver: Resolver,
        carrier: Carrier,
        outgoing_mail: OutgoingMail,
        simulator_domain: str,
        lane_limits: LaneLimits,
        retries: Schedule = retry.DELIVERY,
        sessions_max: int = 500,
        worker_lease: timedelta = WORKER_LEASE,
        renewals: Database | None = None,
        tickets: Tickets | None = None,
        large_bytes_max: int = LARGE_BYTES_MAX,
    ) -> None:
        """Without tickets, what an account is to be told is due at once, and dispatch finds it.

        `renewals` are connections for the lease alone, which must not wait for those that claim and record.
        """
        self._worker = WorkerLease(database=renewals or database, clock=clock, chance=chance, lease=worker_lease)
        self._hands = InHand(DeliveryTicket, clock.monotonic)
        self._database = database
        self._control_cache = control_cache
        self._clock = clock
        self._chance = chance
        self._carrier = carrier
        self._tickets = tickets
        self._simulator_domain = simulator_domain
        self._retries = retries
        simulated = {simulator_domain: SIMULATOR_LIMITS}
        self._lane_queues = LaneQueues(
            clock=clock,
            resolver=resolver,
            lane_limits=replace(lane_limits, by_lane={**lane_limits.by_lane, **simulated}),
            sessions_max=sessions_max,
            own_lane=simulator_domain,
            start=self._deliver,
            put_off=self._put_off,
        )
        self._claiming: Batcher[Sequence[DeliveryTicket], list[Claimed]] = Batcher(
            self._claim_batch, linger_seconds=LINGER_SECONDS
        )
        self._recording: Batcher[Sequence[Outcome], None] = Batcher(self._record_batch, linger_seconds=LINGER_SECONDS)
        self._postponing: Batcher[Sequence[DeliveryPostponement], None] = Batcher(self._postpone_batch)
        self._known_claims: set[tuple[AccountId, MessageId, int]] = set()
        # A claim whose commit was not heard of may hold recipients that nobody here knows of.
        self._is_unsure = False
        self._is_stopping = False
        self._outgoing_mail = outgoing_mail
        self._large_bytes_max = large_bytes_max
        self._large_bytes = 0
        # Those whose mail can still be withdrawn.
        self._carrying: set[asyncio.Task[None]] = set()

    @property
    def worker_id(self) -> UUID:
        return self._worker.id

    @property
    def room(self) -> int:
        """How many more tickets this worker can take in hand."""
        return 0 if self._is_stopping else self._hands.room

    async def offer(self, carried: Iterable[Carried]) -> None:
        """Take tickets in hand, and send off whatever may go."""
        taken = await self._hands.take(carried)
        if taken:
            crash.point("delivery.offered")
        self._lane_queues.sort(taken)

    async def renew(self) -> None:
        await self._worker.renew()
        if self._is_unsure:
            await self._claiming.submit((), 0)  # nothing new, but what is unknown is let go

    async def heartbeat(self) -> None:
        await self._hands.heartbeat()

    def share(self, held: int, shards: int) -> None:
        """This worker holds so many of the stream's shards; its part of the providers' lanes is the same."""
        self._lane_queues.share(max(1, round(shards / held)) if held else 1)

    async def report(self) -> None:
        """Write down how the lanes stand, for whoever looks."""
        now, seconds = self._clock.now(), self._clock.monotonic()
        states = []
        for queue in self._lane_queues.queues:
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
            await lane_reports.report(tx, self._worker.id, states, now)

    async def settle(self) -> None:
        """Return when everything in hand has come to its end."""
        while self._lane_queues.tasks:
            await asyncio.wait(self._lane_queues.tasks)

    async def drain(self, seconds: float) -> None:
        """Give back what waits, let finish what is on its way, and withdraw what doesn't in time.

        Nothing is left unrecorded but, if the database stays away, what the lease's end gives back.
        """
        self._is_stopping = True
        await self._hands.give_back(self._lane_queues.close())
        await self._worker.end(self._lane_queues.tasks, self._carrying, seconds)

    # From a turn in the lane to the ticket's end.

    async def _deliver(self, queue: LaneQueue, slot: Slot, bundle: Bundle) -> None:
        try:
            await self._take_turn(queue, slot, bundle)
        finally:
            # No sooner: until it is on record, a mail that was taken could be sent again, and counts as under way.
            self._lane_queues.end_session()

    async def _take_turn(self, queue: LaneQueue, slot: Slot, bundle: Bundle) -> None:
        served = Served.OTHERWISE
        happened: list[_Happened] = []
        try:
            items = await self._held_back_apart(bundle)
            leave = self._worker.leave(CARRY_LONGEST_SECONDS)
            crash.point("claim.before")
            claimed = await self._claiming.submit([item.ticket for item in items], 0) if items else []
            if len(items) > 1 and claimed and self._outgoing_mail.is_personal(claimed[0].message):
                await self._leave_the_others(queue, bundle, items, claimed[0])
            happened, served = await self._carry(queue, bundle, claimed, leave)
        except Refusal as refusal:
            # The database is away: tickets come again when it may be back.
            log.debug("claim_refused", cause=repr(refusal.__cause__))
            await self._hands.give_back(bundle.items, STORAGE_AWAY_SECONDS)
            return
        except Exception:
            # A fault of ours, which the next ticket may meet again: no sooner than the calendar says.
            log.exception("claim_failed", message=ids.text(ids.MESSAGE, bundle.message_id))
            await self._hands.done_with(bundle.items)
            return
        finally:
            self._lane_queues.leave_slot(queue, slot, served)
        try:
            outcomes = [self._outcome(one) for one in happened]
            self._count(queue, outcomes)
            crash.point("record.before")
            await self._record(outcomes)
        finally:
            crash.point("delivery.before_ack")
            await self._hands.done_with(bundle.items)
            crash.point("delivery.acked")

    async def _held_back_apart(self, bundle: Bundle) -> list[Item[DeliveryTicket]]:
        """What of the bundle is to be claimed: all of it, unless its account is suspended and so its mail is held."""
        if not await self._control_cache.is_suspended(bundle.account_id):
            return bundle.items
        now = self._clock.now()
        keys = [_key(item.ticket) for item in bundle.items]
        async with self._database.connection() as connection:
            over = await delivery_schedule.held_too_long(connection, keys, now)
        later = now + HOLD_LOOK * (0.5 + self._chance.fraction())
        held = [DeliveryPostponement(*key, next_at=later, is_held=True) for key in keys if key not in over]
        if held:
            await self._postponing.submit(held, 0)
        return [item for item in bundle.items if _key(item.ticket) in over]

    async def _leave_the_others(
        self, queue: LaneQueue, bundle: Bundle, items: Sequence[Item[DeliveryTicket]], claimed: Claimed
    ) -> None:
        """Who gets a letter of its own has a turn of its own, and is on record before anyone waits for the others."""
        others = [item for item in items if _key(item.ticket) != _ticket_key(claimed)]
        bundle.items = [item for item in bundle.items if item not in others]
        if self._is_stopping:
            await self._hands.give_back(others)
        else:
            self._lane_queues.sort_apart(queue, others)

    async def _carry(
        self, queue: LaneQueue, bundle: Bundle, claimed: Sequence[Claimed], leave: SendPermit
    ) -> tuple[list[_Happened], Served]:
        happened = [_Happened(one, _suppressed(one)) for one in claimed if one.is_suppressed]
        happened += [_Happened(one, self._given_up(one)) for one in claimed if one.is_over and not one.is_suppressed]
        tried = [one for one in claimed if not one.is_suppressed and not one.is_over]
        if not tried:
            return happened, Served.OTHERWISE
        if bundle.destination == self._simulator_domain:
            happened += [_Happened(one, simulator.simulate(one.email, bundle.destination)) for one in tried]
            return happened, Served.WELL
        message = tried[0].message
        if message.mime_bytes is None:
            happened += [_Happened(one, GivenUp("the message is no longer stored")) for one in tried]
            return happened, Served.OTHERWISE
        carriage = None
        wait = NO_ROOM
        size = 0 if message.mime is not None else message.mime_bytes
        if self._large_bytes + size <= self._large_bytes_max:
            self._large_bytes += size
            try:
                carriage = await self._carried(bundle, tried, leave)
            finally:
                self._large_bytes -= size
            wait = timedelta(0) if leave.is_refused or self._is_stopping else UNREADY
        if carriage is None:
            again_at = self._clock.now() + wait
            happened += [_Happened(one, None, None, again_at) for one in tried]
            return happened, Served.OTHERWISE
        happened += [
            _Happened(one, happening, carriage) for one, happening in zip(tried, carriage.results, strict=True)
        ]
        return happened, _served(queue.name, carriage)

    async def _carried(self, bundle: Bundle, tried: Sequence[Claimed], leave: SendPermit) -> CarrierResult | None:
        """What the destination said; None when the mail was withdrawn, or never made ready, and nothing was tried."""
        task = asyncio.current_task()
        try:
            if task is not None:
                self._carrying.add(task)
            crash.point("carry.before_signing")
            parcel = await self._outgoing_mail.parcel(tried)
            crash.point("carry.before_connecting")
            carriage = await self._carrier.carry(bundle.destination, parcel, leave)
            crash.point("carry.carried")
        except asyncio.CancelledError:
            if not self._is_stopping:
                raise
            reason = CUT_SHORT
        except Refusal as refusal:
            # The database is away, and the letter with it.
            log.debug("letter_not_read", cause=repr(refusal.__cause__))
            return None
        except Exception:
            log.exception("mail_not_carried", message=ids.text(ids.MESSAGE, bundle.message_id))
            reason = FAULT_OF_OURS
        else:
            return None if leave.is_refused else carriage
        finally:
            self._carrying.discard(task)
        # What may have arrived is remembered as such; everything else never happened.
        return CarrierResult((NoReply(Stage.DOT, reason),) * len(tried)) if leave.is_given else None

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
            return Outcome(*claimed.key, DeliveryResult.POSTPONED, next_at=again_at or now)
        verdict = outcome.judge(happening)
        consequence = outcome.recipient_update(
            verdict,
            attempts=claimed.attempt_count,
            accepted_at=claimed.message.created_at,
            now=now,
            random=self._chance.fraction(),
            held=claimed.held,
            schedule=self._retries,
        )
        result = DeliveryResult(consequence.status)
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
            stage=happening.stage if isinstance(happening, Replied | NoReply) else None,
            code=verdict.code,
            response=verdict.text,
        )

    def _event(
        self, claimed: Claimed, result: DeliveryResult, verdict: outcome.DeliveryVerdict, now: datetime
    ) -> Event:
        event_id = ids.new_id(now, self._chance.bytes(ids.RANDOM_BYTES))
        kind = event.EventType(f"email.{result}")
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
        return Event(event_id, kind, body, ids.new_id(now, self._chance.bytes(ids.RANDOM_BYTES)))

    def _timely(self, told: Outcome, now: datetime) -> Outcome:
        """Whoever follows the events reads them in the order of their ids, and would pass by one that comes late."""
        if told.event is None or now - ids.time_of(told.event.id) <= EVENT_AGE_MAX:
            return told
        event_id, delivery_id = (ids.new_id(now, self._chance.bytes(ids.RANDOM_BYTES)) for _ in range(2))
        body = event.with_new_id(told.event.body, event_id, now)
        return replace(told, event=Event(event_id, told.event.type, body, delivery_id))

    def _count(self, queue: LaneQueue, outcomes: Sequence[Outcome]) -> None:
        for one in outcomes:
            queue.counts.delivered += one.result is DeliveryResult.DELIVERED
            queue.counts.deferred += one.result is DeliveryResult.DEFERRED
            if one.response is not None:
                queue.counts.last_reply = one.response if one.code is None else f"{one.code} {one.response}"

    # Tickets.

    def _put_off(self, late: list[tuple[Item[DeliveryTicket], float]]) -> None:
        self._lane_queues.spawn(self._postpone(late))

    async def _postpone(self, late: list[tuple[Item[DeliveryTicket], float]]) -> None:
        now = self._clock.now()
        postponements = [
            DeliveryPostponement(*_key(item.ticket), next_at=now + timedelta(seconds=seconds)) for item, seconds in late
        ]
        items = [item for item, _ in late]
        try:
            await self._postponing.submit(postponements, 0)
        except Refusal:
            await self._hands.give_back(items, STORAGE_AWAY_SECONDS)
            return
        except Exception:
            # The calendar brings them back all the same.
            log.exception("not_postponed", recipients=len(late))
        await self._hands.done_with(items)

    # What many mails share.

    async def _record(self, outcomes: Sequence[Outcome]) -> None:
        """However long the database is away: what happened to a mail can't be made undone, so it is told."""
        if not outcomes:
            return
        try:
            await submit_until_taken(self._recording, outcomes, STORAGE_AWAY_SECONDS / 2)
        except Exception:
            # Nobody will know: it counts as an attempt without a report, and is tried again in time.
            log.exception("outcome_not_recorded", message=ids.text(ids.MESSAGE, outcomes[0].message_id))
        for one in outcomes:
            self._known_claims.discard(one.key[:3])

    async def _claim_batch(self, batch: Sequence[Sequence[DeliveryTicket]]) -> list[list[Claimed] | BaseException]:
        return await together_or_apart(batch, self._claim)

    async def _claim(self, batch: Sequence[Sequence[DeliveryTicket]]) -> list[list[Claimed] | BaseException]:
        tickets = [ticket for tickets in batch for ticket in tickets]
        was_unsure, self._is_unsure = self._is_unsure, True
        now = self._clock.now()
        try:
            async with self._database.transaction() as tx:
                if was_unsure:
                    await delivery_schedule.let_go(tx, self._worker.id, self._known_claims, now)
                found = await delivery_claims.claim(
                    tx, self._worker.id, tickets, now, now + CLAIM_LONGEST, self._retries
                )
                # By the fence as well: beside the ticket that counted there may be an older one for the same recipient.
                by_key = {_ticket_key(one): one for one in found}
                claimed = [[by_key[key] for ticket in tickets if (key := _key(ticket)) in by_key] for tickets in batch]
                if any(len(group) > 1 and self._outgoing_mail.is_personal(group[0].message) for group in claimed):
                    raise _NotTogetherError
                crash.point("claim.before_commit")
        except _NotTogetherError:
            # Nothing is claimed, and now it is known of whom only one may be.
            self._is_unsure = was_unsure
            return await self._claim([self._one_letter(*pair) for pair in zip(batch, claimed, strict=True)])
        crash.point("claim.after_commit")
        self._is_unsure = False
        self._known_claims.update(one.key[:3] for one in found)
        return list(claimed)

    def _one_letter(self, tickets: Sequence[DeliveryTicket], claimed: Sequence[Claimed]) -> Sequence[DeliveryTicket]:
        if not claimed or not self._outgoing_mail.is_personal(claimed[0].message):
            return tickets
        return [ticket for ticket in tickets if _key(ticket) == _ticket_key(claimed[0])]

    async def _record_batch(self, batch: Sequence[Sequence[Outcome]]) -> list[BaseException | None]:
        return await together_or_apart(batch, self._write_outcomes)

    async def _write_outcomes(self, batch: Sequence[Sequence[Outcome]]) -> list[BaseException | None]:
        async with self._database.transaction() as tx:
            now = self._clock.now()
            recorded = await delivery_outcomes.record(
                tx,
                [self._timely(one, now) for outcomes in batch for one in outcomes],
                now,
                ticket_lease=self._tickets.lease if self._tickets is not None else timedelta(0),
            )
            crash.point("record.before_commit")
        crash.point("record.after_commit")
        if self._tickets is not None:
            self._tickets.publish(recorded.tickets)
            crash.point("record.published")
        for late in recorded.late:
            log.warning("outcome_came_late", message=ids.text(ids.MESSAGE, late.message_id), result=late.result.value)
        return [None] * len(batch)

    async def _postpone_batch(self, batch: Sequence[Sequence[DeliveryPostponement]]) -> list[BaseException | None]:
        async with self._database.transaction() as tx:
            await delivery_schedule.postpone(tx, [one for late in batch for one in late], self._clock.now())
            crash.point("postpone.before_commit")
        crash.point("postpone.after_commit")
        return [None] * len(batch)


def _key(ticket: DeliveryTicket) -> Key:
    return ticket.account_id, ticket.message_id, ticket.position, ticket.fence


def _ticket_key(claimed: Claimed) -> Key:
    """The key of the ticket by which it was claimed."""
    return *claimed.key[:3], claimed.fence - 1


def _suppressed(claimed: Claimed) -> Suppressed:
    return Suppressed(claimed.message.mailing_list if claimed.has_left else None)


def _served(lane_name: str, carriage: CarrierResult) -> Served:
    happenings = carriage.results
    if any(isinstance(one, Replied) and one.reply.code == lane.PUSH_BACK_CODE for one in happenings):
        return Served.PUSHED_BACK
    if any(isinstance(one, Replied) and not outcome.judge(one).next_exchange for one in happenings):
        return Served.WELL
    # One domain of a provider that can't be reached says nothing about its others.
    is_alone = not lane.is_provider(lane_name)
    if is_alone and all(isinstance(one, Replied | NoReply) and outcome.judge(one).next_exchange for one in happenings):
        return Served.UNREACHABLE
    return Served.OTHERWISE
