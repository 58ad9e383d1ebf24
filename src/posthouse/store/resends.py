"""Resends, their progress, and the old messages that they read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from posthouse.rules.ids import AccountId, CredentialId, MessageId
from posthouse.rules.resend import ResendStatus
from posthouse.store.postgres import Connection, Row, row_count
from posthouse.store.statement import delete_some, statement


@dataclass(frozen=True, slots=True)
class ResendCounts:
    """Counts of messages, except `recipients` (of those that matched) and `excluded` (recipients that are left out)."""

    matched: int = 0
    recipients: int = 0
    resent: int = 0
    without_body: int = 0
    excluded: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class NewResend:
    account_id: AccountId
    id: UUID
    key: str
    request_hash: bytes
    since: datetime
    until: datetime
    tag: str | None
    metadata: Mapping[str, str]
    destination: str | None
    is_dry_run: bool
    # The last id before `since`.
    position: UUID
    # Only these, in order; then the times are those of the first, so that a process of the version before, which would
    # resend all in the range, finds none.
    message_ids: Sequence[UUID] | None


@dataclass(frozen=True, slots=True)
class ResendRow(NewResend):
    status: ResendStatus
    waiting_for: str | None
    steps: int
    created_at: datetime
    finished_at: datetime | None
    counts: ResendCounts


@dataclass(frozen=True, slots=True)
class ResendStep:
    """The result of a step; `counts` are added to the totals."""

    position: UUID
    counts: ResendCounts
    next_at: datetime
    status: ResendStatus = ResendStatus.RUNNING
    waiting_for: str | None = None


class ExaminedMessage(NamedTuple):
    id: MessageId
    is_wanted: bool
    metadata: str | None


@dataclass(frozen=True, slots=True)
class OldMessage:
    """`mime_bytes` is None if the body is no longer stored, or forgotten."""

    id: MessageId
    credential_id: CredentialId
    sender: str
    envelope_sender: str
    subject: str
    tags: Sequence[str] | None
    template: str | None
    mailing_list: str | None
    one_click: bool
    metadata: str | None
    forgets_content: bool | None
    mime_bytes: int | None


@dataclass(frozen=True, slots=True)
class OldRecipient:
    message_id: MessageId
    field: str
    email: str
    status: str
    last_smtp_code: int | None
    last_smtp_response: str | None
    is_suppressed: bool


class StepTakenError(Exception):
    """Another process has done this step, or the resend was stopped: nothing may be changed."""


_COLUMNS: Final = """
    account_id, id, key, request_hash, since, until, tag, metadata, destination, is_dry_run, position, message_ids,
    status, waiting_for, steps, created_at, finished_at, matched, recipients, resent, without_body, excluded, refused
"""

# Nothing is inserted if the key is known, or another resend of the account is running.
_ADD: Final = statement("""
INSERT INTO resends (account_id, id, key, request_hash, since, until, tag, metadata, destination, is_dry_run, position,
    message_ids, next_at, created_at)
VALUES (:account_id, :id, :key, :request_hash, :since, :until, :tag, :metadata::json, :destination, :is_dry_run,
    :position, :message_ids, :now, :now)
ON CONFLICT DO NOTHING RETURNING 1
""")
_BY_KEY: Final = f"SELECT {_COLUMNS} FROM resends WHERE account_id = $1 AND key = $2"
_BY_ID: Final = f"SELECT {_COLUMNS} FROM resends WHERE account_id = $1 AND id = $2"
_DUE: Final = f"SELECT {_COLUMNS} FROM resends WHERE status = 'running' AND next_at <= $1 ORDER BY next_at LIMIT $2"
_IS_RUNNING: Final = "SELECT EXISTS (SELECT FROM resends WHERE status = 'running')"
_STOP: Final = """
UPDATE resends SET status = 'stopped', finished_at = $3 WHERE account_id = $1 AND id = $2 AND status = 'running'
"""
_ADVANCE: Final = statement("""
UPDATE resends SET position = :position, next_at = :next_at, status = :status, waiting_for = :waiting_for,
    finished_at = CASE WHEN :status = 'running' THEN NULL ELSE :now::timestamptz END, steps = steps + 1,
    matched = matched + :matched, recipients = recipients + :recipients, resent = resent + :resent,
    without_body = without_body + :without_body, excluded = excluded + :excluded, refused = refused + :refused
