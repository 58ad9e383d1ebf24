"""Indexing on a real database: what is entered, when, only once, and by one process at a time."""

from datetime import timedelta

import asyncpg
import pytest

from posthouse.flows.operate.search_indexer import SETTLED_AFTER, IndexingRun, SearchIndexer
from posthouse.rules import search
from posthouse.rules.ids import MessageId, lowest_id
from posthouse.rules.search import SearchField
from posthouse.store import postgres, search_index
from posthouse.store.delivery_outcomes import DeliveryResult
from posthouse.store.postgres import AdvisoryLock as LockName
from tests.support.context import context
from tests.support.delivery_steps import DeliverySteps

SETTLED = SETTLED_AFTER + timedelta(seconds=1)


def cataloguer(steps: DeliverySteps) -> SearchIndexer:
    return SearchIndexer(context(steps.database, steps.clock))


async def entered(steps: DeliverySteps, field: SearchField, value: str) -> list[MessageId]:
    found = await steps.fetch(
        "SELECT message_id FROM search_index WHERE term = $1 ORDER BY message_id", search.term(field, value)
    )
    return [message_id for (message_id,) in found]


async def test_a_message_is_entered_once_it_is_settled(steps: DeliverySteps) -> None:
    sent = await steps.accept(["ada@example.org", "Bob@example.org"], subject="Order 1023", tags=["vip"])
    assert await cataloguer(steps).run() == IndexingRun()
    steps.clock.advance(SETTLED)
    assert await cataloguer(steps).run() == IndexingRun(messages=1)
    for field, value in (
        (SearchField.RECIPIENT, "ada@example.org"),
        (SearchField.RECIPIENT, "bob@example.org"),
        (SearchField.SENDER, "news@acme.example.com"),
        (SearchField.WORD, "order"),
        (SearchField.WORD, "1023"),
        (SearchField.TAG, "vip"),
        (SearchField.SOURCE, "api"),
        (SearchField.CREDENTIAL, steps.sender.credential_id.hex),
    ):
        assert await entered(steps, field, value) == [sent], value
    assert await steps.value("SELECT count(*) FROM search_index") == 8
    assert await steps.value("SELECT bool_and(account_id = $1) FROM search_index", steps.sender.account_id)


async def test_a_messages_result_is_entered_once_the_last_recipient_is_final(steps: DeliverySteps) -> None:
    first, second = await steps.claimed(["ada@example.org", "bob@example.org"])
    (alone,) = await steps.claimed(["eve@example.org"])
    await steps.record(steps.outcome(first, DeliveryResult.BOUNCED), steps.outcome(alone, DeliveryResult.DELIVERED))
    steps.clock.advance(SETTLED)
    assert await cataloguer(steps).run() == IndexingRun(messages=2, results=2)
    assert await entered(steps, SearchField.STATUS, "delivered") == [alone.message_id]
    assert await entered(steps, SearchField.STATUS, "queued") == []

    await steps.record(steps.outcome(second, DeliveryResult.DELIVERED))
    steps.clock.advance(SETTLED)
    assert await cataloguer(steps).run() == IndexingRun(results=1)
    assert await entered(steps, SearchField.STATUS, "partial") == [first.message_id]
    assert await entered(steps, SearchField.STATUS, "delivered") == [alone.message_id]


async def test_many_messages_of_several_accounts_take_several_batches(steps: DeliverySteps) -> None:
    other = await steps.another_sender("other")
    sent = []
    for number in range(12):
        sent.append(await steps.accept(subject=f"Hello {number:02}", sender=other if number % 3 else None))
        steps.clock.advance(seconds=40 if number % 2 else 0)
    steps.clock.advance(SETTLED)
    assert await SearchIndexer(context(steps.database, steps.clock), batch_min=5).run() == IndexingRun(messages=12)
    assert await entered(steps, SearchField.WORD, "hello") == sorted(sent)


async def test_what_is_entered_twice_is_there_once(steps: DeliverySteps) -> None:
    await steps.accept()
    steps.clock.advance(SETTLED)
    assert (await cataloguer(steps).run()).messages == 1
    before = await steps.value("SELECT count(*) FROM search_index")
    async with steps.database.transaction() as tx:
        await search_index.messages_entered(tx, lowest_id(steps.clock.now() - timedelta(hours=1)))
    assert (await cataloguer(steps).run()).messages == 1
    assert await steps.value("SELECT count(*) FROM search_index") == before


async def test_only_one_process_indexes_at_a_time(steps: DeliverySteps) -> None:
    await steps.accept()
    steps.clock.advance(SETTLED)
    async with (
        steps.database.connection() as connection,
        postgres.try_advisory_lock(connection, LockName.SEARCH_INDEX) as is_held,
    ):
        assert is_held
        assert await cataloguer(steps).run() == IndexingRun()
    assert (await cataloguer(steps).run()).messages == 1


async def test_a_batch_that_fails_moves_nothing(steps: DeliverySteps) -> None:
    await steps.accept()
    steps.clock.advance(SETTLED)
    await steps.fetch("ALTER TABLE search_index ADD CONSTRAINT broken CHECK (term IS NULL) NOT VALID")
    with pytest.raises(asyncpg.CheckViolationError, match="broken"):
        await cataloguer(steps).run()
    async with steps.database.connection() as connection:
        progress = await search_index.progress(connection)
    assert progress is not None
    assert progress.messages_to < lowest_id(steps.clock.now() - SETTLED)
    await steps.fetch("ALTER TABLE search_index DROP CONSTRAINT broken")
    assert (await cataloguer(steps).run()).messages == 1


async def test_an_open_transaction_is_not_passed(steps: DeliverySteps) -> None:
    await steps.accept()
    steps.clock.advance(SETTLED)
    async with steps.database.transaction() as tx:
        await tx.fetchval("SELECT 1")
        # It began now by PostgreSQL's clock, which the test's is ahead of.
        assert (await cataloguer(steps).run()).messages == 0
    assert (await cataloguer(steps).run()).messages == 1


async def test_without_a_day_there_is_nothing_to_do(steps: DeliverySteps) -> None:
    for (name,) in await steps.fetch(
        "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'messages'::regclass"
    ):
        await steps.fetch(f"DROP TABLE {name}")
    assert await cataloguer(steps).run() == IndexingRun()
    async with steps.database.connection() as connection:
        assert await search_index.progress(connection) is None
