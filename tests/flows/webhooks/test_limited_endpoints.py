"""Endpoints that never answered, or fail for days: one call at a time, at a low rate, until the first 2xx."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime
from uuid import UUID

import pytest
import pytest_asyncio

from posthouse.flows.webhooks.sender import ACCOUNT_CALLS_MAX, LIMITED, STOPPED
from posthouse.rules.endpoint import FAILING_AFTER, LIMITED_RATE, EndpointState
from posthouse.rules.event import test_body as ping_body
from posthouse.rules.retry import WEBHOOK
from posthouse.store.delivery_outcomes import DeliveryResult
from tests.support.accept_flow import new_id
from tests.support.delivery_steps import open_delivery_steps
from tests.support.eventually import eventually
from tests.support.webhook_flow import PausingClient, WebhookFlow, open_webhook_flow
from tests.support.webhook_steps import enter_ping

BURST = LIMITED_RATE.burst
SECONDS = 1 / LIMITED_RATE.per_second
MANY = 40
EVENTS = (DeliveryResult.DELIVERED,) * MANY
FAILS = "/status/500"


@pytest_asyncio.fixture
async def flow(database_url: str) -> AsyncIterator[WebhookFlow]:
    async with open_delivery_steps(database_url) as steps, open_webhook_flow(steps, seconds_max=10.0) as flow:
        yield flow


async def state(flow: WebhookFlow) -> tuple[datetime | None, datetime | None]:
    """The endpoint's first 2xx, and since when it fails."""
    ((answered_at, failing_since),) = await flow.steps.fetch("SELECT answered_at, failing_since FROM endpoints")
    return answered_at, failing_since


async def ping(flow: WebhookFlow) -> UUID:
    now = flow.clock.now()
    event_id, delivery_id = new_id(now), new_id(now)
    body = ping_body(event_id=event_id, created_at=now)
    async with flow.steps.database.transaction() as tx:
        assert await enter_ping(tx, flow.account_id, event_id, delivery_id, body, now, now)
    return delivery_id


async def failing(flow: WebhookFlow) -> None:
    """An endpoint that answered, and then failed long enough to be limited."""
    await flow.subscribe(FAILS)
    await flow.add_event()
    await flow.run_due()
    flow.clock.advance(FAILING_AFTER)


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "failing"])
async def test_a_limited_endpoint_gets_one_call_at_a_time(flow: WebhookFlow, is_new: bool) -> None:
    if is_new:
        await flow.subscribe(FAILS, is_answering=False)
    else:
        await failing(flow)
    slow = PausingClient(flow.caller, sets_out=False)
    flow.notification = flow.another_worker(client=slow)
    await flow.add_events(*EVENTS)
    sending = asyncio.create_task(flow.run_due())
    await slow.claimed.wait()
    claimed = "SELECT count(*) FROM webhook_schedule WHERE worker_id IS NOT NULL"
    await eventually(lambda: flow.steps.value(claimed), lambda count: count == ACCOUNT_CALLS_MAX)
    assert slow.begun == [FAILS]
    slow.resume.set()
    await sending
    assert len(slow.begun) == BURST


@pytest.mark.rule("HOOK-18")
async def test_a_limited_endpoint_gets_a_burst_and_then_one_call_in_five_seconds(flow: WebhookFlow) -> None:
    await flow.subscribe(FAILS, is_answering=False)
    webhook_ids = await flow.add_events(*EVENTS)
    await flow.run_due()
    assert len(flow.webhook_receiver.requests) == BURST
    counts = Counter([await flow.status_of(webhook_id) for webhook_id in webhook_ids])
    assert counts["pending", 0, None, LIMITED[EndpointState.NEW]] == MANY - BURST
    for number in range(1, 7):
        flow.clock.advance(seconds=SECONDS)
        await flow.run_due()
        assert len(flow.webhook_receiver.requests) == BURST + number


