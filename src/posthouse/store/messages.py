"""Messages and their recipients, as they are read."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from posthouse.rules import metadata
from posthouse.rules.ids import AccountId, MessageId, RequestId
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
    """What the first answer said and the request alone doesn't contain."""

    message_id: MessageId
    request_id: RequestId
    subject: str
    recipient_count: int
    credits_reserved: int


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


async def message(connection: Connection, account_id: AccountId, message_id: MessageId) -> StoredMessage | None:
    row = await connection.fetchrow(_MESSAGE, account_id, message_id)
    if row is None:
        return None
    recipients = await connection.fetch(_RECIPIENTS, account_id, message_id)
    return StoredMessage(
        **{**row, "metadata": metadata.read(row["metadata"])},
        recipients=tuple([StoredRecipient(**recipient) for recipient in recipients]),
    )


async def metadata_of(
    connection: Connection, account_id: AccountId, message_ids: Collection[MessageId]
) -> dict[MessageId, dict[str, str]]:
    """Of those that have any."""
    if not message_ids:
        return {}
    found = await connection.fetch(_METADATA, account_id, list(message_ids), min(message_ids), max(message_ids))
    return {message_id: metadata.read(pairs) for message_id, pairs in found}


async def receipt(connection: Connection, account_id: AccountId, message_id: MessageId) -> Receipt | None:
    row = await connection.fetchrow(_RECEIPT, account_id, message_id)
    return None if row is None else Receipt(*row)


async def receipts(
    connection: Connection, account_id: AccountId, message_ids: Sequence[MessageId]
) -> dict[MessageId, Receipt]:
    rows = await connection.fetch(_RECEIPTS, account_id, message_ids)
    return {row["id"]: Receipt(*row) for row in rows}
