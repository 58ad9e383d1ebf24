"""The event of a final result, with the id of its webhook delivery, should there be one."""

from datetime import datetime

from posthouse.chance import Chance
from posthouse.flows.shared.new_id import new_id
from posthouse.rules import event
from posthouse.rules.ids import MessageId
from posthouse.rules.outcome import DeliveryVerdict
from posthouse.store.delivery_outcomes import DeliveryResult, NewEvent


def result_event(
    chance: Chance,
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
    event_id = new_id(chance, now)
    kind = event.EventType(f"email.{result}")
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
    return NewEvent(event_id, kind, body, new_id(chance, now))