async def test_every_event_of_a_limited_endpoint_keeps_its_seven_attempts(flow: WebhookFlow) -> None:
    events = EVENTS[: 2 * BURST]
    await flow.subscribe(FAILS, is_answering=False)
    await flow.add_events(*events)
    for _ in range(100):
        flow.clock.advance(minutes=15)
        await flow.run_due()
        if not await flow.schedule():
            break
    log = await flow.steps.fetch("SELECT status, attempt FROM webhook_deliveries")
    assert log == [("failed", WEBHOOK.attempts_max)] * len(events)
    assert len(flow.webhook_receiver.requests) == WEBHOOK.attempts_max * len(events)


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "failing"])
async def test_the_first_2xx_opens_the_endpoint_for_all_that_waits(flow: WebhookFlow, is_new: bool) -> None:
    if is_new:
        await flow.subscribe(is_answering=False)
    else:
        await failing(flow)
        await flow.steps.fetch("UPDATE endpoints SET url = $1", flow.url())
    webhook_ids = await flow.add_events(*EVENTS)
    await flow.run_due()
    assert {await flow.status_of(webhook_id) for webhook_id in webhook_ids} == {("succeeded", 1, 200, None)}
    answered_at, failing_since = await state(flow)
    assert answered_at is not None
    assert failing_since is None


async def test_the_state_is_stored_and_holds_for_every_process(flow: WebhookFlow) -> None:
    await flow.subscribe(is_answering=False)
    await flow.add_event()
    await flow.run_due()
    slow = PausingClient(flow.caller, sets_out=False)
    flow.notification = flow.another_worker(client=slow)
    await flow.add_events(*EVENTS)
    sending = asyncio.create_task(flow.run_due())
    await eventually(lambda: len(slow.begun) == ACCOUNT_CALLS_MAX)
    slow.resume.set()
    await sending
    assert len(slow.begun) == MANY


async def test_a_new_url_restarts_and_the_same_url_does_not(flow: WebhookFlow) -> None:
    await flow.subscribe(is_answering=False)
    await flow.add_event()
    await flow.run_due()
    answered_at, _ = await state(flow)
    assert answered_at == flow.clock.now()
    await flow.store.save(flow.url())
    assert await state(flow) == (answered_at, None)
    await flow.store.save(flow.url(FAILS))
    assert await state(flow) == (None, None)
    await flow.add_events(*EVENTS)
    await flow.run_due()
    assert len(flow.requests_to(FAILS)) == BURST - 1
    # The rate is the account's: another URL of the same host brings no more calls.
    await flow.store.save(flow.url("/status/404"))
    await flow.add_events(*EVENTS)
    await flow.run_due()
    assert len(flow.requests_to("/status/404")) == 0


async def test_a_ping_goes_at_once_and_opens_the_endpoint(flow: WebhookFlow) -> None:
    await flow.subscribe(FAILS, is_answering=False)
    await flow.add_events(*EVENTS)
    await flow.run_due()
    failed = await ping(flow)
    await flow.run_due()
    assert (await flow.status_of(failed))[:3] == ("failed", 1, 500)
    await flow.store.save(flow.url())
    answered = await ping(flow)
    await flow.run_due()
    assert (await flow.status_of(answered))[:3] == ("succeeded", 1, 200)
    flow.clock.advance(minutes=10)
    await flow.run_due()
    others = await flow.steps.fetch("SELECT status FROM webhook_deliveries WHERE id <> $1", failed)
    assert set(others) == {("succeeded",)}


async def test_calls_to_an_endpoint_that_answers_do_not_write_its_row(flow: WebhookFlow) -> None:
    version = "SELECT xmin::text, ctid::text FROM endpoints"
    await flow.subscribe()
    before = await flow.steps.fetch(version)
    await flow.add_events(*EVENTS)
    await flow.run_due()
    assert len(flow.webhook_receiver.requests) == MANY
    assert await flow.steps.fetch(version) == before
    await flow.store.save(flow.url(FAILS))
    await flow.add_events(*EVENTS)
    await flow.run_due()
    first_failure = flow.clock.now()
    before = await flow.steps.fetch(version)
    flow.clock.advance(WEBHOOK.waits[0])
    await flow.run_due()
    assert await flow.steps.fetch(version) == before
    assert await state(flow) == (None, first_failure)


async def test_stopping_on_our_side_is_no_failure_of_the_endpoint(flow: WebhookFlow) -> None:
    slow = PausingClient(flow.caller, sets_out=False)
    flow.notification = flow.another_worker(client=slow)
    await flow.subscribe()
    webhook_id = await flow.add_event()
    sending = asyncio.create_task(flow.run_due())
    await slow.claimed.wait()
    await flow.notification.drain(0.1)
    await sending
    assert (await flow.status_of(webhook_id))[3] == STOPPED
    assert (await state(flow))[1] is None
