"""Delivery: a ticket waits in its lane, is claimed, carried to its destination, and its outcome recorded.

A bundle of tickets is claimed when its lane gives it a slot. The worker's lease is checked again before the final
dot: without it nothing is sent. A ticket is acknowledged last.
"""

import asyncio
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import structlog

from posthouse import crash
from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.deliver import delivery_metrics, delivery_spans
from posthouse.flows.deliver.allowances import Allowances
from posthouse.flows.deliver.claim_store import DeliveryClaimStore
from posthouse.flows.deliver.delivery_metrics import DeliveryMetrics
from posthouse.flows.deliver.lane_queues import Bundle, LaneQueue, LaneQueues
from posthouse.flows.deliver.large_bodies import LARGE_BYTES_MAX, LargeBodies
from posthouse.flows.deliver.outcomes import Attempt, Outcomes, attempts_of, domain_served, served
from posthouse.flows.deliver.outgoing_mail import OutgoingMail, domain_of
from posthouse.flows.deliver.rescue import Rescue, RescueSettings, sender_of
from posthouse.flows.deliver.routes import Routes
from posthouse.flows.deliver.standings import Standings
from posthouse.flows.shared.claims import Claims, Postponement, is_claim_of
from posthouse.flows.shared.tickets import Item, Tickets
from posthouse.flows.shared.worker_lease import SendPermit
from posthouse.rules import explanation, ids, retry, simulator
from posthouse.rules.address_warm_up import VOLUMES, Volumes
from posthouse.rules.erasure import ErasureKey
from posthouse.rules.lane import LaneLimits, Limits, Served, Slot, lane_by_name
from posthouse.rules.lease import WORKER_LEASE
from posthouse.rules.linger import Linger
from posthouse.rules.outcome import GivenUp, NoReply, Stage, is_taken
from posthouse.rules.refusal import Refusal
from posthouse.rules.reply_text import without_addresses
from posthouse.rules.retry import Schedule
from posthouse.rules.route import Route
from posthouse.rules.standing import Lesson, Place, Refused, Standing
from posthouse.rules.ticket import DeliveryTicket
from posthouse.store import delivery_claims, delivery_schedule, lane_reports
from posthouse.store.control_cache import ControlCache
from posthouse.store.delivery_claims import ClaimedRecipient
from posthouse.store.delivery_outcomes import DeliveryOutcome, DeliveryResult
from posthouse.store.delivery_schedule import RecipientKey
from posthouse.store.lane_reports import LaneState
from posthouse.store.postgres import Database
from posthouse.store.seal import Sealer
from posthouse.traces import Kind, Span, Tracer
from posthouse.wire.carrier import Carrier, CarrierRequest, CarrierResult
from posthouse.wire.dns import Resolver
from posthouse.wire.stream import Leases, StreamMessage
from posthouse.wire.stream.memory import AllShards

log = structlog.get_logger(__name__)

