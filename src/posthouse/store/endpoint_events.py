"""Events as endpoints get them: composed where an endpoint wants them, and entered into the schedule of webhooks.

An account without endpoints has none. What the bodies say is read in the transaction that makes the event; the body is
stored, so that retries and replays send the same bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from posthouse.rules import endpoint, event, ids
from posthouse.rules.credential import Mode
from posthouse.rules.delivery_reason import reason_of
from posthouse.rules.endpoint import Filters, FurtherType, MailFacts
from posthouse.rules.event import EventType
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.reports import ReportNote
from posthouse.rules.retry import WEBHOOK
from posthouse.rules.ticket import WebhookTicket
from posthouse.rules.unsubscribe import LIST_TAG_PREFIX, ListMember
from posthouse.store.delivery_schedule import columns
from posthouse.store.endpoints import Endpoint
from posthouse.store.postgres import Connection
from posthouse.store.statement import statement
from posthouse.store.webhook_log import FailedDelivery


@dataclass(frozen=True, slots=True)
class MailEvent:
    """An event about a recipient. `body` is the webhook's, if it is one of its events."""

    account_id: AccountId
    id: UUID
    type: str
    message_id: MessageId
    position: int
    body: bytes | None = None
    code: int | None = None
    response: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class AccountEvent:
    """An event that is about no mail; `tags` are those of the mail that led to it."""

    account_id: AccountId
    type: FurtherType
    data: Mapping[str, object]
    tags: tuple[str, ...] = ()


class _Listener(NamedTuple):
    account_id: AccountId
    id: UUID
    url: str
    filters: Filters


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
_ENTER: Final = statement("""
WITH composed AS (
    INSERT INTO endpoint_events (account_id, id, message_id, position, type, created_at, body)
    SELECT account_id, id, message_id, position, type, :now, body
    FROM unnest(:event_account_ids::uuid[], :event_ids::uuid[], :event_message_ids::uuid[],
        :event_positions::smallint[], :event_types::text[], :bodies::bytea[])
        event(account_id, id, message_id, position, type, body)
    ON CONFLICT DO NOTHING
), wanted AS MATERIALIZED (
    SELECT * FROM unnest(:account_ids::uuid[], :ids::uuid[], :of_events::uuid[], :types::text[], :message_ids::uuid[],
        :positions::smallint[], :urls::text[], :endpoint_ids::uuid[], :traces::bytea[], :replays_of::uuid[])
        delivery(account_id, id, event_id, type, message_id, position, url, endpoint_id, trace, replay_of)
), logged AS (
    INSERT INTO webhook_deliveries (account_id, id, event_id, type, message_id, position, url, max_attempts,
        created_at, next_attempt_at, endpoint_id, replay_of)
    SELECT account_id, id, event_id, type, message_id, position, url, :max_attempts, :now, :now, endpoint_id, replay_of
    FROM wanted
    ON CONFLICT DO NOTHING
)
INSERT INTO calls (account_id, id, event_id, next_at, due_at, max_attempts, trace, endpoint_id)
SELECT account_id, id, event_id, :next_at, :now, :max_attempts, trace, endpoint_id FROM wanted
ON CONFLICT DO NOTHING
RETURNING account_id, id, fence, endpoint_id
""")


def of_reports(
    account_id: AccountId, message_id: MessageId, notes: Sequence[ReportNote], now: datetime
) -> list[MailEvent]:
    """The events of new reports; the webhook knows of final results alone."""
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
    """An address has left a list."""
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
    """Enter these events for the endpoints that want them; return their deliveries' tickets, leased until `next_at`.

    An event of a further type is stored as well if an endpoint asks for its type and is not interested in this mail:
    the feed of events shows it.
    """
    listeners = await _listeners(tx, {event.account_id for event in events})
    asked = [
        event
        for event in events
        if any(event.type in listener.filters.types for listener in listeners.get(event.account_id, ()))
    ]
    if not asked:
        return []
    facts = await _facts(tx, asked)
    composed: list[_Composed] = []
    deliveries: list[_Delivery] = []
    for about in asked:
        found = facts.get((about.account_id, about.message_id, about.position))
        if found is None:
            continue
        mail, trace = found
        wanting = [
            listener for listener in listeners[about.account_id] if endpoint.wants(listener.filters, about.type, mail)
        ]
        if wanting or about.body is None:
            body = endpoint.mail_body(about.body or _plain_body(about, mail, now), mail, about.reason)
            composed.append(_Composed(about.account_id, about.id, about.message_id, about.position, about.type, body))
        deliveries += [_delivery(composed[-1], listener, trace, now) for listener in wanting]
    return await _enter(tx, composed, deliveries, now, next_at, max_attempts)


async def enter_of_account(tx: Connection, events: Sequence[AccountEvent], now: datetime) -> list[WebhookTicket]:
    """Enter these for the endpoints that want them, due now."""
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
    """A test event that is sent once."""
    composed = _Composed(to.account_id, event_id, None, None, EventType.TEST, body)
    delivery = _Delivery(to.account_id, delivery_id, event_id, EventType.TEST, None, None, to.url, to.id, None)
    return await _enter(tx, [composed], [delivery], now, next_at, 1)


async def enter_replays(
    tx: Connection, to: Endpoint, replays: Sequence[tuple[UUID, FailedDelivery]], now: datetime
) -> int:
    """The same events once more, each under a new id, due now."""
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
    return len(await _enter(tx, [], deliveries, now, now, WEBHOOK.attempts_max))


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
    event_account_ids, event_ids, event_message_ids, event_positions, event_types, bodies = columns(composed, 6)
    account_ids, delivery_ids, of_events, types, message_ids, positions, urls, endpoint_ids, traces, replays_of = (
        columns(deliveries, 10)
    )
    rows = await tx.fetch(
        *_ENTER.bind(
            now=now,
            next_at=next_at,
            max_attempts=max_attempts,
            event_account_ids=event_account_ids,
            event_ids=event_ids,
            event_message_ids=event_message_ids,
            event_positions=event_positions,
            event_types=event_types,
            bodies=bodies,
            account_ids=account_ids,
            ids=delivery_ids,
            of_events=of_events,
            types=types,
            message_ids=message_ids,
            positions=positions,
            urls=urls,
            endpoint_ids=endpoint_ids,
            traces=traces,
            replays_of=replays_of,
        )
    )
    return [WebhookTicket(*row) for row in rows]


async def _listeners(tx: Connection, account_ids: set[AccountId]) -> dict[AccountId, list[_Listener]]:
    found: dict[AccountId, list[_Listener]] = {}
    for account_id, endpoint_id, url, types, sender_domains, tags, mode in await tx.fetch(
        _LISTENERS, list(account_ids)
    ):
        filters = Filters(tuple(types), tuple(sender_domains), tuple(tags), None if mode is None else Mode(mode))
        found.setdefault(account_id, []).append(_Listener(account_id, endpoint_id, url, filters))
    return found


async def _facts(
    tx: Connection, events: Sequence[MailEvent]
) -> dict[tuple[AccountId, MessageId, int], tuple[MailFacts, bytes | None]]:
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


def _delivery(composed: _Composed, listener: _Listener, trace: bytes | None, now: datetime) -> _Delivery:
    return _Delivery(
        composed.account_id,
        ids.derived_id(now, composed.id.bytes, listener.id.bytes),
        composed.id,
        composed.type,
        composed.message_id,
        composed.position,
        listener.url,
        listener.id,
        trace,
    )
