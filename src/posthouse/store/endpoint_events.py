"""Events for endpoints: added to the schedule of webhooks, and composed if an endpoint besides the webhook wants them.

The webhook gets the body that is in `events` already. The data in the other bodies is read in the transaction that
makes the event; the body is stored, so that retries and replays send the same bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from posthouse.rules import endpoint, event, ids
from posthouse.rules.delivery_reason import reason_of
from posthouse.rules.endpoint import Filters, FurtherType, MailFacts
from posthouse.rules.event import EventType
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.reports import ReportNote
from posthouse.rules.retry import WEBHOOK
from posthouse.rules.ticket import WebhookTicket
from posthouse.rules.unsubscribe import LIST_TAG_PREFIX, ListMember
from posthouse.store.delivery_schedule import columns
from posthouse.store.endpoints import Endpoint, filters_of
from posthouse.store.postgres import Connection
from posthouse.store.statement import statement
from posthouse.store.webhook_log import FailedDelivery, WebhookDelivery


@dataclass(frozen=True, slots=True)
class MailEvent:
    """An event about a recipient. `body` is the webhook's, if it is one of its events, and `trace` that of its call."""

    account_id: AccountId
    id: UUID
    type: str
    message_id: MessageId
    position: int
    body: bytes | None = None
    code: int | None = None
    response: str | None = None
    reason: str | None = None
    trace: bytes | None = None


@dataclass(frozen=True, slots=True)
class AccountEvent:
    """An event that is not about a message; `tags` are those of the mail that led to it."""

    account_id: AccountId
    type: FurtherType
    data: Mapping[str, object]
    tags: tuple[str, ...] = ()


class _Listener(NamedTuple):
    account_id: AccountId
    id: UUID
    url: str
    filters: Filters

    @property
    def is_webhook(self) -> bool:
        return self.id == self.account_id


class _Composed(NamedTuple):
    account_id: AccountId
    id: UUID
    message_id: MessageId | None
    position: int | None
    type: str
    body: bytes


class _Delivery(NamedTuple):
    account_id: AccountId
    id: UUID
    event_id: UUID
    type: str
    message_id: MessageId | None
    position: int | None
    url: str
    endpoint_id: UUID
    trace: bytes | None
    replay_of: UUID | None = None


_LISTENERS: Final = """
SELECT account_id, id, url, types, sender_domains, tags, mode FROM endpoints
WHERE account_id = ANY($1::uuid[]) AND enabled ORDER BY account_id, id
"""
_FACTS: Final = statement("""
SELECT asked.account_id, asked.message_id, asked.position, recipient.email, message.*
FROM unnest(:account_ids::uuid[], :message_ids::uuid[], :positions::smallint[]) asked(account_id, message_id, position)
CROSS JOIN LATERAL (
    SELECT sender, envelope_sender, subject, tags, metadata, source, trace FROM messages
    WHERE account_id = asked.account_id AND id = asked.message_id AND id >= :lowest AND id <= :highest LIMIT 1) message
CROSS JOIN LATERAL (
    SELECT email FROM recipients
    WHERE account_id = asked.account_id AND message_id = asked.message_id AND position = asked.position
      AND message_id >= :lowest AND message_id <= :highest LIMIT 1) recipient
""")
_TRACES: Final = """
SELECT id, trace FROM messages
WHERE account_id = $1 AND id = ANY($2::uuid[]) AND id >= $3 AND id <= $4 AND trace IS NOT NULL
"""
_TEST_EVENT: Final = """
INSERT INTO events (account_id, id, type, created_at, body) VALUES ($1, $2, 'webhook.test', $3, $4)
"""
_ENTER: Final = statement("""
WITH composed AS (
    INSERT INTO endpoint_events (account_id, id, message_id, position, type, created_at, body)
    SELECT account_id, id, message_id, position, type, :now, body
    FROM unnest(:event_account_id::uuid[], :event_id::uuid[], :event_message_id::uuid[], :event_position::smallint[],
        :event_type::text[], :event_body::bytea[])
        event(account_id, id, message_id, position, type, body)
    ON CONFLICT DO NOTHING
), wanted AS MATERIALIZED (
    SELECT * FROM unnest(:delivery_account_id::uuid[], :delivery_id::uuid[], :delivery_event_id::uuid[],
        :delivery_type::text[], :delivery_message_id::uuid[], :delivery_position::smallint[], :delivery_url::text[],
        :delivery_endpoint_id::uuid[], :delivery_trace::bytea[], :delivery_replay_of::uuid[])
        delivery(account_id, id, event_id, type, message_id, position, url, endpoint_id, trace, replay_of)
), logged AS (
    INSERT INTO webhook_deliveries (account_id, id, event_id, type, message_id, position, url, max_attempts,
        created_at, next_attempt_at, endpoint_id, replay_of)
    SELECT account_id, id, event_id, type, message_id, position, url, :max_attempts, :now, :now, endpoint_id, replay_of
    FROM wanted
    ON CONFLICT DO NOTHING
)
INSERT INTO webhook_schedule (account_id, id, event_id, next_at, due_at, max_attempts, trace, endpoint_id)
SELECT account_id, id, event_id, :next_at, :now, :max_attempts, trace, endpoint_id FROM wanted
ON CONFLICT DO NOTHING
RETURNING account_id, id, fence, endpoint_id
""")


