"""Messages of all accounts, for operators: by id in the part of its day, by address in the search index.

No index leads from an id or an address to its account: it would cost every mail. Each account is asked, some
microseconds each, and some accounts in a statement.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from posthouse.rules.ids import AccountId, MessageId
from posthouse.store.message_search import RECIPIENTS_SHOWN_MAX, IdRange
from posthouse.store.postgres import Connection
from posthouse.store.statement import statement


class FoundMessage(NamedTuple):
    """A message as a list of several accounts' shows it, with the first of its recipients."""

    account_id: AccountId
    account: str
    id: MessageId
    status: str
    source: str
    sender: str
    recipients: Sequence[str]
    recipient_count: int
    created_at: datetime


class Place(NamedTuple):
    account_id: AccountId
    message_id: MessageId


_BY_ID: Final = statement("""
SELECT accounts.id, :message_id::uuid FROM accounts CROSS JOIN LATERAL (
    SELECT FROM messages WHERE account_id = accounts.id AND id = :message_id LIMIT 1) message
LIMIT 1
""")

_BY_TERM: Final = statement("""
SELECT asked.account_id, found.message_id
FROM unnest(:account_ids::uuid[]) asked(account_id) CROSS JOIN unnest(:terms::bigint[]) wanted(term)
CROSS JOIN LATERAL (
    SELECT message_id FROM catalogue
    WHERE account_id = asked.account_id AND catalogue.term = wanted.term
      AND message_id >= :lowest AND message_id < :before
    ORDER BY message_id DESC LIMIT :limit) found
ORDER BY found.message_id DESC LIMIT :limit
""")

# With the bounds of all ids PostgreSQL doesn't open the other days' partitions.
_SHOWN: Final = statement("""
SELECT accounts.id, accounts.name, message.*
FROM unnest(:account_ids::uuid[], :message_ids::uuid[]) asked(account_id, message_id)
JOIN accounts ON accounts.id = asked.account_id
CROSS JOIN LATERAL (
    SELECT id, status, source, sender,
        ARRAY(SELECT email FROM recipients
              WHERE account_id = asked.account_id AND message_id = asked.message_id AND message_id >= :lowest
                AND message_id <= :highest AND position < :recipients_max) AS recipients,
        recipient_count, created_at
    FROM messages
    WHERE account_id = asked.account_id AND id = asked.message_id AND id >= :lowest AND id <= :highest LIMIT 1) message
ORDER BY message.id DESC
""")


async def with_id(connection: Connection, message_id: MessageId) -> Place | None:
    row = await connection.fetchrow(*_BY_ID.bind(message_id=message_id))
    return None if row is None else Place(*row)


async def with_terms(
    connection: Connection, account_ids: Sequence[AccountId], terms: Sequence[int], span: IdRange, limit: int
) -> list[Place]:
    """The newest messages of these accounts that have one of the terms; one with two of them is there twice."""
    rows = await connection.fetch(
        *_BY_TERM.bind(account_ids=account_ids, terms=terms, lowest=span.lowest, before=span.before, limit=limit)
    )
    return [Place(*row) for row in rows]


async def shown(connection: Connection, places: Sequence[Place]) -> list[FoundMessage]:
    """What is there of these, the newest first."""
    if not places:
        return []
    message_ids = [place.message_id for place in places]
    rows = await connection.fetch(
        *_SHOWN.bind(
            account_ids=[place.account_id for place in places],
            message_ids=message_ids,
            lowest=min(message_ids),
            highest=max(message_ids),
            recipients_max=RECIPIENTS_SHOWN_MAX,
        )
    )
    return [FoundMessage(*row) for row in rows]
