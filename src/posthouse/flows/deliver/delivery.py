"""Delivery: a ticket waits in its lane, is claimed, carried to its destination, and its outcome recorded.

The lanes decide when a bundle of tickets is sent, and from which address; it is claimed when its lane gives it a slot.
The worker's lease is checked again before the final dot; a worker without a lease sends nothing. A ticket is
acknowledged last.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, assert_never
from uuid import UUID

import structlog

from posthouse import crash
from posthouse.flows.deliver import telemetry
from posthouse.flows.deliver.address_quotas import AddressQuotas
from posthouse.flows.deliver.claim_store import DeliveryClaims, DeliveryClaimStore
from posthouse.flows.deliver.lane_lookup import LaneLookup
from posthouse.flows.deliver.lane_queue import (
    Bundle,
    Decision,
    Forwarded,
    HeldBack,
    Hurry,
    Item,
    LaneQueue,
    LookUp,
    Postponed,
    Reserve,
    Returned,
    Turn,
    Unasked,
    Wait,
)
from posthouse.flows.deliver.lane_table import LaneSettings
from posthouse.flows.deliver.lanes import Lanes
from posthouse.flows.deliver.learned_limits import LearnedLimitsSync
from posthouse.flows.deliver.outcomes import Outcomes
from posthouse.flows.deliver.outgoing_mail import OutgoingMail
from posthouse.flows.deliver.reroute import Reroute, RerouteSettings
from posthouse.flows.deliver.routes import Routes
from posthouse.flows.deliver.sending import LARGE_BYTES_MAX, Sending, Sent
from posthouse.flows.deliver.telemetry import DeliveryMetrics
from posthouse.flows.deliver.untried import Untried
from posthouse.flows.shared.claims import Claims, Postponement, is_claim_of
from posthouse.flows.shared.context import Context
from posthouse.flows.shared.tickets import Tickets
from posthouse.flows.shared.worker_lease import WorkerLease
from posthouse.rules import explanation, retry
from posthouse.rules.claim import WORKER_LEASE, BatchDelay
from posthouse.rules.ids import AccountId
from posthouse.rules.lane import DeliveryFeedback
from posthouse.rules.learned_limits import LimitChange
from posthouse.rules.outcome import is_taken
from posthouse.rules.refusal import Refusal
from posthouse.rules.retry import Schedule
from posthouse.rules.ticket import DeliveryTicket
from posthouse.store import lanes
from posthouse.store.control_cache import ControlCache
from posthouse.store.delivery_claims import ClaimedRecipient
from posthouse.store.delivery_outcomes import DeliveryOutcome
from posthouse.store.postgres import Database
from posthouse.traces import Span, Tracer
from posthouse.wire.carrier import Carrier
from posthouse.wire.dns import Resolver
from posthouse.wire.stream import Leases, StreamMessage
from posthouse.wire.stream.memory import AllShards

log = structlog.get_logger(__name__)

CARRY_LONGEST_SECONDS: Final = 45 * 60.0
# Claims and outcomes may wait this long, so that more of them share a transaction, and longer while few arrive. The
# bound is the goal that at low load half of all mail is delivered within 250 ms.
BATCH_DELAY_SECONDS: Final = 0.02
CLAIM_BATCH_DELAY_SECONDS_MAX: Final = 0.15
RECORD_BATCH_DELAY_SECONDS_MAX: Final = 0.06
REROUTE: Final = RerouteSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryContext(Context):
    """`renewals` are connections only for the lease, which must not wait for those that claim and record."""

    control_cache: ControlCache
    renewals: Database | None = None
    tracer: Tracer | None = None


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """With `captures`, mail to a real destination is held: no name is resolved, and no server is connected to.

    Without `delays_batches`, claims and outcomes don't wait for others.
    """

    lanes: LaneSettings
    retries: Schedule = retry.DELIVERY
    worker_lease: timedelta = WORKER_LEASE
    captures: bool = False
    delays_batches: bool = True
    large_bytes_max: int = LARGE_BYTES_MAX
    reroute: RerouteSettings = REROUTE


class Delivery:
    def __init__(
        self,
        context: DeliveryContext,
        settings: DeliverySettings,
        *,
        resolver: Resolver,
        carrier: Carrier,
        outgoing_mail: OutgoingMail,
        tickets: Tickets | None = None,
        leases: Leases | None = None,
    ) -> None:
        """Without `tickets`, the webhook deliveries that an outcome creates are due now, and dispatch finds them.

        Without `leases`, this worker owns every shard.
        """
        self._context = context
        self._clock = context.clock
        self._control_cache = context.control_cache
        self._tickets = tickets
        self._simulator_domain = settings.lanes.simulator_domain
        self._captures = settings.captures
        self._outgoing_mail = outgoing_mail
        self._metrics = DeliveryMetrics(self._simulator_domain)
        self._outcomes = Outcomes(context, settings.retries)
        self._claims = _claims_of(context, settings, self._outcomes, outgoing_mail, tickets)
        routes = self._routes = Routes(context)
        self._address_quotas = AddressQuotas(context, bound_of=routes.bound_of, volumes=settings.lanes.warm_up_volumes)
        self._learned_limits = LearnedLimitsSync(context)
        self._lane_lookup = LaneLookup(clock=context.clock, resolver=resolver, simulator_domain=self._simulator_domain)
        self._lanes = Lanes(
            settings.lanes,
            context,
            leases=leases or AllShards(1),
            routes=routes,
            address_quotas=self._address_quotas,
            learned_limits=self._learned_limits,
            lookup=self._lane_lookup,
        )
        self._sending = Sending(
            clock=context.clock,
            claims=self._claims,
            carrier=carrier,
            outgoing_mail=outgoing_mail,
            routes=routes,
            outcomes=self._outcomes,
            simulator_domain=self._simulator_domain,
            large_bytes_max=settings.large_bytes_max,
        )
        self._untried = Untried(context, claims=self._claims, outcomes=self._outcomes, metrics=self._metrics)
        self._reroute = Reroute(settings.reroute, context, lanes=self._lanes, routes=routes)

    @property
    def worker_id(self) -> UUID:
        return self._claims.worker_id

    @property
    def capacity(self) -> int:
        """How many more tickets this worker can hold."""
        return self._claims.capacity

    def is_idle(self) -> bool:
        """Whether this worker holds no mail."""
        return self._claims.is_idle

    async def offer(self, messages: Iterable[StreamMessage]) -> None:
        """Take the tickets of these messages, and start the bundles that may be sent now."""
        taken = await self._claims.take_tickets(messages)
        if taken:
            crash.point("delivery.offered")
        taken = self._untried.without_blocked_too_long(taken)
        if self._captures:
            outbound = [item for item in taken if item.ticket.destination != self._simulator_domain]
            taken = [item for item in taken if item.ticket.destination == self._simulator_domain]
            if outbound:
                self._claims.tasks.spawn(self._untried.hold(outbound))
        accounts = {item.ticket.account_id for item in taken}
        suspended = {account_id for account_id in accounts if self._control_cache.is_known_suspended(account_id)}
        if suspended:
            # This comes before the lanes, whose turns and rate are for mail that can be sent.
            held = [item for item in taken if item.ticket.account_id in suspended]
            taken = [item for item in taken if item.ticket.account_id not in suspended]
            self._claims.tasks.spawn(self._sort_held_too_long(held))
        self._carry_out(self._lanes.sort(taken))

    async def renew(self) -> None:
        await self._claims.renew()
        if not self._routes.is_read:
            await self._routes.read()
        if not self._learned_limits.are_read:
            await self._synchronize_learned_limits()

    async def read_routes(self) -> None:
        """Find out which addresses mail leaves from."""
        await self._routes.read()

    async def heartbeat(self) -> None:
        await self._claims.heartbeat()

    def note_shards(self) -> None:
        """Give back tickets that wait in lanes of shards that this worker has lost."""
        self._carry_out(self._lanes.note_shards())

    async def report(self) -> None:
        """Record the state of the lanes for operators."""
        now, seconds = self._clock.now(), self._clock.monotonic()
        states = telemetry.lane_states(self._lanes.queues, seconds, now)
        telemetry.show_lanes(self._lanes.queues, seconds, now)
        async with self._context.database.transaction() as tx:
            await lanes.report(tx, self.worker_id, states, now)

    async def synchronize_learned_limits(self) -> None:
        """Write what the lanes learned here; read what they learned elsewhere, and which of them operators paused."""
        await self._synchronize_learned_limits()
        await self._address_quotas.synchronize()

    async def _synchronize_learned_limits(self) -> None:
        for scope, limits in (await self._learned_limits.write()).items():
            self._carry_out(self._lanes.adopt(scope, limits))
        changed, paused = await self._learned_limits.read()
        self._carry_out(self._lanes.pause(paused))
        for scope, limits in changed.items():
            self._carry_out(self._lanes.adopt(scope, limits))

    async def _write_now(self) -> None:
        try:
            await self._synchronize_learned_limits()
        except Refusal as refusal:
            # The next regular run writes it.
            log.debug("limit_change_not_written", cause=repr(refusal.__cause__))

    async def settle(self) -> None:
        """Return when no work is left."""
        await self._claims.tasks.settle()

    async def drain(self, seconds: float) -> None:
        """Give back waiting tickets, let running attempts finish, and withdraw those that don't finish in time."""
        await self._claims.drain(self._lanes.close(), seconds)
        await self._write_now()
        try:
            await self._address_quotas.return_permits()
        except Refusal as refusal:
            # What this worker has reserved counts as used, although it isn't sent.
            log.debug("quotas_not_given_back", cause=repr(refusal.__cause__))

    # What the lanes decided.

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            try:
                self._carry_out_one(decision)
            except Exception:
                # The others are about other mail. What this one was about comes again when its tickets' time is over.
                log.exception("decision_failed", decision=type(decision).__name__)

    def _carry_out_one(self, decision: Decision) -> None:
        spawn = self._claims.tasks.spawn
        match decision:
            case Turn():
                spawn(self._deliver(decision))
            case Postponed(late):
                spawn(self._untried.postpone(late))
            case Returned(items):
                spawn(self._claims.release_tickets(items))
            case Forwarded(items, lane, shard):
                # If this ticket or its successor is lost, the schedule creates another.
                if self._tickets is not None:
                    self._tickets.forward([item.ticket for item in items], lane, shard)
                spawn(self._claims.acknowledge(items))
            case HeldBack(items, lane):
                spawn(self._untried.hold(items, lane))
            case Unasked(items):
                spawn(self._sort_unsuppressed(items))
            case LookUp(destination, account_id):
                spawn(self._look_up(destination, account_id))
            case Wait():
                asyncio.get_running_loop().call_later(decision.seconds, self._resume, decision)
            case Reserve(queue):
                spawn(self._reserve(queue))
            case Hurry():
                self._claims.hurry()
            case LimitChange():
                self._show(decision)
            case _:
                assert_never(decision)

    async def _look_up(self, destination: str, account_id: AccountId) -> None:
        items = await self._lane_lookup.look_up(destination, account_id)
        self._carry_out(self._lanes.sort(items))

    def _resume(self, wait: Wait) -> None:
        self._carry_out(self._lanes.resume(wait))

    async def _reserve(self, queue: LaneQueue) -> None:
        try:
            await self._address_quotas.reserve(queue.scope, queue.waiting)
        except Refusal:
            # PostgreSQL is unavailable. Without it nothing could be claimed either.
            self._carry_out(self._lanes.give_back(queue))
            return
        finally:
            queue.is_reserving = False
        self._carry_out(self._lanes.advance(queue))

    def _show(self, limit_change: LimitChange) -> None:
        self._metrics.learnt(limit_change)
        if limit_change.is_new_block and limit_change.scope.branch is None:
            _warn_of_block(limit_change)
        if limit_change.until is not None:
            # Other workers must stop as well.
            self._claims.tasks.spawn(self._write_now())

    async def _sort_unsuppressed(self, items: list[Item]) -> None:
        rest = await self._untried.without_suppressed(items)
        if self._claims.is_stopping:
            await self._claims.release_tickets(rest)
        else:
            self._carry_out(self._lanes.sort(rest, is_asked=True))

    async def _sort_held_too_long(self, items: list[Item]) -> None:
        self._carry_out(self._lanes.sort(await self._untried.hold_suspended(items)))

    # A bundle's turn.

    async def _deliver(self, turn: Turn) -> None:
        queue, _, bundle = turn
        about = queue
        sent = Sent([])
        span: Span | None = None
        allowed = len(bundle.items)
        try:
            try:
                turn_at = self._clock.monotonic()
                items = await self._tried_now(bundle)
                permit = self._claims.permit(CARRY_LONGEST_SECONDS)
                crash.point("claim.before")
                claimed = await self._claims.claim([item.ticket for item in items]) if items else []
                if len(items) > 1 and claimed and self._outgoing_mail.is_personal(claimed[0].message):
                    await self._separate_others(queue, bundle, items, claimed[0])
                if self._context.tracer is not None:
                    span = telemetry.begin(self._context.tracer, items, claimed, turn_at)
                sent = await self._sending.send(queue, bundle, claimed, permit, span)
                if sent.about_domain is not None:
                    self._carry_out(self._lanes.release_domain(queue, bundle, *sent.about_domain))
            except Exception as fault:
                if span is not None:
                    span.end(is_error=True)
                await self._claims.give_up(bundle.items, fault)
                return
            finally:
                self._count_quota(queue, allowed, sent)
                about, decisions = self._lanes.release_slot(turn, sent.feedback, sent.refused)
                self._carry_out(decisions)
            try:
                await self._record(queue, about, sent, span)
            finally:
                await self._claims.acknowledge(bundle.items)
        finally:
            # Not earlier: until its outcome is recorded, a message could be sent again, and it counts as running.
            self._carry_out(self._lanes.end_session(bundle))

    async def _record(self, queue: LaneQueue, about: LaneQueue, sent: Sent, span: Span | None) -> None:
        """`about` is the queue that the replies are about, after it has taken them into account."""
        carried_at = self._clock.monotonic()
        if sent.feedback is DeliveryFeedback.BLOCKED:
            await self._write_now()
        # Held mail waits as long as the lane does.
        holds = await self._reroute.holds(about, sent.feedback, sent.attempts)
        outcomes = [
            self._outcomes.outcome_of(attempt, hold) for attempt, hold in zip(sent.attempts, holds, strict=True)
        ]
        queue.counts.add(outcomes, carried_at)
        crash.point("record.before")
        if span is None:
            await self._claims.record(outcomes)
        else:
            await self._record_traced(outcomes, span)
        self._metrics.recorded(
            queue.name, sent.feedback, outcomes, self._clock.now(), self._clock.monotonic() - carried_at
        )

    async def _tried_now(self, bundle: Bundle) -> list[Item]:
        """The bundle's items, unless its account is suspended or there is no memory for its message."""
        if await self._control_cache.is_suspended(bundle.account_id):
            return await self._untried.held_too_long(bundle.items)
        seconds = self._sending.seconds_until_memory(bundle)
        if seconds is None:
            return bundle.items
        later = self._clock.now() + timedelta(seconds=seconds)
        await self._claims.postpone([Postponement(item.ticket, later) for item in bundle.items])
        return []

    async def _separate_others(
        self, queue: LaneQueue, bundle: Bundle, items: Sequence[Item], claimed: ClaimedRecipient
    ) -> None:
        """A personalized message takes its own turn; the bundle's other recipients go back into the lane."""
        others = [item for item in items if not is_claim_of(claimed, item.ticket)]
        bundle.items = [item for item in bundle.items if item not in others]
        if self._claims.is_stopping:
            await self._claims.release_tickets(others)
        else:
            self._carry_out(self._lanes.sort_apart(queue, others))

    async def _record_traced(self, outcomes: Sequence[DeliveryOutcome], span: Span) -> None:
        recording = span.child("record")
        try:
            trace = recording.context.stored
            await self._claims.record([replace(outcome, trace=trace) for outcome in outcomes])
        finally:
            telemetry.end(span, recording, outcomes)

    def _count_quota(self, queue: LaneQueue, allowed: int, sent: Sent) -> None:
        """Count the results of messages that were permitted to leave from an address that warms up."""
        if self._address_quotas.bound_of(queue.scope) is None:
            return
        tried = [attempt for attempt in sent.attempts if attempt.carried is not None]
        self._address_quotas.put_back(queue.scope, allowed - len(tried))
        if tried:
            taken = sum(attempt.result is not None and is_taken(attempt.result) for attempt in tried)
            self._address_quotas.note_results(
                queue.scope,
                taken=taken,
                slow=len(tried) - taken if sent.feedback is DeliveryFeedback.SLOW else 0,
                was_blocked=sent.feedback is DeliveryFeedback.BLOCKED,
            )