def of_reports(
    account_id: AccountId, message_id: MessageId, notes: Sequence[ReportNote], now: datetime
) -> list[MailEvent]:
    """The events of new reports, for endpoints only: the webhook gets only final results."""
    events = []
    for note in notes:
        if not note.is_believed or note.position is None:
            continue
        is_complaint = note.kind == "complaint"
        type_ = FurtherType.COMPLAINED if is_complaint else FurtherType.RETURNED
        about = message_id.bytes, bytes([note.position]), type_.encode(), (note.status or "").encode()
        events.append(
            MailEvent(
                account_id,
                ids.derived_id(now, *about),
                type_,
                message_id,
                note.position,
                code=note.code,
                response=None if is_complaint else note.response,
                reason=None if note.code is None else reason_of("bounced", note.code, note.response).value,
            )
        )
    return events


def of_leaver(leaver: ListMember) -> AccountEvent:
    """The event of an address that has left a list."""
    account_id, mailing_list, email = leaver
    tags = (LIST_TAG_PREFIX + mailing_list,)
    return AccountEvent(account_id, FurtherType.UNSUBSCRIBED, {"to": email, "list": mailing_list}, tags)


async def enter_mail(
    tx: Connection,
    events: Sequence[MailEvent],
    now: datetime,
    next_at: datetime,
    max_attempts: int = WEBHOOK.attempts_max,
) -> list[WebhookTicket]:
    """Add these events for the endpoints that want them; return their deliveries' tickets, leased until `next_at`.

    An event of a further type is also stored if an endpoint asks for its type but its other filters exclude this mail:
    the feed of events shows it.
    """
    listeners = await _listeners(tx, {event.account_id for event in events})
    asked = [
        (about, [each for each in listeners.get(about.account_id, ()) if about.type in each.filters.types])
        for about in events
    ]
    facts = await _facts(tx, [about for about, asking in asked if any(not each.is_webhook for each in asking)])
    composed: list[_Composed] = []
    deliveries: list[_Delivery] = []
    for about, asking in asked:
        deliveries += [_delivery(about, listener, about.trace, now) for listener in asking if listener.is_webhook]
        found = facts.get((about.account_id, about.message_id, about.position))
        if found is None:
            continue
        mail, trace = found
        wanting = [each for each in asking if not each.is_webhook and endpoint.wants(each.filters, about.type, mail)]
        if asking and (wanting or about.body is None):
            body = endpoint.mail_body(about.body or _plain_body(about, mail, now), mail, about.reason)
            composed.append(_Composed(about.account_id, about.id, about.message_id, about.position, about.type, body))
        deliveries += [_delivery(about, listener, trace, now) for listener in wanting]
    return await _enter(tx, composed, deliveries, now, next_at, max_attempts)


async def enter_of_account(tx: Connection, events: Sequence[AccountEvent], now: datetime) -> list[WebhookTicket]:
    """Add these for the endpoints that want them, due now."""
    listeners = await _listeners(tx, {event.account_id for event in events})
    composed: list[_Composed] = []
    deliveries: list[_Delivery] = []
    for about in events:
        asked = [each for each in listeners.get(about.account_id, ()) if about.type in each.filters.types]
        if not asked:
            continue
        event_id = ids.derived_id(now, about.account_id.bytes, about.type.encode(), repr(about.data).encode())
        body = endpoint.account_body(event_id, about.type, now, about.data)
        composed.append(_Composed(about.account_id, event_id, None, None, about.type, body))
        deliveries += [
            _delivery(composed[-1], listener, None, now)
            for listener in asked
            if endpoint.wants_of_account(listener.filters, about.type, about.tags)
        ]
    return await _enter(tx, composed, deliveries, now, now, WEBHOOK.attempts_max)


