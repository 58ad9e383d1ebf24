"""Events: what a customer is told when a recipient's result is final, as the bytes that every attempt sends.

The body is written once and never again: retries and replays send the same bytes, and the signature is
over them. It is written while outcomes are recorded, so nothing that a stranger's server or a submitted
mail contains may make it fail.
"""

from datetime import UTC, datetime
from enum import StrEnum
from json.encoder import encode_basestring as quoted
from typing import Final
from uuid import UUID

from posthouse.rules import ids
from posthouse.rules.ids import EVENT, MESSAGE, RECIPIENT, MessageId

SUBJECT_CHARACTERS_MAX: Final = 200
RESPONSE_CHARACTERS_MAX: Final = 500


class Type(StrEnum):
    DELIVERED = "email.delivered"
    BOUNCED = "email.bounced"
    FAILED = "email.failed"
    TEST = "webhook.test"


def body(
    *,
    event_id: UUID,
    type: Type,  # noqa: A002
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


def _moment(at: datetime) -> str:
    """RFC 3339 in UTC with milliseconds, as the HTTP answers write it."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
