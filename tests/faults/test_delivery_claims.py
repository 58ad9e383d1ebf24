"""Tickets that come twice or never, workers that die, leases that lapse: each message arrives once.

Where a duplicate can't be excluded (a worker sent a message and died before recording it), an attempt without
an outcome is on record.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Final
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from posthouse.flows.deliver.delivery import Delivery
from posthouse.flows.deliver.dispatch import Dispatch
from posthouse.flows.shared.claims import STORAGE_AWAY_SECONDS
from posthouse.rules.claim import WORKER_LEASE
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.ticket import DeliveryTicket
from posthouse.store import delivery_schedule
from posthouse.wire.stream import TicketKind
from tests.support.bad_input import new_seed
from tests.support.database_checks import database_faults
from tests.support.delivery_flow import SHARDS, DeliveryFlow, PausingCarrier, open_delivery_flow
from tests.support.eventually import eventually
from tests.support.locks import lock_waits
from tests.support.tcp_proxy import DatabaseProxy, FarDatabase, open_far_database

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECOND: Final = timedelta(seconds=1)
LOOKS_APART: Final = timedelta(seconds=2)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(new_database: Callable[[], str]) -> AsyncIterator[tuple[DeliveryFlow, int, str]]:
    """One flow for all tests; the database is checked at the end."""
    seed = new_seed()
    url = new_database()
    async with open_delivery_flow(url, seed=seed) as flow:
        flow.serve("example.org")
        yield flow, seed, url
        assert await database_faults(url) == {}, f"{seed=}"


@pytest_asyncio.fixture(loop_scope="module")
async def flow(shared: tuple[DeliveryFlow, int, str]) -> AsyncIterator[DeliveryFlow]:
    flow, seed, _ = shared
    print(f"seed {seed}")
    for kept in (flow.receiver.accepted, flow.receiver.commands):
        kept.clear()
    await flow.delivery.renew()
    yield replace(flow)
    if await flow.steps.fetch("SELECT * FROM delivery_schedule"):
        # A failed test must not make the next tests fail.
        flow.clock.advance(hours=73)
        await flow.steps.reclaim()
        await flow.run_due()
    for message in await flow.stream.fetch(TicketKind.DELIVER, frozenset(range(SHARDS)), 100, 0):
        await message.ack()


@pytest_asyncio.fixture(loop_scope="module")
async def proxy(shared: tuple[DeliveryFlow, int, str]) -> AsyncIterator[DatabaseProxy]:
    async with DatabaseProxy(shared[2]) as proxy:
        yield proxy


@pytest_asyncio.fixture(loop_scope="module")
async def far(proxy: DatabaseProxy) -> AsyncIterator[FarDatabase]:
    async with open_far_database(proxy) as database:
        yield database


def new_dispatch(flow: DeliveryFlow) -> Dispatch:
    return Dispatch(database=flow.steps.database, clock=flow.clock, tickets=flow.tickets)


async def watch(flow: DeliveryFlow, dispatch: Dispatch, time: timedelta, *living: Delivery) -> int:
    """Reclaims expired leases every two seconds for this long, while living workers renew; returns how many."""
    reclaimed = await dispatch.reclaim()
    for _ in range(time // LOOKS_APART):
        flow.clock.advance(LOOKS_APART)
        for worker in living:
            await worker.renew()
        reclaimed += await dispatch.reclaim()
    return reclaimed


async def claim_and_die(flow: DeliveryFlow) -> UUID:
    """A worker claims all that is due, and dies."""
    worker_id = uuid4()
    async with flow.steps.database.transaction() as tx:
        await delivery_schedule.renew_worker(tx, worker_id, flow.clock.now() + WORKER_LEASE)
    await flow.steps.claim(await flow.steps.lease(), worker_id)
    return worker_id


async def paused_after_claim(
    flow: DeliveryFlow,
) -> tuple[PausingCarrier, Delivery, MessageId, "asyncio.Task[int]"]:
    """A further worker that has claimed a message and waits before it connects."""
    carrier = PausingCarrier(flow.carrier, sets_out=False)
    worker = flow.another_worker(carrier=carrier)
    message_id = await flow.steps.accept(["ada@example.org"])
    carrying = asyncio.create_task(replace(flow, delivery=worker).run_due())
    await carrier.claimed.wait()
    return carrier, worker, message_id, carrying


async def sent_without_database(
    flow: DeliveryFlow, far: FarDatabase, proxy: DatabaseProxy
) -> tuple[Delivery, MessageId, "asyncio.Task[int]"]:
    """A further worker that has sent a message and lost the database."""
    carrier = PausingCarrier(flow.carrier, comes_back=False)
    worker = flow.another_worker(carrier=carrier, database=far)
    message_id = await flow.steps.accept(["ada@example.org"])
    carrying = asyncio.create_task(replace(flow, delivery=worker).run_due())
    await carrier.arrived.wait()
    await proxy.cut()
    carrier.resume.set()
    return worker, message_id, carrying


def lines(flow: DeliveryFlow) -> dict[str, int]:
    """How many messages each address got."""
    return dict(Counter(mail.recipient for mail in flow.receiver.accepted))


async def state(flow: DeliveryFlow, message_id: MessageId) -> tuple[str, int, list[str | None]]:
    """Its only recipient's status, its counted attempts, and the outcome of each that began."""
    (row,) = await flow.recipients(message_id)
    outcomes = await flow.steps.fetch("SELECT outcome FROM attempts WHERE message_id = $1 ORDER BY fence", message_id)
    return row[1], row[3], [outcome for (outcome,) in outcomes]