CARRY_LONGEST_SECONDS: Final = 45 * 60.0
# How often it is checked whether held mail may go.
HOLD_CHECK: Final = timedelta(minutes=15)
# Claims and outcomes may wait this long, so that more of them share a transaction; longer, while few of them come. At
# low load half of all mail is to be delivered within 250 ms.
LINGER_SECONDS: Final = 0.02
CLAIM_LINGER_SECONDS_MAX: Final = 0.15
RECORD_LINGER_SECONDS_MAX: Final = 0.06
# A mail that can't be prepared (its key can't be opened): a fault of ours, and not counted as an attempt.
UNREADY: Final = timedelta(minutes=1)
# There is no server behind the simulator.
SIMULATOR_LIMITS: Final = Limits(per_second=10_000.0, burst=10_000, connections_start=50, connections_max=50)
CUT_SHORT: Final = "the service was stopped"
FAULT_OF_OURS: Final = "the service failed"
RESCUE: Final = RescueSettings()


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
        captures: bool = False,
        large_bytes_max: int = LARGE_BYTES_MAX,
        leases: Leases | None = None,
        sealer: Sealer | None = None,
        tracer: Tracer | None = None,
        warm_up_volumes: Volumes = VOLUMES,
        rescue: RescueSettings = RESCUE,
        erasure_keys: Sequence[ErasureKey] = (),
    ) -> None:
        """Without `tickets`, the webhook deliveries that an outcome makes are due at once, and dispatch finds them.

        `renewals` are connections for the lease alone, which must not wait for those that claim and record.
        With `captures`, mail with a real destination is held: no name is resolved, and no server connected to.
        Without `leases`, every shard is this worker's; without a `sealer`, no relay is used.
        """
        self._database = database
        self._control_cache = control_cache
        self._clock = clock
        self._chance = chance
        self._carrier = carrier
        self._tracer = tracer
        self._tickets = tickets
        self._simulator_domain = simulator_domain
        self._captures = captures
        self._outgoing_mail = outgoing_mail
        self._erasure_keys = erasure_keys
        self._outcomes = Outcomes(clock=clock, chance=chance, retries=retries)
        self._claims = Claims(
            DeliveryClaimStore(
                outcomes=self._outcomes,
                outgoing_mail=outgoing_mail,
                tickets=tickets,
                retries=retries,
                erasure_keys=erasure_keys,
            ),
            DeliveryTicket,
            database=database,
            clock=clock,
            chance=chance,
            claim_linger=Linger(LINGER_SECONDS, CLAIM_LINGER_SECONDS_MAX),
            record_linger=Linger(LINGER_SECONDS, RECORD_LINGER_SECONDS_MAX),
            worker_lease=worker_lease,
            renewals=renewals,
        )
        self._routes = Routes(database, sealer)
        self._allowances = Allowances(
            database=database, clock=clock, bound_of=self._routes.bound_of, volumes=warm_up_volumes
        )
        self._lane_queues = LaneQueues(
            clock=clock,
            chance=chance,
            resolver=resolver,
            lane_limits=lane_limits,
            sessions_max=sessions_max,
            own_lane=simulator_domain,
            own_limits=SIMULATOR_LIMITS,
            leases=leases or AllShards(1),
            tasks=self._claims.tasks,
            start=self._deliver,
            postpone=self._postpone,
            give_back=self._give_back,
            forward=self._forward,
            routes_of=self._routes.of,
            relay_of=self._routes.relay_of,
            allowances=self._allowances,
            standing_of=self._standing_of,
            learnt=self._learn,
            hold=self._hold_for_lane,
            hurry=self._claims.hurry,
            ask=self._ask,
        )
        self._standings = Standings(
            database=database, clock=clock, adopt=self._lane_queues.adopt, pause=self._lane_queues.pause
        )
        self._rescue = Rescue(
            rescue,
            database=database,
            clock=clock,
            chance=chance,
            others=self._others_with_room,
            relay_of=self._routes.relay_of,
        )
        self._large_bodies = LargeBodies(large_bytes_max)
        self._delivery_metrics = DeliveryMetrics(simulator_domain)

    @property
    def worker_id(self) -> UUID:
        return self._claims.worker_id

    @property
    def room(self) -> int:
        """How many more tickets this worker can hold."""
        return self._claims.room

    def is_idle(self) -> bool:
        """Whether there is no mail here."""
        return self._claims.is_idle

    async def offer(self, messages: Iterable[StreamMessage]) -> None:
        """Take the tickets of these messages, and start what may go."""
        taken = await self._claims.take(messages)
        if taken:
            crash.point("delivery.offered")
        taken = self._without_blocked_too_long(taken)
        if self._captures:
            outbound = [item for item in taken if item.ticket.destination != self._simulator_domain]
            taken = [item for item in taken if item.ticket.destination == self._simulator_domain]
            if outbound:
                self._claims.tasks.spawn(self._hold_back(outbound))
        held = [item for item in taken if self._control_cache.is_known_suspended(item.ticket.account_id)]
        if held:
            # Before the lanes, whose turns and rate are for mail that can go.
            taken = [item for item in taken if not self._control_cache.is_known_suspended(item.ticket.account_id)]
            self._claims.tasks.spawn(self._hold(held))
        self._lane_queues.sort(taken)

    async def renew(self) -> None:
        await self._claims.renew()
        if not self._routes.is_read:
            await self._routes.read()
        if not self._standings.are_read:
            await self._standings.synchronize()

    async def read_routes(self) -> None:
        """Learn which addresses mail leaves from."""
        await self._routes.read()

    async def heartbeat(self) -> None:
        await self._claims.heartbeat()

    def note_shards(self) -> None:
        """Give back what waits in lanes of shards that this worker has lost."""
        self._lane_queues.note_shards()

    async def report(self) -> None:
        """Record the state of the lanes for operators."""
        now, seconds = self._clock.now(), self._clock.monotonic()
        parts: dict[str, list[LaneQueue]] = {}
        for queue in self._lane_queues.queues:
            parts.setdefault(queue.name, []).append(queue)
        states = []
        for lane, queues in parts.items():
            pause = max(queue.lane.pause_left(seconds) for queue in queues if queue.branch is None)
            states.append(
                LaneState(
                    lane=lane,
                    waiting=sum(queue.waiting for queue in queues),
                    in_flight=sum(queue.lane.in_use for queue in queues if queue.branch is None),
                    connections=sum(queue.lane.connections for queue in queues if queue.branch is None),
                    delivered_total=sum(queue.counts.delivered for queue in queues),
                    deferred_total=sum(queue.counts.deferred for queue in queues),
                    paused_until=now + timedelta(seconds=pause) if pause else None,
                    last_reply=next((queue.counts.last_reply for queue in queues if queue.counts.last_reply), None),
                )
            )
        delivery_metrics.show_lanes(self._lane_queues.queues, seconds, now)
        async with self._database.transaction() as tx:
            await lane_reports.report(tx, self.worker_id, states, now)

    async def synchronize_standings(self) -> None:
        """Write what the lanes learnt here; learn what they did elsewhere, and which of them operators paused."""
        await self._standings.synchronize()
        await self._allowances.synchronize()

    def _standing_of(self, place: Place) -> Standing | None:
        return self._standings.of(place)

    def _learn(self, lesson: Lesson) -> None:
        self._standings.learn(lesson)
        self._delivery_metrics.learnt(lesson)
        if lesson.is_new_block and lesson.place.branch is None:
            _warn_of_block(lesson)
        if lesson.until is not None:
            # Other workers must stop as well.
            self._claims.tasks.spawn(self._write_at_once())

    async def _write_at_once(self) -> None:
        try:
            await self._standings.synchronize()
        except Refusal as refusal:
            # It is written by the next regular turn.
            log.debug("lesson_not_written", cause=repr(refusal.__cause__))

    async def settle(self) -> None:
        """Return when no work is left."""
        await self._claims.tasks.settle()

    async def drain(self, seconds: float) -> None:
        """Give back what waits, let running attempts finish, and withdraw those that do not in time."""
        await self._claims.drain(self._lane_queues.close(), seconds)
        await self._write_at_once()
        try:
            await self._allowances.give_back()
        except Refusal as refusal:
            # What this worker was given is not sent, and counts.
            log.debug("allowances_not_given_back", cause=repr(refusal.__cause__))

    async def _deliver(self, queue: LaneQueue, slot: Slot, bundle: Bundle) -> None:
        try:
            await self._take_turn(queue, slot, bundle)
        finally:
            # No sooner: until its outcome is recorded, a mail could be sent again, and counts as running.
            self._lane_queues.end_session(bundle)

    async def _take_turn(self, queue: LaneQueue, slot: Slot, bundle: Bundle) -> None:
        how: tuple[Served, Refused | None] = Served.NOT_SENT, None
        about = queue
        span: Span | None = None
        allowed = len(bundle.items)
        attempts: list[Attempt] = []
        try:
            turn_at = self._clock.monotonic()
            items = bundle.items
            if await self._control_cache.is_suspended(bundle.account_id):
                items = await self._held_too_long(items)
            elif self._large_bodies.lacks_room(bundle.account_id, bundle.message_id):
                await self._postpone_large(bundle)
                items = []
            permit = self._claims.permit(CARRY_LONGEST_SECONDS)
            claimed = await self._claim(queue, bundle, items)
            if self._tracer is not None:
                span = delivery_spans.begin(self._tracer, items, claimed, turn_at)
            attempts, how = await self._carry(queue, bundle, claimed, permit, span)
        except Exception as fault:
            if span is not None:
                span.end(is_error=True)
            await self._claims.give_up(bundle.items, fault)
            return
        finally:
            self._count_allowance(queue, allowed, attempts, how[0])
            about = self._lane_queues.release_slot(queue, slot, bundle, *how)
        carried_at = self._clock.monotonic()
        try:
            if how[0] is Served.BLOCKED:
                await self._write_at_once()
            # After the lane has heeded the replies: what is held waits as long as the lane does.
            holds = await self._rescue.holds(about, how[0], attempts)
            outcomes = [self._outcomes.of(attempt, hold) for attempt, hold in zip(attempts, holds, strict=True)]
            self._count(queue, outcomes)
            crash.point("record.before")
            await self._record(outcomes, span)
            self._delivery_metrics.recorded(
                queue.name, how[0], outcomes, self._clock.now(), self._clock.monotonic() - carried_at
            )
        finally:
            await self._claims.acknowledge(bundle.items)

    # What a block holds.

    def _others_with_room(self, queue: LaneQueue, attempt: Attempt) -> Sequence[LaneQueue]:
        return self._lane_queues.others_with_room(queue, attempt.claimed.account_id, sender_of(attempt))

    def _without_blocked_too_long(self, items: list[Item[DeliveryTicket]]) -> list[Item[DeliveryTicket]]:
        """Those that are not to bounce now. The others don't wait for their lane, which may pause for longer."""
        now = self._clock.now()
        rest = []
        for item in items:
            bounce_at = item.ticket.bounce_at
            if bounce_at is not None and bounce_at <= now:
                self._claims.tasks.spawn(self._end_untried(item))
            else:
                rest.append(item)
        return rest

    # What is suppressed, before it waits.

    async def _ended(self, items: Sequence[Item[DeliveryTicket]]) -> Set[RecipientKey]:
        """Those of the items whose address is suppressed; they come to their end, whatever their lanes do."""
        async with self._database.connection() as connection:
            found = await delivery_claims.suppressed(
                connection, [item.ticket for item in items], self._clock.now(), self._erasure_keys
            )
        for item in items:
            if item.ticket.key in found:
                self._claims.tasks.spawn(self._end_untried(item))
        return found

    def _ask(self, items: list[Item[DeliveryTicket]]) -> None:
        self._claims.tasks.spawn(self._sort_unsuppressed(items))

    async def _sort_unsuppressed(self, items: Sequence[Item[DeliveryTicket]]) -> None:
        try:
            ended = await self._ended(items)
        except Exception as fault:
            await self._claims.give_up(items, fault)
            return
        rest = [item for item in items if item.ticket.key not in ended]
        if self._claims.is_stopping:
            await self._claims.give_back(rest)
        else:
            self._lane_queues.sort(rest, is_asked=True)

    async def _postpone_unsuppressed(self, late: Sequence[tuple[Item[DeliveryTicket], float]]) -> None:
        items = [item for item, _ in late]
        try:
            ended = await self._ended(items)
        except Exception as fault:
            await self._claims.give_up(items, fault)
            return
        await self._claims.postpone_items([each for each in late if each[0].ticket.key not in ended])

    async def _end_untried(self, item: Item[DeliveryTicket]) -> None:
        try:
            claimed = await self._claims.claim([item.ticket])
        except Exception as fault:
            await self._claims.give_up([item], fault)
            return
        try:
            # Meanwhile its address may have been taken off the list.
            reasons = [(recipient, self._outcomes.not_tried(recipient)) for recipient in claimed]
            attempts = [Attempt(recipient, reason) for recipient, reason in reasons if reason is not None]
            attempts += self._not_tried([recipient for recipient, reason in reasons if reason is None], timedelta(0))
            outcomes = [self._outcomes.of(attempt) for attempt in attempts]
            crash.point("rescue.before_bounce")
            await self._claims.record(outcomes)
            lane_name = item.ticket.lane or lane_by_name(item.ticket.destination) or item.ticket.destination
            self._delivery_metrics.recorded(lane_name, Served.NOT_SENT, outcomes, self._clock.now(), 0.0)
        finally:
            await self._claims.acknowledge([item])

    # Claim.

    async def _claim(
        self, queue: LaneQueue, bundle: Bundle, items: Sequence[Item[DeliveryTicket]]
    ) -> list[ClaimedRecipient]:
        crash.point("claim.before")
        claimed = await self._claims.claim([item.ticket for item in items]) if items else []
        if len(items) > 1 and claimed and self._outgoing_mail.is_personal(claimed[0].message):
            await self._separate_others(queue, bundle, items, claimed[0])
        return claimed

    async def _hold_back(self, items: Sequence[Item[DeliveryTicket]], lane: str | None = None) -> None:
        """Postpone what a paused lane holds, or what was accepted before mail was captured, as long as that lasts."""
        try:
            await self._claims.postpone(
                [Postponement(item.ticket, self._hold_until(), is_held=True, held_by=lane) for item in items]
            )
        except Exception as fault:
            await self._claims.give_up(items, fault)
            return
        await self._claims.acknowledge(items)

    def _hold_until(self) -> datetime:
        return self._clock.now() + HOLD_CHECK * (0.5 + self._chance.fraction())

    async def _hold(self, items: Sequence[Item[DeliveryTicket]]) -> None:
        try:
            over = await self._held_too_long(items)
        except Exception as fault:
            await self._claims.give_up(items, fault)
            return
        over_keys = {item.ticket.key for item in over}
        await self._claims.acknowledge([item for item in items if item.ticket.key not in over_keys])
        self._lane_queues.sort(over)

    async def _held_too_long(self, items: Sequence[Item[DeliveryTicket]]) -> list[Item[DeliveryTicket]]:
        """Of suspended accounts' mail, what was held too long and so has come to its end; the rest is postponed."""
        now = self._clock.now()
        tickets = [item.ticket for item in items]
        async with self._database.connection() as connection:
            over = await delivery_schedule.held_too_long(connection, [ticket.key for ticket in tickets], now)
        later = self._hold_until()
        held = [Postponement(ticket, later, is_held=True) for ticket in tickets if ticket.key not in over]
        if held:
            await self._claims.postpone(held)
        return [item for item in items if item.ticket.key in over]

    async def _separate_others(
        self, queue: LaneQueue, bundle: Bundle, items: Sequence[Item[DeliveryTicket]], claimed: ClaimedRecipient
    ) -> None:
        """A personal mail takes a turn of its own; the bundle's other recipients go back into the lane."""
        others = [item for item in items if not is_claim_of(claimed, item.ticket)]
        bundle.items = [item for item in bundle.items if item not in others]
        if self._claims.is_stopping:
            await self._claims.give_back(others)
        else:
            self._lane_queues.sort_apart(queue, others)

    async def _postpone_large(self, bundle: Bundle) -> None:
        seconds = self._large_bodies.wait_seconds(bundle.message_id, self._clock.monotonic())
        later = self._clock.now() + timedelta(seconds=seconds)
        await self._claims.postpone([Postponement(item.ticket, later) for item in bundle.items])

    # Carry.

    async def _carry(
        self,
        queue: LaneQueue,
        bundle: Bundle,
        claimed: Sequence[ClaimedRecipient],
        permit: SendPermit,
        span: Span | None,
    ) -> tuple[list[Attempt], tuple[Served, Refused | None]]:
        attempts = []
        tried = []
        for recipient in claimed:
            reason = self._outcomes.not_tried(recipient)
            if reason is None:
                tried.append(recipient)
            else:
                attempts.append(Attempt(recipient, reason))
        if not tried:
            return attempts, (Served.NOT_SENT, None)
        if bundle.destination == self._simulator_domain:
            attempts += [self._simulated(recipient) for recipient in tried]
            return attempts, (Served.WELL, None)
        message = tried[0].message
        if message.mime_bytes is None:
            lost = GivenUp("the message is no longer stored", is_released=True)
            attempts += [Attempt(recipient, lost) for recipient in tried]
            return attempts, (Served.NOT_SENT, None)
        routes = self._routes_for(queue, bundle, message.sender)
        if routes is None:
            return attempts + self._not_tried(tried, timedelta(0)), (Served.NOT_SENT, None)
        size = 0 if message.mime is not None else message.mime_bytes
        began_at = self._clock.monotonic()
        if size and not self._large_bodies.take(bundle.account_id, message.id, size):
            seconds = self._large_bodies.wait_seconds(message.id, began_at)
            return attempts + self._not_tried(tried, timedelta(seconds=seconds)), (Served.NOT_SENT, None)
        try:
            carried = await self._send(queue, bundle, tried, routes, permit, span)
        finally:
            if size:
                self._large_bodies.give_back(bundle.account_id, size, self._clock.monotonic() - began_at)
        if carried is None:
            wait = timedelta(0) if permit.is_refused or self._claims.is_stopping else UNREADY
            return attempts + self._not_tried(tried, wait), (Served.OTHERWISE, None)
        attempts += attempts_of(queue.name, tried, carried)
        about = queue.name, bundle.destination, carried, bundle.message_id
        self._lane_queues.release_domain(queue, bundle, *domain_served(*about))
        return attempts, served(*about)

    def _simulated(self, recipient: ClaimedRecipient) -> Attempt:
        email, domain = recipient.email, self._simulator_domain
        return Attempt(
            recipient,
            simulator.simulate(email, domain, recipient.attempt_count),
            follow_up=simulator.follow_up(email, recipient.position, recipient.message.mailing_list, domain),
        )

    def _routes_for(self, queue: LaneQueue, bundle: Bundle, sender: str) -> tuple[Route, ...] | None:
        """None if the account's mail goes another way by now."""
        if queue.relay is not None:
            return () if self._routes.relay_of(bundle.account_id) == queue.relay else None
        return self._routes.from_route(bundle.account_id, queue.route, domain_of(sender))

    def _not_tried(self, recipients: Sequence[ClaimedRecipient], wait: timedelta) -> list[Attempt]:
        again_at = self._clock.now() + wait
        return [Attempt(recipient, None, again_at=again_at) for recipient in recipients]

    async def _send(
        self,
        queue: LaneQueue,
        bundle: Bundle,
        tried: Sequence[ClaimedRecipient],
        routes: tuple[Route, ...],
        permit: SendPermit,
        span: Span | None,
    ) -> CarrierResult | None:
        """The destination's replies; None when the mail was withdrawn or could not be prepared."""
        try:
            with self._claims.tasks.stoppable():
                crash.point("carry.before_signing")
                request = await self._outgoing_mail.request(
                    tried,
                    routes,
                    connections=queue.connections,
                    per_connection_max=queue.per_connection_max,
                    relay=queue.relay,
                )
                crash.point("carry.before_connecting")
                if span is None:
                    carried = await self._carrier.carry(bundle.destination, request, permit)
                else:
                    carried = await self._carry_traced(bundle.destination, request, permit, span)
                crash.point("carry.carried")
        except asyncio.CancelledError:
            if not self._claims.is_stopping:
                raise
            reason = CUT_SHORT
        except Refusal as refusal:
            # PostgreSQL is away, and the body with it.
            log.debug("mail_not_read", cause=repr(refusal.__cause__))
            return None
        except Exception:
            log.exception(
                "mail_not_carried",
                account=ids.text(ids.ACCOUNT, bundle.account_id),
                message=ids.text(ids.MESSAGE, bundle.message_id),
            )
            reason = FAULT_OF_OURS
        else:
            return None if permit.is_refused else carried
        # What may have arrived is recorded as such; otherwise nothing was sent.
        return CarrierResult((NoReply(Stage.DOT, reason),) * len(tried)) if permit.is_given else None

    async def _carry_traced(
        self, destination: str, request: CarrierRequest, permit: SendPermit, span: Span
    ) -> CarrierResult:
        session = span.child("smtp", Kind.CLIENT)
        carried: CarrierResult | None = None
        try:
            carried = await self._carrier.carry(destination, request, permit)
            return carried
        finally:
            delivery_spans.end_session(session, carried)

    # Record.

    async def _record(self, outcomes: Sequence[DeliveryOutcome], span: Span | None) -> None:
        if span is None:
            await self._claims.record(outcomes)
            return
        recording = span.child("record")
        try:
            trace = recording.context.stored
            await self._claims.record([replace(outcome, trace=trace) for outcome in outcomes])
        finally:
            delivery_spans.end(span, recording, outcomes)

    def _count_allowance(self, queue: LaneQueue, allowed: int, attempts: Sequence[Attempt], how: Served) -> None:
        """What became of the mails that had permission to leave from an address that warms up."""
        if not self._allowances.is_bounded(queue.place):
            return
        tried = [attempt for attempt in attempts if attempt.carried is not None]
        self._allowances.put_back(queue.place, allowed - len(tried))
        if tried:
            taken = sum(attempt.result is not None and is_taken(attempt.result) for attempt in tried)
            self._allowances.note(
                queue.place,
                taken=taken,
                slow=len(tried) - taken if how is Served.SLOW else 0,
                was_blocked=how is Served.BLOCKED,
            )

    def _count(self, queue: LaneQueue, outcomes: Sequence[DeliveryOutcome]) -> None:
        delivered = sum(outcome.result is DeliveryResult.DELIVERED for outcome in outcomes)
        if delivered:
            queue.counts.delivered += delivered
            queue.counts.hour.add(delivered, self._clock.monotonic())
        for outcome in outcomes:
            queue.counts.deferred += outcome.result is DeliveryResult.DEFERRED
            if outcome.response is not None:
                reply = outcome.response if outcome.code is None else f"{outcome.code} {outcome.response}"
                queue.counts.last_reply = without_addresses(reply)

    def _postpone(self, late: list[tuple[Item[DeliveryTicket], float]]) -> None:
        self._claims.tasks.spawn(self._postpone_unsuppressed(late))

    def _hold_for_lane(self, items: list[Item[DeliveryTicket]], lane: str) -> None:
        self._claims.tasks.spawn(self._hold_back(items, lane))

    def _give_back(self, items: list[Item[DeliveryTicket]]) -> None:
        self._claims.tasks.spawn(self._claims.give_back(items))

    def _forward(self, items: list[Item[DeliveryTicket]], lane: str, shard: int) -> None:
        """Another worker has the lane. If this ticket or its successor is lost, the schedule makes another."""
        if self._tickets is not None:
            self._tickets.forward([item.ticket for item in items], lane, shard)
        self._claims.tasks.spawn(self._claims.acknowledge(items))


def _warn_of_block(lesson: Lesson) -> None:
    """Once for each block, whatever its mail."""
    place, refused = lesson.place, lesson.refused
    log.warning(
        "address_blocked",
        lane=place.lane,
        address=place.ip or None,
        reply=refused.reply,
        page=explanation.page_of_block(place.lane, refused.reply),
    )
