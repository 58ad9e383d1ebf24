"""The submission service: authenticates customers, delays guessers, checks recipients, and accepts mail."""

import asyncio
import functools
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

import structlog

from posthouse import crash, metrics, traces
from posthouse.clock import Clock
from posthouse.entrypoints.refusals import smtp_reply
from posthouse.entrypoints.smtp import replies
from posthouse.entrypoints.smtp.replies import ServerReply
from posthouse.entrypoints.smtp.service import Envelope, Policy
from posthouse.flows.accept.admission import Admission
from posthouse.flows.accept.intake import AcceptedMessage, Intake
from posthouse.flows.shared.principal import Principal
from posthouse.flows.shared.shares import FairShare, WaitedShare
from posthouse.mail.address import AddressError, parse_mailbox
from posthouse.mail.submitted import SubmittedMailError, is_slow_to_read
from posthouse.randomness import Randomness
from posthouse.rules import credential, ids, limits, rate_limit
from posthouse.rules.ids import AccountId, RequestId
from posthouse.rules.refusal import Code, Refusal
from posthouse.traces import Span, Tracer

log = structlog.get_logger(__name__)

# Few large or slow messages at a time: processing keeps several copies of each in memory. An account has at most three.
CONCURRENT_LARGE_MAX: Final = 4
# Mail programs wait for a reply for minutes.
LARGE_SECONDS_MAX: Final = 60.0
# A recipient is parsed at RCPT, and again with its message.
_read_recipient: Final = functools.lru_cache(maxsize=4_096)(parse_mailbox)
_UNAVAILABLE: Final = frozenset({Code.SERVICE_UNAVAILABLE, Code.TEMPORARY_FAILURE})

# Mail programs wait for minutes, people for seconds.
WAIT_SECONDS_MAX: Final = 20.0
# Many users can share an address, so its delays begin later than those of a single user.
NETWORK_FAILURES_PER_USER: Final = 10
FORGET_SECONDS: Final = 3_600.0
# One failure is forgotten per interval.
FAILURE_DECAY_SECONDS: Final = 180.0
REMEMBERED_MAX: Final = 10_000
# How many logins may be delayed at a time; each occupies a connection.
DELAYED_MAX: Final = 500
DELAYED_PER_NETWORK_MAX: Final = 10


@dataclass(slots=True)
class _Record:
    failures: float = 0.0
    running: int = 0
    has_succeeded: bool = False
    touched_at: float = 0.0


class Backoff:
    """Delays logins after failed logins from the same network.

    Failures are counted per network (an IPv4 address, or an IPv6 network) and per user in a network, never only per
    user, so a guesser in one network can't lock users out in another. The right password is delayed only if wrong ones
    come from the same network, and refused only if many logins from there are already delayed. A user who logged in
    from a network within the last hour doesn't wait because of others' failures there.

    Failures are forgotten at a fixed rate, so that occasional mistakes don't add up. Memory is bounded: the least
    recently used record is dropped first.

    Every `begin` that returns a wait is followed by one of `right`, `wrong` or `undecided`.
    """

    def __init__(self) -> None:
        self._networks: OrderedDict[Hashable, _Record] = OrderedDict()
        self._users: OrderedDict[Hashable, _Record] = OrderedDict()
        self._delayed: FairShare[str] = FairShare(DELAYED_MAX, holder_max=DELAYED_PER_NETWORK_MAX)

    def begin(self, username: str, network: str, now: float) -> float | None:
        """The seconds to delay this login; None if too many are already delayed."""
        user = self._user(username, network, now)
        shared = _record(self._networks, network, now)
        wait = _wait_seconds(user, 1)
        if not user.has_succeeded:
            wait = max(wait, _wait_seconds(shared, NETWORK_FAILURES_PER_USER))
        if wait and not self._delayed.take_units(network):
            return None
        user.running += 1
        shared.running += 1
        return wait

    def waited(self, network: str) -> None:
        """To be called after a delay, whether it was completed or cancelled."""
        self._delayed.release_units(network)

    def right(self, username: str, network: str, now: float) -> None:
        self._end(username, network, now)
        user = self._user(username, network, now)
        user.failures = 0.0
        user.has_succeeded = True

    def wrong(self, username: str, network: str, now: float) -> None:
        self._end(username, network, now)
        self._user(username, network, now).failures += 1
        _record(self._networks, network, now).failures += 1

    def undecided(self, username: str, network: str, now: float) -> None:
        self._end(username, network, now)

    def _end(self, username: str, network: str, now: float) -> None:
        for record in (self._user(username, network, now), _record(self._networks, network, now)):
            record.running = max(0, record.running - 1)

    def _user(self, username: str, network: str, now: float) -> _Record:
        # Hashed, because the name may be a password typed into the wrong field, or kilobytes long.
        return _record(self._users, hash((username, network)), now)


def _record(records: OrderedDict[Hashable, _Record], key: Hashable, now: float) -> _Record:
    record = records.get(key)
    if record is None or (now - record.touched_at > FORGET_SECONDS and not record.running):
        record = records[key] = _Record()
    if record.failures:
        record.failures = max(0.0, record.failures - (now - record.touched_at) / FAILURE_DECAY_SECONDS)
    record.touched_at = now
    records.move_to_end(key)
    if len(records) > REMEMBERED_MAX:
        records.popitem(last=False)
    return record