# Tickets


async def test_an_unreadable_ticket_is_dropped(flow: DeliveryFlow) -> None:
    flow.stream.publish(TicketKind.DELIVER, 0, b"\x7fa form from another time")
    assert await flow.stream.backlog(TicketKind.DELIVER) == 1
    await flow.deliver_fetched()
    assert await flow.stream.backlog(TicketKind.DELIVER) == 0


async def test_a_ticket_of_a_message_that_is_final_or_unknown_changes_nothing(flow: DeliveryFlow) -> None:
    message_id = await flow.steps.accept(["ada@example.org"])
    await flow.run_due()
    account_id = AccountId(flow.steps.sender.account_id)
    unknown = MessageId(UUID(int=message_id.int + 64))
    flow.tickets.publish(
        [
            DeliveryTicket(account_id, message_id, 0, 0, "example.org"),
            DeliveryTicket(account_id, message_id, 0, 1, "example.org"),
            DeliveryTicket(account_id, message_id, 7, 0, "example.org"),
            DeliveryTicket(account_id, unknown, 0, 0, "example.org"),
        ]
    )
    assert await flow.deliver_fetched() == 4
    assert lines(flow) == {"ada@example.org": 1}
    assert await flow.stream.backlog(TicketKind.DELIVER) == 0


# Workers


async def test_a_dead_workers_claim_is_tried_by_another_and_its_orphan_counts(flow: DeliveryFlow) -> None:
    dispatch = new_dispatch(flow)
    message_id = await flow.steps.accept(["ada@example.org"])
    dead = await claim_and_die(flow)
    assert await watch(flow, dispatch, WORKER_LEASE - LOOKS_APART, flow.delivery) == 0
    assert await flow.run_due() == 0
    flow.clock.advance(LOOKS_APART)
    assert await dispatch.reclaim() == 1
    assert await flow.run_due() == 1
    assert await state(flow, message_id) == ("delivered", 2, [None, "delivered"])
    orphans = await flow.steps.fetch(
        "SELECT worker_id FROM attempts WHERE finished_at IS NULL AND worker_id = $1", dead
    )
    assert len(orphans) == 1
    assert lines(flow) == {"ada@example.org": 1}


# Leases


