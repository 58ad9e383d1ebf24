"""Dispatch: what is due gets a ticket, no more of them than workers can use; and who is taken for dead, and when."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID, uuid4

import asyncpg
import pytest
import pytest_asyncio

from posthouse.flows.deliver.dispatch import (
    BACKLOG_MAX,
    DISPATCHED_AT_ONCE_MAX,
    DISPATCHED_AT_ONCE_MIN,
    JUMP_SECONDS_MAX,
    LEASE_SECONDS_MAX,
    UNSEEN_SECONDS_MAX,
    Dispatch,
    at_once_after,
)
from posthouse.flows.shared.tickets import LEASE, Tickets
from posthouse.rules.lease import WORKER_LEASE
from posthouse.rules.refusal import Refusal
from posthouse.rules.ticket import DeliveryTicket, shard_of, unpack
from posthouse.store import delivery_schedule
from posthouse.store.postgres import Database
from posthouse.wire.stream import StreamMessage as Carried
from posthouse.wire.stream import StreamSettings, TicketKind
from posthouse.wire.stream.memory import MemoryStream
from tests.support.database_checks import database_faults
from tests.support.database_proxy import DatabaseProxy
from tests.support.delivery_steps import DeliverySteps, open_delivery_steps

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHARDS: Final = 4
SECOND: Final = timedelta(seconds=1)
LOOKS_APART: Final = timedelta(seconds=2)


class Desk:
    """A dispatcher with a stream and a time of its own: `jump` moves the time of day, and nothing else."""

    def __init__(self, steps: DeliverySteps, database: Database | None = None) -> None:
        self.steps = steps
        self.offset = timedelta(0)
        self.stream = MemoryStream(StreamSettings(), monotonic=steps.clock.monotonic)
        self.dispatch = Dispatch(database=database or steps.database, clock=self, tickets=Tickets(self.stream, SHARDS))

    def now(self) -> datetime:
        return self.steps.clock.now() + self.offset

    def monotonic(self) -> float:
        return self.steps.clock.monotonic()

    async def taken(self) -> list[Carried]:
        """What the stream holds; it holds it no more."""
        found = await self.stream.fetch(TicketKind.DELIVER, frozenset(range(SHARDS)), 10_000, 0)
        for one in found:
            await one.ack()
        return found

    async def tickets(self) -> int:
        """How many there are to be had; all are taken."""
        return sum(len(unpack(one.payload)) for one in await self.taken())

    async def look(self, time: timedelta, apart: timedelta = LOOKS_APART) -> int:
        """Look for the dead every so often for so long; how many claims were taken back."""
        reclaimed = 0
        for _ in range(time // apart):
            self.steps.clock.advance(apart)
            reclaimed += await self.dispatch.reclaim()
        return reclaimed


class SlowDesk(Desk):
    """Between two looks at the clock, more than a lease may take has passed."""

    looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        return self.looks * (LEASE_SECONDS_MAX + 0.01)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(new_database: Callable[[], str]) -> AsyncIterator[tuple[DeliverySteps, str]]:
    url = new_database()
    async with open_delivery_steps(url) as steps:
        yield steps, url
        assert await database_faults(url) == {}


@pytest_asyncio.fixture(loop_scope="module")
async def steps(place: tuple[DeliverySteps, str]) -> AsyncIterator[DeliverySteps]:
    steps, _ = place
    yield steps
    # Nothing of one test is due in the next.
    async with steps.database.transaction() as tx:
        await tx.execute("UPDATE schedule SET worker_id = NULL, next_at = 'infinity'")


@pytest.fixture
def desk(steps: DeliverySteps) -> Desk:
    return Desk(steps)


async def claim(steps: DeliverySteps, lease: timedelta = WORKER_LEASE) -> UUID:
    """A mail is claimed by a worker whose lease ends then."""
    worker_id = uuid4()
    await renew(steps, worker_id, lease)
    await steps.accept()
    assert len(await steps.claim(await steps.lease(), worker_id)) == 1
    return worker_id


async def renew(steps: DeliverySteps, worker_id: UUID, lease: timedelta = WORKER_LEASE) -> None:
    async with steps.database.transaction() as tx:
        await delivery_schedule.renew_worker(tx, worker_id, steps.clock.now() + lease)


# Tickets


async def test_what_is_due_gets_a_ticket_in_its_destinations_shard(desk: Desk) -> None:
    message_id = await desk.steps.accept(["a@one.example", "b@two.example", "c@three.example"])
    assert await desk.dispatch.step() == 3
    found = await desk.stream.fetch(TicketKind.DELIVER, frozenset(range(SHARDS)), 10, 0)
    tickets = [(ticket, one.shard) for one in found for ticket in unpack(one.payload)]
    for ticket, shard in tickets:
        assert isinstance(ticket, DeliveryTicket)
        assert (ticket.message_id, shard) == (message_id, shard_of(ticket.destination, SHARDS))
    assert len(tickets) == 3


async def test_what_has_a_ticket_gets_another_when_its_lease_is_over_and_no_sooner(desk: Desk) -> None:
    await desk.steps.accept(2)
    assert await desk.dispatch.step() == 2
    desk.steps.clock.advance(LEASE - SECOND)
    assert await desk.dispatch.step() == 0
    desk.steps.clock.advance(SECOND)
    assert await desk.dispatch.step() == 2
    assert await desk.tickets() == 4


async def accept_many(steps: DeliverySteps, recipients: int) -> None:
    await asyncio.gather(*(steps.accept(50) for _ in range(recipients // 50)))


async def test_as_many_as_at_once_means_that_there_may_be_more(desk: Desk) -> None:
    await accept_many(desk.steps, DISPATCHED_AT_ONCE_MIN + 50)
    assert [await desk.dispatch.step() for _ in range(3)] == [DISPATCHED_AT_ONCE_MIN, 50, 0]
    assert await desk.tickets() == DISPATCHED_AT_ONCE_MIN + 50


async def test_leases_grow_while_they_are_full_and_begin_with_few_again(desk: Desk) -> None:
    await accept_many(desk.steps, 3 * DISPATCHED_AT_ONCE_MIN + 50)
    grown = [DISPATCHED_AT_ONCE_MIN, 2 * DISPATCHED_AT_ONCE_MIN, 50]
    assert [await desk.dispatch.step() for _ in range(3)] == grown
    assert await desk.tickets() == sum(grown)
    desk.steps.clock.advance(LEASE)
    assert [await desk.dispatch.step() for _ in range(3)] == grown
    assert await desk.tickets() == sum(grown)


async def test_a_lease_that_failed_is_followed_by_a_small_one(place: tuple[DeliverySteps, str], desk: Desk) -> None:
    await accept_many(desk.steps, 3 * DISPATCHED_AT_ONCE_MIN)
    assert await desk.dispatch.step() == DISPATCHED_AT_ONCE_MIN
    other = await asyncpg.connect(place[1])
    try:
        async with other.transaction():
            await other.execute("LOCK TABLE schedule IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(Refusal):
                await desk.dispatch.step()
    finally:
        await other.close()
    assert [await desk.dispatch.step() for _ in range(3)] == [DISPATCHED_AT_ONCE_MIN, DISPATCHED_AT_ONCE_MIN, 0]


async def test_a_lease_that_took_long_is_followed_by_a_small_one(steps: DeliverySteps) -> None:
    await accept_many(steps, 3 * DISPATCHED_AT_ONCE_MIN)
    desk = SlowDesk(steps)
    assert [await desk.dispatch.step() for _ in range(4)] == [*[DISPATCHED_AT_ONCE_MIN] * 3, 0]


@pytest.mark.parametrize(
    ("at_once", "seconds", "after"),
    [
        (DISPATCHED_AT_ONCE_MIN, 0.0, 2 * DISPATCHED_AT_ONCE_MIN),
        (DISPATCHED_AT_ONCE_MAX, 0.0, DISPATCHED_AT_ONCE_MAX),
        (4_000, LEASE_SECONDS_MAX / 2, 8_000),
        (4_000, LEASE_SECONDS_MAX / 2 + 0.01, 4_000),
        (4_000, LEASE_SECONDS_MAX, 4_000),
        (4_000, LEASE_SECONDS_MAX + 0.01, DISPATCHED_AT_ONCE_MIN),
    ],
)
async def test_leases_grow_only_while_twice_as_many_rows_would_not_take_long(
    at_once: int, seconds: float, after: int
) -> None:
    assert at_once_after(at_once, seconds) == after


async def test_while_enough_is_under_way_nothing_more_is_written(desk: Desk) -> None:
    await desk.steps.accept(5)
    for number in range(BACKLOG_MAX - 2):
        desk.stream.publish(TicketKind.DELIVER, number % SHARDS, b"of another process")
    # As many as there is room for, though those two travel together; and no more leases than tickets.
    assert [await desk.dispatch.step() for _ in range(3)] == [2, 1, 0]
    assert await desk.steps.value("SELECT count(*) FROM schedule WHERE next_at <= $1", desk.now()) == 2
    while await desk.taken():
        pass
    assert await desk.dispatch.step() == 2


async def test_a_stream_that_takes_nothing_costs_a_lease_and_no_mail(steps: DeliverySteps) -> None:
    desk = Desk(steps)
    await steps.accept()
    await desk.stream.close()
    assert await desk.dispatch.step() == 1
    assert desk.stream.counts.dropped == 1
    steps.clock.advance(LEASE)
    assert await Desk(steps).dispatch.step() == 1


# The dead


async def test_a_worker_whose_lease_is_over_is_dead_and_what_it_claimed_is_due(desk: Desk) -> None:
    await claim(desk.steps)
    assert await desk.dispatch.reclaim() == 0
    assert await desk.look(WORKER_LEASE - LOOKS_APART) == 0
    assert await desk.look(LOOKS_APART) == 1
    assert await desk.dispatch.step() == 1
    assert await desk.look(WORKER_LEASE) == 0


async def test_a_worker_that_retired_leaves_nothing_behind(desk: Desk) -> None:
    await desk.look(WORKER_LEASE + LOOKS_APART)
    worker_id = await claim(desk.steps)
    assert await desk.look(LOOKS_APART) == 0
    async with desk.steps.database.transaction() as tx:
        await delivery_schedule.retire_worker(tx, worker_id)
    # It said so itself: nobody waits for its lease to end.
    assert await desk.look(LOOKS_APART) == 1


async def test_a_dispatcher_that_has_just_begun_takes_nobody_for_dead_before_a_whole_lease(desk: Desk) -> None:
    await claim(desk.steps)
    desk.steps.clock.advance(10 * WORKER_LEASE)
    assert await desk.dispatch.reclaim() == 0
    assert await desk.look(WORKER_LEASE - LOOKS_APART) == 0
    assert await desk.look(LOOKS_APART) == 1


async def test_a_dispatcher_that_was_stopped_for_a_while_begins_anew(desk: Desk) -> None:
    """Workers on the same machine were stopped as well, and could not renew."""
    await desk.look(2 * WORKER_LEASE)
    worker_id = await claim(desk.steps)
    desk.steps.clock.advance(WORKER_LEASE + SECOND)
    assert await desk.dispatch.reclaim() == 0
    await renew(desk.steps, worker_id)
    assert await desk.look(WORKER_LEASE - LOOKS_APART) == 0
    # Looks that are late by ordinary delays change nothing.
    assert await desk.look(timedelta(seconds=UNSEEN_SECONDS_MAX), timedelta(seconds=UNSEEN_SECONDS_MAX)) == 1


@pytest.mark.parametrize("jump", [timedelta(hours=1), timedelta(hours=-1), timedelta(days=1), timedelta(days=-1)])
async def test_when_time_jumps_nobody_is_taken_for_dead_before_it_was_steady_for_a_lease(
    desk: Desk, jump: timedelta
) -> None:
    await desk.look(2 * WORKER_LEASE)
    worker_id = await claim(desk.steps)
    desk.offset = jump
    assert await desk.look(WORKER_LEASE - LOOKS_APART) == 0
    # Those who live have renewed by now, by the new time.
    await renew(desk.steps, worker_id, WORKER_LEASE + jump)
    assert await desk.look(LOOKS_APART) == 0


async def test_one_who_is_dead_is_dead_after_a_jump_as_well(desk: Desk) -> None:
    await desk.look(2 * WORKER_LEASE)
    await claim(desk.steps)
    desk.offset = timedelta(hours=1)
    assert await desk.look(WORKER_LEASE) == 0
    assert await desk.look(LOOKS_APART) == 1


async def test_a_drift_as_in_ordinary_life_is_no_jump(desk: Desk) -> None:
    await desk.look(2 * WORKER_LEASE)
    await claim(desk.steps)
    desk.offset = timedelta(seconds=JUMP_SECONDS_MAX * 0.9)
    assert await desk.look(WORKER_LEASE) == 1


async def test_while_the_database_was_away_nobody_could_renew_and_nobody_is_taken_for_dead(
    steps: DeliverySteps, place: tuple[DeliverySteps, str]
) -> None:
    async with DatabaseProxy(place[1]) as relay:
        database = await Database.open(relay.url)
        desk = Desk(steps, database)
        await desk.look(2 * WORKER_LEASE)
        worker_id = await claim(steps)
        await relay.cut()
        for _ in range(WORKER_LEASE // LOOKS_APART + 1):
            steps.clock.advance(LOOKS_APART)
            with pytest.raises(Refusal):
                await desk.dispatch.reclaim()
        await relay.mend()
        assert await desk.look(WORKER_LEASE) == 0
        await renew(steps, worker_id)
        assert await desk.look(WORKER_LEASE - LOOKS_APART) == 0
        # Had it not come back, it would be dead now.
        assert await desk.look(LOOKS_APART) == 1
        await database.close()


async def test_however_short_the_database_was_away_the_wait_begins_anew(
    steps: DeliverySteps, place: tuple[DeliverySteps, str]
) -> None:
    async with DatabaseProxy(place[1]) as relay:
        database = await Database.open(relay.url)
        desk = Desk(steps, database)
        await desk.look(2 * WORKER_LEASE)
        await claim(steps)
        await desk.look(WORKER_LEASE - 3 * LOOKS_APART)
        await relay.cut()
        for _ in range(3):
            steps.clock.advance(LOOKS_APART)
            with pytest.raises(Refusal):
                await desk.dispatch.reclaim()
        await relay.mend()
        # Its lease ended while nobody could have renewed it.
        assert await desk.look(WORKER_LEASE) == 0
        assert await desk.look(LOOKS_APART) == 1
        await database.close()
