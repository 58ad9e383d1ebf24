"""Cataloguing: new messages, and what became of those before them, are entered under the terms they are found by.

Nothing of it is done when a message is accepted. One process at a time goes through what is settled, from where the
last stopped; a batch and how far it reaches are one transaction, and a batch that is entered twice is there once.
"""

from datetime import timedelta
from typing import Final, NamedTuple
from uuid import UUID

from posthouse.clock import Clock
from posthouse.rules import search
from posthouse.rules.ids import lowest_id, time_of
from posthouse.rules.search import SearchField
from posthouse.store import advisory_lock, search_index
from posthouse.store.advisory_lock import LockName
from posthouse.store.postgres import Connection, Database
from posthouse.store.search_index import IndexEntry, IndexProgress, NewMessage

BATCH: Final = 2_000
# Longer than anything that waits to be written, or writes, is given.
SETTLED_AFTER: Final = timedelta(seconds=30)
# What lies behind is looked through in stretches of this length at most, so that no batch has to choose the oldest
# of very many.
STRETCH_LONGEST: Final = timedelta(days=1)
STRETCH_SHORTEST: Final = timedelta(seconds=10)


class IndexingRound(NamedTuple):
    """What one round entered."""

    messages: int = 0
    results: int = 0


class SearchIndexer:
    def __init__(self, *, database: Database, clock: Clock, batch: int = BATCH) -> None:
        self._database = database
        self._clock = clock
        self._batch = batch
        self._stretch = timedelta(hours=1)

    async def round(self) -> IndexingRound:
        """Everything that is settled is in the catalogue, unless another process is at it."""
        async with (
            self._database.connection() as connection,
            advisory_lock.try_lock(connection, LockName.SEARCH_INDEX) as is_held,
        ):
            if not is_held:
                return IndexingRound()
            progress = await self._progress(connection)
            if progress is None:
                return IndexingRound()
            settled = await search_index.settled_before(connection, self._clock.now(), SETTLED_AFTER)
            messages = await self._enter_messages(connection, progress.messages_to, settled)
            results = await self._enter_results(connection, progress.events_to, settled)
            return IndexingRound(messages, results)

    async def _progress(self, connection: Connection) -> IndexProgress | None:
        """Where to go on: from the first day that is kept, if nobody has begun."""
        progress = await search_index.progress(connection)
        if progress is not None:
            return progress
        kept_from = await search_index.kept_from(connection)
        if kept_from is None:
            return None
        await search_index.begin(connection, kept_from)
        return await search_index.progress(connection)

    async def _enter_messages(self, connection: Connection, since: UUID, settled: UUID) -> int:
        total = 0
        while since < settled:
            before = self._reach(since, settled)
            found = await search_index.new_messages(connection, since, before, self._batch)
            since = self._next(before, [one.id for one in found])
            async with connection.transaction():
                await search_index.enter(connection, [entry for message in found for entry in _entries(message)])
                await search_index.messages_entered(connection, since)
            total += len(found)
        return total

    async def _enter_results(self, connection: Connection, since: UUID, settled: UUID) -> int:
        total = 0
        while since < settled:
            before = self._reach(since, settled)
            found = await search_index.new_results(connection, since, before, self._batch)
            since = self._next(before, [one.event_id for one in found])
            # Each of a message's events tells the same, once the last of them is there.
            entries = {
                IndexEntry(one.account_id, search.term(SearchField.STATUS, one.status), one.message_id)
                for one in found
                if one.status is not None
            }
            async with connection.transaction():
                await search_index.enter(connection, list(entries))
                await search_index.events_entered(connection, since)
            total += len(found)
        return total

    def _reach(self, since: UUID, settled: UUID) -> UUID:
        return min(settled, lowest_id(time_of(since) + self._stretch))

    def _next(self, before: UUID, found: list[UUID]) -> UUID:
        """From where to go on; the next stretch is longer if this one held little, and shorter if too much."""
        if len(found) < self._batch:
            self._stretch = min(self._stretch * 2, STRETCH_LONGEST)
            return before
        self._stretch = max(self._stretch / 2, STRETCH_SHORTEST)
        return UUID(int=found[-1].int + 1)


def _entries(message: NewMessage) -> list[IndexEntry]:
    terms = search.terms_of(
        sender=message.sender,
        recipients=message.recipients or (),
        subject=message.subject,
        tags=message.tags,
        template=message.template,
        source=message.source,
        credential_id=message.credential_id,
    )
    return [IndexEntry(message.account_id, term, message.id) for term in terms]
