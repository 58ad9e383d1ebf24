"""Erasures, what they change in the tables of an account, and the hashes of erased addresses."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from posthouse.rules.erasure import ERASED, ErasureKey, ErasurePhase
from posthouse.rules.ids import AccountId, CredentialId, MessageId
from posthouse.store.postgres import Connection, Row, row_count
from posthouse.store.statement import delete_some, statement


@dataclass(frozen=True, slots=True)
class ErasureRow:
    """`email` is None once the erasure is done."""

    account_id: AccountId
    id: UUID
    email: str | None
    phase: ErasurePhase
    position: UUID
    left_open: int
    cancelled: int
    erased: int
    created_at: datetime
    finished_at: datetime | None


class AddressedRecipient(NamedTuple):
    """`fence` is None once the recipient is final."""

    position: int
    fence: int | None
    attempt_count: int | None
    is_claimed: bool | None
    is_restored: bool | None


class ErasedMessage(NamedTuple):
    """What a message contains besides its body, before it is erased."""

    subject: str
    tags: Sequence[str] | None
    metadata: str | None
    sender: str
    template: str | None
    source: str
    credential_id: CredentialId


class StoredBody(NamedTuple):
    id: UUID
    body: bytes


_COLUMNS: Final = "account_id, id, email, phase, position, left_open, cancelled, erased, created_at, finished_at"

_ADD: Final = statement("""
INSERT INTO erasures (account_id, id, email, hash, position, next_at, created_at)
VALUES (:account_id, :id, :email, :hash, :position, :now, :now) ON CONFLICT DO NOTHING RETURNING 1
""")
_SUPPRESS: Final = """
INSERT INTO erased_addresses (account_id, hash, at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING
"""
_LIFT: Final = "DELETE FROM erased_addresses WHERE account_id = $1 AND hash = ANY($2::bytea[]) RETURNING at"
_SUPPRESSED: Final = "SELECT hash FROM erased_addresses WHERE account_id = $1 AND hash = ANY($2::bytea[])"
_RUNNING: Final = f"""
SELECT {_COLUMNS} FROM erasures WHERE account_id = $1 AND hash = ANY($2::bytea[]) AND phase <> 'done'
"""
_BY_ID: Final = f"SELECT {_COLUMNS} FROM erasures WHERE account_id = $1 AND id = $2"
_DUE: Final = f"""
SELECT {_COLUMNS} FROM erasures WHERE phase <> 'done' AND next_at <= $1 ORDER BY next_at LIMIT $2
"""
_IS_RUNNING: Final = "SELECT EXISTS (SELECT FROM erasures WHERE phase <> 'done')"
_LOCK: Final = f"""
SELECT {_COLUMNS} FROM erasures WHERE account_id = $1 AND id = $2 AND phase <> 'done' FOR UPDATE SKIP LOCKED
"""
_ADVANCE: Final = statement("""
UPDATE erasures SET phase = :phase, position = :position, left_open = :left_open, next_at = :next_at,
    cancelled = cancelled + :cancelled, erased = erased + :erased
WHERE account_id = :account_id AND id = :id
""")
_FINISH: Final = """
UPDATE erasures SET phase = 'done', email = NULL, finished_at = $3 WHERE account_id = $1 AND id = $2
"""
_FORGET: Final = delete_some("erasures", "account_id, id", "finished_at < $1 ORDER BY finished_at")

_WITH_TERM: Final = """
SELECT message_id FROM search_index WHERE account_id = $1 AND term = $2 AND message_id > $3 ORDER BY message_id LIMIT $4
"""
_ADDRESSED: Final = """
SELECT recipient.position, waiting.fence, waiting.attempt_count, waiting.worker_id IS NOT NULL,
    waiting.held_by = 'restore'
FROM recipients recipient
LEFT JOIN delivery_schedule waiting ON waiting.account_id = recipient.account_id
    AND waiting.message_id = recipient.message_id
    AND waiting.position = recipient.position
WHERE recipient.account_id = $1 AND recipient.message_id = $2 AND lower(recipient.email) = $3
ORDER BY recipient.position
"""
# The next claim finds it suppressed.
_HURRY: Final = """
UPDATE delivery_schedule SET next_at = $4
WHERE account_id = $1 AND message_id = $2 AND position = ANY($3::smallint[]) AND worker_id IS NULL
  AND held_since IS NULL AND next_at > $4
"""
_MESSAGE: Final = """
SELECT subject, tags, metadata, sender, template, source, credential_id FROM messages
WHERE account_id = $1 AND id = $2
"""
_ERASE_RECIPIENTS: Final = """
UPDATE recipients SET email = $4
WHERE account_id = $1 AND message_id = $2 AND position = ANY($3::smallint[])
"""
# Reputation still counts them, each address once, as long as it counts the message.
_COUNT_RECIPIENTS: Final = """
INSERT INTO erased_recipients (account_id, message_id, position, hash)
SELECT $1, $2, recipient, hash FROM erasures CROSS JOIN unnest($3::smallint[]) erased(recipient)
WHERE account_id = $1 AND id = $4 ON CONFLICT DO NOTHING
"""
_ERASE_MESSAGE: Final = """
UPDATE messages SET subject = '', metadata = NULL, forgets_content = true,
    tags = nullif(ARRAY(SELECT tag FROM unnest(tags) tag WHERE tag !~* $3), '{}')
WHERE account_id = $1 AND id = $2
"""
_FORGET_CONTENT: Final = """
INSERT INTO bodies_to_delete (account_id, message_id)
SELECT account_id, message_id FROM bodies WHERE account_id = $1 AND message_id = $2 ON CONFLICT DO NOTHING
"""
_ERASE_TERMS: Final = """
DELETE FROM search_index WHERE account_id = $1 AND message_id = $2 AND term = ANY($3::bigint[])
"""
# Replies of servers, for any recipient of the message.
_ERASE_TEXTS: Final = (
    """
    UPDATE recipients SET last_smtp_response = regexp_replace(last_smtp_response, $3, $4, 'gi')
    WHERE account_id = $1 AND message_id = $2 AND last_smtp_response ~* $3
    """,
    """
    UPDATE attempts SET response = regexp_replace(response, $3, $4, 'gi')
    WHERE account_id = $1 AND message_id = $2 AND response ~* $3
    """,
    """
    UPDATE delivery_schedule SET first_response = regexp_replace(first_response, $3, $4, 'gi')
    WHERE account_id = $1 AND message_id = $2 AND first_response ~* $3
    """,
    """
    UPDATE reports SET detail = regexp_replace(detail, $3, $4, 'gi'), response = regexp_replace(response, $3, $4, 'gi')
    WHERE account_id = $1 AND message_id = $2 AND (detail ~* $3 OR response ~* $3)
    """,
)
# With the bounds PostgreSQL doesn't open the other days' partitions.
_EVENTS: Final = """
SELECT id, body FROM events WHERE account_id = $1 AND id = ANY($2::uuid[]) AND id >= $3 AND id <= $4
"""
_SET_EVENT: Final = "UPDATE events SET body = $3 WHERE account_id = $1 AND id = $2"
_ENDPOINT_EVENTS: Final = "SELECT id, body FROM endpoint_events WHERE account_id = $1 AND message_id = $2"
_SET_ENDPOINT_EVENT: Final = "UPDATE endpoint_events SET body = $3 WHERE account_id = $1 AND id = $2"
# Answers of the account's own webhook receivers.
_ERASE_ANSWERS: Final = """
UPDATE webhook_deliveries SET response_body = NULL, response_truncated = false, failed_attempts = (
    SELECT jsonb_agg(attempt || '{"body": null, "truncated": false}' ORDER BY place)
    FROM jsonb_array_elements(failed_attempts) WITH ORDINALITY attempts(attempt, place))
WHERE account_id = $1 AND message_id = $2 AND (response_body IS NOT NULL OR failed_attempts IS NOT NULL)
"""
# Events that are not about a message, and may name someone.
_OTHER_EVENTS: Final = """
SELECT id, body, message_id FROM endpoint_events WHERE account_id = $1 AND id > $2 ORDER BY id LIMIT $3
"""

_REMOVE_UNSUBSCRIPTIONS: Final = "DELETE FROM unsubscriptions WHERE account_id = $1 AND email = $2"
_FORGET_RECIPIENTS: Final = """
DELETE FROM erased_recipients WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM erased_recipients WHERE message_id < $1 LIMIT $2))
"""
# Rows besides messages that name the address.
_ERASE_NAMES: Final = (
    """
    UPDATE suppressions SET response = regexp_replace(response, $2, $3, 'gi'), note = regexp_replace(note, $2, $3, 'gi')
    WHERE account_id = $1 AND (response ~* $2 OR note ~* $2)
    """,
    """
    UPDATE resends SET tag = regexp_replace(tag, $2, $3, 'gi'),
        metadata = regexp_replace(metadata::text, $2, $3, 'gi')::json
    WHERE account_id = $1 AND (tag ~* $2 OR metadata::text ~* $2)
    """,
    # Its key can't be used again after that.
    """
    UPDATE resends SET key = id::text WHERE account_id = $1 AND key ~* $2 AND $3::text IS NOT NULL
    """,
    # Entries about users stay: an owner must not be able to hide them.
    """
    UPDATE audit_log SET target = regexp_replace(target, $2, $3, 'gi'),
        detail = regexp_replace(detail::text, $2, $3, 'gi')::jsonb
    WHERE account_id = $1 AND action !~ '^(account|invitation|member|user)\\.' AND (target ~* $2 OR detail::text ~* $2)
    """,
    """
    DELETE FROM usage_splits WHERE account_id = $1 AND kind = 'tag' AND value ~* $2 AND $3::text IS NOT NULL
    """,
    """
    UPDATE limit_changes SET reply = regexp_replace(reply, $2, $3, 'gi') WHERE $1::uuid IS NOT NULL AND reply ~* $2
    """,
)
# A count that read the tags before they were erased ends first, and another doesn't begin.
_HOLD_COUNTER: Final = "SELECT FROM usage_counter_progress FOR NO KEY UPDATE"

# Whether the hash of `email` is that of an erased address of the account: a part of other statements. It first looks
# into an index that is nearly always empty; with EXISTS, PostgreSQL might read all of it.
IS_ERASED: Final = """
(SELECT true FROM erased_addresses WHERE account_id = {account_id} LIMIT 1) IS NOT NULL AND EXISTS (
    SELECT FROM unnest(:erasure_prefixes::bytea[], :erasure_keys::bytea[]) known(prefix, key)
    CROSS JOIN LATERAL (
        SELECT FROM erased_addresses
        WHERE account_id = {account_id} AND hash = known.prefix
            || sha256(known.key || sha256(known.key || convert_to(lower({email}), 'UTF8'))) LIMIT 1) found)
