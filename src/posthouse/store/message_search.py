"""Message search, newest first: one statement finds the ids in the search index, another reads what a list shows.

Generic plans open every partition that they might need; the second statement gets the lowest and the highest id
that the first one found, and so opens only the partitions of their days.

Operators search all accounts: by id in the part of its day, by address in the search index. No index leads from an id
or an address to its account: it would add a cost to every message. Instead, each account is searched, which takes some
microseconds, several accounts in a statement.
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
    state: str = ""


class UnindexedMessage(NamedTuple):
    """A message with everything that it can be found by, read without the index."""

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


class FoundMessage(NamedTuple):
    """A message as a list across accounts shows it, with the first of its recipients."""

    account_id: AccountId
    account: str
    id: MessageId
    status: str
    source: str
    sender: str
    recipients: Sequence[str]
    recipient_count: int
    created_at: datetime


class MessageKey(NamedTuple):
    account_id: AccountId
    message_id: MessageId


NEWEST: Final = statement("""
SELECT id FROM messages WHERE account_id = :account_id AND id >= :lowest AND id < :before ORDER BY id DESC LIMIT :limit
""")

WITH_TERM: Final = statement("""
SELECT message_id FROM search_index
WHERE account_id = :account_id AND message_id >= :lowest AND message_id < :before AND term = :term
ORDER BY message_id DESC LIMIT :limit
""")

WITH_EACH_TERM: Final = statement("""
SELECT ARRAY(
    SELECT message_id FROM search_index
    WHERE account_id = :account_id AND message_id >= :lowest AND message_id < :before AND search_index.term = asked.term
    ORDER BY message_id DESC LIMIT :limit)
FROM unnest(:terms::bigint[]) WITH ORDINALITY asked(term, place) ORDER BY place
""")

# The recipients of one message are adjacent.
QUEUED: Final = statement("""
SELECT message_id FROM delivery_schedule
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

# Without an index: the message's id is made after the request's id, at most as much later as a body takes to arrive.
OF_REQUEST: Final = statement("""
SELECT id FROM (
    SELECT id, request_id FROM messages WHERE account_id = :account_id AND id >= :lowest AND id < :before
    ORDER BY id LIMIT :examined_max) near
WHERE request_id = :request_id LIMIT 1
""")

# The beginnings of our own texts, as in `rules/delivery_reason`.
_SHOWN: Final = """
    SELECT id, status, source, sender,
        ARRAY(SELECT email FROM recipients
              WHERE account_id = :account_id AND message_id = asked.id AND message_id >= :lowest
                  AND message_id <= :highest
                AND position < :recipients_max) AS recipients,
        recipient_count, subject, tags, template, credential_id, billing_status, created_at, metadata,
        forgets_content,
        CASE
            WHEN status = 'queued' AND send_at > :now THEN 'scheduled'
            WHEN status = 'failed' THEN (
                SELECT CASE WHEN min(result) = max(result) THEN min(result) ELSE 'failed' END FROM (
                    SELECT CASE WHEN last_smtp_code IS NULL AND (last_smtp_response LIKE 'the address is suppressed%'
                        OR last_smtp_response LIKE 'the address is unsubscribed%') THEN 'suppressed'
                        ELSE recipients.status END AS result
                    FROM recipients
                    WHERE account_id = :account_id AND message_id = asked.id AND message_id >= :lowest
                      AND message_id <= :highest) results)
            ELSE status END AS state
    FROM messages WHERE account_id = :account_id AND id = asked.id AND id >= :lowest AND id <= :highest LIMIT 1
"""

SHOWN: Final = statement(f"""
SELECT message.* FROM unnest(:message_ids::uuid[]) asked(id) CROSS JOIN LATERAL ({_SHOWN}) message
""")

# The only possible order is that of the given ids, and reading stops once the page is full.
SHOWN_IF: Final = statement(f"""
SELECT message.* FROM unnest(:message_ids::uuid[]) asked(id) CROSS JOIN LATERAL ({_SHOWN}) message
WHERE NOT EXISTS (
    SELECT FROM unnest(:terms::bigint[]) other(term) WHERE NOT EXISTS (
        SELECT FROM search_index
        WHERE account_id = :account_id AND search_index.term = other.term AND message_id = asked.id
          AND message_id >= :lowest AND message_id <= :highest))
  AND (:status::text IS NULL OR message.status = :status)
LIMIT :limit
""")

