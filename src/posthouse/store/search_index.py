"""Writes the search index: its progress, new messages and results, and the entries."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

import asyncpg

from posthouse.rules.ids import AccountId, CredentialId, MessageId, lowest_id
from posthouse.store import postgres
from posthouse.store.postgres import Connection


@dataclass(frozen=True, slots=True)
class IndexProgress:
    """All messages below `messages_to`, and the results of all events below `events_to`, are in the index."""

    messages_to: UUID
    events_to: UUID


class NewMessage(NamedTuple):
    account_id: AccountId
    id: MessageId
    sender: str
    recipients: Sequence[str]
    subject: str
    tags: Sequence[str] | None
    template: str | None
    source: str
    credential_id: CredentialId
    # As JSON text.
    metadata: str | None


class NewResult(NamedTuple):
    """A final event's message and its status; None while other recipients are not final, or if it no longer exists."""

    account_id: AccountId
    event_id: UUID
    message_id: MessageId
    status: str | None


class IndexEntry(NamedTuple):
    account_id: AccountId
    term: int
    message_id: MessageId


PROGRESS: Final = "SELECT messages_to, events_to FROM search_index_progress WHERE singleton"

BEGIN: Final = "INSERT INTO search_index_progress (messages_to, events_to) VALUES ($1, $1) ON CONFLICT DO NOTHING"

MESSAGES_ENTERED: Final = "UPDATE search_index_progress SET messages_to = $1 WHERE singleton"

EVENTS_ENTERED: Final = "UPDATE search_index_progress SET events_to = $1 WHERE singleton"

# A partition's name begins with its table and its day.
FIRST_DAY: Final = """
SELECT left(min(inhrelid::regclass::text), 17) FROM pg_inherits
WHERE inhparent = CAST('messages' AS regclass) AND NOT inhdetachpending
"""

# No index leads to what is new in all accounts: it would slow accepting down. Reading each account's newest day
# takes some microseconds an account.
NEW_MESSAGES: Final = """
SELECT found.account_id, found.id, message.sender, recipient.emails, message.subject, message.tags, message.template,
    message.source, message.credential_id, message.metadata
FROM (
    SELECT accounts.id AS account_id, new.id
    FROM accounts CROSS JOIN LATERAL (
        SELECT id FROM messages WHERE account_id = accounts.id AND id >= $1 AND id < $2 ORDER BY id LIMIT $3) new
    ORDER BY new.id LIMIT $3) found
CROSS JOIN LATERAL (
    SELECT sender, subject, tags, template, source, credential_id, metadata FROM messages
    WHERE account_id = found.account_id AND id = found.id AND id >= $1 AND id < $2 LIMIT 1) message
CROSS JOIN LATERAL (
    SELECT array_agg(email) AS emails FROM recipients
    WHERE account_id = found.account_id AND message_id = found.id AND message_id >= $1 AND message_id < $2) recipient
"""

NEW_RESULTS: Final = """
SELECT found.account_id, found.id, found.message_id,
    (SELECT status FROM messages
     WHERE account_id = found.account_id AND id = found.message_id AND status <> 'queued') AS status
FROM (
    SELECT accounts.id AS account_id, new.id, new.message_id
    FROM accounts CROSS JOIN LATERAL (
        SELECT id, message_id FROM events
        WHERE account_id = accounts.id AND id >= $1 AND id < $2 AND message_id IS NOT NULL
        ORDER BY id LIMIT $3) new
    ORDER BY new.id LIMIT $3) found
"""

ENTER: Final = """
INSERT INTO search_index (account_id, term, message_id)
SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::uuid[]) ON CONFLICT DO NOTHING
"""


async def progress(connection: Connection) -> IndexProgress | None:
    row = await connection.fetchrow(PROGRESS)
    return None if row is None else IndexProgress(*row)


async def kept_from(connection: Connection) -> UUID | None:
    """The lowest possible id of a stored message: that of the first day that is kept."""
    first: str | None = await connection.fetchval(FIRST_DAY)
    return None if first is None else lowest_id(datetime.strptime(first, "messages_%Y%m%d").replace(tzinfo=UTC))


async def begin(tx: Connection, at: UUID) -> None:
    await tx.execute(BEGIN, at)


async def settled_before(connection: Connection, now: datetime, settled_after: timedelta) -> UUID:
    """The bound below which nothing can appear any more, if ids are made at most `settled_after` before a commit.

    An id is made before the transaction that writes it begins, so that it may appear although none is open now.
    """
    oldest = await postgres.oldest_open_transaction(connection)
    return lowest_id((now if oldest is None else min(now, oldest)) - settled_after)


async def new_messages(connection: Connection, since: UUID, before: UUID, limit: int) -> list[NewMessage]:
    """The messages of all accounts between the two ids, the oldest first."""
    return [NewMessage(*row) for row in await connection.fetch(NEW_MESSAGES, since, before, limit)]


async def new_results(connection: Connection, since: UUID, before: UUID, limit: int) -> list[NewResult]:
    """The results of all accounts' events between the two ids, the oldest first."""
    return [NewResult(*row) for row in await connection.fetch(NEW_RESULTS, since, before, limit)]


async def enter_new(tx: Connection, entries: Sequence[IndexEntry]) -> None:
    """Add sorted entries of messages that are most probably not in the index yet; existing entries stay as they are.

    COPY writes rows by the page, and marks none as speculative: a third less write-ahead log than `enter`.
    """
    try:
        async with tx.transaction():
            await tx.copy_records_to_table("search_index", columns=IndexEntry._fields, records=entries)
    except asyncpg.UniqueViolationError:
        await enter(tx, entries)


async def enter(tx: Connection, entries: Sequence[IndexEntry]) -> None:
    """Add entries; those that exist already stay as they are."""
    # In the order of the key, adjacent entries go to the same page.
    columns = zip(*sorted(entries), strict=True) if entries else ((), (), ())
    await tx.execute(ENTER, *[list(column) for column in columns])


async def messages_entered(tx: Connection, to: UUID) -> None:
    await tx.execute(MESSAGES_ENTERED, to)


async def events_entered(tx: Connection, to: UUID) -> None:
    await tx.execute(EVENTS_ENTERED, to)