def _claims_of(
    context: DeliveryContext,
    settings: DeliverySettings,
    outcomes: Outcomes,
    outgoing_mail: OutgoingMail,
    tickets: Tickets | None,
) -> DeliveryClaims:
    store = DeliveryClaimStore(
        outcomes=outcomes,
        outgoing_mail=outgoing_mail,
        tickets=tickets,
        retries=settings.retries,
        erasure_keys=context.keys.erasure,
    )
    lease = WorkerLease(
        database=context.renewals or context.database,
        clock=context.clock,
        randomness=context.randomness,
        lease=settings.worker_lease,
    )
    return Claims(
        store,
        DeliveryTicket,
        database=context.database,
        clock=context.clock,
        lease=lease,
        claim_batch_delay=_batch_delay(settings, CLAIM_BATCH_DELAY_SECONDS_MAX),
        record_batch_delay=_batch_delay(settings, RECORD_BATCH_DELAY_SECONDS_MAX),
    )


def _batch_delay(settings: DeliverySettings, seconds_max: float) -> BatchDelay:
    return BatchDelay(BATCH_DELAY_SECONDS, seconds_max) if settings.delays_batches else BatchDelay()


def _warn_of_block(limit_change: LimitChange) -> None:
    """Log once for each block, however much mail it holds."""
    scope, refused = limit_change.scope, limit_change.refused
    log.warning(
        "address_blocked",
        lane=scope.lane,
        address=scope.ip or None,
        reply=refused.reply,
        page=explanation.page_of_block(scope.lane, refused.reply),
    )
