"""Messages with their recipients, their bodies while they are stored, and the secrets that open captured mail."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from posthouse.rules.ids import AccountId, MessageId, RequestId
from posthouse.rules.message import read_metadata
from posthouse.store.postgres import Connection


@dataclass(frozen=True, slots=True)
class StoredRecipient:
    position: int
    email: str
    status: str
    billing_status: str
    attempt_count: int
    last_smtp_code: int | None
    last_smtp_response: str | None
    delivered_at: datetime | None
    bounced_at: datetime | None


@dataclass(frozen=True, slots=True)
class StoredMessage:
    id: MessageId
    status: str
    source: str
    sender: str
    subject: str
    billing_status: str
    recipient_count: int
    credits_reserved: int
    created_at: datetime
    metadata: Mapping[str, str]
    send_at: datetime | None
    resent_from: MessageId | None
    forgets_content: bool | None
    recipients: tuple[StoredRecipient, ...]


@dataclass(frozen=True, slots=True)
class Receipt:
    """The part of the first answer that can't be derived from the request."""

    message_id: MessageId
    request_id: RequestId
    subject: str
    recipient_count: int
    credits_reserved: int


class BodyLength(NamedTuple):
    """`bytes` is None if the message exists and its body no longer does; with `is_forgotten` no one may read it."""

    created_at: datetime
    is_forgotten: bool | None
    bytes: int | None


_MESSAGE: Final = """
SELECT id, status, source, sender, subject, billing_status, recipient_count, credits_reserved, created_at,
    metadata, send_at, resent_from, forgets_content
FROM messages WHERE account_id = $1 AND id = $2
"""

_RECIPIENTS: Final = """
SELECT position, email, status, billing_status, attempt_count, last_smtp_code, last_smtp_response,
       delivered_at, bounced_at
FROM recipients WHERE account_id = $1 AND message_id = $2 ORDER BY position
"""

# The bounds keep PostgreSQL from opening the partitions of other days.
_METADATA: Final = """
SELECT id, metadata FROM messages
WHERE account_id = $1 AND id = ANY($2::uuid[]) AND id >= $3 AND id <= $4 AND metadata IS NOT NULL
"""

_RECEIPT: Final = """
SELECT id, request_id, subject, recipient_count, credits_reserved
FROM messages WHERE account_id = $1 AND id = $2
"""

_RECEIPTS: Final = """
SELECT id, request_id, subject, recipient_count, credits_reserved
FROM messages WHERE account_id = $1 AND id = ANY($2::uuid[])
"""

# Bodies are stored so that neither their length nor their beginning requires reading all of them.
_BODY_LENGTH: Final = """
SELECT created_at, forgets_content,
    (SELECT octet_length(mime) FROM bodies WHERE account_id = $1 AND message_id = $2) AS bytes
FROM messages WHERE account_id = $1 AND id = $2
"""
_BODY_BEGINNING: Final = "SELECT substring(mime FROM 1 FOR $3) FROM bodies WHERE account_id = $1 AND message_id = $2"
_WHOLE_BODY: Final = "SELECT mime FROM bodies WHERE account_id = $1 AND message_id = $2"

# Adding a secret deletes expired ones, since no other work cleans up this table.
_ADD_CAPTURE: Final = """
WITH ended AS (DELETE FROM captured_mail_secrets WHERE expires_at <= $5)
INSERT INTO captured_mail_secrets (secret_hash, account_id, is_link, expires_at) VALUES ($1, $2, $3, $4)
"""
_USE_CAPTURE_LINK: Final = """
DELETE FROM captured_mail_secrets WHERE secret_hash = ANY($1::bytea[]) AND is_link AND expires_at > $2
RETURNING account_id
"""
_CAPTURE_SESSION: Final = """
SELECT account_id FROM captured_mail_secrets WHERE secret_hash = ANY($1::bytea[]) AND NOT is_link AND expires_at > $2
"""


async def message(connection: Connection, account_id: AccountId, message_id: MessageId) -> StoredMessage | None:
    row = await connection.fetchrow(_MESSAGE, account_id, message_id)
    if row is None:
        return None
    recipients = await connection.fetch(_RECIPIENTS, account_id, message_id)
    return StoredMessage(
        **{**row, "metadata": read_metadata(row["metadata"])},
        recipients=tuple([StoredRecipient(**recipient) for recipient in recipients]),
    )


async def metadata_of(
    connection: Connection, account_id: AccountId, message_ids: Collection[MessageId]
) -> dict[MessageId, dict[str, str]]:
    """Only for messages that have any."""
    if not message_ids:
        return {}
    found = await connection.fetch(_METADATA, account_id, list(message_ids), min(message_ids), max(message_ids))
    return {message_id: read_metadata(pairs) for message_id, pairs in found}


async def receipt(connection: Connection, account_id: AccountId, message_id: MessageId) -> Receipt | None:
    row = await connection.fetchrow(_RECEIPT, account_id, message_id)
    return None if row is None else Receipt(*row)


async def receipts(
    connection: Connection, account_id: AccountId, message_ids: Sequence[MessageId]
) -> dict[MessageId, Receipt]:
    rows = await connection.fetch(_RECEIPTS, account_id, message_ids)
    return {row["id"]: Receipt(*row) for row in rows}


async def body_length(connection: Connection, account_id: AccountId, message_id: MessageId) -> BodyLength | None:
    """None if the account has no such message."""
    row = await connection.fetchrow(_BODY_LENGTH, account_id, message_id)
    return None if row is None else BodyLength(*row)


async def body_beginning(
    connection: Connection, account_id: AccountId, message_id: MessageId, bytes_max: int
) -> bytes | None:
    found: bytes | None = await connection.fetchval(_BODY_BEGINNING, account_id, message_id, bytes_max)
    return found


async def whole_body(connection: Connection, account_id: AccountId, message_id: MessageId) -> bytes | None:
    """None if the body is no longer stored."""
    found: bytes | None = await connection.fetchval(_WHOLE_BODY, account_id, message_id)
    return found


async def add_capture_secret(
    tx: Connection, secret_hash: bytes, account_id: AccountId, *, is_link: bool, expires_at: datetime, now: datetime
) -> None:
    """A link to the page of captured mail works once, and opens a session; of both, only the hash is stored."""
    await tx.execute(_ADD_CAPTURE, secret_hash, account_id, is_link, expires_at, now)


async def use_capture_link(tx: Connection, secret_hashes: Sequence[bytes], now: datetime) -> AccountId | None:
    """The link's account; None if the link was used already, or has expired."""
    found: AccountId | None = await tx.fetchval(_USE_CAPTURE_LINK, secret_hashes, now)
    return found


async def capture_session_account(
    connection: Connection, secret_hashes: Sequence[bytes], now: datetime
) -> AccountId | None:
    found: AccountId | None = await connection.fetchval(_CAPTURE_SESSION, secret_hashes, now)
    return found
