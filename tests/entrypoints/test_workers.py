"""The loops around the flows: which tickets are fetched, what a failure does, and how they end."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from posthouse.compose.stream import ACK_WAIT_SECONDS
from posthouse.entrypoints.workers import HEARTBEAT_SECONDS, repeated, run_delivery, run_dispatch
from posthouse.flows.shared.tickets import HEARTBEAT_AFTER_SECONDS
from posthouse.rules.refusal import Code, Refusal
from posthouse.rules.ticket import shard_of
from posthouse.wire.stream import Leases, TicketKind
from posthouse.wire.stream.memory import AllShards
from tests.support.delivery_flow import SHARDS, DeliveryFlow, open_delivery_flow
from tests.support.eventually import HANG_SECONDS, eventually

EVERY = frozenset(range(SHARDS))
LEASE = timedelta(seconds=30)


@pytest.fixture
async def flow(database_url: str) -> AsyncIterator[DeliveryFlow]:
    async with open_delivery_flow(database_url) as flow:
        flow.serve("example.org")
        yield flow


class MovingLeases:
    """Leases that lose all shards after `held` was called this many times."""

    def __init__(self, times: int) -> None:
        self.times = times

    def held(self) -> frozenset[int]:
        self.times -= 1
        return EVERY if self.times >= 0 else frozenset()

    def held_since(self, shard: int) -> float:
        return float(shard)

    @property
    def places(self) -> int:
        return SHARDS

    async def close(self) -> None:
        self.times = 0


def worker(flow: DeliveryFlow, leases: Leases, stop: asyncio.Event) -> "asyncio.Task[None]":
    return asyncio.create_task(run_delivery(flow.delivery, flow.stream, leases, worker_lease=LEASE, stop=stop))


async def ended(task: "asyncio.Task[None]", stop: asyncio.Event) -> None:
    stop.set()
    async with asyncio.timeout(HANG_SECONDS):
        await task


async def test_due_mail_is_dispatched_and_delivered_until_stopped(flow: DeliveryFlow) -> None:
    stop = asyncio.Event()
    dispatching = asyncio.create_task(run_dispatch(flow.dispatch, stop))
    delivering = worker(flow, AllShards(SHARDS), stop)
    message = await flow.steps.accept(["ada@example.org"])
    await eventually(lambda: len(flow.receiver.accepted) == 1)
    await ended(delivering, stop)
    await ended(dispatching, stop)
    assert await flow.statuses(message) == ["delivered"]
    assert await flow.stream.backlog(TicketKind.DELIVER) == 0


async def test_a_ticket_whose_shard_moved_meanwhile_is_released(flow: DeliveryFlow) -> None:
    stop = asyncio.Event()
    moving = MovingLeases(1)  # held before the fetch, gone after it
    message = await flow.steps.accept(["ada@example.org"])
    assert await flow.dispatch.step() == 1
    delivering = worker(flow, moving, stop)
    await eventually(lambda: moving.times < -2)
    await ended(delivering, stop)
    assert flow.receiver.connections == 0
    assert await flow.statuses(message) == ["queued"]
    (ticket,) = await flow.stream.fetch(TicketKind.DELIVER, EVERY, 10, 0)
    assert ticket.shard == shard_of("example.org", SHARDS)


async def test_a_ticket_that_arrives_at_shutdown_is_released(flow: DeliveryFlow) -> None:
    stop = asyncio.Event()
    delivering = worker(flow, AllShards(SHARDS), stop)
    await asyncio.sleep(0.1)  # the worker waits for a ticket
    await flow.steps.accept(["ada@example.org"])
    stop.set()
    assert await flow.dispatch.step() == 1
    await ended(delivering, stop)
    assert flow.receiver.connections == 0
    assert len(await flow.stream.fetch(TicketKind.DELIVER, EVERY, 10, 0)) == 1


async def test_a_worker_stopped_at_once_takes_nothing(flow: DeliveryFlow) -> None:
    await flow.steps.accept(["ada@example.org"])
    assert await flow.dispatch.step() == 1
    stop = asyncio.Event()
    stop.set()
    await ended(worker(flow, AllShards(SHARDS), stop), stop)
    assert flow.receiver.connections == 0
    assert len(await flow.stream.fetch(TicketKind.DELIVER, EVERY, 10, 0)) == 1


async def test_a_step_that_fails_is_logged_and_tried_again() -> None:
    tries = 0

    async def step() -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise Refusal(Code.SERVICE_UNAVAILABLE, "away")
        if tries == 2:
            raise RuntimeError("broken")

    with capture_logs() as logged:
        async with repeated(step, pause_seconds=0.001):
            await eventually(lambda: tries > 3)
    assert [line["event"] for line in logged] == ["step_refused", "step_failed"]
    seen = tries
    await asyncio.sleep(0.02)  # time for a step that must not come
    assert tries == seen


async def test_a_step_pauses_longer_while_there_is_nothing_to_do_and_continues_when_there_is() -> None:
    steps = asked = 0
    is_idle = True

    async def step() -> None:
        nonlocal steps
        steps += 1

    def ask() -> bool:
        nonlocal asked
        asked += 1
        return is_idle

    async with repeated(step, pause_seconds=0.001, idle_seconds=3600.0, is_idle=ask):
        await eventually(lambda: asked > 5)
        assert steps == 1
        is_idle = False
        await eventually(lambda: steps > 2)


def test_one_heartbeat_may_be_missed_before_the_stream_sends_a_held_ticket_again() -> None:
    assert HEARTBEAT_AFTER_SECONDS + 2 * HEARTBEAT_SECONDS < ACK_WAIT_SECONDS
