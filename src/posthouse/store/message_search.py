"""Message search, newest first: one statement finds the ids in the search index, another reads what a list shows.

Generic plans open every partition that they might need; the second statement gets the lowest and the highest id
that the first has found, and so opens only the partitions of their days.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from posthouse.rules.ids import AccountId, CredentialId, MessageId
from posthouse.store.postgres import Connection, Row
from posthouse.store.statement import statement

RECIPIENTS_SHOWN_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class IdRange:
    """Ids from `lowest` up to, but not including, `before`."""

    lowest: UUID
    before: UUID


class MessageListRow(NamedTuple):
    """A message as a list shows it, with the first of its recipients."""

    id: MessageId
    status: str
    source: str
    sender: str
    recipients: Sequence[str]
    recipient_count: int
    subject: str
    tags: Sequence[str] | None
    template: str | None
    credential_id: CredentialId
    billing_status: str
    created_at: datetime
    # As JSON text.
    metadata: str | None = None
    forgets_content: bool | None = None


class UnindexedMessage(NamedTuple):
    """A message with everything that it can be searched by, read without the index."""

    id: MessageId
    status: str
    source: str
    sender: str
    recipients: Sequence[str]
    subject: str
    tags: Sequence[str] | None
    template: str | None
    credential_id: CredentialId
    metadata: str | None = None


NEWEST: Final = statement("""
SELECT id FROM messages WHERE account_id = :account_id AND id >= :lowest AND id < :before ORDER BY id DESC LIMIT :limit
""")

WITH_TERM: Final = statement("""
SELECT message_id FROM catalogue
WHERE account_id = :account_id AND message_id >= :lowest AND message_id < :before AND term = :term
ORDER BY message_id DESC LIMIT :limit
""")

WITH_EACH_TERM: Final = statement("""
SELECT ARRAY(
    SELECT message_id FROM catalogue
    WHERE account_id = :account_id AND message_id >= :lowest AND message_id < :before AND catalogue.term = asked.term
    ORDER BY message_id DESC LIMIT :limit)
FROM unnest(:terms::bigint[]) WITH ORDINALITY asked(term, place) ORDER BY place
""")

# The recipients of one message are next to each other.
QUEUED: Final = statement("""
SELECT message_id FROM schedule
WHERE account_id = :account_id AND message_id >= :lowest AND message_id < :before
ORDER BY message_id DESC LIMIT :limit
""")

UNINDEXED: Final = statement("""
SELECT id, status, source, sender,
    ARRAY(SELECT email FROM recipients
          WHERE account_id = :account_id AND message_id = messages.id AND message_id >= :lowest
              AND message_id < :before) AS recipients,
    subject, tags, template, credential_id, metadata
FROM messages WHERE account_id = :account_id AND id >= :lowest AND id < :before ORDER BY id DESC LIMIT :limit
""")

# Without an index: the message's id is made after the request's, by as much as a body may take to arrive.
OF_REQUEST: Final = statement("""
SELECT id FROM (
    SELECT id, request_id FROM messages WHERE account_id = :account_id AND id >= :lowest AND id < :before
    ORDER BY id LIMIT :examined_max) near
WHERE request_id = :request_id LIMIT 1
""")

_SHOWN: Final = """
    SELECT id, status, source, sender,
        ARRAY(SELECT email FROM recipients
              WHERE account_id = :account_id AND message_id = asked.id AND message_id >= :lowest
                  AND message_id <= :highest
                AND position < :recipients_max) AS recipients,
        recipient_count, subject, tags, template, credential_id, billing_status, created_at, metadata,
        forgets_content
    FROM messages WHERE account_id = :account_id AND id = asked.id AND id >= :lowest AND id <= :highest LIMIT 1
