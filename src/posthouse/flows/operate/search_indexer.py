"""Adds new messages and their results to the search index, under the terms by which they are found.

None of this is done when a message is accepted. One process at a time reads what is settled, from where the last run
stopped. A batch and its progress are one transaction, and a batch that is added twice is stored once.
"""

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from typing import Final, NamedTuple
from uuid import UUID

from posthouse.flows.shared.context import Context, Flow
from posthouse.rules import search
from posthouse.rules.ids import lowest_id, time_of
from posthouse.rules.message import read_metadata
from posthouse.rules.search import SearchField
from posthouse.store import postgres, search_index
from posthouse.store.postgres import AdvisoryLock as LockName
from posthouse.store.postgres import Connection
from posthouse.store.search_index import IndexEntry, IndexProgress, NewMessage

# Finding what is new reads every account for each batch: while there is more, batches grow.
BATCH_MIN: Final = 2_000
BATCH_MAX: Final = 8_000
# Longer than any write may wait or take.
SETTLED_AFTER: Final = timedelta(seconds=30)
# A backlog is read in spans of this length at most, so that no batch has to choose the oldest of very many.
SPAN_LONGEST: Final = timedelta(days=1)
SPAN_SHORTEST: Final = timedelta(seconds=10)


class IndexingRun(NamedTuple):
    """What a run added."""

    messages: int = 0
    results: int = 0


class SearchIndexer(Flow):
    def __init__(self, context: Context, *, batch_min: int = BATCH_MIN) -> None:
        super().__init__(context)
        self._batch_min = self._batch = batch_min
        self._span = timedelta(hours=1)

    async def run(self) -> IndexingRun:
        """Add everything that is settled, unless another process does it."""
        async with (
            self._database.connection() as connection,
            postgres.try_advisory_lock(connection, LockName.SEARCH_INDEX) as is_held,
        ):
            if not is_held:
                return IndexingRun()
            progress = await self._progress(connection)
            if progress is None:
                return IndexingRun()
            settled = await search_index.settled_before(connection, self._clock.now(), SETTLED_AFTER)
            messages = await self._enter_messages(connection, progress.messages_to, settled)
            results = await self._enter_results(connection, progress.events_to, settled)
            return IndexingRun(messages, results)

    async def _progress(self, connection: Connection) -> IndexProgress | None:
        """Where to continue; the first time, from the first day that is stored."""
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
            # In a thread, and before the transaction: it takes a second for a large batch.
            entries = await asyncio.to_thread(_entries_of, found)
            reached = self._reached(before, [message.id for message in found])
            async with connection.transaction():
                await search_index.enter_new(connection, entries)
                await search_index.messages_entered(connection, reached)
            since = reached
            self._adapt(len(found))
            total += len(found)
        return total

    async def _enter_results(self, connection: Connection, since: UUID, settled: UUID) -> int:
        total = 0
        while since < settled:
            before = self._reach(since, settled)
            found = await search_index.new_results(connection, since, before, self._batch)
            since = self._reached(before, [result.event_id for result in found])
            # All events of a message give the same status once the last one is stored.
            entries = {
                IndexEntry(result.account_id, search.term(SearchField.STATUS, result.status), result.message_id)
                for result in found
                if result.status is not None
            }
            async with connection.transaction():
                await search_index.enter(connection, list(entries))
                await search_index.events_entered(connection, since)
            self._adapt(len(found))
            total += len(found)
        return total

    def _reach(self, since: UUID, settled: UUID) -> UUID:
        return min(settled, lowest_id(time_of(since) + self._span))

    def _reached(self, before: UUID, found: list[UUID]) -> UUID:
        """Where to continue after this batch."""
        return before if len(found) < self._batch else UUID(int=found[-1].int + 1)

    def _adapt(self, found: int) -> None:
        """After a span with too much for a batch, batches grow; at their largest, the next span is shorter."""
        if found < self._batch:
            self._span = min(self._span * 2, SPAN_LONGEST)
            self._batch = max(self._batch // 2, self._batch_min)
            return
        if self._batch == BATCH_MAX:
            self._span = max(self._span / 2, SPAN_SHORTEST)
        self._batch = min(self._batch * 2, BATCH_MAX)


def _entries_of(messages: Iterable[NewMessage]) -> list[IndexEntry]:
    """In the order of the key, each once."""
    return sorted({entry for message in messages for entry in _entries(message)})


def _entries(message: NewMessage) -> list[IndexEntry]:
    terms = search.terms_of(
        sender=message.sender,
        recipients=message.recipients or (),
        subject=message.subject,
        tags=message.tags,
        template=message.template,
        source=message.source,
        credential_id=message.credential_id,
        metadata=read_metadata(message.metadata),
    )
    return [IndexEntry(message.account_id, term, message.id) for term in terms]
