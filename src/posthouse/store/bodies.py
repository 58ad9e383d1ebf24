"""Bodies: mail as it was accepted, read again while it is kept."""

from datetime import datetime
from typing import Final, NamedTuple

from posthouse.rules.ids import AccountId, MessageId
from posthouse.store.postgres import Connection


class BodyLength(NamedTuple):
    """`bytes` is None when the message is there and its body no longer is; with `is_forgotten` no one may read it."""

    created_at: datetime
    is_forgotten: bool | None
    bytes: int | None


# Bodies are stored as they are, in one piece or in several: neither the length nor the beginning reads all of it.
_LENGTH: Final = """
SELECT created_at, forgets_content,
    (SELECT octet_length(mime) FROM bodies WHERE account_id = $1 AND message_id = $2) AS bytes
FROM messages WHERE account_id = $1 AND id = $2
"""
_BEGINNING: Final = "SELECT substring(mime FROM 1 FOR $3) FROM bodies WHERE account_id = $1 AND message_id = $2"
_WHOLE: Final = "SELECT mime FROM bodies WHERE account_id = $1 AND message_id = $2"


async def length(connection: Connection, account_id: AccountId, message_id: MessageId) -> BodyLength | None:
    """None when the account has no such message."""
    row = await connection.fetchrow(_LENGTH, account_id, message_id)
    return None if row is None else BodyLength(*row)


async def beginning(
    connection: Connection, account_id: AccountId, message_id: MessageId, bytes_max: int
) -> bytes | None:
    found: bytes | None = await connection.fetchval(_BEGINNING, account_id, message_id, bytes_max)
    return found


async def whole(connection: Connection, account_id: AccountId, message_id: MessageId) -> bytes | None:
    """None when it is gone."""
    found: bytes | None = await connection.fetchval(_WHOLE, account_id, message_id)
    return found
