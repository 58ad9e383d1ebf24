"""What is new in several accounts at once: messages accepted, and recipients that have their result."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from posthouse.rules.ids import AccountId, MessageId, lowest_id
from posthouse.store import open_transactions
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
    """An account's newest: ids of messages, and by the ids of their events the recipients that have their result."""

    messages: set[MessageId] = field(default_factory=set)
    results: dict[UUID, tuple[MessageId, int]] = field(default_factory=dict)


# An account without new mail costs a look into the index of each table. The bounds are the same for all accounts, so
# that PostgreSQL opens the newest day alone.
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


async def horizon(connection: Connection, now: datetime) -> Horizon:
    """To be asked for before what is recent is read: nothing appears below it after that."""
    oldest = await open_transactions.oldest_began(connection)
    began = now if oldest is None else min(now, oldest)
    return Horizon(lowest_id(began - MESSAGES_SETTLED_AFTER), lowest_id(began - EVENTS_SETTLED_AFTER))


async def recent(
    connection: Connection, account_ids: Sequence[AccountId], above: Horizon, limit: int
) -> dict[AccountId, Recent]:
    """What each account has above the horizon: of messages and of results, the newest `limit`."""
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