"""


def bound_keys(keys: Sequence[ErasureKey]) -> dict[str, list[bytes]]:
    """The parameters of IS_ERASED."""
    return {"erasure_prefixes": [key.prefix for key in keys], "erasure_keys": [key.key for key in keys]}


async def add(
    tx: Connection, account_id: AccountId, erasure_id: UUID, email: str, hash_: bytes, position: UUID, now: datetime
) -> bool:
    """Begin an erasure, unless one of this address is running; from now on the address is suppressed."""
    await tx.execute(_SUPPRESS, account_id, hash_, now)
    values = {"account_id": account_id, "id": erasure_id, "email": email, "hash": hash_}
    return await tx.fetchval(*_ADD.bind(**values, position=position, now=now)) is not None


async def lift(tx: Connection, account_id: AccountId, hashes: Sequence[bytes]) -> datetime | None:
    """Stop suppressing the erased address; returns when it was erased, or None if it was not."""
    at: datetime | None = await tx.fetchval(_LIFT, account_id, list(hashes))
    return at


async def suppressed(connection: Connection, account_id: AccountId, hashes: Sequence[bytes]) -> set[bytes]:
    """The hashes that belong to erased addresses."""
    return {row["hash"] for row in await connection.fetch(_SUPPRESSED, account_id, list(hashes))}


async def running(connection: Connection, account_id: AccountId, hashes: Sequence[bytes]) -> ErasureRow | None:
    return _erasure(await connection.fetchrow(_RUNNING, account_id, list(hashes)))


async def by_id(connection: Connection, account_id: AccountId, erasure_id: UUID) -> ErasureRow | None:
    return _erasure(await connection.fetchrow(_BY_ID, account_id, erasure_id))


async def due(connection: Connection, now: datetime, limit: int) -> list[ErasureRow]:
    rows = await connection.fetch(_DUE, now, limit)
    return [found for row in rows if (found := _erasure(row)) is not None]


async def is_any_running(connection: Connection) -> bool:
    return bool(await connection.fetchval(_IS_RUNNING))


async def lock(tx: Connection, erasure: ErasureRow) -> ErasureRow | None:
    """The erasure, locked; None if it is done, or another process works on it."""
    return _erasure(await tx.fetchrow(_LOCK, erasure.account_id, erasure.id))


async def advance(
    tx: Connection,
    erasure: ErasureRow,
    phase: ErasurePhase,
    position: UUID,
    next_at: datetime,
    *,
    left_open: int = 0,
    cancelled: int = 0,
    erased: int = 0,
) -> None:
    await tx.execute(
        *_ADVANCE.bind(
            account_id=erasure.account_id,
            id=erasure.id,
            phase=phase,
            position=position,
            left_open=left_open,
            next_at=next_at,
            cancelled=cancelled,
            erased=erased,
        )
    )


async def finish(tx: Connection, erasure: ErasureRow, now: datetime) -> None:
    await tx.execute(_FINISH, erasure.account_id, erasure.id, now)


async def forget_old(tx: Connection, before: datetime, count_max: int) -> int:
    return row_count(await tx.execute(_FORGET, before, count_max))


async def with_term(
    connection: Connection, account_id: AccountId, term: int, after: UUID, limit: int
) -> list[MessageId]:
    return [row["message_id"] for row in await connection.fetch(_WITH_TERM, account_id, term, after, limit)]


async def addressed(
    tx: Connection, account_id: AccountId, message_id: MessageId, email: str
) -> list[AddressedRecipient]:
    """The message's recipients with this address."""
    return [AddressedRecipient(*row) for row in await tx.fetch(_ADDRESSED, account_id, message_id, email)]


