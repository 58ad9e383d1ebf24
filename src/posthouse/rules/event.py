"""Events: the webhook body for a recipient's final result, and its signature.

The body is written once: retries and replays send the same bytes, and the signature covers them. It is written
while outcomes are recorded, so nothing in a server's reply or a submitted message may make it fail.

Every externally visible part of an event request is defined here: customers' programs compare these names and
values exactly, so they never change.
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
SECRET_PREFIX: Final = "whsec_"  # noqa: S105 (the beginning of every secret)
# A receiver accepts a signature for this long before and after its time; longer would allow replay attacks.
SIGNATURE_SECONDS_MAX: Final = 300

_head: Final = re.compile(rb'\{"id":"[^"]*","type":"([^"]*)","created_at":"[^"]*"').match
_signature: Final = re.compile(r"t=([0-9]{1,12}),v1=([0-9a-f]{64})", re.ASCII).fullmatch


class EventType(StrEnum):
    DELIVERED = "email.delivered"
    BOUNCED = "email.bounced"
    FAILED = "email.failed"
    TEST = "webhook.test"


class SignatureVerdict(StrEnum):
    """The result of a receiver's signature check."""

    GENUINE = "genuine"
    UNREADABLE = "unreadable"  # the header is not of the form t=<unix_seconds>,v1=<hex>
    FORGED = "forged"  # another secret, another time or other bytes than were signed
    STALE = "stale"  # correctly signed, but too long before or after now


def body(
    *,
    event_id: UUID,
    type: str,  # noqa: A002
    created_at: datetime,
    message_id: MessageId,
    position: int,
    to: str,
    sender: str,
    subject: str,
    smtp_code: int | None,
    smtp_response: str | None,
) -> bytes:
    """The event of a recipient; `sender` is the submitted envelope's. Empty fields are omitted."""
    # Formatted by hand, since the shape never changes: a general encoder takes five times as long.
    fields = (
        f'{{"id":"{ids.text(EVENT, event_id)}","type":"{type}","created_at":"{moment(created_at)}",'
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
    # A lone surrogate can't be encoded; it becomes a question mark.
    return (fields + "}}").encode("utf-8", "replace")


def test_body(*, event_id: UUID, created_at: datetime) -> bytes:
    """The event of a webhook ping; it is not about a message."""
    fields = (
        f'{{"id":"{ids.text(EVENT, event_id)}","type":"{EventType.TEST.value}","created_at":"{moment(created_at)}",'
        f'"data":{{"subject":{quoted(TEST_SUBJECT)},"test":true}}}}'
    )
    return fields.encode()


def with_new_id(body: bytes, event_id: UUID, created_at: datetime) -> bytes:
    """The same event with another id and time: for an event that no customer has received yet."""
    head = _head(body)
    if head is None:
        raise ValueError("no event begins like this")
    return (
        b'{"id":"%b","type":"%b","created_at":"%b"'
        % (ids.text(EVENT, event_id).encode(), head[1], moment(created_at).encode())
        + body[head.end() :]
    )


def sign(secret: str, body: bytes, t: int) -> str:
    """The signature header's value for an attempt at `t`, in Unix seconds."""
    return f"t={t},v1={_hex(secret, str(t), body)}"


def verify(secret: str, header: str, body: bytes, now: int) -> SignatureVerdict:
    """Check a request's raw body as a receiver should; `now` is the receiver's time in Unix seconds."""
    signature = _signature(header)
    if signature is None:
        return SignatureVerdict.UNREADABLE
    t, given = signature.groups()
    if not hmac.compare_digest(_hex(secret, t, body), given):
        return SignatureVerdict.FORGED
    return SignatureVerdict.GENUINE if abs(now - int(t)) <= SIGNATURE_SECONDS_MAX else SignatureVerdict.STALE


def _hex(secret: str, t: str, body: bytes) -> str:
    # The key is the whole secret as shown, prefix included.
    return hmac.digest(secret.encode(), b"%b.%b" % (t.encode(), body), "sha256").hex()


def moment(at: datetime) -> str:
    """RFC 3339 in UTC with milliseconds, as in HTTP responses."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
