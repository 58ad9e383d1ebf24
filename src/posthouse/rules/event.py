"""Events: what a customer is told when a recipient's result is final, as the bytes that every attempt sends.

The body is written once and never again: retries and replays send the same bytes, and the signature is
over them. It is written while outcomes are recorded, so nothing that a stranger's server or a submitted
mail contains may make it fail.

How a request with an event looks from outside is here, too, and nowhere else: customers' programs compare
these names and values letter by letter, so that they never change.
"""

import hmac
import re
from datetime import UTC, datetime
from enum import StrEnum
from json.encoder import encode_basestring as quoted
from typing import Final
from uuid import UUID

from posthouse.rules import ids
from posthouse.rules.ids import EVENT, MESSAGE, RECIPIENT, MessageId

SUBJECT_CHARACTERS_MAX: Final = 200
RESPONSE_CHARACTERS_MAX: Final = 500
TEST_SUBJECT: Final = "This is a test of your webhook."

CONTENT_TYPE: Final = "application/json"
USER_AGENT: Final = "Service-Webhook/1.0"
SIGNATURE_HEADER: Final = "Service-Signature"
SECRET_PREFIX: Final = "whsec_"  # noqa: S105 (how each begins)
# A receiver takes a signature for this long before and after its time; longer, and a request could be repeated.
SIGNATURE_SECONDS_MAX: Final = 300

_head: Final = re.compile(rb'\{"id":"[^"]*","type":"([^"]*)","created_at":"[^"]*"').match
_signature: Final = re.compile(r"t=([0-9]{1,12}),v1=([0-9a-f]{64})", re.ASCII).fullmatch


class EventType(StrEnum):
    DELIVERED = "email.delivered"
    BOUNCED = "email.bounced"
    FAILED = "email.failed"
    TEST = "webhook.test"


class SignatureVerdict(StrEnum):
    """What a receiver finds out about a request."""

    GENUINE = "genuine"
    UNREADABLE = "unreadable"  # the header is not of the form t=<unix_seconds>,v1=<hex>
    FORGED = "forged"  # another secret, another time or other bytes than were signed
    STALE = "stale"  # rightly signed, but too long before or after now


def body(
    *,
    event_id: UUID,
    type: EventType,  # noqa: A002
    created_at: datetime,
    message_id: MessageId,
    position: int,
    to: str,
    sender: str,
    subject: str,
    smtp_code: int | None,
    smtp_response: str | None,
) -> bytes:
    """The event of one recipient; `sender` is the envelope's, as it was submitted. Empty fields are left out."""
    # Put together by hand, since the shape never changes: a general encoder takes five times as long.
    fields = (
        f'{{"id":"{ids.text(EVENT, event_id)}","type":"{type.value}","created_at":"{_moment(created_at)}",'
        f'"data":{{"email_id":"{ids.text(MESSAGE, message_id)}",'
        f'"recipient_id":"{ids.text(RECIPIENT, ids.recipient_id(message_id, position))}","to":{quoted(to)}'
    )
    if sender:
        fields += f',"from":{quoted(sender)}'
    if subject:
        fields += f',"subject":{quoted(subject[:SUBJECT_CHARACTERS_MAX])}'
    if smtp_code is not None:
        fields += f',"smtp_code":{smtp_code:d}'
    if smtp_response:
        fields += f',"smtp_response":{quoted(smtp_response[:RESPONSE_CHARACTERS_MAX])}'
    # A lone surrogate is no character and has no bytes; it becomes a question mark.
    return (fields + "}}").encode("utf-8", "replace")


def test_body(*, event_id: UUID, created_at: datetime) -> bytes:
    """The event that a ping sends: about no mail."""
    fields = (
        f'{{"id":"{ids.text(EVENT, event_id)}","type":"{EventType.TEST.value}","created_at":"{_moment(created_at)}",'
        f'"data":{{"subject":{quoted(TEST_SUBJECT)},"test":true}}}}'
    )
    return fields.encode()


def with_new_id(body: bytes, event_id: UUID, created_at: datetime) -> bytes:
    """The same event as if it had been made at another time: for one that nobody has seen yet."""
    head = _head(body)
    if head is None:
        raise ValueError("no event begins like this")
    return (
        b'{"id":"%b","type":"%b","created_at":"%b"'
        % (ids.text(EVENT, event_id).encode(), head[1], _moment(created_at).encode())
        + body[head.end() :]
    )


def sign(secret: str, body: bytes, t: int) -> str:
    """The value of the signature's header for this attempt; `t` is its time in Unix seconds."""
    return f"t={t},v1={_hex(secret, str(t), body)}"


def verify(secret: str, header: str, body: bytes, now: int) -> SignatureVerdict:
    """What a receiver should do with the raw bytes that came; `now` is its own time in Unix seconds."""
    signature = _signature(header)
    if signature is None:
        return SignatureVerdict.UNREADABLE
    t, given = signature.groups()
    if not hmac.compare_digest(_hex(secret, t, body), given):
        return SignatureVerdict.FORGED
    return SignatureVerdict.GENUINE if abs(now - int(t)) <= SIGNATURE_SECONDS_MAX else SignatureVerdict.STALE


def _hex(secret: str, t: str, body: bytes) -> str:
    # The key is the whole secret as it was shown, prefix and all.
    return hmac.digest(secret.encode(), b"%b.%b" % (t.encode(), body), "sha256").hex()


def _moment(at: datetime) -> str:
    """RFC 3339 in UTC with milliseconds, as the HTTP answers write it."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
