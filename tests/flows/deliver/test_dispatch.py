"""Dispatch: due rows get tickets, no more than workers can use; and when a worker counts as dead."""

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
    DISPATCH_BATCH_MAX,
    DISPATCH_BATCH_MIN,
    FORCED_SECONDS,
    JUMP_SECONDS_MAX,
    LEASE_SECONDS_MAX,
    UNSEEN_SECONDS_MAX,
    Dispatch,
    batch_after,
)
from posthouse.flows.shared.tickets import LEASE, Tickets
from posthouse.rules.claim import WORKER_LEASE
from posthouse.rules.refusal import Refusal
from posthouse.rules.ticket import DeliveryTicket, shard_of, unpack
from posthouse.store import delivery_schedule
from posthouse.store.postgres import Database
from posthouse.wire.stream import StreamMessage as Carried
from posthouse.wire.stream import StreamSettings, TicketKind
from posthouse.wire.stream.memory import MemoryStream
from tests.support.database_checks import database_faults
from tests.support.delivery_steps import DeliverySteps, open_delivery_steps
from tests.support.fresh_database import open_database
from tests.support.tcp_proxy import DatabaseProxy

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHARDS: Final = 4
SECOND: Final = timedelta(seconds=1)
LOOKS_APART: Final = timedelta(seconds=2)


