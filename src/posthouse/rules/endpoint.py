"""Endpoints: URLs of an account in addition to its webhook, each with its own filters, headers and secrets.

They receive the webhook's three events and others, with fields that the contract's body leaves out, and with the
headers of Standard Webhooks 1.0. Every externally visible part of that is defined here.

The URL of a webhook or of an endpoint may name a host that is not the customer's, or one that no longer exists. Until
it answers with a 2xx, and again when all calls to it have failed for days, it gets one call at a time, at a low rate.
Attempts are postponed because of that, never skipped.
"""

import hmac
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple
from uuid import UUID

from posthouse.mail.address import AddressError, parse_mailbox
from posthouse.rules import event, ids, input_checks, limits
from posthouse.rules.credential import Mode
from posthouse.rules.event import EventType
from posthouse.rules.message import TAG_SHAPE, Source, is_tag, read_metadata
from posthouse.rules.rate_limit import Rate
from posthouse.rules.refusal import invalid
from posthouse.rules.search import time_bound


class FurtherType(StrEnum):
    """Types that the webhook never receives."""

    DEFERRED = "email.deferred"
    RETURNED = "email.returned"
    COMPLAINED = "email.complained"
    UNSUBSCRIBED = "email.unsubscribed"
    CANCELLED = "email.cancelled"
    DOMAIN_VERIFIED = "domain.verified"
    DOMAIN_ENDANGERED = "domain.endangered"
    DOMAIN_LOST = "domain.lost"
    ALERT_RAISED = "alert.raised"
    ALERT_CLEARED = "alert.cleared"


# The types that an endpoint can ask for; a test is sent on request, whatever the endpoint asks for.
TYPES: Final = (EventType.DELIVERED, EventType.BOUNCED, EventType.FAILED, *FurtherType)
SECRET_BYTES: Final = 32
# How long the previous secret still signs after a rotation, together with the new one.
PREVIOUS_VALID: Final = timedelta(hours=24)
# Previous secrets of an endpoint at a time: each adds a signature to every call.
PREVIOUS_MAX: Final = 4

FAILING_AFTER: Final = timedelta(days=2)
# A host that lets each call time out gets one call in 5 seconds; a host that refuses immediately gets no more. The
# burst keeps the first events, and all attempts of a single event, on the contract's schedule.
LIMITED_RATE: Final = Rate(1 / 5, 10)

_LOWEST: Final = UUID(int=0)
_HIGHEST: Final = UUID(int=2**128 - 1)

SWITCHED_OFF: Final = "It was not sent: the operator of this service has switched endpoints off."

ID_HEADER: Final = "webhook-id"
TIMESTAMP_HEADER: Final = "webhook-timestamp"
SIGNATURE_HEADER: Final = "webhook-signature"

_is_name: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}").fullmatch
_is_value: Final = re.compile(r"(?:[\x21-\x7e](?:[\x20\x21-\x7e]*[\x21-\x7e])?)?").fullmatch
# Headers that frame the request, that we send ourselves, or that name clients and proxies.
_FORBIDDEN: Final = frozenset(
    {
        "accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "cookie",
        "date", "expect", "forwarded", "host", "keep-alive", "origin", "referer", "service-signature", "te",
        "traceparent", "tracestate", "trailer", "transfer-encoding", "upgrade", "user-agent", "via",
    }
)  # fmt: skip
_FORBIDDEN_BEGINNINGS: Final = ("proxy-", "sec-", "webhook-", "x-forwarded-", "x-real-ip", "access-control-")


class EndpointState(StrEnum):
    NEW = "new"  # the URL has not answered with a 2xx yet
    ANSWERING = "answering"
    FAILING = "failing"  # all calls have failed for as long as the operator has set

    @property
    def is_limited(self) -> bool:
        return self is not EndpointState.ANSWERING