WHERE account_id = :account_id AND id = :id AND steps = :steps AND status = 'running'
RETURNING 1
""")
_FORGET: Final = delete_some("resends", "account_id, id", "finished_at < $1 ORDER BY finished_at")

_IS_FAILED: Final = "status IN ('failed', 'partial') AND source <> 'test' AND resent_as IS NULL"
_EXAMINE: Final = statement(f"""
SELECT id, {_IS_FAILED} AND (:tag::text IS NULL OR :tag = ANY(tags)) AS is_wanted, metadata
FROM messages WHERE account_id = :account_id AND id > :position AND id < :before ORDER BY id LIMIT :limit
""")
_EXAMINE_NAMED: Final = statement(f"""
SELECT message.* FROM unnest(:message_ids::uuid[]) asked(id)
CROSS JOIN LATERAL (
    SELECT id, {_IS_FAILED} AS is_wanted, metadata FROM messages
    WHERE account_id = :account_id AND id = asked.id LIMIT 1) message
WHERE asked.id > :position ORDER BY asked.id LIMIT :limit
""")
_OLD: Final = """
SELECT message.*, body.mime_bytes
FROM unnest($2::uuid[]) asked(id)
CROSS JOIN LATERAL (
    SELECT id, credential_id, sender, envelope_sender, subject, tags, template, mailing_list, one_click, metadata,
        forgets_content
    FROM messages WHERE account_id = $1 AND id = asked.id LIMIT 1) message
LEFT JOIN LATERAL (
    SELECT octet_length(mime) AS mime_bytes FROM bodies
    WHERE account_id = $1 AND message_id = asked.id AND message.forgets_content IS NULL LIMIT 1
    ) body ON true
ORDER BY message.id
"""
_RECIPIENTS: Final = """
SELECT recipient.*, EXISTS (
        SELECT FROM suppressions WHERE account_id = $1 AND email = lower(recipient.email))
    OR (asked.mailing_list IS NOT NULL AND EXISTS (
        SELECT FROM unsubscriptions
        WHERE account_id = $1 AND mailing_list = asked.mailing_list
          AND email = lower(recipient.email))) AS is_suppressed
FROM unnest($2::uuid[], $3::text[]) asked(id, mailing_list)
CROSS JOIN LATERAL (
    SELECT message_id, field, email, status, last_smtp_code, last_smtp_response FROM recipients
    WHERE account_id = $1 AND message_id = asked.id ORDER BY position) recipient
"""
_BODIES: Final = """
SELECT body.* FROM unnest($2::uuid[]) asked(id)
CROSS JOIN LATERAL (
    SELECT message_id, mime FROM bodies WHERE account_id = $1 AND message_id = asked.id LIMIT 1) body