async def hurry(
    tx: Connection, account_id: AccountId, message_id: MessageId, positions: Sequence[int], now: datetime
) -> None:
    await tx.execute(_HURRY, account_id, message_id, list(positions), now)


async def message(tx: Connection, account_id: AccountId, message_id: MessageId) -> ErasedMessage:
    row = await tx.fetchrow(_MESSAGE, account_id, message_id)
    if row is None:
        raise RuntimeError("the message of a recipient does not exist")
    return ErasedMessage(*row)


async def erase_message(
    tx: Connection, account_id: AccountId, message_id: MessageId, positions: Sequence[int], pattern: str
) -> None:
    """Erase its recipients at these positions, subject, metadata and servers' replies; its body is deleted later."""
    await tx.execute(_ERASE_RECIPIENTS, account_id, message_id, list(positions), ERASED)
    await tx.execute(_ERASE_MESSAGE, account_id, message_id, pattern)
    await tx.execute(_FORGET_CONTENT, account_id, message_id)
    for erase in _ERASE_TEXTS:
        await tx.execute(erase, account_id, message_id, pattern, ERASED)
    await tx.execute(_ERASE_ANSWERS, account_id, message_id)


async def count_recipients(
    tx: Connection, erasure: ErasureRow, message_id: MessageId, positions: Sequence[int]
) -> None:
    """Note that these recipients of the message have the erased address: reputation counts them as one."""
    await tx.execute(_COUNT_RECIPIENTS, erasure.account_id, message_id, list(positions), erasure.id)