class WebhookStatus(StrEnum):
    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class WebhookFilters:
    """Ids from `lowest` up to, not including, `before`; None means any status or type."""

    status: WebhookStatus | None = None
    type: str | None = None
    lowest: UUID = _LOWEST
    before: UUID = _HIGHEST


class PreviousSecret(NamedTuple):
    """A secret that was rotated out, and the time until which it signs."""

    text: str
    until: datetime


@dataclass(frozen=True, slots=True)
class Filters:
    """Which events an endpoint gets: these types and, if other filters are set, only events of matching mail."""

    types: tuple[str, ...]
    sender_domains: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    mode: Mode | None = None


@dataclass(frozen=True, slots=True)
class MailFacts:
    """What events say about a message and one of its recipients; `sender` is the address in From."""

    to: str
    sender: str
    envelope_sender: str
    subject: str
    tags: tuple[str, ...]
    metadata: str | None
    source: str

    @property
    def mode(self) -> Mode:
        return Mode.TEST if self.source == Source.TEST else Mode.LIVE

    @property
    def domain(self) -> str:
        try:
            return parse_mailbox(self.sender).domain
        except AddressError:
            return ""


def filters(
    types: Sequence[str] | None, sender_domains: Sequence[str] | None, tags: Sequence[str] | None, mode: str | None
) -> Filters:
    """The filters as given by the client; a Refusal if one is invalid. No types means all of them."""
    for name in types or ():
        if name == EventType.TEST:
            raise invalid(f"`types` must not name {EventType.TEST}: it is sent when you ping, whatever the types are.")
        if name not in TYPES:
            raise invalid(f"`types` names {name[:100]!r}, which is not an event: it takes {', '.join(TYPES)}.")
    if len(sender_domains or ()) > limits.ENDPOINT_DOMAINS_MAX:
        raise invalid(f"`sender_domains` has at most {limits.ENDPOINT_DOMAINS_MAX} domains.")
    if len(tags or ()) > limits.TAGS_MAX:
        raise invalid(f"`tags` has at most {limits.TAGS_MAX} tags.")
    for tag in tags or ():
        if not is_tag(tag):
            raise invalid(f"`tags`: each tag has {TAG_SHAPE}.")
    if mode is not None and mode not in list(Mode):
        raise invalid(f"`mode` is one of {', '.join(Mode)}; without it, the endpoint gets the events of both.")
    return Filters(
        tuple(type_ for type_ in TYPES if type_ in (types or TYPES)),
        tuple(dict.fromkeys(input_checks.domain_name(name, "sender_domains") for name in sender_domains or ())),
        tuple(dict.fromkeys(tags or ())),
        None if mode is None else Mode(mode),
    )


def webhook_filters(
    status: str | None,
    type_: str | None,
    since: str | None,
    until: str | None,
    types: Sequence[str],
) -> WebhookFilters:
    """The filters as given by the client; a Refusal if one is invalid."""
    if status is not None and status not in list(WebhookStatus):
        raise invalid(f"`status` is one of {', '.join(WebhookStatus)}.")
    if type_ is not None and type_ not in types:
        raise invalid(f"`type` is one of {', '.join(types)}.")
    return WebhookFilters(
        None if status is None else WebhookStatus(status),
        type_,
        _LOWEST if since is None else time_bound("since", since),
        _HIGHEST if until is None else time_bound("until", until),
    )


def state_of(
    answered_at: datetime | None, failing_since: datetime | None, now: datetime, failing_after: timedelta
) -> EndpointState:
    """`answered_at` is the URL's first 2xx; `failing_since` the first failed call after its last 2xx."""
    if failing_since is not None and now - failing_since >= failing_after:
        return EndpointState.FAILING
    return EndpointState.NEW if answered_at is None else EndpointState.ANSWERING