"""

_MARK_OLD: Final = """
UPDATE messages SET resent_as = pair.new_id FROM unnest($2::uuid[], $3::uuid[]) pair(old_id, new_id)
WHERE account_id = $1 AND id = pair.old_id AND id = ANY($2::uuid[]) AND resent_as IS NULL RETURNING 1
"""
_MARK_NEW: Final = """
UPDATE messages SET resent_from = pair.old_id FROM unnest($2::uuid[], $3::uuid[]) pair(old_id, new_id)
WHERE account_id = $1 AND id = pair.new_id AND id = ANY($3::uuid[])
"""


async def add(tx: Connection, resend: NewResend, now: datetime) -> bool:
    """Whether it was added: its key is new, and no other resend of the account is running."""
    added = await tx.fetchval(
        *_ADD.bind_row(resend, metadata=json.dumps(dict(resend.metadata)) if resend.metadata else None, now=now)
    )
    return added is not None


async def by_key(connection: Connection, account_id: AccountId, key: str) -> ResendRow | None:
    return _resend(await connection.fetchrow(_BY_KEY, account_id, key))


async def by_id(connection: Connection, account_id: AccountId, resend_id: UUID) -> ResendRow | None:
    return _resend(await connection.fetchrow(_BY_ID, account_id, resend_id))


async def due(connection: Connection, now: datetime, limit: int) -> list[ResendRow]:
    rows = await connection.fetch(_DUE, now, limit)
    return [found for row in rows if (found := _resend(row)) is not None]


async def is_any_running(connection: Connection) -> bool:
    return bool(await connection.fetchval(_IS_RUNNING))


async def stop(tx: Connection, account_id: AccountId, resend_id: UUID, now: datetime) -> None:
    """If it is still running."""
    await tx.execute(_STOP, account_id, resend_id, now)


async def advance(tx: Connection, resend: ResendRow, step: ResendStep, now: datetime) -> None:
    advanced = await tx.fetchval(
        *_ADVANCE.bind_row(
            step.counts,
            account_id=resend.account_id,
            id=resend.id,
            steps=resend.steps,
            now=now,
            position=step.position,
            next_at=step.next_at,
            status=step.status,
            waiting_for=step.waiting_for,
        )
    )
    if advanced is None:
        raise StepTakenError


async def forget_old(tx: Connection, before: datetime, count_max: int) -> int:
    return row_count(await tx.execute(_FORGET, before, count_max))


async def examine(connection: Connection, resend: ResendRow, before: UUID, limit: int) -> list[ExaminedMessage]:
    """The next messages of the account, in the order of their ids, and which of them the resend may want."""
    known = {"account_id": resend.account_id, "position": resend.position, "limit": limit}
    if resend.message_ids is None:
        rows = await connection.fetch(*_EXAMINE.bind(**known, before=before, tag=resend.tag))
    else:
        rows = await connection.fetch(*_EXAMINE_NAMED.bind(**known, message_ids=resend.message_ids))
    return [ExaminedMessage(*row) for row in rows]


async def old_messages(
    connection: Connection, account_id: AccountId, message_ids: Sequence[MessageId]
) -> list[OldMessage]:
    return [OldMessage(**row) for row in await connection.fetch(_OLD, account_id, message_ids)]


async def old_recipients(
    connection: Connection, account_id: AccountId, messages: Sequence[OldMessage]
) -> dict[MessageId, list[OldRecipient]]:
    rows = await connection.fetch(
        _RECIPIENTS, account_id, [old.id for old in messages], [old.mailing_list for old in messages]
    )
    found: dict[MessageId, list[OldRecipient]] = {}
    for row in rows:
        found.setdefault(row["message_id"], []).append(OldRecipient(**row))
    return found


async def bodies(
    connection: Connection, account_id: AccountId, message_ids: Sequence[MessageId]
) -> dict[MessageId, bytes]:
    rows = await connection.fetch(_BODIES, account_id, message_ids)
    return {row["message_id"]: row["mime"] for row in rows}


async def mark(tx: Connection, account_id: AccountId, pairs: Sequence[tuple[MessageId, MessageId]]) -> None:
    """Record which old message was sent again as which new one; each only once, forever."""
    if not pairs:
        return
    old, new = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    marked = await tx.fetch(_MARK_OLD, account_id, old, new)
    if len(marked) != len(pairs):
        raise StepTakenError
    await tx.execute(_MARK_NEW, account_id, old, new)


def _resend(row: Row | None) -> ResendRow | None:
    if row is None:
        return None
    values = dict(row)
    counts = ResendCounts(**{name: values.pop(name) for name in ResendCounts.__dataclass_fields__})
    values["metadata"] = json.loads(values["metadata"]) if values["metadata"] else {}
    values["status"] = ResendStatus(values["status"])
    return ResendRow(**values, counts=counts)
