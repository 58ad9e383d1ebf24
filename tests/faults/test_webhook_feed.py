"""The feed of events, followed while events are stored late: none is ever skipped."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import pytest_asyncio

from posthouse.flows.webhooks.event_feed import SETTLED_AFTER, EventFeed
from posthouse.rules import ids
from posthouse.rules.ids import AccountId
from posthouse.store import delivery_outcomes
from posthouse.store.delivery_outcomes import DeliveryResult
from posthouse.store.events import StoredEvent
from tests.support.context import context
from tests.support.delivery_flow import DeliveryFlow, PausingCarrier, open_delivery_flow
from tests.support.delivery_steps import DeliverySteps
from tests.support.tcp_proxy import DatabaseProxy, open_far_database
from tests.support.webhook_steps import WebhookSteps


@pytest_asyncio.fixture
async def flow(database_url: str) -> AsyncIterator[DeliveryFlow]:
    async with open_delivery_flow(database_url) as flow:
        flow.serve("example.org")
        yield flow


@dataclass
class Follower:
    """Each read continues where the last stopped."""

    steps: DeliverySteps
    seen: list[StoredEvent] = field(default_factory=list)
    cursor: str | None = None

    async def read(self) -> list[StoredEvent]:
        """What is new."""
        feed = EventFeed(context(self.steps.database, self.steps.clock))
        page = await feed.page(AccountId(self.steps.sender.account_id), 100, after=self.cursor)
        self.seen += page.items
        self.cursor = page.next_cursor
        return list(page.items)


async def test_an_event_has_the_time_of_storage_after_a_wait_for_the_database(
    flow: DeliveryFlow, database_url: str
) -> None:
    follower = Follower(flow.steps)
    async with DatabaseProxy(database_url) as proxy, open_far_database(proxy) as far:
        carrier = PausingCarrier(flow.carrier, comes_back=False)
        cut_off = replace(flow, delivery=flow.another_worker(carrier=carrier, database=far))
        await flow.steps.accept(["late@example.org"])
        late = asyncio.create_task(cut_off.run_due())
        await carrier.arrived.wait()
        await proxy.cut()
        carrier.resume.set()
        await far.refuses()
        flow.clock.advance(seconds=1)
        await flow.steps.accept(["soon@example.org"])
        await flow.run_due()
        flow.clock.advance(SETTLED_AFTER * 2)
        assert [b"soon@" in event.body for event in await follower.read()] == [True]
        await proxy.restore()
        await late
    stored_at = flow.clock.now()
    flow.clock.advance(SETTLED_AFTER * 2)
    (event,) = await follower.read()
    assert b"late@" in event.body
    assert abs(ids.time_of(event.id) - stored_at).total_seconds() < 1
    assert event.body.startswith(b'{"id":"%b"' % ids.text(ids.EVENT, event.id).encode())
    (row,) = await flow.steps.fetch("SELECT created_at FROM events WHERE id = $1", event.id)
    created_at = row[0].isoformat(timespec="milliseconds").replace("+00:00", "Z").encode()
    assert b'"created_at":"%b"' % created_at in event.body


async def test_no_reader_passes_a_transaction_that_is_still_open(flow: DeliveryFlow) -> None:
    steps, webhook_steps = flow.steps, WebhookSteps(flow.steps)
    follower = Follower(steps)
    async with steps.database.transaction() as tx:
        await tx.fetchval("SELECT 1")
        outcomes = await webhook_steps.outcomes(DeliveryResult.DELIVERED)
        await delivery_outcomes.record(tx, outcomes, steps.clock.now())
        # Another event, created later, is stored earlier.
        await webhook_steps.add_events(DeliveryResult.DELIVERED)
        steps.clock.advance(SETTLED_AFTER * 10)
        assert await follower.read() == []
    assert len(await follower.read()) == 2
    assert await follower.read() == []
