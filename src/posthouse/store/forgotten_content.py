"""Bodies that are deleted once their messages are final."""

from typing import Final, NamedTuple
from uuid import UUID

from posthouse.rules.ids import AccountId, MessageId
from posthouse.store.postgres import Connection


class ContentToForget(NamedTuple):
    account_id: AccountId
    message_id: MessageId
    # Its message has no open recipient, or is gone.
    is_final: bool


# Where the first page begins.
FIRST: Final = (AccountId(UUID(int=0)), MessageId(UUID(int=0)))

# A subquery for each row, so that PostgreSQL opens one day's partition of each.
_PAGE: Final = """
SELECT account_id, message_id, coalesce((
    SELECT open_count = 0 FROM messages
    WHERE account_id = waiting.account_id AND id = waiting.message_id LIMIT 1), true) AS is_final
FROM contents_to_forget waiting WHERE (account_id, message_id) > ($1, $2) ORDER BY account_id, message_id LIMIT $3
"""
# The bounds keep PostgreSQL from opening the partitions of other days.
_DELETE_BODIES: Final = """
DELETE FROM bodies
WHERE account_id = ANY($1::uuid[]) AND message_id = ANY($2::uuid[]) AND message_id >= $3 AND message_id <= $4
"""
_DELETE: Final = """
DELETE FROM contents_to_forget WHERE account_id = ANY($1::uuid[]) AND message_id = ANY($2::uuid[])
"""


async def page(connection: Connection, after: tuple[AccountId, MessageId], limit: int) -> list[ContentToForget]:
    """The next of what is to be forgotten, in the order of its keys."""
    return [ContentToForget(*row) for row in await connection.fetch(_PAGE, *after, limit)]


async def forget(tx: Connection, contents: list[ContentToForget]) -> None:
    """Delete the bodies of these."""
    account_ids = list({content.account_id for content in contents})
    message_ids = [content.message_id for content in contents]
    await tx.execute(_DELETE_BODIES, account_ids, message_ids, min(message_ids), max(message_ids))
    await tx.execute(_DELETE, account_ids, message_ids)
