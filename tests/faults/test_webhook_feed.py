"""The feed of events, followed while events are stored late: none is ever passed by."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest_asyncio

from posthouse.chance import SystemChance
from posthouse.flows.webhooks.endpoint import SETTLED_AFTER, WebhookEndpoint
from posthouse.rules import ids
from posthouse.rules.ids import AccountId
from posthouse.rules.webhook_url import check_url
from posthouse.store import delivery_outcomes
from posthouse.store.delivery_outcomes import DeliveryResult
from posthouse.store.events import StoredEvent
from posthouse.store.postgres import Database
from posthouse.store.seal import Sealer
from posthouse.wire.carrier import Carrier, CarrierResult
from tests.support.relay import Relay
from tests.support.round_trip import RoundTrip, on_the_road
from tests.support.rounds import Rounds
from tests.support.webhooks import Webhooks


@pytest_asyncio.fixture
async def road(database_url: str) -> AsyncIterator[RoundTrip]:
    async with on_the_road(database_url) as road:
        road.serve("example.org")
        yield road


@dataclass
class Follower:
    """Reads on from where it stopped, as often as it is told to."""

    rounds: Rounds
    seen: list[StoredEvent] = field(default_factory=list)
    cursor: str | None = None

    async def read(self) -> list[StoredEvent]:
        """What is new."""
        feed = WebhookEndpoint(
            database=self.rounds.database,
            clock=self.rounds.clock,
            chance=SystemChance(),
            sealer=Sealer({"1": bytes(32)}, "1"),
            tickets=None,
            check=check_url,
        )
        page = await feed.events(AccountId(self.rounds.sender.account_id), 100, after=self.cursor)
        self.seen += page.events
        self.cursor = page.next_cursor
        return page.events


@dataclass
class Pausing:
    """A carrier that tells nobody what it has heard before it is let go on."""

    carrier: Carrier
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def carry(self, *given: Any) -> CarrierResult:
        carriage = await self.carrier.carry(*given)
        self.arrived.set()
        await self.goes_on.wait()
        return carriage


async def test_an_outcome_that_waited_for_the_database_makes_an_event_of_the_time_at_which_it_is_stored(
    road: RoundTrip, database_url: str
) -> None:
    follower = Follower(road.rounds)
    async with Relay(database_url) as relay:
        far = await Database.open(relay.url)
        carrier = Pausing(road.carrier)
        cut_off = replace(road, delivery=road.another_worker(carrier=carrier, database=far))
        await road.rounds.accept(["late@example.org"])
        late = asyncio.create_task(cut_off.round())
        await carrier.arrived.wait()
        await relay.cut()
        carrier.goes_on.set()
        await asyncio.sleep(0.2)  # its outcome is made, and finds no database
        road.clock.advance(seconds=1)
        await road.rounds.accept(["soon@example.org"])
        await road.round()
        road.clock.advance(SETTLED_AFTER * 2)
        assert [b"soon@" in one.body for one in await follower.read()] == [True]
        await relay.mend()
        await late
        await far.close()
    stored_at = road.clock.now()
    road.clock.advance(SETTLED_AFTER * 2)
    (event,) = await follower.read()
    assert b"late@" in event.body
    assert abs(ids.time_of(event.id) - stored_at).total_seconds() < 1
    assert event.body.startswith(b'{"id":"%b"' % ids.text(ids.EVENT, event.id).encode())
    (row,) = await road.rounds.fetch("SELECT created_at FROM events WHERE id = $1", event.id)
    told = row[0].isoformat(timespec="milliseconds").replace("+00:00", "Z").encode()
    assert b'"created_at":"%b"' % told in event.body


async def test_nobody_reads_past_a_transaction_that_is_still_open(road: RoundTrip) -> None:
    rounds, hooks = road.rounds, Webhooks(road.rounds)
    follower = Follower(rounds)
    async with rounds.database.transaction() as tx:
        await tx.fetchval("SELECT 1")
        outcomes = await hooks.outcomes(DeliveryResult.DELIVERED)
        await delivery_outcomes.record(tx, outcomes, rounds.clock.now())
        # Another one, made after it, is stored before it.
        await hooks.tell(DeliveryResult.DELIVERED)
        rounds.clock.advance(SETTLED_AFTER * 10)
        assert await follower.read() == []
    assert len(await follower.read()) == 2
    assert await follower.read() == []
