"""The submission service: authenticates customers, checks recipients, and accepts their mail."""

import asyncio
import functools
from typing import Final

import structlog

from posthouse import crash, metrics, traces
from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.entrypoints.refusals import smtp_reply
from posthouse.entrypoints.smtp import replies
from posthouse.entrypoints.smtp.backoff import Backoff
from posthouse.entrypoints.smtp.replies import ServerReply
from posthouse.entrypoints.smtp.service import Envelope, Policy
from posthouse.flows.accept.admission import Admission
from posthouse.flows.accept.intake import AcceptedMessage, Intake
from posthouse.flows.shared.fair_room import FairRoom
from posthouse.flows.shared.principal import Principal
from posthouse.mail.address import AddressError, parse_mailbox
from posthouse.mail.submitted import SubmittedMailError, is_slow_to_read
from posthouse.rules import credential, ids, limits
from posthouse.rules.ids import AccountId, RequestId
from posthouse.rules.refusal import Code, Refusal
from posthouse.traces import Span, Tracer

log = structlog.get_logger(__name__)

# Few large or slow mails at a time: processing keeps several copies of each in memory. An account has three at most.
LARGE_AT_ONCE_MAX: Final = 4
# Mail programs wait for minutes.
LARGE_SECONDS_MAX: Final = 60.0
# A recipient is parsed at RCPT, and again with its message.
_read_recipient: Final = functools.lru_cache(maxsize=4_096)(parse_mailbox)
_UNAVAILABLE: Final = frozenset({Code.SERVICE_UNAVAILABLE, Code.TEMPORARY_FAILURE})


class Submission:
    """The service behind the submission ports."""

    def __init__(
        self,
        *,
        admission: Admission,
        intake: Intake,
        clock: Clock,
        chance: Chance,
        hostname: str,
        tracer: Tracer | None = None,
    ) -> None:
        self.policy = Policy(hostname, needs_authentication=True)
        self._admission = admission
        self._intake = intake
        self._clock = clock
        self._chance = chance
        self._tracer = tracer
        self._backoff = Backoff()
        self._large: FairRoom[AccountId] = FairRoom(LARGE_AT_ONCE_MAX, wait_seconds_max=LARGE_SECONDS_MAX)

    async def authenticate(self, username: str, password: str, peer: str) -> Principal:
        """After failed logins the reply is delayed; only this connection waits."""
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
        """The reply, and what it is called in the metrics."""
        request_id = RequestId(ids.new_id(self._clock.now(), self._chance.bytes(ids.RANDOM_BYTES)))
        if span is not None:
            span.note({traces.REQUEST: ids.text(ids.REQUEST, request_id)})
        crash.point("submission.received")
        try:
            if principal is None:
                raise RuntimeError("a message without authentication")
            await self._admission.recall(principal, envelope.peer)
            if len(content) > limits.THREAD_BODY_BYTES_MIN or is_slow_to_read(content):
                await self._large.take(principal.account_id)
                try:
                    accepted = await self._accept(principal, envelope, content, request_id, span)
                finally:
                    self._large.give_back(principal.account_id)
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
            span.note({traces.MESSAGE: message})
        return ServerReply(250, "2.0.0", f"queued as {message}"), "accepted"

    async def _accept(
        self, principal: Principal, envelope: Envelope, content: bytes, request_id: RequestId, span: Span | None
    ) -> AcceptedMessage:
        recipients = [_read_recipient(address) for address in envelope.recipients]
        return await self._intake.adopt(principal, content, recipients, envelope.sender, request_id, span)
