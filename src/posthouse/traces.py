"""Traces: the spans of sampled mails, from the request to the webhook's answer, over all processes.

A span is plain data. It is handed over when it ends; `wire.otlp` sends it to a collector. A mail that is not sampled
has no span and no trace in its row: tracing costs it a comparison with None. The context of a sampled one is stored
with the message and with its webhook deliveries, so that whichever process works on them continues the trace.

Attributes are those below and no others: ids that people see, counts, codes, and names of servers; never an address
of a person, a subject, a reply's text or a secret.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.rules import trace_context
from posthouse.rules.trace_context import SPAN_ID_BYTES, TRACE_ID_BYTES, TraceContext

Attribute = str | int | bool

ACCOUNT: Final = "posthouse.account"
MESSAGE: Final = "posthouse.message"
REQUEST: Final = "posthouse.request"
EVENT: Final = "posthouse.event"
WEBHOOK_DELIVERY: Final = "posthouse.webhook_delivery"
RECIPIENTS: Final = "posthouse.recipients"
ATTEMPT: Final = "posthouse.attempt"
OUTCOME: Final = "posthouse.outcome"
CODE: Final = "posthouse.code"
IS_REPLAY: Final = "posthouse.is_replay"
SMTP_STAGE: Final = "posthouse.smtp_stage"
SMTP_CODE: Final = "posthouse.smtp_code"
TLS: Final = "posthouse.tls"
SERVER: Final = "server.address"
PEER: Final = "network.peer.address"
HTTP_STATUS: Final = "http.response.status_code"

ATTRIBUTES: Final[Mapping[str, str]] = {
    ACCOUNT: "The account's id (`ac_…`).",
    MESSAGE: "The message's id (`em_…`).",
    REQUEST: "The request's id (`rq_…`).",
    EVENT: "The event's id (`ev_…`).",
    WEBHOOK_DELIVERY: "The webhook delivery's id (`wd_…`).",
    RECIPIENTS: "How many recipients it is about.",
    ATTEMPT: "Which attempt it is, from 1 on.",
    OUTCOME: "What was recorded: `delivered`, `bounced`, `failed`, `deferred`, `postponed`, `succeeded`; several are "
    "separated by commas.",
    CODE: "`accepted`, or the code of the refusal.",
    IS_REPLAY: "The idempotency key was used before: the message is an earlier request's.",
    SMTP_STAGE: "How far the SMTP session came.",
    SMTP_CODE: "The code of the last reply, without its text.",
    TLS: "The version and the cipher of the connection.",
    SERVER: "The name of the mail server.",
    PEER: "The address that was connected to.",
    HTTP_STATUS: "The HTTP status of the answer, ours or the endpoint's.",
}


class Kind(StrEnum):
    """As OpenTelemetry names them."""

    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"
    CONSUMER = "consumer"


class Span:
    """A step of one mail's way. `parent_id` is the span that it is a part of, perhaps of another process."""

    __slots__ = (
        "_tracer",
        "attributes",
        "began_at",
        "context",
        "ended_at",
        "is_error",
        "kind",
        "name",
        "parent_id",
    )

    def __init__(
        self,
        tracer: "Tracer",
        name: str,
        kind: Kind,
        context: TraceContext,
        parent_id: bytes | None,
        began_at: datetime,
    ) -> None:
        self._tracer = tracer
        self.name = name
        self.kind = kind
        self.context = context
        self.parent_id = parent_id
        self.began_at = began_at
        self.ended_at = began_at
        self.attributes: dict[str, Attribute] = {}
        self.is_error = False

    def child(self, name: str, kind: Kind = Kind.INTERNAL, began_at: datetime | None = None) -> "Span":
        return self._tracer.begin(name, kind, self.context, began_at)

    def note(self, attributes: Mapping[str, Attribute | None]) -> None:
        """What is None is not noted."""
        self.attributes |= {name: value for name, value in attributes.items() if value is not None}

    def end(
        self,
        attributes: Mapping[str, Attribute | None] | None = None,
        *,
        is_error: bool = False,
        ended_at: datetime | None = None,
    ) -> None:
        if attributes is not None:
            self.note(attributes)
        self.is_error = is_error
        self.ended_at = max(self.began_at, ended_at or self._tracer.now())
        self._tracer.export(self)


class Tracer:
    """Begins spans. `share` is the part of all requests that are traced; callers decide only if `follows_callers`."""

    def __init__(
        self,
        *,
        clock: Clock,
        chance: Chance,
        export: Callable[[Span], None],
        share: float,
        follows_callers: bool = False,
    ) -> None:
        self.export = export
        self.now = clock.now
        self._clock = clock
        self._chance = chance
        self._share = share
        self._follows_callers = follows_callers

    def begin_request(self, name: str, traceparent: bytes | None = None) -> Span | None:
        """The first span of a request to send; None if it is not sampled.

        The caller's trace is continued if there is one, whether or not the caller traces it.
        """
        caller = None if traceparent is None else trace_context.parse_traceparent(traceparent)
        is_asked_for = self._follows_callers and caller is not None and caller.is_sampled
        if not is_asked_for and self._chance.fraction() >= self._share:
            return None
        if caller is not None:
            return self.begin(name, Kind.SERVER, caller)
        context = TraceContext(self._chance.bytes(TRACE_ID_BYTES), self._chance.bytes(SPAN_ID_BYTES))
        return Span(self, name, Kind.SERVER, context, None, self.now())

    def follow(self, stored: bytes | None, name: str, began_at: datetime | None = None) -> Span | None:
        """A span of work on something stored with its trace; None if it is not traced."""
        parent = None if stored is None else trace_context.from_stored(stored)
        return None if parent is None else self.begin(name, Kind.CONSUMER, parent, began_at)

    def begin(self, name: str, kind: Kind, parent: TraceContext, began_at: datetime | None = None) -> Span:
        context = TraceContext(parent.trace_id, self._chance.bytes(SPAN_ID_BYTES))
        return Span(self, name, kind, context, parent.span_id, began_at or self.now())

    def time_of(self, monotonic: float) -> datetime:
        """The time of an earlier reading of the monotonic clock."""
        return self.now() - timedelta(seconds=self._clock.monotonic() - monotonic)