async def enter_ping(
    tx: Connection,
    to: Endpoint,
    event_id: UUID,
    delivery_id: UUID,
    body: bytes,
    now: datetime,
    next_at: datetime,
) -> list[WebhookTicket]:
    """A test event that is sent once. The feed of events shows those of the webhook.

    It is due at `next_at`: now, or when the ticket that the caller publishes counts as lost.
    """
    composed = []
    if to.is_webhook:
        await tx.execute(_TEST_EVENT, to.account_id, event_id, now, body)
    else:
        composed.append(_Composed(to.account_id, event_id, None, None, EventType.TEST, body))
    delivery = _Delivery(to.account_id, delivery_id, event_id, EventType.TEST, None, None, to.url, to.id, None)
    return await _enter(tx, composed, [delivery], now, next_at, 1)


async def enter_replays(
    tx: Connection,
    to: Endpoint,
    replays: Sequence[tuple[UUID, WebhookDelivery | FailedDelivery]],
    now: datetime,
    next_at: datetime,
    max_attempts: int = WEBHOOK.attempts_max,
) -> list[WebhookTicket]:
    """The same events once more, each under a new id and with all attempts."""
    message_ids = {original.message_id for _, original in replays if original.message_id is not None}
    traces = {}
    if message_ids:
        rows = await tx.fetch(_TRACES, to.account_id, list(message_ids), min(message_ids), max(message_ids))
        traces = {row["id"]: row["trace"] for row in rows}
    deliveries = [
        _Delivery(
            to.account_id,
            delivery_id,
            original.event_id,
            original.type,
            original.message_id,
            original.position,
            to.url,
            to.id,
            traces.get(original.message_id),
            original.id,
        )
        for delivery_id, original in replays
    ]
    return await _enter(tx, [], deliveries, now, next_at, max_attempts)


async def _enter(
    tx: Connection,
    composed: Sequence[_Composed],
    deliveries: Sequence[_Delivery],
    now: datetime,
    next_at: datetime,
    max_attempts: int,
) -> list[WebhookTicket]:
    if not composed and not deliveries:
        return []
    rows = await tx.fetch(
        *_ENTER.bind(
            now=now,
            next_at=next_at,
            max_attempts=max_attempts,
            **_columns("event", _Composed._fields, composed),
            **_columns("delivery", _Delivery._fields, deliveries),
        )
    )
    return [WebhookTicket(*row) for row in rows]


def _columns(name: str, fields: Sequence[str], rows: Sequence[tuple[object, ...]]) -> dict[str, object]:
    return {f"{name}_{field}": column for field, column in zip(fields, columns(rows, len(fields)), strict=True)}


async def _listeners(tx: Connection, account_ids: set[AccountId]) -> dict[AccountId, list[_Listener]]:
    found: dict[AccountId, list[_Listener]] = {}
    for row in await tx.fetch(_LISTENERS, list(account_ids)):
        listener = _Listener(row["account_id"], row["id"], row["url"], filters_of(row))
        found.setdefault(listener.account_id, []).append(listener)
    return found


async def _facts(
    tx: Connection, events: Sequence[MailEvent]
) -> dict[tuple[AccountId, MessageId, int], tuple[MailFacts, bytes | None]]:
    if not events:
        return {}
    message_ids = [event.message_id for event in events]
    rows = await tx.fetch(
        *_FACTS.bind(
            account_ids=[event.account_id for event in events],
            message_ids=message_ids,
            positions=[event.position for event in events],
            lowest=min(message_ids),
            highest=max(message_ids),
        )
    )
    return {
        (row["account_id"], row["message_id"], row["position"]): (
            MailFacts(
                row["email"],
                row["sender"],
                row["envelope_sender"],
                row["subject"],
                tuple(row["tags"] or ()),
                row["metadata"],
                row["source"],
            ),
            row["trace"],
        )
        for row in rows
    }


def _plain_body(about: MailEvent, mail: MailFacts, now: datetime) -> bytes:
    return event.body(
        event_id=about.id,
        type=FurtherType(about.type),
        created_at=now,
        message_id=about.message_id,
        position=about.position,
        to=mail.to,
        sender=mail.envelope_sender,
        subject=mail.subject,
        smtp_code=about.code,
        smtp_response=about.response,
    )


def _delivery(of: _Composed | MailEvent, listener: _Listener, trace: bytes | None, now: datetime) -> _Delivery:
    return _Delivery(
        of.account_id,
        ids.derived_id(now, of.id.bytes, listener.id.bytes),
        of.id,
        of.type,
        of.message_id,
        of.position,
        listener.url,
        listener.id,
        trace,
    )