def wants(filters: Filters, type_: str, facts: MailFacts) -> bool:
    """Whether the endpoint gets this event about a message."""
    return (
        type_ in filters.types
        and (not filters.sender_domains or facts.domain in filters.sender_domains)
        and (not filters.tags or not set(filters.tags).isdisjoint(facts.tags))
        and filters.mode in (None, facts.mode)
    )


def wants_of_account(filters: Filters, type_: str, tags: Sequence[str]) -> bool:
    """The same for an event that is not about a message."""
    return (
        type_ in filters.types
        and not filters.sender_domains
        and filters.mode is None
        and (not filters.tags or not set(filters.tags).isdisjoint(tags))
    )


def headers(given: Mapping[str, str]) -> Mapping[str, str]:
    """The custom headers of the endpoint, if all of them may be sent."""
    if len(given) > limits.ENDPOINT_HEADERS_MAX:
        raise invalid(f"`headers` has {len(given)} headers: at most {limits.ENDPOINT_HEADERS_MAX} are allowed.")
    names = [name.lower() for name in given]
    if len(set(names)) < len(names):
        raise invalid("`headers` names the same header twice: case makes no difference.")
    for name, value in given.items():
        if not _is_name(name):
            raise invalid(f"`headers`: {name[:100]!r} is not a header name of 1 to 64 characters.")
        if name.lower() in _FORBIDDEN or name.lower().startswith(_FORBIDDEN_BEGINNINGS):
            raise invalid(f"`headers.{name}` can't be set: the service sends it, or it belongs to HTTP itself.")
        if len(value) > limits.ENDPOINT_HEADER_CHARACTERS_MAX or not _is_value(value):
            raise invalid(
                f"`headers.{name}` has up to {limits.ENDPOINT_HEADER_CHARACTERS_MAX} characters of ASCII, "
                "without line breaks and without spaces at either end."
            )
    return given


def new_secret(random: bytes) -> str:
    return event.SECRET_PREFIX + b64encode(random).decode()


def previous_text(previous: Sequence[PreviousSecret]) -> str:
    """The text in which previous secrets are sealed together."""
    return " ".join(f"{each.text},{each.until.isoformat()}" for each in previous)


def previous_secrets(stored: str) -> list[PreviousSecret]:
    """The secrets in a text that `previous_text` wrote."""
    parts = [part.partition(",") for part in stored.split(" ")]
    return [PreviousSecret(text, datetime.fromisoformat(until)) for text, _, until in parts]


def signed_headers(secrets: Sequence[str], event_id: UUID, t: int, body: bytes) -> dict[str, str]:
    """The headers of Standard Webhooks for an attempt at `t`, in Unix seconds: a signature for each secret."""
    webhook_id = ids.text(ids.EVENT, event_id)
    signed = f"{webhook_id}.{t}.".encode() + body
    signatures = [
        "v1," + b64encode(hmac.digest(b64decode(secret.removeprefix(event.SECRET_PREFIX)), signed, "sha256")).decode()
        for secret in secrets
    ]
    return {ID_HEADER: webhook_id, TIMESTAMP_HEADER: str(t), SIGNATURE_HEADER: " ".join(signatures)}


def mail_body(body: bytes, facts: MailFacts, reason: str | None) -> bytes:
    """An event's body in the contract's form, with the fields that only endpoints get."""
    fields: dict[str, object] = {} if reason is None else {"reason": reason}
    fields["mode"] = facts.mode.value
    if facts.tags:
        fields["tags"] = facts.tags
    if facts.metadata is not None:
        fields["metadata"] = read_metadata(facts.metadata)
    return body[:-2] + b"," + _encoded(fields)[1:-1] + b"}}"


def account_body(event_id: UUID, type_: FurtherType, created_at: datetime, data: Mapping[str, object]) -> bytes:
    """The body of an event that is not about a message."""
    return _encoded(
        {
            "id": ids.text(ids.EVENT, event_id),
            "type": type_.value,
            "created_at": event.moment(created_at),
            "data": data,
        }
    )


def _encoded(content: Mapping[str, object]) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
