"""The next message to an address, for all who wait for it at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from posthouse.rules.ids import AccountId, MessageId
from posthouse.store.postgres import Connection
from posthouse.store.statement import statement


@dataclass(frozen=True, slots=True)
class AwaitedMessage:
    """`email` is in lower case; `after` is the id that the message's is higher than."""

    account_id: AccountId
    email: str
    after: UUID
    is_test: bool


# Recipients have no index by address: the newest so many of an account are compared, once for all who wait in it, which
# bounds the work. With the lowest id of all, PostgreSQL doesn't open the partitions of older days.
_NEXT: Final = statement("""
SELECT DISTINCT ON (asked.place) asked.place, recent.message_id
FROM unnest(:account_ids::uuid[], :lowest_ids::uuid[]) account(id, lowest)
CROSS JOIN LATERAL (
    SELECT message_id, lower(email) AS email FROM recipients
    WHERE account_id = account.id AND message_id > account.lowest AND message_id > :lowest
    ORDER BY message_id DESC LIMIT :compared_max) recent
JOIN unnest(:asking_ids::uuid[], :emails::text[], :afters::uuid[], :are_test::boolean[])
    WITH ORDINALITY asked(account_id, email, after, is_test, place)
    ON asked.account_id = account.id AND asked.email = recent.email AND asked.after < recent.message_id
WHERE NOT asked.is_test OR EXISTS (
    SELECT FROM messages
    WHERE account_id = account.id AND id = recent.message_id AND id > :lowest AND source = 'test')
ORDER BY asked.place, recent.message_id
""")


async def first_of_each(
    connection: Connection, awaited: Sequence[AwaitedMessage], compared_max: int
) -> dict[int, MessageId]:
    """The oldest message that each waits for, by its place; a place is missing where there is none yet."""
    lowest: dict[AccountId, UUID] = {}
    for item in awaited:
        lowest[item.account_id] = min(item.after, lowest.get(item.account_id, item.after))
    rows = await connection.fetch(
        *_NEXT.bind(
            account_ids=list(lowest),
            lowest_ids=list(lowest.values()),
            lowest=min(lowest.values()),
            compared_max=compared_max,
            asking_ids=[item.account_id for item in awaited],
            emails=[item.email for item in awaited],
            afters=[item.after for item in awaited],
            are_test=[item.is_test for item in awaited],
        )
    )
    return {place - 1: message_id for place, message_id in rows}