async def forget_recipients(tx: Connection, before: UUID, limit: int) -> int:
    """Delete those of older messages."""
    return row_count(await tx.execute(_FORGET_RECIPIENTS, before, limit))


async def erase_terms(tx: Connection, account_id: AccountId, message_id: MessageId, terms: Sequence[int]) -> None:
    await tx.execute(_ERASE_TERMS, account_id, message_id, list(terms))


async def events(tx: Connection, account_id: AccountId, event_ids: Sequence[UUID]) -> list[StoredBody]:
    if not event_ids:
        return []
    rows = await tx.fetch(_EVENTS, account_id, list(event_ids), min(event_ids), max(event_ids))
    return [StoredBody(*row) for row in rows]


async def set_event(tx: Connection, account_id: AccountId, event: StoredBody) -> None:
    await tx.execute(_SET_EVENT, account_id, event.id, event.body)


async def endpoint_events(tx: Connection, account_id: AccountId, message_id: MessageId) -> list[StoredBody]:
    return [StoredBody(*row) for row in await tx.fetch(_ENDPOINT_EVENTS, account_id, message_id)]


async def other_events(
    tx: Connection, account_id: AccountId, after: UUID, limit: int
) -> tuple[list[StoredBody], UUID | None]:
    """Erase the address in the next events that are not about a message; returns the last that was examined, if any."""
    rows = await tx.fetch(_OTHER_EVENTS, account_id, after, limit)
    found = [StoredBody(row["id"], row["body"]) for row in rows if row["message_id"] is None]
    return found, rows[-1]["id"] if rows else None


async def set_endpoint_event(tx: Connection, account_id: AccountId, event: StoredBody) -> None:
    await tx.execute(_SET_ENDPOINT_EVENT, account_id, event.id, event.body)


async def erase_others(tx: Connection, account_id: AccountId, email: str, pattern: str) -> None:
    """Erase the address in unsubscriptions, notes, logs, tags' counts, and limit changes whose reply names it."""
    await tx.execute(_HOLD_COUNTER)
    await tx.execute(_REMOVE_UNSUBSCRIPTIONS, account_id, email)
    for erase in _ERASE_NAMES:
        await tx.execute(erase, account_id, pattern, ERASED)


def _erasure(row: Row | None) -> ErasureRow | None:
    if row is None:
        return None
    values = dict(row)
    return ErasureRow(**{**values, "phase": ErasurePhase(values["phase"])})