"""

SHOWN: Final = statement(f"""
SELECT message.* FROM unnest(:message_ids::uuid[]) asked(id) CROSS JOIN LATERAL ({_SHOWN}) message
""")

# Nothing but the order of what is asked for can be the order of the answer, and it ends once it is long enough.
SHOWN_IF: Final = statement(f"""
SELECT message.* FROM unnest(:message_ids::uuid[]) asked(id) CROSS JOIN LATERAL ({_SHOWN}) message
WHERE NOT EXISTS (
    SELECT FROM unnest(:terms::bigint[]) other(term) WHERE NOT EXISTS (
        SELECT FROM catalogue
        WHERE account_id = :account_id AND catalogue.term = other.term AND message_id = asked.id
          AND message_id >= :lowest AND message_id <= :highest))
  AND (:status::text IS NULL OR message.status = :status)
LIMIT :limit
""")


async def newest(connection: Connection, account_id: AccountId, span: IdRange, limit: int) -> list[MessageId]:
    return _ids(
        await connection.fetch(*NEWEST.bind(account_id=account_id, lowest=span.lowest, before=span.before, limit=limit))
    )


async def with_term(
    connection: Connection, account_id: AccountId, span: IdRange, limit: int, term: int
) -> list[MessageId]:
    return _ids(
        await connection.fetch(
            *WITH_TERM.bind(account_id=account_id, lowest=span.lowest, before=span.before, limit=limit, term=term)
        )
    )


async def with_each_term(
    connection: Connection, account_id: AccountId, span: IdRange, limit: int, terms: Sequence[int]
) -> list[list[MessageId]]:
    """The newest that have the first term, the newest that have the second, and so on: so many of each."""
    rows = await connection.fetch(
        *WITH_EACH_TERM.bind(account_id=account_id, lowest=span.lowest, before=span.before, limit=limit, terms=terms)
    )
    return [row[0] for row in rows]


async def queued(connection: Connection, account_id: AccountId, span: IdRange, limit: int) -> list[MessageId]:
    """The newest that have recipients without a result; a message may be listed several times."""
    return _ids(
        await connection.fetch(*QUEUED.bind(account_id=account_id, lowest=span.lowest, before=span.before, limit=limit))
    )


async def of_request(
    connection: Connection, account_id: AccountId, span: IdRange, request_id: UUID, examined_max: int
) -> MessageId | None:
    """The message that was accepted by this request, among the oldest so many of the span."""
    found: MessageId | None = await connection.fetchval(
        *OF_REQUEST.bind(
            account_id=account_id,
            lowest=span.lowest,
            before=span.before,
            request_id=request_id,
            examined_max=examined_max,
        )
    )
    return found


async def unindexed(connection: Connection, account_id: AccountId, span: IdRange, limit: int) -> list[UnindexedMessage]:
    rows = await connection.fetch(
        *UNINDEXED.bind(account_id=account_id, lowest=span.lowest, before=span.before, limit=limit)
    )
    return [UnindexedMessage(*row) for row in rows]


async def shown(
    connection: Connection, account_id: AccountId, message_ids: Sequence[MessageId]
) -> list[MessageListRow]:
    """What is there of these, in their order: the newest comes first."""
    if not message_ids:
        return []
    rows = await connection.fetch(
        *SHOWN.bind(
            account_id=account_id,
            message_ids=message_ids,
            lowest=message_ids[-1],
            highest=message_ids[0],
            recipients_max=RECIPIENTS_SHOWN_MAX,
        )
    )
    return _listed(rows)


async def shown_if(
    connection: Connection,
    account_id: AccountId,
    message_ids: Sequence[MessageId],
    limit: int,
    *,
    terms: Sequence[int],
    status: str | None,
) -> list[MessageListRow]:
    """The first so many of these that have all the terms, and the status if one is given.

    A message's check ends with the first term that it lacks: the rarest should come first.
    """
    if not message_ids:
        return []
    rows = await connection.fetch(
        *SHOWN_IF.bind(
            account_id=account_id,
            message_ids=message_ids,
            lowest=message_ids[-1],
            highest=message_ids[0],
            recipients_max=RECIPIENTS_SHOWN_MAX,
            terms=terms,
            status=status,
            limit=limit,
        )
    )
    return _listed(rows)


def _ids(rows: Sequence[Row]) -> list[MessageId]:
    return [row[0] for row in rows]


def _listed(rows: Sequence[Row]) -> list[MessageListRow]:
    return [MessageListRow(*row) for row in rows]
