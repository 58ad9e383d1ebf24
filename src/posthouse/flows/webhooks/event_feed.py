"""The feed of an account's events, the oldest first: for accounts that fetch them instead of receiving webhooks."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from posthouse.flows.shared.context import Flow
from posthouse.flows.shared.page import Page, id_position
from posthouse.rules import ids
from posthouse.rules.endpoint import FurtherType
from posthouse.rules.event import EventType
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.refusal import invalid
from posthouse.store import events, messages
from posthouse.store.events import EventRange
from posthouse.store.events import StoredEvent as StoredEvent
from posthouse.store.postgres import Connection

# The types that the feed can be asked for.
FEED_TYPES: Final = (*EventType, *FurtherType)
# An event gets its id before it is committed. A reader of the feed would miss an event that appears after a newer
# one, so an event is shown only when all events of its time are committed, however long a transaction takes.
SETTLED_AFTER: Final = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class EventPage(Page[StoredEvent]):
    """`next_cursor` is where to continue, now or later; None only while there was nothing to read.

    `metadata` is that of the events' messages, if they have any.
    """

    has_more: bool
    metadata: Mapping[MessageId, Mapping[str, str]]


class EventFeed(Flow):
    async def page(
        self,
        account_id: AccountId,
        limit: int,
        *,
        after: str | None = None,
        event_type: str | None = None,
        message_id: str | None = None,
    ) -> EventPage:
        """The oldest first, after the cursor; only of a type or a message if given.

        Without a type, those of the webhook. Further types are stored while an endpoint asks for them.
        """
        position = events.BEGINNING if after is None else id_position(ids.EVENT, after, "after")
        if event_type is not None and event_type not in FEED_TYPES:
            raise invalid(f"`type` is one of {', '.join(FEED_TYPES)}.")
        async with self._database.connection() as connection:
            before = await events.settled_before(connection, self._clock.now() - SETTLED_AFTER)
            if message_id is None:
                stretch = await events.read(connection, account_id, position, before, limit, event_type)
            else:
                of_it = await self._events_of(connection, account_id, message_id, event_type)
                found = [
                    stored for stored in of_it if position < stored.id < before and event_type in (None, stored.type)
                ]
                shown = found[:limit]
                stretch = EventRange(shown, shown[-1].id if shown else position, is_all=len(found) <= limit)
            about_mail = {stored.message_id for stored in stretch.events if stored.message_id is not None}
            metadata = await messages.metadata_of(connection, account_id, about_mail)
        is_at_beginning = stretch.read_to == events.BEGINNING
        return EventPage(
            stretch.events,
            None if is_at_beginning else ids.text(ids.EVENT, stretch.read_to),
            has_more=not stretch.is_all,
            metadata=metadata,
        )

    async def _events_of(
        self, connection: Connection, account_id: AccountId, message_id: str, event_type: str | None
    ) -> list[StoredEvent]:
        about = ids.parse(ids.MESSAGE, message_id)
        if about is None:
            return []
        if event_type in list(FurtherType):
            return await events.further_of_message(connection, account_id, MessageId(about), event_type)
        return await events.of_message(connection, account_id, MessageId(about))