def _wait_seconds(record: _Record, per_failure: int) -> float:
    # Without failures, simultaneous logins come from a busy client, and are not parallel guesses.
    count = record.failures + record.running if record.failures else 0
    return min(float(rate_limit.login_wait_seconds(int(count) // per_failure)), WAIT_SECONDS_MAX)


class Submission:
    """The service behind the submission ports."""

    def __init__(
        self,
        *,
        admission: Admission,
        intake: Intake,
        clock: Clock,
        randomness: Randomness,
        hostname: str,
        tracer: Tracer | None = None,
    ) -> None:
        self.policy = Policy(hostname, needs_authentication=True)
        self._admission = admission
        self._intake = intake
        self._clock = clock
        self._randomness = randomness
        self._tracer = tracer
        self._backoff = Backoff()
        self._large: WaitedShare[AccountId] = WaitedShare(CONCURRENT_LARGE_MAX, wait_seconds_max=LARGE_SECONDS_MAX)

    async def authenticate(self, username: str, password: str, peer: str) -> Principal:
        """After failed logins the reply is delayed, for this connection only."""
        backoff, clock = self._backoff, self._clock
        network = credential.peer_network(peer)
        wait_seconds = backoff.begin(username, network, clock.monotonic())
        if wait_seconds is None:
            raise Refusal(Code.RATE_LIMITED, "Too many failed logins from this address: try again later.")
        record = backoff.undecided
        try:
            if wait_seconds:
                try:
                    await asyncio.sleep(wait_seconds)
                finally:
                    backoff.waited(network)
            principal = await self._admission.password(username, password, peer)
            record = backoff.right
        except Refusal as refusal:
            if refusal.code is Code.UNAUTHORIZED:
                record = backoff.wrong
            elif refusal.code in _UNAVAILABLE:
                log.warning("login_unavailable", code=refusal.code.value, cause=repr(refusal.__cause__))
            raise
        finally:
            record(username, network, clock.monotonic())
        crash.point("submission.authenticated")
        return principal

    def check_recipient(self, address: str, count: int) -> ServerReply | None:  # noqa: ARG002 (the policy limits them)
        try:
            _read_recipient(address)
        except AddressError as error:
            return ServerReply(553, "5.1.3", f"The recipient's address {error}.")
        return None

    async def accept(self, principal: Principal | None, envelope: Envelope, content: bytes) -> ServerReply:
        began_at = self._clock.monotonic()
        span = None if self._tracer is None else self._tracer.begin_request("submission")
        reply, code = await self._answer(principal, envelope, content, span)
        if span is not None:
            account = None if principal is None else ids.text(ids.ACCOUNT, principal.account_id)
            span.end(
                {traces.ACCOUNT: account, traces.RECIPIENTS: len(envelope.recipients), traces.CODE: code},
                is_error=code != "accepted",
            )
        metrics.ACCEPTS.count("smtp", code)
        metrics.ACCEPT_SECONDS.observe(self._clock.monotonic() - began_at, "smtp")
        return reply

    async def _answer(
        self, principal: Principal | None, envelope: Envelope, content: bytes, span: Span | None
    ) -> tuple[ServerReply, str]:
        """The reply, and its name in the metrics."""
        request_id = RequestId(ids.new_id(self._clock.now(), self._randomness.id_bytes()))
        if span is not None:
            span.set_attributes({traces.REQUEST: ids.text(ids.REQUEST, request_id)})
        crash.point("submission.received")
        try:
            if principal is None:
                raise RuntimeError("a message without authentication")
            await self._admission.recall(principal, envelope.peer)
            if len(content) > limits.THREAD_BODY_BYTES_MIN or is_slow_to_read(content):
                async with self._large.turn(principal.account_id):
                    accepted = await self._accept(principal, envelope, content, request_id, span)
            else:
                accepted = await self._accept(principal, envelope, content, request_id, span)
        except SubmittedMailError as error:
            code, _, status = error.status.partition(" ")
            return ServerReply(int(code), status, str(error)), Code.INVALID_REQUEST.value
        except Refusal as refusal:
            if refusal.code in _UNAVAILABLE:
                log.warning("unavailable", code=refusal.code.value, cause=repr(refusal.__cause__))
            refusal.drop_traceback()
            return ServerReply(*smtp_reply(refusal)), refusal.code.value
        except Exception as fault:
            log.exception("fault", request_id=ids.text(ids.REQUEST, request_id), fault=type(fault).__name__)
            return replies.FAULT, Code.INTERNAL_ERROR.value
        crash.point("submission.before_answer")
        message = ids.text(ids.MESSAGE, accepted.message_id)
        if span is not None:
            span.set_attributes({traces.MESSAGE: message})
        return ServerReply(250, "2.0.0", f"queued as {message}"), "accepted"

    async def _accept(
        self, principal: Principal, envelope: Envelope, content: bytes, request_id: RequestId, span: Span | None
    ) -> AcceptedMessage:
        recipients = [_read_recipient(address) for address in envelope.recipients]
        return await self._intake.adopt(principal, content, recipients, envelope.sender, request_id, span)
