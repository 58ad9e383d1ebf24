"""The event of a final result."""

from datetime import datetime

from posthouse.flows.shared.context import new_id
from posthouse.randomness import Randomness
from posthouse.rules import event
from posthouse.rules.ids import MessageId
from posthouse.rules.outcome import DeliveryVerdict
from posthouse.store.delivery_outcomes import DeliveryResult, NewEvent


def result_event(
    randomness: Randomness,
    now: datetime,
    result: DeliveryResult,
    verdict: DeliveryVerdict,
    *,
    message_id: MessageId,
    position: int,
    to: str,
    sender: str,
    subject: str,
) -> NewEvent:
    event_id = new_id(randomness, now)
    kind = f"email.{result}"
    body = event.body(
        event_id=event_id,
        type=kind,
        created_at=now,
        message_id=message_id,
        position=position,
        to=to,
        sender=sender,
        subject=subject,
        smtp_code=verdict.code,
        smtp_response=verdict.text,
    )
    return NewEvent(event_id, kind, body)
