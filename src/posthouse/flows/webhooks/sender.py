"""Sends webhooks: an event's ticket is claimed, sent to the customer's endpoint as a signed POST, and recorded.

Claim, send, record, as with mail. The attempt is counted at the claim; the same stored bytes are signed again each
time. Each account has its own limits of running and waiting requests, so that an endpoint that hangs delays no other
account. Its endpoints share them, so that none of them delays the others for long. An endpoint that is
new or failing gets one call at a time, at a low rate (`rules.endpoint`). The rate belongs to the account, and is
kept in this process's memory, since one process at a time reads an account's tickets.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, assert_never
from uuid import UUID

import structlog

from posthouse import crash, metrics, traces
from posthouse.flows.shared import tickets
from posthouse.flows.shared.claims import Claims
from posthouse.flows.shared.context import Context
from posthouse.flows.shared.shares import Rates
from posthouse.flows.shared.worker_lease import SendPermit, WorkerLease
from posthouse.flows.webhooks import claim_store
from posthouse.flows.webhooks.claim_store import WebhookClaimStore
from posthouse.flows.webhooks.failing_notices import FailingNotices
from posthouse.rules import endpoint, event, ids, retry
from posthouse.rules.claim import WORKER_LEASE, BatchDelay
from posthouse.rules.endpoint import LIMITED_RATE, EndpointState, PreviousSecret
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Refusal
from posthouse.rules.retry import Schedule
from posthouse.rules.ticket import WebhookTicket
from posthouse.rules.webhook_url import WebhookTarget
from posthouse.store import endpoints
from posthouse.store.postgres import Database
from posthouse.store.seal import SealError
from posthouse.store.webhook_schedule import ClaimedWebhook, WebhookOutcome, WebhookResult
from posthouse.traces import Kind, Span, Tracer
from posthouse.wire.stream import StreamMessage
from posthouse.wire.webhook_client import NoWebhookAnswer, WebhookAnswer, WebhookCallResult, WebhookClient

log = structlog.get_logger(__name__)

Item = tickets.Item[WebhookTicket]
Signer = Callable[[int], dict[str, str]]

CALLS_MAX: Final = 500
ACCOUNT_CALLS_MAX: Final = 10
# For a destination whose answers are good, while at least half of the process's calls are free.
GOOD_CALLS_MAX: Final = 100
ACCOUNT_WAITING_MAX: Final = 500
# For each destination, while the account has work for several.
SHARED_WAITING_MAX: Final = 50
SLOW_SECONDS: Final = 1.0
# For all accounts together.
WAITING_MAX: Final = 15_000
# Tickets that find no space are postponed, for as long as the work before them should take.
POSTPONE_SECONDS_MIN: Final = 1.0
POSTPONE_SECONDS_MAX: Final = 600.0
CALL_LONGEST_SECONDS: Final = 120.0
BATCH_DELAY_SECONDS: Final = 0.01
# For a secret that can't be opened. The fault is ours, so it doesn't count as an attempt.
UNREADY: Final = timedelta(minutes=1)
STOPPED: Final = "the service was stopped while it waited for the answer"
FAULT_OF_OURS: Final = "the service failed"
LIMITED: Final = {
    EndpointState.NEW: "It waits: the endpoint has not answered with a 2xx yet, and is called rarely until then.",
    EndpointState.FAILING: "It waits: all calls to the endpoint have failed for days, and it is called rarely.",
}


@dataclass(slots=True)
class _Destination:
    """The waiting and running requests of an endpoint."""

    waiting: deque[Item] = field(default_factory=deque)
    running: int = 0
    # A moving average of how long a request takes.
    seconds: float = 0.1
    # One more after each 2xx; as at first after any other answer, and while answers are slow.
    calls_max: int = ACCOUNT_CALLS_MAX
    # The time up to which space is promised to postponed tickets.
    horizon: float = 0.0
    # Whether it gets one call at a time, as of the last claim.
    is_limited: bool = False
    # Its URL, if its last call was answered with a 2xx, which claims that were made before may not know.
    answering_url: str | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def interval(self) -> float:
        """The approximate seconds between two calls."""
        # As for a destination without additional calls, which it may not get while others have work.
        return 1 / LIMITED_RATE.per_second if self.is_limited else self.seconds / ACCOUNT_CALLS_MAX

    @property
    def is_slow(self) -> bool:
        return self.seconds > SLOW_SECONDS

    def note_call(self, *, is_good: bool) -> None:
        self.calls_max = min(self.calls_max + 1, GOOD_CALLS_MAX) if is_good else ACCOUNT_CALLS_MAX

    def is_idle(self, now: float) -> bool:
        return not self.waiting and not self.running and self.horizon <= now


@dataclass(slots=True)
class _Account:
    """One account's endpoints that have work, in the order in which they get their turns."""

    destinations: dict[UUID, _Destination] = field(default_factory=dict)
    running: int = 0

    @property
    def waiting(self) -> int:
        return sum(len(destination.waiting) for destination in self.destinations.values())

    def destination(self, endpoint_id: UUID) -> _Destination:
        return self.destinations.setdefault(endpoint_id, _Destination())

    def has_capacity(self, destination: _Destination) -> bool:
        """With several destinations, none may take the slots of the others."""
        capacity = ACCOUNT_WAITING_MAX if len(self.destinations) == 1 else SHARED_WAITING_MAX
        return len(destination.waiting) < capacity

    def next_destination(self, *, is_busy: bool) -> _Destination | None:
        """A destination that has a ticket and may be called; its next turn comes after the others'.

        In a process that is busy, the account gets no more calls than others can have.
        """
        calls_max = max((destination.calls_max for destination in self.destinations.values()), default=0)
        if is_busy:
            calls_max = min(calls_max, ACCOUNT_CALLS_MAX)
        if self.running >= calls_max:
            return None
        for endpoint_id, destination in self.destinations.items():
            share = self._share(destination, min(destination.calls_max, calls_max))
            if destination.waiting and destination.running < share:
                self.destinations[endpoint_id] = self.destinations.pop(endpoint_id)
                return destination
        return None

    def _share(self, destination: _Destination, calls_max: int) -> int:
        """Of several destinations each may take half of the calls, but a slow one only one."""
        if destination.is_limited:
            return 1
        if len(self.destinations) == 1:
            return calls_max
        return 1 if destination.is_slow else calls_max // 2


