"""Events as their account reads them: in the order of their ids, from the place where it stopped reading."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from posthouse.rules.endpoint import FurtherType
from posthouse.rules.ids import AccountId, MessageId, lowest_id
from posthouse.store import postgres
from posthouse.store.delivery_schedule import columns
from posthouse.store.postgres import Connection
from posthouse.store.statement import statement

BEGINNING: Final = UUID(int=0)
# A type may be rare. This many events are searched for it at a time, and the reader continues from there.
SEARCHED_BATCH_MAX: Final = 5_000
# How much the clocks of processes differ, at most.
_CLOCKS_DIFFER: Final = timedelta(seconds=5)
# No index leads from a message to its events. An event's id contains the time at which it was made: after the last
# attempt began, and no later than it was recorded, give or take that difference.
_RECORDED_WITHIN: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """`body` is what every attempt of a webhook delivery sends."""

    id: UUID
    type: str
    body: bytes = field(repr=False)
    message_id: MessageId | None = None


@dataclass(frozen=True, slots=True)
class EventRange:
    """Events, the oldest first. All up to `read_to` were read; unless `is_all`, there may be more after it."""

    events: list[StoredEvent]
    read_to: UUID
    is_all: bool


_AFTER_IN: Final = """
SELECT id, type, body, message_id FROM {table} WHERE account_id = :account_id AND id > :after AND id < :before
    AND (:event_type::text IS NULL OR type = :event_type) ORDER BY id LIMIT :limit
"""
_REACH_IN: Final = """
SELECT id FROM {table} WHERE account_id = :account_id AND id > :after AND id < :before ORDER BY id OFFSET :count LIMIT 1
"""
_AFTER: Final = statement(_AFTER_IN.format(table="events"))
_REACH: Final = statement(_REACH_IN.format(table="events"))
# Events of the types that only endpoints get.
_FURTHER_AFTER: Final = statement(_AFTER_IN.format(table="endpoint_events"))
_FURTHER_REACH: Final = statement(_REACH_IN.format(table="endpoint_events"))
_FURTHER_OF_MESSAGE: Final = """
SELECT id, type, body, message_id FROM endpoint_events
WHERE account_id = $1 AND message_id = $2 AND type = $3 ORDER BY id LIMIT $4
"""

_ENDS: Final = """
SELECT position, coalesce(delivered_at, bounced_at, failed_at, cancelled_at) AS final_at,
    (SELECT started_at FROM attempts
     WHERE account_id = $1 AND message_id = $2 AND attempts.position = recipients.position
     ORDER BY fence DESC LIMIT 1) AS began_at
FROM recipients WHERE account_id = $1 AND message_id = $2
"""
# From the end of the span down: an event is made a moment before its recipient is final, and the span may be an hour.
_OF_MESSAGE: Final = statement("""
SELECT event.*
FROM unnest(:positions::smallint[], :lowest_ids::uuid[], :highest_ids::uuid[]) asked(position, lowest, highest)
CROSS JOIN LATERAL (
    SELECT id, type, body, message_id FROM events
    WHERE account_id = :account_id AND id >= asked.lowest AND id < asked.highest
      AND message_id = :message_id AND position = asked.position
    ORDER BY id DESC LIMIT 1) event
ORDER BY event.id
""")


async def settled_before(connection: Connection, moment: datetime) -> UUID:
    """The bound below which no event can appear any more: that of the moment, or of a long transaction.

    An event's id is made within its transaction, so it is not older than the oldest open transaction. Ask for the bound
    before the events are read: transactions that begin afterwards make their ids after that moment.
    """
    oldest = await postgres.oldest_open_transaction(connection)
    return lowest_id(moment if oldest is None else min(moment, oldest - _CLOCKS_DIFFER))


async def read(
    connection: Connection,
    account_id: AccountId,
    after: UUID,
    before: UUID,
    limit: int,
    event_type: str | None = None,
) -> EventRange:
    """The account's events between the two, of the webhook's types or of one given type.

    PostgreSQL reads only the days between them.
    """
    is_further = event_type in list(FurtherType)
    reach = None
    if event_type is not None:
        reach = await connection.fetchval(
            *(_FURTHER_REACH if is_further else _REACH).bind(
                account_id=account_id, after=after, before=before, count=SEARCHED_BATCH_MAX
            )
        )
    rows = await connection.fetch(
        *(_FURTHER_AFTER if is_further else _AFTER).bind(
            account_id=account_id, after=after, before=reach or before, limit=limit + 1, event_type=event_type
        )
    )
    found = [StoredEvent(*row) for row in rows[:limit]]
    if len(rows) <= limit and reach is not None:
        return EventRange(found, UUID(int=reach.int - 1), is_all=False)
    return EventRange(found, found[-1].id if found else after, is_all=len(rows) <= limit)


async def of_message(connection: Connection, account_id: AccountId, message_id: MessageId) -> list[StoredEvent]:
    """One event for each final recipient, the oldest first; none if the account has no such message."""
    ends = [tuple(row) for row in await connection.fetch(_ENDS, account_id, message_id)]
    spans = [_span(position, final_at, began_at) for position, final_at, began_at in ends if final_at is not None]
    positions, lowest_ids, highest_ids = columns(spans, 3)
    rows = await connection.fetch(
        *_OF_MESSAGE.bind(
            account_id=account_id,
            message_id=message_id,
            positions=positions,
            lowest_ids=lowest_ids,
            highest_ids=highest_ids,
        )
    )
    return [StoredEvent(*row) for row in rows]


async def further_of_message(
    connection: Connection, account_id: AccountId, message_id: MessageId, event_type: str
) -> list[StoredEvent]:
    """Events of a type that only endpoints get, the oldest first."""
    rows = await connection.fetch(_FURTHER_OF_MESSAGE, account_id, message_id, event_type, SEARCHED_BATCH_MAX)
    return [StoredEvent(*row) for row in rows]


def _span(position: int, final_at: datetime, began_at: datetime | None) -> tuple[int, UUID, UUID]:
    """The ids between which the recipient's event is."""
    since = final_at - _RECORDED_WITHIN
    if began_at is not None:
        since = max(since, began_at - _CLOCKS_DIFFER)
    return position, lowest_id(since), lowest_id(final_at + _CLOCKS_DIFFER)
