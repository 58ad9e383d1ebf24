"""Tickets that come twice or never, workers that die, a database that is away: no event is lost, none sent early.

Where a worker may have sent an event and died before recording it, the attempt counts and the event is sent again.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from posthouse.flows.shared.claims import STORAGE_AWAY_SECONDS
from posthouse.flows.webhooks.sender import ACCOUNT_CALLS_MAX, FAULT_OF_OURS, STOPPED, UNREADY
from posthouse.rules.claim import WORKER_LEASE
from posthouse.rules.ticket import WebhookTicket
from posthouse.rules.webhook_url import WebhookTarget
from posthouse.store import endpoints
from posthouse.store.delivery_outcomes import DeliveryResult
from posthouse.store.endpoints import secret_purpose
from posthouse.store.seal import Sealer
from posthouse.store.webhook_schedule import DISABLED
from posthouse.wire.stream import TicketKind
from posthouse.wire.webhook_client import WebhookCallResult
from tests.support.clock import OffsetClock
from tests.support.delivery_steps import open_delivery_steps
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.tcp_proxy import DatabaseProxy, FarDatabase, open_far_database
from tests.support.webhook_flow import SECRET, SHARDS, PausingClient, WebhookFlow, is_signed, open_webhook_flow

SECOND: Final = timedelta(seconds=1)
FIRST_WAIT: Final = timedelta(seconds=5)
SUCCEEDED: Final = ("succeeded", 1, 200, None)
OVER: Final = "It was sent 7 times, and not every time was an answer received."


@pytest_asyncio.fixture
async def flow(database_url: str) -> AsyncIterator[WebhookFlow]:
    async with open_delivery_steps(database_url) as steps, open_webhook_flow(steps) as flow:
        await flow.subscribe()
        await flow.notification.renew()
        yield flow


@pytest_asyncio.fixture
async def proxy(database_url: str) -> AsyncIterator[DatabaseProxy]:
    async with DatabaseProxy(database_url) as proxy:
        yield proxy


@pytest_asyncio.fixture
async def far(proxy: DatabaseProxy) -> AsyncIterator[FarDatabase]:
    async with open_far_database(proxy) as database:
        yield database


async def claim_and_die(flow: WebhookFlow) -> None:
    """A worker claims all that is due, and dies."""
    claimed = await flow.store.claim(await flow.store.lease(), uuid4())
    assert claimed
    assert await flow.store.reclaim() == len(claimed)


async def offered(flow: WebhookFlow, number: int = 1, **given: Any) -> tuple[WebhookFlow, UUID]:
    """A further worker that was offered this many new events, and the delivery of the first."""
    worker = replace(flow, notification=flow.another_worker(**given))
    await worker.notification.renew()
    delivery_id, *_ = await flow.add_events(*[DeliveryResult.DELIVERED] * number)
    await flow.dispatch_due()
    await worker.offer()
    return worker, delivery_id


async def worker_count(flow: WebhookFlow, worker_id: UUID) -> int:
    count: int = await flow.steps.value("SELECT count(*) FROM workers WHERE id = $1", worker_id)
    return count


# Tickets


async def test_tickets_of_what_is_over_or_unknown_or_unreadable_change_nothing(flow: WebhookFlow) -> None:
    delivery_id = await flow.add_event()
    await flow.run_due()
    account_id = flow.account_id
    flow.tickets.publish([WebhookTicket(account_id, delivery_id, fence, account_id) for fence in (0, 1, 2)])
    flow.tickets.publish([WebhookTicket(account_id, uuid4(), 0, account_id)])
    flow.stream.publish(TicketKind.NOTIFY, 0, b"\x7fa form from another time")
    await flow.send_fetched()
    assert len(flow.webhook_receiver.requests) == 1
    assert await flow.stream.backlog(TicketKind.NOTIFY) == 0
    assert await flow.status_of(delivery_id) == SUCCEEDED


# Workers


async def test_an_unrecorded_attempt_counts_and_the_event_is_sent_again(flow: WebhookFlow) -> None:
    lost = PausingClient(flow.caller, comes_back=False)
    dying, delivery_id = await offered(flow, client=lost)
    await lost.arrived.wait()
    # It was sent; the process ends here, and its lease with it.
    flow.clock.advance(WORKER_LEASE)
    await flow.notification.renew()
    assert await flow.store.reclaim() == 1
    assert await flow.run_due() == 1
    assert await flow.status_of(delivery_id) == ("succeeded", 2, 200, None)
    first, second = flow.webhook_receiver.requests
    assert first.body == second.body
    assert is_signed(second, SECRET, int(flow.clock.now().timestamp()))
    # If it comes back after all, it changes nothing.
    before = await flow.log(delivery_id)
    lost.resume.set()
    await dying.notification.settle()
    assert await flow.log(delivery_id) == before


async def test_a_worker_without_a_valid_lease_sends_nothing_and_it_is_no_attempt(flow: WebhookFlow) -> None:
    delivery_id = await flow.add_event()
    never_renewed = replace(flow, notification=flow.another_worker())
    await flow.dispatch_due()
    assert await never_renewed.send_fetched() == 1
    assert flow.webhook_receiver.connections == 0
    assert (await flow.status_of(delivery_id))[:2] == ("pending", 0)
    assert [row[0] for row in await flow.schedule()] == [0]
    assert await flow.run_due() == 1
    assert await flow.status_of(delivery_id) == SUCCEEDED


async def test_what_is_over_stays_over_whatever_the_lease(flow: WebhookFlow) -> None:
    """Nothing was counted for its last claim, so nothing may be uncounted: or there would be an eighth attempt."""
    delivery_id = await flow.add_event()
    for _ in range(7):
        await claim_and_die(flow)
    never_renewed = replace(flow, notification=flow.another_worker())
    await flow.dispatch_due()
    await never_renewed.send_fetched()
    assert await flow.status_of(delivery_id) == ("failed", 7, None, OVER)
    assert await flow.run_due() == 0


async def test_what_is_cancelled_keeps_its_count_whatever_the_lease(flow: WebhookFlow) -> None:
    await flow.subscribe("/status/500")
    delivery_id = await flow.add_event()
    await flow.run_due()
    async with flow.steps.database.transaction() as tx:
        await endpoints.disable(tx, flow.account_id, flow.account_id, flow.clock.now())
    flow.clock.advance(FIRST_WAIT)
    never_renewed = replace(flow, notification=flow.another_worker())
    await flow.dispatch_due()
    await never_renewed.send_fetched()
    assert await flow.status_of(delivery_id) == ("failed", 1, 500, DISABLED)


async def test_a_worker_that_lost_its_lease_after_claiming_sends_nothing(flow: WebhookFlow) -> None:
    """Its claims were made under a lease that ended; a new lease does not permit old claims."""
    clock = OffsetClock(flow.clock)
    late, delivery_id = await offered(flow, clock=clock)
    await asyncio.sleep(0)  # it asks for its permit and its claim
    clock.seconds = WORKER_LEASE.total_seconds()
    await late.notification.renew()
    await late.notification.settle()
    assert flow.webhook_receiver.requests == []
    assert (await flow.status_of(delivery_id))[:2] == ("pending", 0)
    assert await flow.run_due() == 1
    assert await flow.status_of(delivery_id) == SUCCEEDED


# Faults of ours


async def test_a_secret_that_cannot_be_opened_costs_no_attempt(flow: WebhookFlow) -> None:
    await flow.subscribe()
    elsewhere = Sealer({"2": bytes(32)}, "2").seal(SECRET.encode(), secret_purpose(flow.account_id, flow.account_id))
    async with flow.steps.database.transaction() as tx:
        await endpoints.rotate_secret(tx, flow.account_id, flow.account_id, elsewhere, flow.clock.now())
    delivery_id = await flow.add_event()
    for _ in range(8):
        assert await flow.run_due() == 1
        assert (await flow.status_of(delivery_id))[:2] == ("pending", 0)
        flow.clock.advance(UNREADY - SECOND)
        assert await flow.run_due() == 0
        flow.clock.advance(SECOND)
    assert flow.webhook_receiver.connections == 0
    async with flow.steps.database.transaction() as tx:
        await endpoints.rotate_secret(tx, flow.account_id, flow.account_id, flow.sealed(), flow.clock.now())
    await flow.run_due()
    assert await flow.status_of(delivery_id) == SUCCEEDED


class Failing:
    """A caller with a fault in it."""

    async def call(self, target: WebhookTarget, body: bytes, headers: Mapping[str, str]) -> WebhookCallResult:
        raise LookupError(f"unexpected {target.url}, {len(body)} bytes, {sorted(headers)}")


async def test_a_fault_of_the_caller_is_an_attempt_and_has_its_wait(flow: WebhookFlow) -> None:
    delivery_id = await flow.add_event()
    assert await replace(flow, notification=flow.another_worker(client=Failing())).run_due() == 1
    log = await flow.log(delivery_id)
    assert (log.status, log.attempt, log.error) == ("pending", 1, FAULT_OF_OURS)
    assert log.next_attempt_at == flow.clock.now() + FIRST_WAIT
    flow.clock.advance(FIRST_WAIT)
    await flow.run_due()
    assert await flow.status_of(delivery_id) == ("succeeded", 2, 200, None)


async def test_an_event_that_is_no_longer_stored_has_failed(flow: WebhookFlow) -> None:
    delivery_id = await flow.add_event()
    await flow.steps.fetch("DELETE FROM events RETURNING 1")
    await flow.run_due()
    assert (await flow.status_of(delivery_id))[0::3] == ("failed", "The event is no longer stored.")
    assert flow.webhook_receiver.connections == 0


# A database that is away


async def test_what_could_not_be_postponed_is_repeated(
    flow: WebhookFlow, far: FarDatabase, proxy: DatabaseProxy
) -> None:
    slow = PausingClient(flow.caller, sets_out=False)
    cut_off, _ = await offered(flow, ACCOUNT_CALLS_MAX, database=far, client=slow, waiting_max=0)
    await slow.claimed.wait()
    await flow.add_events(*[DeliveryResult.DELIVERED] * 3)
    await flow.dispatch_due()
    await proxy.cut()
    # One may wait, the others are over the limit, and the database cannot record it.
    refused = asyncio.create_task(far.refuses())
    assert await cut_off.offer() == 3
    await refused
    await proxy.restore()
    slow.resume.set()
    await cut_off.notification.settle()
    flow.clock.advance(seconds=STORAGE_AWAY_SECONDS)
    await cut_off.notification.renew()
    await cut_off.send_fetched()
    await flow.run_due()
    assert len(flow.webhook_receiver.requests) == ACCOUNT_CALLS_MAX + 3
    statuses = await flow.steps.fetch("SELECT status, attempt FROM webhook_deliveries")
    assert statuses == [("succeeded", 1)] * (ACCOUNT_CALLS_MAX + 3)


# Shutdown of a worker


async def test_a_stopping_worker_awaits_answers_and_releases_what_has_not_begun(flow: WebhookFlow) -> None:
    slow = PausingClient(flow.caller, comes_back=False)
    leaving, _ = await offered(flow, ACCOUNT_CALLS_MAX + 5, client=slow)
    await eventually(lambda: len(flow.webhook_receiver.requests) == ACCOUNT_CALLS_MAX)
    await slow.arrived.wait()
    draining = asyncio.create_task(leaving.notification.drain(6))
    await eventually(lambda: leaving.notification.capacity == 0)
    assert not draining.done()
    slow.resume.set()
    await draining
    log = "SELECT status, attempt, count(*) FROM webhook_deliveries GROUP BY 1, 2 ORDER BY 1"
    assert await flow.steps.fetch(log) == [("pending", 0, 5), ("succeeded", 1, ACCOUNT_CALLS_MAX)]
    assert await flow.steps.value("SELECT count(*) FROM webhook_schedule WHERE worker_id IS NOT NULL") == 0
    assert await worker_count(flow, leaving.notification.worker_id) == 0
    # The others were released, and another worker gets them at once.
    await flow.send_fetched()
    assert await flow.steps.fetch(log) == [("succeeded", 1, ACCOUNT_CALLS_MAX + 5)]
    assert len(flow.webhook_receiver.requests) == ACCOUNT_CALLS_MAX + 5


async def test_an_answer_that_is_not_waited_for_is_an_attempt_on_record(flow: WebhookFlow) -> None:
    endless = PausingClient(flow.caller, comes_back=False)
    leaving, delivery_id = await offered(flow, client=endless)
    await endless.arrived.wait()
    await leaving.notification.drain(1.5)
    log = await flow.log(delivery_id)
    assert (log.status, log.attempt, log.http_status, log.error) == ("pending", 1, None, STOPPED)
    assert log.next_attempt_at == flow.clock.now() + FIRST_WAIT
    assert await flow.schedule() == [(1, 2, 5.0)]
    flow.clock.advance(FIRST_WAIT)
    await flow.run_due()
    assert await flow.status_of(delivery_id) == ("succeeded", 2, 200, None)
    assert len({request.body for request in flow.webhook_receiver.requests}) == 1


async def test_claims_of_a_stopping_worker_are_not_sent_and_do_not_count(flow: WebhookFlow) -> None:
    leaving, delivery_id = await offered(flow)
    await leaving.notification.drain(3)
    assert flow.webhook_receiver.connections == 0
    assert (await flow.status_of(delivery_id))[:2] == ("pending", 0)
    assert await flow.run_due() == 1
    assert await flow.status_of(delivery_id) == SUCCEEDED


async def test_a_worker_stops_in_time_while_the_database_is_away(
    flow: WebhookFlow, far: FarDatabase, proxy: DatabaseProxy
) -> None:
    client = PausingClient(flow.caller, comes_back=False)
    leaving, delivery_id = await offered(flow, database=far, client=client)
    await client.arrived.wait()
    await proxy.cut()
    client.resume.set()
    async with asyncio.timeout(HANG_SECONDS):
        await leaving.notification.drain(0.6)
    assert (await flow.status_of(delivery_id))[:2] == ("pending", 0)
    # Its outcome is unknown: after the lease the attempt counts, and the event is sent again.
    flow.clock.advance(WORKER_LEASE)
    assert await flow.store.reclaim() == 1
    await flow.run_due()
    assert await flow.status_of(delivery_id) == ("succeeded", 2, 200, None)
    assert len({request.body for request in flow.webhook_receiver.requests}) == 1
    # A process would have ended by now. What remains of it here has no effect any more.
    await proxy.restore()
    await leaving.notification.settle()
    assert await flow.status_of(delivery_id) == ("succeeded", 2, 200, None)


@pytest.mark.parametrize("number", [1, 20])
async def test_held_tickets_are_extended_in_the_stream_again_and_again(flow: WebhookFlow, number: int) -> None:
    """However long the queue of a hanging endpoint, no other worker gets its tickets meanwhile."""
    slow = PausingClient(flow.caller, sets_out=False)
    holding, _ = await offered(flow, number, client=slow)
    await slow.claimed.wait()
    wait = timedelta(seconds=flow.stream.settings.ack_wait_seconds)
    flow.clock.advance(wait - SECOND)
    await holding.notification.heartbeat()
    flow.clock.advance(wait - SECOND)
    assert await flow.stream.fetch(TicketKind.NOTIFY, frozenset(range(SHARDS)), 100, 0) == []
    slow.resume.set()
    await holding.notification.settle()
