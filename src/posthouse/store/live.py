"""What is new in several accounts: accepted messages, recipients that have their result, and awaited messages."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from posthouse.rules.ids import AccountId, MessageId, lowest_id
from posthouse.store import postgres
from posthouse.store.postgres import Connection
from posthouse.store.statement import statement

# A message has its id before its transaction begins, by as much as a write may wait; an event within it, by a clock
# that may differ from the database's.
MESSAGES_SETTLED_AFTER: Final = timedelta(seconds=30)
EVENTS_SETTLED_AFTER: Final = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Horizon:
    """Below these ids no message and no event can appear any more."""

    messages: UUID
    events: UUID


@dataclass(frozen=True, slots=True)
class Recent:
    """An account's newest message ids, and the recipients that have their result, by the ids of their events."""

    messages: set[MessageId] = field(default_factory=set)
    results: dict[UUID, tuple[MessageId, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AwaitedMessage:
    """`email` is in lower case; the message's id is higher than `after`."""

    account_id: AccountId
    email: str
    after: UUID
    is_test: bool


# An account without new mail costs a lookup in the index of each table. The bounds are the same for all accounts, so
# that PostgreSQL opens only the newest day.
_RECENT: Final = statement("""
SELECT account.id, recent.id, NULL::uuid AS message_id, NULL::smallint AS position
FROM unnest(:account_ids::uuid[]) account(id)
CROSS JOIN LATERAL (
    SELECT id FROM messages WHERE account_id = account.id AND id >= :messages_from
    ORDER BY id DESC LIMIT :limit) recent
UNION ALL
SELECT account.id, recent.id, recent.message_id, recent.position
FROM unnest(:account_ids::uuid[]) account(id)
CROSS JOIN LATERAL (
    SELECT id, message_id, position FROM events
    WHERE account_id = account.id AND id >= :events_from AND message_id IS NOT NULL
    ORDER BY id DESC LIMIT :limit) recent
""")

# Recipients have no index by address: a bounded number of an account's newest recipients is compared, once for all who
# wait there. With the lowest id of all, PostgreSQL doesn't open the partitions of older days.
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


async def horizon(connection: Connection, now: datetime) -> Horizon:
    """The horizon. Read it before reading what is recent: nothing appears below it after that."""
    oldest = await postgres.oldest_open_transaction(connection)
    began = now if oldest is None else min(now, oldest)
    return Horizon(lowest_id(began - MESSAGES_SETTLED_AFTER), lowest_id(began - EVENTS_SETTLED_AFTER))


async def recent(
    connection: Connection, account_ids: Sequence[AccountId], above: Horizon, limit: int
) -> dict[AccountId, Recent]:
    """What each account has above the horizon: the newest `limit` of messages and of results."""
    found = {account_id: Recent() for account_id in account_ids}
    rows = await connection.fetch(
        *_RECENT.bind(
            account_ids=list(account_ids), messages_from=above.messages, events_from=above.events, limit=limit
        )
    )
    for account_id, row_id, message_id, position in rows:
        if message_id is None:
            found[account_id].messages.add(row_id)
        else:
            found[account_id].results[row_id] = message_id, position
    return found


async def awaited_messages(
    connection: Connection, awaited: Sequence[AwaitedMessage], compared_max: int
) -> dict[int, MessageId]:
    """The oldest message for each of `awaited`, by its index there; the index is missing if there is none yet."""
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