@dataclass(frozen=True, slots=True)
class WebhookPolicy:
    """What the operator sets. Without `with_endpoints`, endpoints besides the webhooks are switched off.

    Without `delays_batches`, claims and outcomes don't wait for others.
    """

    retries: Schedule = retry.WEBHOOK
    worker_lease: timedelta = WORKER_LEASE
    failing_after: timedelta = endpoint.FAILING_AFTER
    calls_max: int = CALLS_MAX
    waiting_max: int = WAITING_MAX
    with_endpoints: bool = True
    delays_batches: bool = True


DEFAULT_POLICY: Final = WebhookPolicy()


class WebhookSender:
    def __init__(
        self,
        context: Context,
        *,
        client: WebhookClient,
        target_of: Callable[[str], WebhookTarget],
        policy: WebhookPolicy = DEFAULT_POLICY,
        renewals: Database | None = None,
        notices: FailingNotices | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """`target_of` checks an endpoint's URL, as when it was saved; it raises a Refusal if the URL is not allowed.

        `renewals` are connections only for the lease, which must not wait for those that claim and record.
        """
        batch_delay_seconds = BATCH_DELAY_SECONDS if policy.delays_batches else 0.0
        self._claims = Claims(
            WebhookClaimStore(),
            WebhookTicket,
            database=context.database,
            clock=context.clock,
            lease=WorkerLease(
                database=renewals or context.database,
                clock=context.clock,
                randomness=context.randomness,
                lease=policy.worker_lease,
            ),
            claim_batch_delay=BatchDelay(batch_delay_seconds),
            record_batch_delay=BatchDelay(batch_delay_seconds),
        )
        self._clock = context.clock
        self._client = client
        self._tracer = tracer
        self._sealer = context.keys.sealer
        self._target_of = target_of
        self._policy = policy
        self._notices = notices
        self._limited: Rates[AccountId] = Rates()
        self._accounts: dict[AccountId, _Account] = {}
        # Accounts that wait only for the process's limit, in the order in which they reached it.
        self._starved: dict[AccountId, None] = {}
        self._running = 0
        self._waiting = 0

    @property
    def worker_id(self) -> UUID:
        return self._claims.worker_id

    @property
    def capacity(self) -> int:
        """How many more tickets this worker can hold."""
        return self._claims.capacity

    async def offer(self, messages: Iterable[StreamMessage]) -> None:
        """Take the tickets of these messages, and start those that may be sent now."""
        late: list[tuple[Item, float]] = []
        for item in await self._claims.take_tickets(messages):
            account = self._accounts.setdefault(item.ticket.account_id, _Account())
            destination = account.destination(item.ticket.endpoint_id)
            # Even when all space is taken, an account without a waiting ticket gets one in.
            if not account.has_capacity(destination) or (self._waiting >= self._policy.waiting_max and account.waiting):
                late.append((item, self._postpone_seconds(destination)))
                continue
            crash.point("notification.offered")
            destination.waiting.append(item)
            self._waiting += 1
            self._advance(item.ticket.account_id)
        if late:
            self._claims.tasks.spawn(self._claims.postpone_items(late))

    async def renew(self) -> None:
        for account_id in list(self._accounts):
            self._forget_idle(account_id)
        await self._claims.renew()

    async def heartbeat(self) -> None:
        await self._claims.heartbeat()

    async def settle(self) -> None:
        """Return when no work is left."""
        await self._claims.tasks.settle()

    async def drain(self, seconds: float) -> None:
        """Give back waiting tickets, let running requests finish, and stop waiting for answers when time is up."""
        waiting = [
            item
            for account in self._accounts.values()
            for destination in account.destinations.values()
            for item in destination.waiting
        ]
        self._accounts.clear()
        await self._claims.drain(waiting, seconds)

    # Which ticket goes next.

    def _advance(self, account_id: AccountId) -> None:
        account = self._accounts[account_id]
        late: list[tuple[Item, float]] = []
        while not self._claims.is_stopping:
            destination = account.next_destination(is_busy=self._running >= self._policy.calls_max // 2)
            if destination is None:
                break
            if self._running >= self._policy.calls_max:
                self._starved.setdefault(account_id)
                break
            item = destination.waiting.popleft()
            self._waiting -= 1
            if destination.is_limited and self._is_postponed_again(account_id, item):
                late.append((item, self._postpone_seconds(destination)))
                continue
            account.running += 1
            destination.running += 1
            self._running += 1
            self._claims.tasks.spawn(self._deliver(account_id, account, destination, item))
        if late:
            self._claims.tasks.spawn(self._claims.postpone_items(late))
        self._forget_idle(account_id)

    def _is_postponed_again(self, account_id: AccountId, item: Item) -> bool:
        """Whether it can't be sent, known without a claim: the rate is used up, and it is not a new ping."""
        return (
            item.ticket.fence > 0 and not self._limited.reading(account_id, LIMITED_RATE, self._clock.now()).remaining
        )

    def _forget_idle(self, account_id: AccountId) -> None:
        account, now = self._accounts[account_id], self._clock.monotonic()
        for endpoint_id in [key for key, destination in account.destinations.items() if destination.is_idle(now)]:
            del account.destinations[endpoint_id]
        if not account.destinations:
            del self._accounts[account_id]

    def _end_turn(self, account_id: AccountId, account: _Account, destination: _Destination, seconds: float) -> None:
        destination.seconds += (seconds - destination.seconds) / ACCOUNT_CALLS_MAX
        destination.running -= 1
        account.running -= 1
        self._running -= 1
        if destination.is_slow:
            destination.calls_max = ACCOUNT_CALLS_MAX
        if self._claims.is_stopping:
            return
        # After the waiting ones: otherwise the first accounts would take every turn.
        self._starved.setdefault(account_id)
        while self._starved and self._running < self._policy.calls_max:
            starved = next(iter(self._starved))
            del self._starved[starved]
            if starved in self._accounts:
                self._advance(starved)

    def _postpone_seconds(self, destination: _Destination) -> float:
        """When there should be space, after what waits and what was postponed before."""
        now = self._clock.monotonic()
        # Tickets that wait for a limited endpoint will be postponed too, after this one.
        waiting = 0 if destination.is_limited else len(destination.waiting)
        begin = now + max(waiting * destination.interval / 2, POSTPONE_SECONDS_MIN)
        destination.horizon = min(max(destination.horizon + destination.interval, begin), now + POSTPONE_SECONDS_MAX)
        return destination.horizon - now

    # Claim, send, record.

    async def _deliver(self, account_id: AccountId, account: _Account, destination: _Destination, item: Item) -> None:
        began_at = self._clock.monotonic()
        span: Span | None = None
        try:
            permit = self._claims.permit(CALL_LONGEST_SECONDS)
            claimed = await self._claims.claim([item.ticket])
            if self._tracer is not None:
                span = claim_store.begin(self._tracer, item, claimed, began_at)
            outcomes = [await self._outcome_of(destination, webhook, permit, span) for webhook in claimed]
        except Exception as fault:
            if span is not None:
                span.end(is_error=True)
            await self._claims.give_up([item], fault)
            return
        finally:
            self._end_turn(account_id, account, destination, self._clock.monotonic() - began_at)
        record = None if span is None else span.child("record")
        await self._claims.record(outcomes)
        if span is not None and record is not None:
            claim_store.end(span, record, outcomes)
        for outcome in outcomes:
            self._count(outcome)
        await self._claims.acknowledge([item])

    def _count(self, outcome: WebhookOutcome) -> None:
        metrics.WEBHOOKS.count(outcome.result.value)
        if outcome.duration_ms is not None:
            metrics.WEBHOOK_SECONDS.observe(outcome.duration_ms / 1000)
        if outcome.result is WebhookResult.SUCCEEDED:
            metrics.WEBHOOK_LAG.observe((self._clock.now() - ids.time_of(outcome.id)).total_seconds())

    async def _outcome_of(
        self, destination: _Destination, claimed: ClaimedWebhook, permit: SendPermit, span: Span | None
    ) -> WebhookOutcome:
        if claimed.cancelled is not None:
            return WebhookOutcome(*claimed.key, WebhookResult.FAILED, error=claimed.cancelled)
        if claimed.is_over:
            error = f"It was sent {claimed.attempt_count} times, and not every time was an answer received."
            return WebhookOutcome(*claimed.key, WebhookResult.FAILED, error=error)
        if not claimed.is_for_webhook and not self._policy.with_endpoints:
            return WebhookOutcome(*claimed.key, WebhookResult.FAILED, error=endpoint.SWITCHED_OFF)
        now = self._clock.now()
        state = endpoint.state_of(claimed.answered_at, claimed.failing_since, now, self._policy.failing_after)
        destination.is_limited = state.is_limited and claimed.url != destination.answering_url
        if destination.is_limited:
            async with destination.turn:
                if claimed.url != destination.answering_url:
                    return await self._limited_call(destination, claimed, state, permit, span)
        return await self._call(destination, claimed, permit, span)

    async def _limited_call(
        self,
        destination: _Destination,
        claimed: ClaimedWebhook,
        state: EndpointState,
        permit: SendPermit,
        span: Span | None,
    ) -> WebhookOutcome:
        """A ping is sent immediately: the customer asked for it, and has to wait between two of them."""
        if not claimed.is_ping:
            taken = self._limited.take_request(claimed.account_id, LIMITED_RATE, self._clock.now())
            if taken is not None:
                wait = timedelta(seconds=max(taken.seconds, self._postpone_seconds(destination)))
                return self._again(claimed, wait, LIMITED[state])
        outcome = await self._call(destination, claimed, permit, span)
        is_failing = state is EndpointState.FAILING and outcome.result is not WebhookResult.SUCCEEDED
        if self._notices is not None and is_failing and outcome.url is not None and claimed.failing_noted_at is None:
            self._claims.tasks.spawn(self._notices.send(claimed.account_id, claimed.endpoint_id, outcome.url))
        return outcome

    async def _call(
        self, destination: _Destination, claimed: ClaimedWebhook, permit: SendPermit, span: Span | None
    ) -> WebhookOutcome:
        if claimed.url is None or claimed.secret_sealed is None or claimed.body is None:
            return WebhookOutcome(*claimed.key, WebhookResult.FAILED, error="The event is no longer stored.")
        # Not checked earlier: a delivery that ends without an attempt has no counted attempt to take back.
        if self._claims.is_stopping or not permit():
            return self._again(claimed, timedelta(0))
        try:
            sign = self._signer(claimed, claimed.secret_sealed, claimed.body)
        except SealError:
            log.exception("secret_not_opened", webhook_delivery=ids.text(ids.WEBHOOK_DELIVERY, claimed.id))
            return self._again(claimed, UNREADY)
        call = None if span is None else span.child("call", Kind.CLIENT)
        answer = await self._send(claimed.id, claimed.url, sign, claimed.body, call)
        if call is not None:
            claim_store.end_call(call, answer)
        outcome = self._outcome(claimed, claimed.url, answer)
        destination.note_call(is_good=outcome.result is WebhookResult.SUCCEEDED)
        if outcome.result is WebhookResult.SUCCEEDED:
            if destination.is_limited:
                # The promised space was that of a limited endpoint.
                destination.is_limited, destination.horizon = False, 0.0
            destination.answering_url = claimed.url
        else:
            destination.answering_url = None
        return outcome

    def _signer(self, claimed: ClaimedWebhook, secret_sealed: bytes, body: bytes) -> Signer:
        """The headers of a call at this time in Unix seconds; raises SealError if they can't be opened."""
        key = claimed.account_id, claimed.endpoint_id
        purpose = endpoints.secret_purpose(*key)
        secret = self._sealer.open(secret_sealed, purpose).decode()
        if claimed.is_for_webhook:
            return lambda t: {event.SIGNATURE_HEADER: event.sign(secret, body, t)}
        previous: list[PreviousSecret] = []
        if claimed.previous_secret_sealed is not None:
            previous = endpoint.previous_secrets(self._sealer.open(claimed.previous_secret_sealed, purpose).decode())
        own: dict[str, str] = {}
        if claimed.headers_sealed is not None:
            own = json.loads(self._sealer.open(claimed.headers_sealed, endpoints.headers_purpose(*key)))

        def headers(t: int) -> dict[str, str]:
            valid = [each.text for each in previous if each.until.timestamp() > t]
            return {**own, **endpoint.signed_headers([secret, *valid], claimed.event_id, t, body)}

        return headers

    async def _send(
        self, delivery_id: UUID, url: str, sign: Signer, body: bytes, call: Span | None
    ) -> WebhookCallResult:
        began_at = self._clock.monotonic()
        stoppable, task = self._claims.tasks.stoppable, asyncio.current_task()
        stoppable.add(task)
        try:
            target = self._target_of(url)
            headers = sign(int(self._clock.now().timestamp()))
            if call is not None:
                headers[traces.TRACEPARENT_HEADER] = call.context.traceparent
            crash.point("notification.before_post")
            answer = await self._client.call(target, body, headers)
            crash.point("notification.after_post")
            return answer
        except Refusal as refusal:
            # It was allowed when it was saved; the rules have changed since.
            return NoWebhookAnswer(refusal.text, 0)
        except asyncio.CancelledError:
            if not self._claims.is_stopping:
                raise
            reason = STOPPED
        except Exception:
            log.exception("webhook_not_sent", webhook_delivery=ids.text(ids.WEBHOOK_DELIVERY, delivery_id))
            reason = FAULT_OF_OURS
        finally:
            stoppable.discard(task)
        return NoWebhookAnswer(reason, round((self._clock.monotonic() - began_at) * 1000))

    def _outcome(self, claimed: ClaimedWebhook, url: str, answer: WebhookCallResult) -> WebhookOutcome:
        now = self._clock.now()
        next_at = None
        if claimed.attempt_count < claimed.max_attempts:
            next_at = retry.next_at(
                self._policy.retries, attempts=claimed.attempt_count, started_at=now, now=now, random=0.5
            )
        missed = WebhookResult.FAILED if next_at is None else WebhookResult.DEFERRED
        match answer:
            case WebhookAnswer(status, body, truncated, duration_ms):
                is_taken = 200 <= status <= 299
                return WebhookOutcome(
                    *claimed.key,
                    WebhookResult.SUCCEEDED if is_taken else missed,
                    next_at=None if is_taken else next_at,
                    url=url,
                    http_status=status,
                    error=None if is_taken else f"The endpoint answered {status} instead of a 2xx.",
                    duration_ms=duration_ms,
                    response_body=body,
                    response_truncated=truncated,
                    changed_endpoint=_changed_endpoint(claimed, is_taken=is_taken),
                )
            case NoWebhookAnswer(reason, duration_ms):
                return WebhookOutcome(
                    *claimed.key,
                    missed,
                    next_at=next_at,
                    url=url,
                    error=reason,
                    duration_ms=duration_ms,
                    # A fault on our side says nothing about the endpoint.
                    changed_endpoint=None
                    if reason in (STOPPED, FAULT_OF_OURS)
                    else _changed_endpoint(claimed, is_taken=False),
                )
            case _:
                assert_never(answer)

    def _again(self, claimed: ClaimedWebhook, wait: timedelta, reason: str | None = None) -> WebhookOutcome:
        """Nothing was sent (the lease ended, the secret can't be opened, the rate is used up), so no attempt counts."""
        return WebhookOutcome(*claimed.key, WebhookResult.POSTPONED, next_at=self._clock.now() + wait, error=reason)


def _changed_endpoint(claimed: ClaimedWebhook, *, is_taken: bool) -> UUID | None:
    """The endpoint if its row is to be written: rarely, so that not every call costs a write."""
    is_failing = claimed.failing_since is not None
    is_news = is_taken is is_failing or (is_taken and claimed.answered_at is None)
    return claimed.endpoint_id if is_news else None