_BY_ID: Final = statement("""
SELECT accounts.id, :message_id::uuid FROM accounts CROSS JOIN LATERAL (
    SELECT FROM messages WHERE account_id = accounts.id AND id = :message_id LIMIT 1) message
LIMIT 1
""")

_BY_TERM: Final = statement("""
SELECT asked.account_id, found.message_id
FROM unnest(:account_ids::uuid[]) asked(account_id) CROSS JOIN unnest(:terms::bigint[]) wanted(term)
CROSS JOIN LATERAL (
    SELECT message_id FROM search_index
    WHERE account_id = asked.account_id AND search_index.term = wanted.term
      AND message_id >= :lowest AND message_id < :before
    ORDER BY message_id DESC LIMIT :limit) found
ORDER BY found.message_id DESC LIMIT :limit
""")

# With the bounds of all ids PostgreSQL doesn't open the other days' partitions.
_SHOWN_TO_OPERATORS: Final = statement("""
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
    """The newest messages with the first term, the newest with the second, and so on: at most this many of each."""
    rows = await connection.fetch(
        *WITH_EACH_TERM.bind(account_id=account_id, lowest=span.lowest, before=span.before, limit=limit, terms=terms)
    )
    return [row[0] for row in rows]


async def queued(connection: Connection, account_id: AccountId, span: IdRange, limit: int) -> list[MessageId]:
    """The newest messages with recipients without a result; a message may be listed several times."""
    return _ids(
        await connection.fetch(*QUEUED.bind(account_id=account_id, lowest=span.lowest, before=span.before, limit=limit))
    )


async def of_request(
    connection: Connection, account_id: AccountId, span: IdRange, request_id: UUID, examined_max: int
) -> MessageId | None:
    """The message that was accepted by this request, among the oldest of the range, up to a limit."""
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
    connection: Connection, account_id: AccountId, message_ids: Sequence[MessageId], now: datetime
) -> list[MessageListRow]:
    """Those of these messages that still exist, in their order: the newest comes first."""
    if not message_ids:
        return []
    rows = await connection.fetch(
        *SHOWN.bind(
            account_id=account_id,
            message_ids=message_ids,
            lowest=message_ids[-1],
            highest=message_ids[0],
            recipients_max=RECIPIENTS_SHOWN_MAX,
            now=now,
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
    now: datetime,
) -> list[MessageListRow]:
    """The first of these messages, up to a limit, that have all the terms, and the status if one is given.

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
            now=now,
        )
    )
    return _listed(rows)


async def of_any_account_with_id(connection: Connection, message_id: MessageId) -> MessageKey | None:
    row = await connection.fetchrow(*_BY_ID.bind(message_id=message_id))
    return None if row is None else MessageKey(*row)


async def of_any_account_with_terms(
    connection: Connection, account_ids: Sequence[AccountId], terms: Sequence[int], span: IdRange, limit: int
) -> list[MessageKey]:
    """The newest messages of these accounts that have one of the terms; one with two of them is returned twice."""
    rows = await connection.fetch(
        *_BY_TERM.bind(account_ids=account_ids, terms=terms, lowest=span.lowest, before=span.before, limit=limit)
    )
    return [MessageKey(*row) for row in rows]


async def shown_to_operators(connection: Connection, places: Sequence[MessageKey]) -> list[FoundMessage]:
    """Those of these messages that still exist, the newest first."""
    if not places:
        return []
    message_ids = [place.message_id for place in places]
    rows = await connection.fetch(
        *_SHOWN_TO_OPERATORS.bind(
            account_ids=[place.account_id for place in places],
            message_ids=message_ids,
            lowest=min(message_ids),
            highest=max(message_ids),
            recipients_max=RECIPIENTS_SHOWN_MAX,
        )
    )
    return [FoundMessage(*row) for row in rows]


def _ids(rows: Sequence[Row]) -> list[MessageId]:
    return [row[0] for row in rows]


def _listed(rows: Sequence[Row]) -> list[MessageListRow]:
    return [MessageListRow(*row) for row in rows]
