"""Reads for an audit: an account's messages in small ranges, each with everything that belongs to it.

Every function reads from the snapshot of its transaction, and reads little: an audit runs while the service is running,
and a snapshot that is held for long slows the schedule.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar
from uuid import UUID

from posthouse.rules import ids
from posthouse.rules.audit.message_record import (
    AttemptRecord,
    EventRecord,
    MessageRecord,
    RecipientRecord,
    event_windows,
)
from posthouse.rules.ids import AccountId, CredentialId, MessageId
from posthouse.store.postgres import Connection, Row
from posthouse.store.statement import statement

Value = TypeVar("Value")

_ACCOUNTS: Final = "SELECT id, name FROM accounts WHERE id > $1 ORDER BY id LIMIT $2"

_MESSAGES: Final = """
SELECT m.account_id, m.id, m.credential_id, m.source, m.status, m.billing_status, m.sender, m.envelope_sender,
    m.recipient_count, m.credits_reserved, m.open_count, m.delivered_count, m.released_count, m.created_at, m.send_at,
    coalesce(m.forgets_content, false) AS forgets_content,
    EXISTS (SELECT FROM credentials c WHERE c.account_id = m.account_id AND c.id = m.credential_id) AS has_credential,
    EXISTS (SELECT FROM bodies b WHERE b.account_id = m.account_id AND b.message_id = m.id) AS has_body
FROM messages m
"""
_NEXT: Final = f"{_MESSAGES} WHERE m.account_id = $1 AND m.id > $2 ORDER BY m.id LIMIT $3"
_NAMED: Final = statement(f"""
{_MESSAGES} JOIN unnest(:message_ids::uuid[]) asked(id) ON m.id = asked.id
WHERE m.account_id = :account_id AND m.id >= :lowest AND m.id <= :highest ORDER BY m.id
""")

# The range is given in addition to the ids: only a range lets the planner skip the other days.
_OF_THESE: Final = """
FROM {table} t JOIN unnest(:message_ids::uuid[]) asked(id) ON t.message_id = asked.id
WHERE t.account_id = :account_id AND t.message_id >= :lowest AND t.message_id <= :highest
"""
_RECIPIENTS: Final = statement(
    "SELECT message_id, position, field, email, status, billing_status, attempt_count,"
    " coalesce(delivered_at, bounced_at, failed_at, cancelled_at) AS final_at, last_smtp_code, last_smtp_response"
    + _OF_THESE.format(table="recipients")
)
_ATTEMPTS: Final = statement(
    "SELECT message_id, position, fence, started_at, finished_at, outcome, is_ambiguous, code, response,"
    " remote_ip IS NOT NULL AS is_connected" + _OF_THESE.format(table="attempts")
)
_SCHEDULED: Final = statement("SELECT message_id, position" + _OF_THESE.format(table="delivery_schedule"))
_LEDGER: Final = statement("SELECT message_id, position, kind, amount" + _OF_THESE.format(table="ledger"))

_EVENTS: Final = statement("""
SELECT e.message_id, e.position, e.id, e.type
FROM unnest(:lowest_ids::uuid[], :highest_ids::uuid[]) asked(lowest, highest)
JOIN events e ON e.account_id = :account_id AND e.id >= asked.lowest AND e.id < asked.highest
WHERE e.message_id = ANY(:message_ids)
""")

_SUPPRESSED: Final = """
SELECT s.email, s.at FROM unnest($2::text[]) asked(email)
JOIN suppressions s ON s.account_id = $1 AND s.email = asked.email
"""

# Lateral and limited, so that each is a lookup by the primary key.
_EVENTS_WITH_RECIPIENTS: Final = """
SELECT e.id, e.message_id, e.position, e.type, e.created_at, r.status, r.final_at
FROM (
    SELECT id, message_id, position, type, created_at FROM events
    WHERE account_id = $1 AND id > $2 ORDER BY id LIMIT $3) e
LEFT JOIN LATERAL (
    SELECT status, coalesce(delivered_at, bounced_at, failed_at, cancelled_at) AS final_at FROM recipients
    WHERE account_id = $1 AND message_id = e.message_id AND position = e.position LIMIT 1) r ON true
ORDER BY e.id
"""

_WEBHOOK_DELIVERIES: Final = """
SELECT w.id, w.event_id, w.status, w.attempt, w.max_attempts, w.http_status, w.error,
    w.endpoint_id = $1 AS is_of_webhook,
    EXISTS (SELECT FROM webhook_schedule c WHERE c.account_id = $1 AND c.id = w.id) AS is_scheduled
FROM webhook_deliveries w WHERE w.account_id = $1 AND w.id > $2 ORDER BY w.id LIMIT $3
"""

_KEYS: Final = statement("""
SELECT i.credential_id, i.key, i.message_id,
    EXISTS (SELECT FROM messages m WHERE m.account_id = :account_id AND m.id = i.message_id) AS has_message
