"""Sending: a claimed message is prepared and carried to its destination, and each recipient's result comes back.

Memory for bodies that are too large to be read with their claims has a share for each account. The size of a message is
known after its first claim. From then on memory is checked before the next claim. A message that finds none is
postponed to when there should be some, behind those postponed before it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from datetime import timedelta
from typing import Final, NamedTuple

import structlog

from posthouse import crash
from posthouse.clock import Clock
from posthouse.flows.deliver import telemetry
from posthouse.flows.deliver.claim_store import DeliveryClaims
from posthouse.flows.deliver.lane_queue import Bundle, LaneQueue
from posthouse.flows.deliver.outcomes import Attempt, Outcomes, attempts_of, domain_feedback, served
from posthouse.flows.deliver.outgoing_mail import OutgoingMail, domain_of
from posthouse.flows.deliver.routes import Routes
from posthouse.flows.shared.shares import FairShare
from posthouse.flows.shared.worker_lease import SendPermit
from posthouse.rules import ids, simulator
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.lane import DeliveryFeedback, is_provider
from posthouse.rules.learned_limits import Refused
from posthouse.rules.outcome import GivenUp, NoReply, Stage
from posthouse.rules.refusal import Refusal
from posthouse.rules.route import Route
from posthouse.store.delivery_claims import ClaimedRecipient
from posthouse.traces import Kind, Span
from posthouse.wire.carrier import Carrier, CarrierRequest, CarrierResult

log = structlog.get_logger(__name__)

# For a message that can't be prepared (its key can't be opened). The fault is ours, so it doesn't count as an attempt.
UNREADY: Final = timedelta(minutes=1)
CUT_SHORT: Final = "the service was stopped"
FAULT_OF_OURS: Final = "the service failed"
LARGE_BYTES_MAX: Final = 256 * 1024 * 1024
SIZES_KNOWN_MAX: Final = 10_000
WAIT_SECONDS_MIN: Final = 5.0
WAIT_SECONDS_MAX: Final = 600.0
# The time that a body is held is averaged over about this many.
MEAN_SAMPLES: Final = 10


class Sent(NamedTuple):
    """What happened to a bundle's recipients, and what that means for the lane.

    `about_domain` is what a provider's answer means for mail of the From domain.
    """

    attempts: list[Attempt]
    feedback: DeliveryFeedback = DeliveryFeedback.NOT_SENT
    refused: Refused | None = None
    about_domain: tuple[DeliveryFeedback, Refused | None] | None = None


class LargeBodies:
    def __init__(self, bytes_max: int = LARGE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._share: FairShare[AccountId] = FairShare(bytes_max)
        self._sizes: OrderedDict[MessageId, int] = OrderedDict()
        self._held_seconds = 1.0
        # The time up to which memory is promised to postponed mail.
        self._horizon = float("-inf")

    def lacks_capacity(self, account_id: AccountId, message_id: MessageId) -> bool:
        """Whether the message is known to be large and there is no memory for it now."""
        size = self._sizes.get(message_id, 0)
        return size > 0 and not self._share.has_capacity(account_id, size)

    def reserve_body(self, account_id: AccountId, message_id: MessageId, size: int) -> bool:
        """Reserve memory for a body, if there is some; the caller must release it."""
        self._sizes[message_id] = size
        if len(self._sizes) > SIZES_KNOWN_MAX:
            self._sizes.popitem(last=False)
        return self._share.take_units(account_id, size)

    def release_body(self, account_id: AccountId, size: int, seconds: float) -> None:
        """Release the memory of a body that was held for this long."""
        self._share.release_units(account_id, size)
        self._held_seconds += (seconds - self._held_seconds) / MEAN_SAMPLES

    def wait_seconds(self, message_id: MessageId, now: float) -> float:
        """When there should be memory: after everything that was postponed before, at the recent pace."""
        size = self._sizes.get(message_id, 0)
        begin = max(self._horizon, now + WAIT_SECONDS_MIN)
        self._horizon = min(begin + self._held_seconds * size / self._bytes_max, now + WAIT_SECONDS_MAX)
        return begin - now


class Sending:
    def __init__(
        self,
        *,
        clock: Clock,
        claims: DeliveryClaims,
        carrier: Carrier,
        outgoing_mail: OutgoingMail,
        routes: Routes,
        outcomes: Outcomes,
        simulator_domain: str,
        large_bytes_max: int,
    ) -> None:
        self._clock = clock
        self._claims = claims
        self._carrier = carrier
        self._outgoing_mail = outgoing_mail
        self._routes = routes
        self._outcomes = outcomes
        self._simulator_domain = simulator_domain
        self._large_bodies = LargeBodies(large_bytes_max)

    def seconds_until_memory(self, bundle: Bundle) -> float | None:
        """In how many seconds there should be memory for the bundle's message, if there is none now."""
        if not self._large_bodies.lacks_capacity(bundle.account_id, bundle.message_id):
            return None
        return self._large_bodies.wait_seconds(bundle.message_id, self._clock.monotonic())

    async def send(
        self,
        queue: LaneQueue,
        bundle: Bundle,
        claimed: Sequence[ClaimedRecipient],
        permit: SendPermit,
        span: Span | None,
    ) -> Sent:
        """Send to those of the claimed recipients that may be tried."""
        attempts, tried = self._outcomes.split(claimed)
        if not tried:
            return Sent(attempts)
        if bundle.destination == self._simulator_domain:
            return Sent(attempts + [self._simulated(recipient) for recipient in tried], DeliveryFeedback.WELL)
        message = tried[0].message
        if message.mime_bytes is None:
            lost = GivenUp("the message is no longer stored", is_released=True)
            return Sent(attempts + [Attempt(recipient, lost) for recipient in tried])
        routes = self._routes_for(queue, bundle, message.sender)
        if routes is None:
            return Sent(attempts + self._outcomes.postponed(tried, timedelta(0)))
        size = 0 if message.mime is not None else message.mime_bytes
        began_at = self._clock.monotonic()
        if size and not self._large_bodies.reserve_body(bundle.account_id, message.id, size):
            seconds = self._large_bodies.wait_seconds(message.id, began_at)
            return Sent(attempts + self._outcomes.postponed(tried, timedelta(seconds=seconds)))
        try:
            carried = await self._carry(queue, bundle, tried, routes, permit, span)
        finally:
            if size:
                self._large_bodies.release_body(bundle.account_id, size, self._clock.monotonic() - began_at)
        if carried is None:
            wait = timedelta(0) if permit.is_refused or self._claims.is_stopping else UNREADY
            return Sent(attempts + self._outcomes.postponed(tried, wait), DeliveryFeedback.OTHERWISE)
        about = queue.name, bundle.destination, carried, bundle.message_id
        about_domain = domain_feedback(*about) if is_provider(queue.name) else None
        return Sent(attempts + attempts_of(queue.name, tried, carried), *served(*about), about_domain)

    def _simulated(self, recipient: ClaimedRecipient) -> Attempt:
        email, domain = recipient.email, self._simulator_domain
        return Attempt(
            recipient,
            simulator.simulate(email, domain, recipient.attempt_count),
            follow_up=simulator.follow_up(email, recipient.position, recipient.message.mailing_list, domain),
        )

    def _routes_for(self, queue: LaneQueue, bundle: Bundle, sender: str) -> tuple[Route, ...] | None:
        """None if the account's mail is routed differently by now."""
        if queue.relay is not None:
            return () if self._routes.relay_of(bundle.account_id) == queue.relay else None
        return self._routes.from_route(bundle.account_id, queue.route, domain_of(sender))

    async def _carry(
        self,
        queue: LaneQueue,
        bundle: Bundle,
        tried: Sequence[ClaimedRecipient],
        routes: tuple[Route, ...],
        permit: SendPermit,
        span: Span | None,
    ) -> CarrierResult | None:
        """The destination's replies; None if the message was withdrawn or could not be prepared."""
        stoppable, task = self._claims.tasks.stoppable, asyncio.current_task()
        stoppable.add(task)
        try:
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
            # PostgreSQL is unavailable, and so is the body.
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
        finally:
            stoppable.discard(task)
        # A message that may have arrived is recorded as such; otherwise nothing was sent.
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
            telemetry.end_session(session, carried)