class Dispatcher:
    """A dispatcher with its own stream and clock: `jump` moves only the time of day."""

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
        """Takes and returns what is in the stream."""
        found = await self.stream.fetch(TicketKind.DELIVER, frozenset(range(SHARDS)), 10_000, 0)
        for message in found:
            await message.ack()
        return found

    async def tickets(self) -> int:
        """Takes all tickets; returns how many."""
        return sum(len(unpack(message.payload)) for message in await self.taken())

    async def look(self, time: timedelta, apart: timedelta = LOOKS_APART) -> int:
        """Checks for dead workers repeatedly for this long; returns how many claims were released."""
        reclaimed = 0
        for _ in range(time // apart):
            self.steps.clock.advance(apart)
            reclaimed += await self.dispatch.reclaim()
        return reclaimed


class SlowDispatcher(Dispatcher):
    """A clock on which more than a lease may take passes between two reads."""

    reads = 0

    def monotonic(self) -> float:
        self.reads += 1
        return self.reads * (LEASE_SECONDS_MAX + 0.01)


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
    # Nothing of this test is due in the next.
    async with steps.database.transaction() as tx:
        await tx.execute("UPDATE delivery_schedule SET worker_id = NULL, next_at = 'infinity'")


@pytest.fixture
def dispatcher(steps: DeliverySteps) -> Dispatcher:
    return Dispatcher(steps)


async def claim(steps: DeliverySteps, lease: timedelta = WORKER_LEASE) -> UUID:
    """A message is claimed by a worker whose lease ends then."""
    worker_id = uuid4()
    await renew(steps, worker_id, lease)
    await steps.accept()
    assert len(await steps.claim(await steps.lease(), worker_id)) == 1
    return worker_id


async def renew(steps: DeliverySteps, worker_id: UUID, lease: timedelta = WORKER_LEASE) -> None:
    async with steps.database.transaction() as tx:
        await delivery_schedule.renew_worker(tx, worker_id, steps.clock.now() + lease)


# Tickets


async def test_a_due_row_gets_a_ticket_in_its_destinations_shard(dispatcher: Dispatcher) -> None:
    message_id = await dispatcher.steps.accept(["a@one.example", "b@two.example", "c@three.example"])
    assert await dispatcher.dispatch.step() == 3
    found = await dispatcher.stream.fetch(TicketKind.DELIVER, frozenset(range(SHARDS)), 10, 0)
    tickets = [(ticket, message.shard) for message in found for ticket in unpack(message.payload)]
    for ticket, shard in tickets:
        assert isinstance(ticket, DeliveryTicket)
        assert (ticket.message_id, shard) == (message_id, shard_of(ticket.destination, SHARDS))
    assert len(tickets) == 3


async def test_a_row_gets_another_ticket_when_its_lease_ends_and_no_sooner(dispatcher: Dispatcher) -> None:
    await dispatcher.steps.accept(2)
    assert await dispatcher.dispatch.step() == 2
    dispatcher.steps.clock.advance(LEASE - SECOND)
    assert await dispatcher.dispatch.step() == 0
    dispatcher.steps.clock.advance(SECOND)
    assert await dispatcher.dispatch.step() == 2
    assert await dispatcher.tickets() == 4


async def accept_many(steps: DeliverySteps, recipients: int) -> None:
    await asyncio.gather(*(steps.accept(50) for _ in range(recipients // 50)))


async def test_leases_grow_while_they_are_full_and_begin_with_few_again(dispatcher: Dispatcher) -> None:
    await accept_many(dispatcher.steps, 3 * DISPATCH_BATCH_MIN + 50)
    grown = [DISPATCH_BATCH_MIN, 2 * DISPATCH_BATCH_MIN, 50]
    assert [await dispatcher.dispatch.step() for _ in range(3)] == grown
    assert await dispatcher.tickets() == sum(grown)
    dispatcher.steps.clock.advance(LEASE)
    assert [await dispatcher.dispatch.step() for _ in range(3)] == grown
    assert await dispatcher.tickets() == sum(grown)


async def test_a_lease_that_failed_is_followed_by_a_small_one(
    place: tuple[DeliverySteps, str], dispatcher: Dispatcher
) -> None:
    await accept_many(dispatcher.steps, 3 * DISPATCH_BATCH_MIN)
    assert await dispatcher.dispatch.step() == DISPATCH_BATCH_MIN
    other = await asyncpg.connect(place[1])
    try:
        async with other.transaction():
            await other.execute("LOCK TABLE delivery_schedule IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(Refusal):
                await dispatcher.dispatch.step()
    finally:
        await other.close()
    assert [await dispatcher.dispatch.step() for _ in range(3)] == [DISPATCH_BATCH_MIN, DISPATCH_BATCH_MIN, 0]


async def test_a_lease_that_took_long_is_followed_by_a_small_one(steps: DeliverySteps) -> None:
    await accept_many(steps, 3 * DISPATCH_BATCH_MIN)
    dispatcher = SlowDispatcher(steps)
    assert [await dispatcher.dispatch.step() for _ in range(4)] == [*[DISPATCH_BATCH_MIN] * 3, 0]


@pytest.mark.parametrize(
    ("batch_max", "seconds", "after"),
    [
        (DISPATCH_BATCH_MIN, 0.0, 2 * DISPATCH_BATCH_MIN),
        (DISPATCH_BATCH_MAX, 0.0, DISPATCH_BATCH_MAX),
        (4_000, LEASE_SECONDS_MAX / 2, 8_000),
        (4_000, LEASE_SECONDS_MAX / 2 + 0.01, 4_000),
        (4_000, LEASE_SECONDS_MAX, 4_000),
        (4_000, LEASE_SECONDS_MAX + 0.01, DISPATCH_BATCH_MIN),
    ],
)
async def test_leases_grow_only_while_twice_the_rows_would_not_take_long(
    batch_max: int, seconds: float, after: int
) -> None:
    assert batch_after(batch_max, seconds) == after


async def test_with_a_full_backlog_nothing_more_is_published(dispatcher: Dispatcher) -> None:
    await dispatcher.steps.accept(5)
    for number in range(BACKLOG_MAX - 2):
        dispatcher.stream.publish(TicketKind.DELIVER, number % SHARDS, b"of another process")
    # As many as there is space for, though the two share a message; and no more leases than tickets.
    assert [await dispatcher.dispatch.step() for _ in range(3)] == [2, 1, 0]
    due = "SELECT count(*) FROM delivery_schedule WHERE next_at <= $1"
    assert await dispatcher.steps.value(due, dispatcher.now()) == 2
    while await dispatcher.taken():
        pass
    assert await dispatcher.dispatch.step() == 2


async def test_new_mail_can_not_keep_retries_out_of_the_stream(dispatcher: Dispatcher) -> None:
    await dispatcher.steps.accept(50)
    for number in range(2 * BACKLOG_MAX):
        dispatcher.stream.publish(TicketKind.DELIVER, number % SHARDS, b"of intake")
    assert await dispatcher.dispatch.step() == 0
    dispatcher.steps.clock.advance(seconds=FORCED_SECONDS)
    assert [await dispatcher.dispatch.step() for _ in range(2)] == [50, 0]


async def test_a_stream_that_takes_nothing_costs_a_lease_and_no_mail(steps: DeliverySteps) -> None:
    dispatcher = Dispatcher(steps)
    await steps.accept()
    await dispatcher.stream.close()
    assert await dispatcher.dispatch.step() == 1
    assert dispatcher.stream.counts.dropped == 1
    steps.clock.advance(LEASE)
    assert await Dispatcher(steps).dispatch.step() == 1


# Dead workers


@pytest.mark.parametrize("passed", [timedelta(0), 10 * WORKER_LEASE], ids=["valid", "over"])
async def test_a_new_dispatcher_ends_no_lease_before_a_whole_lease_has_passed(
    dispatcher: Dispatcher, passed: timedelta
) -> None:
    await claim(dispatcher.steps)
    dispatcher.steps.clock.advance(passed)
    assert await dispatcher.dispatch.reclaim() == 0
    assert await dispatcher.look(WORKER_LEASE - LOOKS_APART) == 0
    assert await dispatcher.look(LOOKS_APART) == 1
    assert await dispatcher.dispatch.step() == 1
    assert await dispatcher.look(WORKER_LEASE) == 0


async def test_the_claims_of_a_retired_worker_are_due(dispatcher: Dispatcher) -> None:
    await dispatcher.look(WORKER_LEASE + LOOKS_APART)
    worker_id = await claim(dispatcher.steps)
    assert await dispatcher.look(LOOKS_APART) == 0
    async with dispatcher.steps.database.transaction() as tx:
        await delivery_schedule.retire_worker(tx, worker_id)
    # It retired, so the end of its lease is not waited for.
    assert await dispatcher.look(LOOKS_APART) == 1


async def test_a_dispatcher_that_was_stopped_for_a_while_waits_again(dispatcher: Dispatcher) -> None:
    """Workers on the same machine were stopped as well, and could not renew."""
    await dispatcher.look(2 * WORKER_LEASE)
    worker_id = await claim(dispatcher.steps)
    dispatcher.steps.clock.advance(WORKER_LEASE + SECOND)
    assert await dispatcher.dispatch.reclaim() == 0
    await renew(dispatcher.steps, worker_id)
    assert await dispatcher.look(WORKER_LEASE - LOOKS_APART) == 0
    # Checks that are late by ordinary delays change nothing.
    assert await dispatcher.look(timedelta(seconds=UNSEEN_SECONDS_MAX), timedelta(seconds=UNSEEN_SECONDS_MAX)) == 1


@pytest.mark.parametrize("jump", [timedelta(hours=1), timedelta(days=-1)])
async def test_after_a_time_jump_no_lease_ends_before_a_steady_lease_period(
    dispatcher: Dispatcher, jump: timedelta
) -> None:
    await dispatcher.look(2 * WORKER_LEASE)
    worker_id = await claim(dispatcher.steps)
    dispatcher.offset = jump
    assert await dispatcher.look(WORKER_LEASE - LOOKS_APART) == 0
    # Living workers have renewed by now, by the new time.
    await renew(dispatcher.steps, worker_id, WORKER_LEASE + jump)
    assert await dispatcher.look(LOOKS_APART) == 0


@pytest.mark.parametrize(
    ("jump", "reclaimed"), [(timedelta(hours=1), [0, 1]), (timedelta(seconds=JUMP_SECONDS_MAX * 0.9), [1, 0])]
)
async def test_a_dead_worker_is_dead_a_lease_after_a_time_jump_and_ordinary_drift_is_no_jump(
    dispatcher: Dispatcher, jump: timedelta, reclaimed: list[int]
) -> None:
    await dispatcher.look(2 * WORKER_LEASE)
    await claim(dispatcher.steps)
    dispatcher.offset = jump
    assert [await dispatcher.look(WORKER_LEASE), await dispatcher.look(LOOKS_APART)] == reclaimed


@pytest_asyncio.fixture(loop_scope="module")
async def proxied(
    steps: DeliverySteps, place: tuple[DeliverySteps, str]
) -> AsyncIterator[tuple[Dispatcher, DatabaseProxy]]:
    async with DatabaseProxy(place[1]) as proxy, open_database(proxy.url) as database:
        dispatcher = Dispatcher(steps, database)
        await dispatcher.look(2 * WORKER_LEASE)
        yield dispatcher, proxy


async def look_in_vain(dispatcher: Dispatcher, proxy: DatabaseProxy, looks: int) -> None:
    """The database is away meanwhile."""
    await proxy.cut()
    for _ in range(looks):
        dispatcher.steps.clock.advance(LOOKS_APART)
        with pytest.raises(Refusal):
            await dispatcher.dispatch.reclaim()
    await proxy.restore()


async def test_no_lease_ends_because_the_database_was_away(proxied: tuple[Dispatcher, DatabaseProxy]) -> None:
    dispatcher, proxy = proxied
    worker_id = await claim(dispatcher.steps)
    await look_in_vain(dispatcher, proxy, WORKER_LEASE // LOOKS_APART + 1)
    assert await dispatcher.look(WORKER_LEASE) == 0
    await renew(dispatcher.steps, worker_id)
    assert await dispatcher.look(WORKER_LEASE - LOOKS_APART) == 0
    # Had it not renewed, it would be dead now.
    assert await dispatcher.look(LOOKS_APART) == 1


async def test_however_short_the_database_was_away_the_wait_starts_again(
    proxied: tuple[Dispatcher, DatabaseProxy],
) -> None:
    dispatcher, proxy = proxied
    await claim(dispatcher.steps)
    await dispatcher.look(WORKER_LEASE - 3 * LOOKS_APART)
    # Its lease ends while it can not be renewed.
    await look_in_vain(dispatcher, proxy, 3)
    assert await dispatcher.look(WORKER_LEASE) == 0
    assert await dispatcher.look(LOOKS_APART) == 1