FROM idempotency i WHERE i.account_id = :account_id AND (i.credential_id, i.key) > (:after_credential, :after_key)
ORDER BY i.credential_id, i.key LIMIT :limit
""")

_TOTALS: Final = """
SELECT a.available,
    (SELECT coalesce(sum(amount), 0) FROM credit_grants WHERE account_id = a.id) AS granted,
    l.reserved + d.reserved AS reserved, l.released + d.released AS released
FROM accounts a
CROSS JOIN LATERAL (
    SELECT coalesce(sum(amount) FILTER (WHERE kind = 'reserve'), 0) AS reserved,
           coalesce(sum(amount) FILTER (WHERE kind = 'release'), 0) AS released
    FROM ledger WHERE account_id = a.id) l
CROSS JOIN LATERAL (
    SELECT coalesce(sum(reserved), 0) AS reserved, coalesce(sum(released), 0) AS released
    FROM ledger_days WHERE account_id = a.id) d
WHERE a.id = $1
"""
_ENTRIES: Final = "SELECT count(*) FROM (SELECT FROM ledger WHERE account_id = $1 LIMIT $2) counted"

_DOMAINS: Final = "SELECT name FROM domains WHERE account_id = $1"
_BODIES: Final = statement("SELECT message_id, mime" + _OF_THESE.format(table="bodies"))
_OWNERS: Final = """
SELECT asked.id AS message_id, a.id AS account_id
FROM unnest($1::uuid[], $2::bytea[]) asked(id, tail)
JOIN accounts a ON substring(uuid_send(a.id) FROM 13) = asked.tail
WHERE EXISTS (SELECT FROM messages m WHERE m.account_id = a.id AND m.id = asked.id)
"""
_ROTATED_AT: Final = """
SELECT greatest(endpoint.created_at, (
    SELECT max(at) FROM audit_log WHERE account_id = endpoint.account_id AND action = 'webhook.secret_rotated'))
FROM endpoints endpoint WHERE account_id = $1 AND id = account_id
"""
# Reads each account's part of the one day that the id names.
_EVENT: Final = """
SELECT a.id AS account_id, e.body FROM accounts a
CROSS JOIN LATERAL (SELECT body FROM events WHERE account_id = a.id AND id = $1 LIMIT 1) e LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class EventWithRecipient:
    """An event and its recipient; without a recipient there is no status."""

    id: UUID
    message_id: MessageId | None
    position: int | None
    type: str
    created_at: datetime
    status: str | None
    final_at: datetime | None


@dataclass(frozen=True, slots=True)
class WebhookDeliveryRecord:
    """A webhook delivery, and whether the schedule still holds it."""

    id: UUID
    event_id: UUID
    status: str
    attempt: int
    max_attempts: int
    http_status: int | None
    error: str | None
    is_of_webhook: bool
    is_scheduled: bool


@dataclass(frozen=True, slots=True)
class IdempotencyRecord:
    credential_id: CredentialId
    key: str
    message_id: MessageId
    has_message: bool


@dataclass(frozen=True, slots=True)
class AccountEvent:
    account_id: AccountId
    body: bytes


@dataclass(frozen=True, slots=True)
class LedgerTotals:
    available: int
    granted: int
    reserved: int
    released: int


async def accounts(tx: Connection, after: UUID, limit: int) -> list[tuple[AccountId, str]]:
    return [(row["id"], row["name"]) for row in await tx.fetch(_ACCOUNTS, after, limit)]


async def next_message_records(tx: Connection, account_id: AccountId, after: UUID, limit: int) -> list[MessageRecord]:
    """The next messages of the account, in the order of their ids. `tx` sees one snapshot."""
    return await _assembled(tx, account_id, await tx.fetch(_NEXT, account_id, after, limit))


async def message_records(tx: Connection, account_id: AccountId, message_ids: Collection[UUID]) -> list[MessageRecord]:
    """Those of these messages that the account has."""
    named = sorted(message_ids)
    return await _assembled(
        tx,
        account_id,
        await tx.fetch(*_NAMED.bind(account_id=account_id, message_ids=named, lowest=named[0], highest=named[-1])),
    )