async def test_a_lease_that_expires_before_the_dot_sends_no_dot(flow: DeliveryFlow) -> None:
    # Not expired yet, but too near its end to rely on.
    slow = PausingCarrier(flow.carrier, at_the_dot=lambda: flow.clock.advance(WORKER_LEASE * 0.8))
    message_id = await flow.steps.accept(["ada@example.org"])
    assert await replace(flow, delivery=flow.another_worker(carrier=slow)).run_due() == 1
    assert lines(flow) == {}
    assert (await state(flow, message_id))[2] == ["postponed"]
    assert await flow.steps.fetch("SELECT attempt_count FROM delivery_schedule") == [(0,)]
    assert await flow.run_due() == 1
    assert await state(flow, message_id) == ("delivered", 1, ["postponed", "delivered"])
    assert lines(flow) == {"ada@example.org": 1}


@pytest.mark.parametrize("renews", [True, False], ids=["renewed too late", "never renewed"])
async def test_a_worker_that_was_taken_for_dead_sends_nothing_that_it_had_claimed(
    flow: DeliveryFlow, renews: bool
) -> None:
    dispatch = new_dispatch(flow)
    carrier, stuck, message_id, carrying = await paused_after_claim(flow)
    assert await watch(flow, dispatch, WORKER_LEASE, flow.delivery) == 1
    assert await flow.run_due() == 1
    if renews:
        await stuck.renew()
    carrier.resume.set()
    await carrying
    assert lines(flow) == {"ada@example.org": 1}
    assert await state(flow, message_id) == ("delivered", 2, ["postponed", "delivered"])


async def test_a_lease_whose_renewal_took_too_long_is_no_lease_any_more(flow: DeliveryFlow) -> None:
    """Asked for in time, written down too late: in between the worker was taken for dead."""
    dispatch = new_dispatch(flow)
    carrier, stuck, message_id, carrying = await paused_after_claim(flow)
    assert await watch(flow, dispatch, WORKER_LEASE - LOOKS_APART, flow.delivery) == 0
    async with flow.steps.database.transaction() as tx:
        await tx.execute("SELECT FROM workers WHERE id = $1 FOR UPDATE", stuck.worker_id)
        renewing = asyncio.create_task(stuck.renew())
        await lock_waits(tx)
        # No more than is needed: the renewal waits for its lock half a second.
        for _ in range(2):
            flow.clock.advance(LOOKS_APART)
            await flow.delivery.renew()
        assert await dispatch.reclaim() == 1
    await renewing
    assert await flow.run_due() == 1
    carrier.resume.set()
    await carrying
    assert lines(flow) == {"ada@example.org": 1}
    assert await state(flow, message_id) == ("delivered", 2, ["postponed", "delivered"])


async def test_a_worker_that_renews_keeps_its_claims_however_long_they_take(flow: DeliveryFlow) -> None:
    dispatch = new_dispatch(flow)
    carrier, slow, message_id, carrying = await paused_after_claim(flow)
    assert await watch(flow, dispatch, 5 * WORKER_LEASE, slow) == 0
    carrier.resume.set()
    await carrying
    assert await state(flow, message_id) == ("delivered", 1, ["delivered"])


# The database


async def test_what_a_server_took_is_recorded_when_the_database_is_back(
    flow: DeliveryFlow, far: FarDatabase, proxy: DatabaseProxy
) -> None:
    _, message_id, carrying = await sent_without_database(flow, far, proxy)
    await far.refuses()
    assert not carrying.done()
    assert await state(flow, message_id) == ("queued", 0, [None])
    await proxy.restore()
    await carrying
    assert await state(flow, message_id) == ("delivered", 1, ["delivered"])
    assert lines(flow) == {"ada@example.org": 1}


