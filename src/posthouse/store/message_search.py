"""Messages as they are found, newest first: which ones, by the catalogue, and then what a list shows of them.

Each is a statement of its own. Generic plans open every partition that they might need; the second statement is told
the lowest and the highest id of what the first has found, and so opens only those of their days.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from posthouse.rules.ids import AccountId, CredentialId, MessageId
from posthouse.store.postgres import Connection, Row

RECIPIENTS_SHOWN_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class Span:
    """Ids from `lowest` up to, but not including, `before`."""

    lowest: UUID
    before: UUID


class Listed(NamedTuple):
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


class Uncatalogued(NamedTuple):
    """A message with everything that it is found by."""

    id: MessageId
    status: str
    source: str
    sender: str
    recipients: Sequence[str]
    subject: str
    tags: Sequence[str] | None
    template: str | None
    credential_id: CredentialId


NEWEST: Final = """
SELECT id FROM messages WHERE account_id = $1 AND id >= $2 AND id < $3 ORDER BY id DESC LIMIT $4
"""

WITH_TERM: Final = """
SELECT message_id FROM catalogue
WHERE account_id = $1 AND message_id >= $2 AND message_id < $3 AND term = $5
ORDER BY message_id DESC LIMIT $4
"""

WITH_EACH_TERM: Final = """
SELECT ARRAY(
    SELECT message_id FROM catalogue
    WHERE account_id = $1 AND message_id >= $2 AND message_id < $3 AND catalogue.term = asked.term
    ORDER BY message_id DESC LIMIT $4)
FROM unnest($5::bigint[]) WITH ORDINALITY asked(term, place) ORDER BY place
"""

# Several recipients of one message stand side by side.
QUEUED: Final = """
SELECT message_id FROM schedule
WHERE account_id = $1 AND message_id >= $2 AND message_id < $3
ORDER BY message_id DESC LIMIT $4
"""

UNCATALOGUED: Final = """
SELECT id, status, source, sender,
    ARRAY(SELECT email FROM recipients
          WHERE account_id = $1 AND message_id = messages.id AND message_id >= $2 AND message_id < $3) AS recipients,
    subject, tags, template, credential_id
FROM messages WHERE account_id = $1 AND id >= $2 AND id < $3 ORDER BY id DESC LIMIT $4
"""

_SHOWN: Final = """
    SELECT id, status, source, sender,
        ARRAY(SELECT email FROM recipients
              WHERE account_id = $1 AND message_id = asked.id AND message_id >= $3 AND message_id <= $4
                AND position < $5) AS recipients,
        recipient_count, subject, tags, template, credential_id, billing_status, created_at
    FROM messages WHERE account_id = $1 AND id = asked.id AND id >= $3 AND id <= $4 LIMIT 1
"""

SHOWN: Final = f"""
SELECT message.* FROM unnest($2::uuid[]) asked(id) CROSS JOIN LATERAL ({_SHOWN}) message
"""

# Nothing but the order of what is asked for can be the order of the answer, and it ends once it is long enough.
SHOWN_IF: Final = f"""
SELECT message.* FROM unnest($2::uuid[]) asked(id) CROSS JOIN LATERAL ({_SHOWN}) message
WHERE NOT EXISTS (
    SELECT FROM unnest($6::bigint[]) other(term) WHERE NOT EXISTS (
        SELECT FROM catalogue
        WHERE account_id = $1 AND catalogue.term = other.term AND message_id = asked.id
          AND message_id >= $3 AND message_id <= $4))
  AND ($7::text IS NULL OR message.status = $7)
LIMIT $8
"""


async def newest(connection: Connection, account_id: AccountId, span: Span, limit: int) -> list[MessageId]:
    return _ids(await connection.fetch(NEWEST, account_id, span.lowest, span.before, limit))


async def with_term(
    connection: Connection, account_id: AccountId, span: Span, limit: int, term: int
) -> list[MessageId]:
    return _ids(await connection.fetch(WITH_TERM, account_id, span.lowest, span.before, limit, term))


async def with_each_term(
    connection: Connection, account_id: AccountId, span: Span, limit: int, terms: Sequence[int]
) -> list[list[MessageId]]:
    """The newest that have the first term, the newest that have the second, and so on: so many of each."""
    rows = await connection.fetch(WITH_EACH_TERM, account_id, span.lowest, span.before, limit, terms)
    return [row[0] for row in rows]


async def queued(connection: Connection, account_id: AccountId, span: Span, limit: int) -> list[MessageId]:
    """The newest that have recipients without a result; one may stand there several times."""
    return _ids(await connection.fetch(QUEUED, account_id, span.lowest, span.before, limit))


async def uncatalogued(connection: Connection, account_id: AccountId, span: Span, limit: int) -> list[Uncatalogued]:
    rows = await connection.fetch(UNCATALOGUED, account_id, span.lowest, span.before, limit)
    return [Uncatalogued(*row) for row in rows]


async def shown(connection: Connection, account_id: AccountId, message_ids: Sequence[MessageId]) -> list[Listed]:
    """What is there of these, in their order: the newest comes first."""
    if not message_ids:
        return []
    bounds = message_ids[-1], message_ids[0]
    return _listed(await connection.fetch(SHOWN, account_id, message_ids, *bounds, RECIPIENTS_SHOWN_MAX))


async def shown_if(
    connection: Connection,
    account_id: AccountId,
    message_ids: Sequence[MessageId],
    limit: int,
    *,
    terms: Sequence[int],
    status: str | None,
) -> list[Listed]:
    """The first so many of these that have all the terms, and the status if one is given.

    The first term that a message lacks is the last that it is asked for: the rarest should come first.
    """
    if not message_ids:
        return []
    bounds = message_ids[-1], message_ids[0]
    return _listed(
        await connection.fetch(SHOWN_IF, account_id, message_ids, *bounds, RECIPIENTS_SHOWN_MAX, terms, status, limit)
    )


def _ids(rows: Sequence[Row]) -> list[MessageId]:
    return [row[0] for row in rows]


def _listed(rows: Sequence[Row]) -> list[Listed]:
    return [Listed(*row) for row in rows]
