"""Traces: the spans of sampled messages, from the request to the webhook's answer, across all processes.

A span is plain data. It is passed on when it ends; `wire.otlp` sends it to a collector. A message that is not sampled
has no span and no trace in its row, so tracing costs it only a comparison with None. The context of a sampled one is
stored with the message and with its webhook deliveries, so that whichever process works on them continues the trace.

There are no attributes but those below: public ids, counts, codes, and names of servers; never a person's address, a
subject, a reply's text or a secret.
"""

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from posthouse.clock import Clock
from posthouse.randomness import Randomness

# Trace contexts: which trace a message belongs to, as in W3C's header `traceparent` and as a row stores it.


TRACEPARENT_HEADER: Final = "traceparent"
TRACE_ID_BYTES: Final = 16
SPAN_ID_BYTES: Final = 8
_STORED_BYTES: Final = TRACE_ID_BYTES + SPAN_ID_BYTES
_SAMPLED: Final = 0x01
# A later version may have more after the flags; version ff is forbidden.
_TRACEPARENT: Final = re.compile(rb"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?")
_TRACEPARENT_BYTES_MAX: Final = 512


class TraceContext(NamedTuple):
    """A span by its ids. Only contexts of sampled traces are stored or passed on."""

    trace_id: bytes
    span_id: bytes
    is_sampled: bool = True

    @property
    def stored(self) -> bytes:
        return self.trace_id + self.span_id

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id.hex()}-{self.span_id.hex()}-{_SAMPLED:02x}"


def parse_traceparent(given: bytes) -> TraceContext | None:
    """The context in a caller's header; None for a header that can't be read, which is ignored."""
    matched = _TRACEPARENT.fullmatch(given) if len(given) <= _TRACEPARENT_BYTES_MAX else None
    if matched is None:
        return None
    version, trace_id, span_id, flags, more = matched.groups()
    if (version == b"00" and more is not None) or not trace_id.strip(b"0") or not span_id.strip(b"0"):
        return None
    is_sampled = bool(int(flags, 16) & _SAMPLED)
    return TraceContext(bytes.fromhex(trace_id.decode()), bytes.fromhex(span_id.decode()), is_sampled)


def from_stored(stored: bytes) -> TraceContext | None:
    """The stored context; None for bytes that another version may have stored."""
    if len(stored) != _STORED_BYTES:
        return None
    return TraceContext(stored[:TRACE_ID_BYTES], stored[TRACE_ID_BYTES:])


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
    RECIPIENTS: "The number of recipients.",
    ATTEMPT: "The number of the attempt, from 1.",
    OUTCOME: "The recorded outcome: `delivered`, `bounced`, `failed`, `deferred`, `postponed`, `succeeded`; several "
    "are separated by commas.",
    CODE: "`accepted`, or the code of the refusal.",
    IS_REPLAY: "Whether the idempotency key was used before, so that the message is that of an earlier request.",
    SMTP_STAGE: "How far the SMTP session got.",
    SMTP_CODE: "The code of the last reply, without its text.",
    TLS: "The version and the cipher of the connection.",
    SERVER: "The name of the mail server.",
    PEER: "The server's IP address.",
    HTTP_STATUS: "The HTTP status of the answer, ours or the endpoint's.",
}


class Kind(StrEnum):
    """The kinds of spans, as OpenTelemetry names them."""

    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"
    CONSUMER = "consumer"


class Span:
    """A step on a message's path. `parent_id` is the span that contains it, perhaps in another process."""

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

    def set_attributes(self, attributes: Mapping[str, Attribute | None]) -> None:
        """Set attributes; None is left out."""
        self.attributes |= {name: value for name, value in attributes.items() if value is not None}

    def end(
        self,
        attributes: Mapping[str, Attribute | None] | None = None,
        *,
        is_error: bool = False,
        ended_at: datetime | None = None,
    ) -> None:
        if attributes is not None:
            self.set_attributes(attributes)
        self.is_error = is_error
        self.ended_at = max(self.began_at, ended_at or self._tracer.now())
        self._tracer.export(self)


class Tracer:
    """Begins spans. `share` is the share of requests that are traced; callers decide only if `follows_callers`."""

    def __init__(
        self,
        *,
        clock: Clock,
        randomness: Randomness,
        export: Callable[[Span], None],
        share: float,
        follows_callers: bool = False,
    ) -> None:
        self.export = export
        self.now = clock.now
        self._clock = clock
        self._randomness = randomness
        self._share = share
        self._follows_callers = follows_callers

    def begin_request(self, name: str, traceparent: bytes | None = None) -> Span | None:
        """The first span of a send request; None if it is not sampled.

        The caller's trace is continued if there is one, whether or not the caller traces it.
        """
        caller = None if traceparent is None else parse_traceparent(traceparent)
        is_asked_for = self._follows_callers and caller is not None and caller.is_sampled
        if not is_asked_for and self._randomness.fraction() >= self._share:
            return None
        if caller is not None:
            return self.begin(name, Kind.SERVER, caller)
        context = TraceContext(self._randomness.bytes(TRACE_ID_BYTES), self._randomness.bytes(SPAN_ID_BYTES))
        return Span(self, name, Kind.SERVER, context, None, self.now())

    def follow(self, stored: bytes | None, name: str, began_at: datetime | None = None) -> Span | None:
        """A span for work on something that is stored with its trace; None if it is not traced."""
        parent = None if stored is None else from_stored(stored)
        return None if parent is None else self.begin(name, Kind.CONSUMER, parent, began_at)

    def begin(self, name: str, kind: Kind, parent: TraceContext, began_at: datetime | None = None) -> Span:
        context = TraceContext(parent.trace_id, self._randomness.bytes(SPAN_ID_BYTES))
        return Span(self, name, kind, context, parent.span_id, began_at or self.now())

    def times_of(self, *monotonic: float) -> list[datetime]:
        """The wall-clock times of earlier readings of the monotonic clock, as far apart as the readings."""
        now, monotonic_now = self.now(), self._clock.monotonic()
        return [now - timedelta(seconds=monotonic_now - reading) for reading in monotonic]