async def test_failed_and_unnoticed_claims_are_repeated(
    flow: DeliveryFlow, far: FarDatabase, proxy: DatabaseProxy
) -> None:
    cut_off = flow.another_worker(database=far)
    await cut_off.renew()
    # Its commit went through, and the worker was never notified.
    unnoticed = await flow.steps.accept(["unheard@example.org"])
    await flow.steps.claim(await flow.steps.lease(), cut_off.worker_id)
    message_id = await flow.steps.accept(["ada@example.org"])
    await flow.dispatch.step()
    with_cut = replace(flow, delivery=cut_off)
    await proxy.cut()
    assert await with_cut.deliver_fetched() == 1
    assert lines(flow) == {}
    await proxy.restore()
    assert await with_cut.deliver_fetched() == 0
    flow.clock.advance(seconds=STORAGE_AWAY_SECONDS)
    assert await with_cut.deliver_fetched() == 1
    assert await state(flow, message_id) == ("delivered", 1, ["delivered"])
    assert await with_cut.run_due() == 1
    assert await state(flow, unnoticed) == ("delivered", 2, [None, "delivered"])


# The end of a worker


async def test_a_worker_that_ends_withdraws_what_is_not_sent_and_says_what_may_be(flow: DeliveryFlow) -> None:
    is_sent = asyncio.Event()
    carrier = PausingCarrier(flow.carrier, at_the_dot=is_sent.set)
    leaving = flow.another_worker(carrier=carrier)
    await leaving.renew()
    before = await flow.steps.accept(["hang-data@example.org"])
    after = await flow.steps.accept(["hang-dot@example.org"])
    await flow.dispatch.step()
    await leaving.offer(await flow.stream.fetch(TicketKind.DELIVER, frozenset(range(SHARDS)), 10, 0))
    await eventually(lambda: flow.receiver.commands.count("DATA") == 2)
    await is_sent.wait()
    await leaving.drain(0.3)
    assert await state(flow, before) == ("queued", 0, ["postponed"])
    assert await state(flow, after) == ("deferred", 1, ["deferred"])
    said = "SELECT is_ambiguous, response FROM attempts WHERE message_id = $1"
    ((is_ambiguous, response),) = await flow.steps.fetch(said, after)
    assert is_ambiguous
    assert "it may have arrived" in response
    assert await flow.steps.fetch("SELECT * FROM workers WHERE id = $1", leaving.worker_id) == []
    assert leaving.capacity == 0
    # Both addresses hang forever: a timeout ends them.
    for _ in range(2):
        flow.clock.advance(hours=73)
        await flow.run_due()
    assert (await state(flow, before))[0] == (await state(flow, after))[0] == "failed"


async def test_a_stopping_worker_records_what_it_sent_once_the_database_is_back(
    flow: DeliveryFlow, far: FarDatabase, proxy: DatabaseProxy
) -> None:
    """The message was accepted: when the time for withdrawing is over, the time for recording is not."""
    leaving, message_id, carrying = await sent_without_database(flow, far, proxy)
    draining = asyncio.create_task(leaving.drain(6.0))
    # A second apart: the time for withdrawing, two thirds, is over.
    await far.refuses(5)
    await proxy.restore()
    await asyncio.gather(draining, carrying)
    assert await state(flow, message_id) == ("delivered", 1, ["delivered"])
    assert lines(flow) == {"ada@example.org": 1}


async def test_a_large_message_without_free_memory_waits_without_an_attempt(flow: DeliveryFlow) -> None:
    draft = flow.steps.sender.draft(["ada@example.org"], text="Good morning, and so on.\n" * 10_000)
    accepted = await flow.steps.accept_flow.accept(flow.steps.sender, "a large mail", draft)
    crowded = flow.another_worker(large_bytes_max=100_000)
    assert await replace(flow, delivery=crowded).run_due() == 1
    assert await state(flow, accepted.message_id) == ("queued", 0, ["postponed"])
    # Its size is known now: there is no claim without free memory.
    flow.clock.advance(seconds=10)
    assert await replace(flow, delivery=crowded).run_due() == 1
    assert await state(flow, accepted.message_id) == ("queued", 0, ["postponed"])
    flow.clock.advance(seconds=20)
    assert await flow.run_due() == 1
    assert await state(flow, accepted.message_id) == ("delivered", 1, ["postponed", "delivered"])