async def _assembled(tx: Connection, account_id: AccountId, messages: Sequence[Row]) -> list[MessageRecord]:
    if not messages:
        return []
    named = [row["id"] for row in messages]
    asked: dict[str, Any] = {"account_id": account_id, "message_ids": named, "lowest": named[0], "highest": named[-1]}
    recipients = _grouped([(row["message_id"], _recipient(row)) for row in await tx.fetch(*_RECIPIENTS.bind(**asked))])
    attempts = _grouped([(row["message_id"], _attempt(row)) for row in await tx.fetch(*_ATTEMPTS.bind(**asked))])
    scheduled = _grouped([(row["message_id"], row["position"]) for row in await tx.fetch(*_SCHEDULED.bind(**asked))])
    ledger = _grouped([(row["message_id"], row) for row in await tx.fetch(*_LEDGER.bind(**asked))])
    all_recipients = [recipient for group in recipients.values() for recipient in group]
    spans = [(ids.lowest_id(begin), ids.lowest_id(end)) for begin, end in event_windows(all_recipients)]
    lowest, highest = ([span[side] for span in spans] for side in (0, 1))
    found = await tx.fetch(
        *_EVENTS.bind(account_id=account_id, message_ids=named, lowest_ids=lowest, highest_ids=highest)
    )
    events = _grouped([(row["message_id"], EventRecord(row["position"], row["id"], row["type"])) for row in found])
    emails = sorted({recipient.email.lower() for recipient in all_recipients})
    suppressed = {row["email"]: row["at"] for row in await tx.fetch(_SUPPRESSED, account_id, emails)}
    return [
        MessageRecord(
            **row,
            recipients=sorted(recipients[row["id"]], key=lambda recipient: recipient.position),
            attempts=sorted(attempts[row["id"]], key=lambda attempt: (attempt.position, attempt.fence)),
            scheduled=frozenset(scheduled[row["id"]]),
            ledger={entry["position"]: (entry["kind"], entry["amount"]) for entry in ledger[row["id"]]},
            events=events[row["id"]],
            suppressed_at={
                recipient.position: suppressed[recipient.email.lower()]
                for recipient in recipients[row["id"]]
                if recipient.email.lower() in suppressed
            },
        )
        for row in messages
    ]


def _grouped(pairs: Sequence[tuple[UUID, Value]]) -> Mapping[UUID, list[Value]]:
    groups: defaultdict[UUID, list[Value]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return groups


def _recipient(row: Row) -> RecipientRecord:
    names = (
        "position",
        "field",
        "email",
        "status",
        "billing_status",
        "attempt_count",
        "final_at",
        "last_smtp_code",
        "last_smtp_response",
    )
    return RecipientRecord(*[row[name] for name in names])


def _attempt(row: Row) -> AttemptRecord:
    names = (
        "position",
        "fence",
        "started_at",
        "finished_at",
        "outcome",
        "is_ambiguous",
        "code",
        "response",
        "is_connected",
    )
    return AttemptRecord(*[row[name] for name in names])


async def events(tx: Connection, account_id: AccountId, after: UUID, limit: int) -> list[EventWithRecipient]:
    return [EventWithRecipient(**row) for row in await tx.fetch(_EVENTS_WITH_RECIPIENTS, account_id, after, limit)]


async def webhook_deliveries(
    tx: Connection, account_id: AccountId, after: UUID, limit: int
) -> list[WebhookDeliveryRecord]:
    return [WebhookDeliveryRecord(**row) for row in await tx.fetch(_WEBHOOK_DELIVERIES, account_id, after, limit)]


async def keys(tx: Connection, account_id: AccountId, after: tuple[UUID, str], limit: int) -> list[IdempotencyRecord]:
    return [
        IdempotencyRecord(**row)
        for row in await tx.fetch(
            *_KEYS.bind(account_id=account_id, after_credential=after[0], after_key=after[1], limit=limit)
        )
    ]


async def ledger_totals(tx: Connection, account_id: AccountId, entries_max: int) -> LedgerTotals | None:
    """The sums of the account's ledger; None if it has too many entries for a short read."""
    if await tx.fetchval(_ENTRIES, account_id, entries_max + 1) > entries_max:
        return None
    row = await tx.fetchrow(_TOTALS, account_id)
    return None if row is None else LedgerTotals(**row)


async def domains(tx: Connection, account_id: AccountId) -> frozenset[str]:
    return frozenset(row["name"] for row in await tx.fetch(_DOMAINS, account_id))


async def bodies(tx: Connection, account_id: AccountId, message_ids: Collection[UUID]) -> dict[UUID, bytes]:
    named = sorted(message_ids)
    rows = await tx.fetch(*_BODIES.bind(account_id=account_id, message_ids=named, lowest=named[0], highest=named[-1]))
    return {row["message_id"]: row["mime"] for row in rows}


async def owners(tx: Connection, named: Mapping[UUID, bytes]) -> dict[UUID, AccountId]:
    """The accounts of messages that return paths name, found by the ends of the accounts' ids."""
    rows = await tx.fetch(_OWNERS, list(named), list(named.values()))
    return {row["message_id"]: row["account_id"] for row in rows}


async def event(tx: Connection, event_id: UUID) -> AccountEvent | None:
    """The event's account and body."""
    row = await tx.fetchrow(_EVENT, event_id)
    return None if row is None else AccountEvent(**row)


async def webhook_secret_since(tx: Connection, account_id: AccountId) -> datetime | None:
    """When the current secret of the account's webhook was made; None without a webhook."""
    since: datetime | None = await tx.fetchval(_ROTATED_AT, account_id)
    return since
