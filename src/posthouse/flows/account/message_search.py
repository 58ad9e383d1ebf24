"""Search of an account's messages, newest first.

However rare or common the search terms are, a page costs a bounded amount of work: after a number of messages the page
ends, full or not, and the next page continues there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final
from uuid import UUID

from posthouse.flows.shared.context import Context, Flow
from posthouse.flows.shared.page import Page
from posthouse.rules import ids, search
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.message import MessageStatus, read_metadata
from posthouse.rules.search import SearchFilters, SearchQuery
from posthouse.store import message_search, search_index
from posthouse.store.message_search import IdRange, UnindexedMessage
from posthouse.store.message_search import MessageListRow as MessageListRow
from posthouse.store.postgres import Connection

# Messages that are examined for a page with several filters; at least the size of a page.
EXAMINED_MAX: Final = 80
# Messages that are not in the search index yet, each of which is compared here.
UNINDEXED_MAX: Final = 120
# Each day is a partition, which costs time however little it contains.
DAYS_EXAMINED_MAX: Final = 5
# An old mark only means that more messages are compared here.
MARK_SECONDS_MAX: Final = 2.0
# The most by which the clocks of processes differ.
CLOCKS_DIFFER: Final = timedelta(seconds=5)
# Longer than a request takes until its message has an id; and how many messages of that time are compared.
REQUEST_SECONDS_MAX: Final = timedelta(minutes=2)
REQUEST_EXAMINED_MAX: Final = 20_000

_BEGINNING: Final = UUID(int=0)


@dataclass(frozen=True, slots=True)
class _Found:
    """Messages in order, and the id from which to continue; None at the end."""

    messages: list[MessageListRow]
    position: UUID | None


@dataclass(frozen=True, slots=True)
class _Marks:
    """The id below which every message is in the search index, and the lowest id that is stored."""

    indexed_to: UUID
    kept_from: UUID


class MessageSearch(Flow):
    def __init__(
        self, context: Context, *, examined_max: int = EXAMINED_MAX, days_examined_max: int = DAYS_EXAMINED_MAX
    ) -> None:
        super().__init__(context)
        self._examined_max = examined_max
        self._days_examined = timedelta(days=days_examined_max)
        self._marks = _Marks(_BEGINNING, _BEGINNING)
        self._marked_at = float("-inf")

    async def page(
        self, account_id: AccountId, filters: SearchFilters, limit: int, cursor: str | None
    ) -> Page[MessageListRow]:
        """A page may be short, or empty, and not be the last."""
        wanted = search.search_query(filters)
        # Future days are empty and need not be read.
        before = min(wanted.before, ids.lowest_id(self._clock.now() + CLOCKS_DIFFER))
        if cursor is not None:
            before = min(before, wanted.position(cursor))
        async with self._database.connection() as connection:
            if wanted.request_id is not None:
                message_id = await _of_request(connection, account_id, wanted.request_id)
                if message_id is None or not wanted.lowest <= message_id < before:
                    return Page([], None)
                wanted, before = replace(wanted, lowest=message_id), UUID(int=message_id.int + 1)
            if wanted.is_everything:
                span = IdRange(wanted.lowest, before)
                newest = await message_search.newest(connection, account_id, span, limit + 1)
                found = await self._first(connection, account_id, newest, span, limit, None)
            else:
                found = await self._wanted(connection, account_id, wanted, before, limit)
        messages = [row for row in found.messages if wanted.state is None or row.state == wanted.state]
        return Page(messages, None if found.position is None else wanted.cursor(found.position))

    async def _wanted(
        self, connection: Connection, account_id: AccountId, wanted: SearchQuery, before: UUID, limit: int
    ) -> _Found:
        """Messages that are not in the search index yet are the newest, and come first."""
        marks = await self._read_marks(connection)
        kept = IdRange(max(wanted.lowest, marks.kept_from), min(before, marks.indexed_to))
        if before <= marks.indexed_to:
            return await self._indexed(connection, account_id, wanted, kept, limit)
        span = IdRange(max(wanted.lowest, marks.indexed_to), before)
        examined = await message_search.unindexed(connection, account_id, span, UNINDEXED_MAX)
        newer = [message.id for message in examined if _is_wanted(message, wanted)]
        if len(newer) > limit:
            return _Found(
                await message_search.shown(connection, account_id, newer[:limit], self._clock.now()), newer[limit - 1]
            )
        messages = await message_search.shown(connection, account_id, newer, self._clock.now())
        if len(examined) == UNINDEXED_MAX:
            return _Found(messages, examined[-1].id)
        older = await self._indexed(connection, account_id, wanted, kept, limit - len(newer))
        return _Found(messages + older.messages, older.position)

    async def _read_marks(self, connection: Connection) -> _Marks:
        now = self._clock.monotonic()
        if now - self._marked_at > MARK_SECONDS_MAX:
            progress = await search_index.progress(connection)
            kept_from = await search_index.kept_from(connection)
            self._marks = _Marks(_BEGINNING if progress is None else progress.messages_to, kept_from or _BEGINNING)
            self._marked_at = now
        return self._marks

    async def _indexed(
        self, connection: Connection, account_id: AccountId, wanted: SearchQuery, span: IdRange, limit: int
    ) -> _Found:
        """`limit` may be 0, to find out whether there is more."""
        if span.before <= span.lowest:
            return _Found([], None)
        examined_to = max(span.lowest, ids.lowest_id(ids.time_of(span.before) - self._days_examined))
        found = await self._within(connection, account_id, wanted, IdRange(examined_to, span.before), limit)
        if found.position is None and examined_to > span.lowest:
            return _Found(found.messages, examined_to)
        return found

    async def _within(
        self, connection: Connection, account_id: AccountId, wanted: SearchQuery, span: IdRange, limit: int
    ) -> _Found:
        if len(wanted.terms) == 1 and not wanted.is_queued:
            found = await message_search.with_term(connection, account_id, span, limit + 1, wanted.terms[0])
            return await self._first(connection, account_id, found, span, limit, None)
        return await self._with_all(connection, account_id, wanted, span, limit)

    async def _with_all(
        self, connection: Connection, account_id: AccountId, wanted: SearchQuery, span: IdRange, limit: int
    ) -> _Found:
        """The rarest term selects the candidates, and the other terms are checked for each."""
        most = max(self._examined_max, limit + 1)
        lists = (
            await message_search.with_each_term(connection, account_id, span, most, wanted.terms)
            if wanted.terms
            else []
        )
        if wanted.is_queued:
            lists.append(await message_search.queued(connection, account_id, span, most))
        # How far back each list goes; a list shorter than its limit goes back to the beginning.
        reaches = [_BEGINNING if len(found) < most else found[-1] for found in lists]
        leading = min(range(len(lists)), key=lambda place: (reaches[place], len(lists[place])))
        examined_to = None if reaches[leading] == _BEGINNING else reaches[leading]
        candidates = list(dict.fromkeys(lists[leading]))
        for place, others in enumerate(lists):
            if place != leading:
                known, reach = set(others), reaches[place]
                candidates = [message_id for message_id in candidates if message_id in known or message_id < reach]
        unsure = sorted(
            [place for place, reach in enumerate(reaches) if candidates and candidates[-1] < reach],
            key=lambda place: reaches[place],
        )
        if not unsure:
            return await self._first(connection, account_id, candidates, span, limit, examined_to)
        terms = [wanted.terms[place] for place in unsure if place < len(wanted.terms)]
        status = MessageStatus.QUEUED if wanted.is_queued else None
        found = await message_search.shown_if(
            connection, account_id, candidates, limit + 1, terms=terms, status=status, now=self._clock.now()
        )
        if len(found) > limit:
            return _Found(found[:limit], found[limit - 1].id if limit else span.before)
        return _Found(found, examined_to)

    async def _first(
        self,
        connection: Connection,
        account_id: AccountId,
        found: Sequence[MessageId],
        span: IdRange,
        limit: int,
        examined_to: UUID | None,
    ) -> _Found:
        """The first `limit` of what was found; if that is all, the next page continues where this one ended."""
        messages = await message_search.shown(connection, account_id, found[:limit], self._clock.now())
        if len(found) > limit:
            return _Found(messages, found[limit - 1] if limit else span.before)
        return _Found(messages, examined_to)


async def _of_request(connection: Connection, account_id: AccountId, request_id: UUID) -> MessageId | None:
    """A request creates at most one message, soon after it began; both times are in their ids."""
    try:
        began = ids.time_of(request_id)
        span = IdRange(ids.lowest_id(began - CLOCKS_DIFFER), ids.lowest_id(began + REQUEST_SECONDS_MAX))
    except (OverflowError, ValueError):  # beyond all times: not one of our ids
        return None
    return await message_search.of_request(connection, account_id, span, request_id, REQUEST_EXAMINED_MAX)


def _is_wanted(message: UnindexedMessage, wanted: SearchQuery) -> bool:
    terms = search.terms_of(
        sender=message.sender,
        recipients=message.recipients,
        subject=message.subject,
        tags=message.tags,
        template=message.template,
        source=message.source,
        credential_id=message.credential_id,
        metadata=read_metadata(message.metadata),
    )
    return wanted.has(terms, message.status)
