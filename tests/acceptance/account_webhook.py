"""An account's webhook over HTTP: saved, its events as a delivery worker makes them, its log read."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from posthouse.randomness import SystemRandomness
from posthouse.rules import event, ids
from posthouse.rules.event import EventType
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.ticket import WebhookTicket
from posthouse.store import endpoint_events, webhook_schedule
from posthouse.store.endpoint_events import MailEvent
from posthouse.store.webhook_schedule import WebhookOutcome
from tests.support.accept_flow import new_id
from tests.support.http_answer import Answer
from tests.support.service import Tenant, uuid

URL: Final = "https://hooks.example.com/posthouse"
# Old enough to be listed.
AGO: Final = timedelta(minutes=1)


async def saved(tenant: Tenant, url: str = URL, **fields: object) -> Answer:
    answer = await tenant.call("PUT", "/v1/webhook", {"url": url, **fields})
    assert answer.status == 200, answer.raw
    return answer


async def log_of(tenant: Tenant, query: str = "") -> list[dict[str, Any]]:
    answer = await tenant.call("GET", f"/v1/webhook/deliveries{query}")
    assert answer.status == 200, answer.raw
    deliveries: list[dict[str, Any]] = answer.body["deliveries"]
    return deliveries


async def add_event(
    tenant: Tenant, message_id: str | None = None, type_: EventType = EventType.DELIVERED, *, at: datetime | None = None
) -> tuple[str, str]:
    """Creates a message's event and, with a webhook, its delivery, like a delivery worker; returns their ids."""
    at = at or datetime.now(UTC) - AGO
    event_id = new_id(at)
    about = MessageId(uuid(message_id)) if message_id else ids.new_message_id(at, SystemRandomness().bytes(10))
    body = event.body(
        event_id=event_id,
        type=type_,
        created_at=at,
        message_id=about,
        position=0,
        to="ada@example.org",
        sender=f"news@{tenant.domain}",
        subject="Grüße",
        smtp_code=250,
        smtp_response="2.0.0 taken",
    )
    async with tenant.service.pool.acquire() as connection, connection.transaction():
        await connection.execute(
            "INSERT INTO events (account_id, id, message_id, position, type, created_at, body)"
            " VALUES ($1, $2, $3, 0, $4, $5, $6)",
            tenant.id, event_id, about, type_, at, body,
        )  # fmt: skip
        made = MailEvent(AccountId(tenant.id), event_id, type_, about, 0, body)
        tickets = await endpoint_events.enter_mail(connection, [made], at, at)
    deliveries = [ids.text(ids.WEBHOOK_DELIVERY, ticket.webhook_delivery_id) for ticket in tickets]
    return ids.text(ids.EVENT, event_id), deliveries[0] if deliveries else ""


async def ended(tenant: Tenant, delivery_id: str, **result: Any) -> None:
    """Records an attempt, like a worker."""
    value = ids.parse(ids.WEBHOOK_DELIVERY, delivery_id)
    assert value is not None
    now = datetime.now(UTC)
    worker_id = new_id(now)
    async with tenant.service.pool.acquire() as connection, connection.transaction():
        ticket = WebhookTicket(AccountId(tenant.id), value, 0, tenant.id)
        (claimed,) = await webhook_schedule.claim(connection, worker_id, [ticket], now, now + AGO)
        await webhook_schedule.record(connection, [WebhookOutcome(*claimed.key, url=claimed.url, **result)], now)
