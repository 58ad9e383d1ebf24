"""Webhooks: which events are sent, when, how often, signed with which secret, and what is recorded."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

import pytest
import pytest_asyncio

from posthouse.flows.shared.tickets import Tickets
from posthouse.flows.webhooks.endpoints import Endpoints, EndpointWish
from posthouse.flows.webhooks.sender import ACCOUNT_CALLS_MAX, ACCOUNT_WAITING_MAX, POSTPONE_SECONDS_MAX, SLOW_SECONDS
from posthouse.rules import ids
from posthouse.rules.credential import OPERATOR
from posthouse.rules.endpoint import PREVIOUS_VALID, SIGNATURE_HEADER, SWITCHED_OFF, new_secret
from posthouse.rules.event import test_body as ping_body
from posthouse.rules.ids import AccountId
from posthouse.rules.limits import ENDPOINTS_MAX
from posthouse.rules.webhook_url import WebhookTarget, check_url
from posthouse.store.delivery_outcomes import DeliveryResult
from posthouse.wire.stream import TicketKind
from posthouse.wire.webhook_client import WebhookCallResult, WebhookClient
from tests.support.accept_flow import Sender, new_id
from tests.support.context import context
from tests.support.delivery_flow import SHARDS, open_delivery_flow
from tests.support.delivery_steps import open_delivery_steps
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.webhook_flow import NAME, SECRET, PausingClient, WebhookFlow, is_signed, open_webhook_flow
from tests.support.webhook_receiver import http_answer
from tests.support.webhook_steps import enter_ping

MILLISECOND: Final = timedelta(milliseconds=1)
# The contract: immediately, then after these waits.
WAITS: Final = (
    timedelta(seconds=5),
    timedelta(minutes=5),
    timedelta(minutes=30),
    timedelta(hours=2),
    timedelta(hours=5),
    timedelta(hours=10),
)
MISSED: Final = "The endpoint answered 500 instead of a 2xx."


@dataclass(slots=True)
class GatedClient:
    """A client whose calls of `/slow` begin, and come back one by one, when the test releases them."""

    caller: WebhookClient
    released: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    begun: list[str] = field(default_factory=list)

    async def call(self, target: WebhookTarget, body: bytes, headers: Mapping[str, str]) -> WebhookCallResult:
        self.begun.append(target.path_and_query)
        if target.path_and_query == "/slow":
            await self.released.acquire()
        return await self.caller.call(target, body, headers)

    def release(self, calls: int) -> None:
        for _ in range(calls):
            self.released.release()


@pytest_asyncio.fixture
async def flow(database_url: str) -> AsyncIterator[WebhookFlow]:
    async with open_delivery_steps(database_url) as steps, open_webhook_flow(steps) as flow:
        yield flow


def now_seconds(flow: WebhookFlow) -> int:
    return int(flow.clock.now().timestamp())


def endpoints_of(flow: WebhookFlow) -> Endpoints:
    given = context(flow.steps.database, flow.clock, sealer=flow.sealer)
    return Endpoints(given, tickets=None, check=lambda url: check_url(url, ports=flow.ports))


async def offer_events(flow: WebhookFlow, count: int, sender: Sender | None = None) -> None:
    """Gives the sender this many events of one message, without waiting for the calls."""
    await flow.add_events(*[DeliveryResult.DELIVERED] * count, sender=sender)
    await flow.dispatch_due()
    await flow.offer()


# Events


@pytest.mark.rule("HOOK-16")
async def test_mail_results_arrive_signed_without_waiting_for_dispatch(database_url: str) -> None:
    async with (
        open_delivery_flow(database_url) as deliver,
        open_webhook_flow(deliver.steps, stream=deliver.stream) as flow,
    ):
        deliver.serve("example.org")
        publishing = replace(deliver, delivery=deliver.another_worker(tickets=Tickets(deliver.stream, SHARDS)))
        await flow.subscribe("/events?a=1")
        message_id = await deliver.steps.accept(["ada@example.org", "550-rcpt@example.org"])
        await publishing.run_due()
        await flow.notification.renew()
        assert await flow.send_fetched() == 2
        requests = flow.requests_to("/events?a=1")
        events = [json.loads(request.body) for request in requests]
        for request in requests:
            assert request.line == "POST /events?a=1 HTTP/1.1"
            assert request.headers["content-type"] == "application/json"
            assert request.headers["user-agent"] == "Service-Webhook/1.0"
            assert request.headers["host"] == f"{NAME}:{flow.webhook_receiver.port}"
            assert is_signed(request, SECRET, now_seconds(flow))
        assert {event["type"] for event in events} == {"email.delivered", "email.bounced"}
        assert {event["data"]["email_id"] for event in events} == {ids.text(ids.MESSAGE, message_id)}
        assert len({event["id"] for event in events}) == 2
        stored = {bytes(body) for (body,) in await flow.steps.fetch("SELECT body FROM events")}
        assert {request.body for request in requests} == stored
        log = await flow.store.log(10, message_id=message_id)
        assert {ids.text(ids.EVENT, delivery.event_id) for delivery in log} == {event["id"] for event in events}
        for delivery in log:
            assert (delivery.status, delivery.attempt, delivery.max_attempts, delivery.http_status, delivery.error) == (
                "succeeded", 1, 7, 200, None,
            )  # fmt: skip
            assert (delivery.response_body, delivery.response_truncated) == (b"ok", False)
            assert delivery.url == flow.url("/events?a=1")
            assert (delivery.last_attempt_at, delivery.next_attempt_at) == (flow.clock.now(), None)
        assert await flow.schedule() == []
        assert await flow.stream.backlog(TicketKind.NOTIFY) == 0


@pytest.mark.parametrize("status", [204, 299])
async def test_any_2xx_is_success(flow: WebhookFlow, status: int) -> None:
    await flow.subscribe(f"/status/{status}")
    webhook_id = await flow.add_event()
    await flow.run_due()
    assert await flow.status_of(webhook_id) == ("succeeded", 1, status, None)


# When


@pytest.mark.rule("HOOK-17")
async def test_seven_attempts_on_schedule_of_the_same_bytes_with_a_new_signature_and_then_it_has_failed(
    flow: WebhookFlow,
) -> None:
    await flow.subscribe("/status/500")
    webhook_id = await flow.add_event()
    requests = flow.webhook_receiver.requests
    for number, wait in enumerate(WAITS, 1):
        assert await flow.run_due() == 1
        log = await flow.log(webhook_id)
        assert (log.status, log.attempt, log.http_status, log.error) == ("pending", number, 500, MISSED)
        assert (log.response_body, log.last_attempt_at) == (b"said", flow.clock.now())
        assert log.next_attempt_at == flow.clock.now() + wait
        assert is_signed(requests[-1], SECRET, now_seconds(flow))
        flow.clock.advance(wait - MILLISECOND)
        assert await flow.run_due() == 0, "a millisecond too early"
        assert len(requests) == number
        flow.clock.advance(MILLISECOND)
    assert await flow.run_due() == 1
    log = await flow.log(webhook_id)
    assert (log.status, log.attempt, log.http_status, log.error) == ("failed", 7, 500, MISSED)
    assert log.next_attempt_at is None
    assert await flow.schedule() == []
    flow.clock.advance(days=1)
    assert await flow.run_due() == 0
    assert len(requests) == len({request.headers["service-signature"] for request in requests}) == 7
    assert {request.body for request in requests} == {
        body for (body,) in await flow.steps.fetch("SELECT body FROM events")
    }


@pytest.mark.rule("END-08")
async def test_each_earlier_secret_of_an_endpoint_signs_for_its_own_day(flow: WebhookFlow) -> None:
    own = endpoints_of(flow)
    made, _ = await own.create(flow.account_id, EndpointWish(flow.url("/signed")), OPERATOR)
    signatures = []
    for rotates in (True, True, False, False):
        if rotates:
            await own.rotate_secret(flow.account_id, OPERATOR, ids.text(ids.ENDPOINT, made.id))
        await flow.add_event()
        await flow.run_due()
        signatures.append(len(flow.requests_to("/signed")[-1].headers[SIGNATURE_HEADER].split()))
        flow.clock.advance(PREVIOUS_VALID / 2, seconds=1)
    assert signatures == [2, 3, 2, 1]


async def test_what_waits_for_an_endpoint_ends_when_the_operator_switches_endpoints_off(flow: WebhookFlow) -> None:
    await endpoints_of(flow).create(flow.account_id, EndpointWish(flow.url("/own")), OPERATOR)
    webhook_id = await flow.add_event()
    flow.notification = flow.another_worker(with_endpoints=False)
    await flow.run_due()
    assert await flow.status_of(webhook_id) == ("failed", 1, None, SWITCHED_OFF)
    assert flow.requests_to("/own") == []


async def test_the_wait_begins_when_the_answer_came_not_at_the_request(flow: WebhookFlow) -> None:
    slow = PausingClient(flow.caller, comes_back=False)
    flow.notification = flow.another_worker(client=slow)
    await flow.subscribe("/status/500")
    webhook_id = await flow.add_event()
    sending = asyncio.create_task(flow.run_due())
    await slow.arrived.wait()
    flow.clock.advance(seconds=4)
    slow.resume.set()
    await sending
    assert (await flow.log(webhook_id)).next_attempt_at == flow.clock.now() + WAITS[0]


async def test_a_ping_is_sent_once_whatever_the_answer(flow: WebhookFlow) -> None:
    await flow.subscribe("/status/500")
    now = flow.clock.now()
    event_id, delivery_id = new_id(now), new_id(now)
    body = ping_body(event_id=event_id, created_at=now)
    async with flow.steps.database.transaction() as tx:
        assert await enter_ping(tx, flow.account_id, event_id, delivery_id, body, now, now)
    assert await flow.run_due() == 1
    assert await flow.status_of(delivery_id) == ("failed", 1, 500, MISSED)
    (request,) = flow.webhook_receiver.requests
    assert request.body == body
    assert json.loads(body)["data"]["test"] is True
    assert is_signed(request, SECRET, now_seconds(flow))
    flow.clock.advance(days=1)
    assert await flow.run_due() == 0


async def test_a_url_that_is_no_longer_allowed_is_not_called(flow: WebhookFlow) -> None:
    strict = flow.another_worker(target_of=lambda url: check_url(url, own_domains=[NAME], ports=flow.ports))
    flow.notification = strict
    await flow.subscribe()
    webhook_id = await flow.add_event()
    await flow.run_due()
    status, attempt, http_status, error = await flow.status_of(webhook_id)
    assert (status, attempt, http_status) == ("pending", 1, None)
    assert error is not None
    assert "this service itself" in error
    assert (await flow.log(webhook_id)).next_attempt_at == flow.clock.now() + WAITS[0]
    assert (flow.webhook_receiver.connections, flow.nameserver.asked) == (0, [])


# Side by side


async def test_an_endpoint_that_hangs_delays_no_other_account(flow: WebhookFlow) -> None:
    other = await flow.steps.another_sender("other")
    slow = GatedClient(flow.caller)
    flow.notification = flow.another_worker(client=slow)
    await flow.subscribe("/slow")
    await flow.subscribe("/quick", sender=other)
    await flow.add_events(*[DeliveryResult.DELIVERED] * 25)
    quick = await flow.add_events(*[DeliveryResult.DELIVERED] * 5, sender=other)
    hanging = asyncio.create_task(flow.run_due())
    await eventually(lambda: len(flow.requests_to("/quick")) == 5)
    assert not hanging.done()
    assert slow.begun.count("/slow") == ACCOUNT_CALLS_MAX, "this many at a time, and no more"
    slow.release(25)
    await hanging
    assert len(flow.requests_to("/slow")) == 25
    account_id = AccountId(other.account_id)
    assert [(await flow.status_of(webhook_id, account_id))[0] for webhook_id in quick] == ["succeeded"] * 5


async def test_one_of_twenty_endpoints_never_answers_and_the_others_get_everything_meanwhile(database_url: str) -> None:
    """Ten endpoints of each of two accounts: also the other nine of the account whose endpoint doesn't answer."""
    async with open_delivery_steps(database_url) as steps, open_webhook_flow(steps, seconds_max=HANG_SECONDS) as flow:
        senders = [steps.sender, await steps.another_sender("other")]
        for number, sender in enumerate(senders):
            account_id = AccountId(sender.account_id)
            for place in range(ENDPOINTS_MAX):
                path = "/held" if (number, place) == (0, 0) else f"/swift/{number}/{place}"
                endpoint_id = new_id(flow.clock.now())
                secret = flow.sealed(new_secret(bytes(32)), account_id, endpoint_id)
                await flow.store.save(flow.url(path), account_id=account_id, endpoint_id=endpoint_id, secret=secret)
        # They have answered before: all of them get their full share.
        await steps.fetch("UPDATE endpoints SET answered_at = $1", flow.clock.now())
        events = 15
        for sender in senders:
            await flow.add_events(*[DeliveryResult.DELIVERED] * events, sender=sender)
        sending = asyncio.create_task(flow.run_due())
        finished = "SELECT count(*) FROM webhook_deliveries WHERE status = 'succeeded'"
        swift = events * (2 * ENDPOINTS_MAX - 1)
        await eventually(lambda: steps.value(finished), lambda number: number == swift)
        assert not flow.webhook_receiver.released.is_set()
        assert not sending.done()
        flow.webhook_receiver.released.set()
        await sending
        assert await steps.value(finished) == swift + events
        assert len(flow.requests_to("/held")) == events


async def test_a_ticket_without_capacity_is_postponed_and_arrives_later(flow: WebhookFlow) -> None:
    other = await flow.steps.another_sender("other")
    await flow.subscribe("/events")
    await flow.subscribe("/quick", sender=other)
    number, places = 570, ACCOUNT_CALLS_MAX + ACCOUNT_WAITING_MAX
    for recipients in [50] * (number // 50) + [number % 50]:
        await flow.add_events(*[DeliveryResult.DELIVERED] * recipients)
    slow = PausingClient(flow.caller, sets_out=False)
    flow.notification = flow.another_worker(client=slow)
    await flow.notification.renew()
    await flow.dispatch_due()
    assert await flow.offer() == number

    async def postponed() -> list[tuple[int, int, float]]:
        return [row for row in await flow.schedule() if row[:2] == (0, 1)]

    late = await eventually(postponed, lambda rows: len(rows) == number - places)
    assert all(1 <= seconds <= POSTPONE_SECONDS_MAX for _, _, seconds in late)
    assert len({seconds for _, _, seconds in late}) > len(late) / 2, "they don't come back all at once"

    await eventually(lambda: len(slow.begun) == ACCOUNT_CALLS_MAX)
    # Meanwhile another account's turn comes at once.
    await offer_events(flow, 1, other)
    await eventually(lambda: "/quick" in slow.begun)
    slow.resume.set()
    await flow.notification.settle()
    assert len(flow.requests_to("/events")) == places
    flow.clock.advance(seconds=late[-1][2])
    assert await flow.run_due() == number - places
    assert len(flow.requests_to("/events")) == number
    assert len(flow.requests_to("/quick")) == 1
    statuses = Counter(await flow.steps.fetch("SELECT status, attempt FROM webhook_deliveries"))
    assert statuses == {("succeeded", 1): number + 1}


async def test_when_all_calls_are_taken_accounts_take_turns(flow: WebhookFlow) -> None:
    """The first accounts, with many events, must not take all the turns."""
    other = await flow.steps.another_sender("other")
    slow = GatedClient(flow.caller)
    await flow.subscribe("/slow")
    await flow.subscribe("/quick", sender=other)
    flow.notification = flow.another_worker(calls_max=3, client=slow)
    await flow.notification.renew()
    await offer_events(flow, 12)
    await eventually(lambda: slow.begun == ["/slow"] * 3)
    await offer_events(flow, 2, other)
    slow.release(12)
    await flow.notification.settle()
    assert Counter(slow.begun) == {"/slow": 12, "/quick": 2}
    assert slow.begun.index("/quick") <= 6
    assert max(place for place, path in enumerate(slow.begun) if path == "/quick") <= 9


async def test_each_good_answer_gets_an_endpoint_one_more_call_until_answers_are_slow(flow: WebhookFlow) -> None:
    held = GatedClient(flow.caller)
    flow.notification = flow.another_worker(client=held)
    await flow.subscribe("/slow")
    await flow.notification.renew()
    await offer_events(flow, 50)
    await eventually(lambda: len(held.begun) == ACCOUNT_CALLS_MAX)
    held.release(10)
    await eventually(lambda: len(held.begun) == 10 + 20)
    flow.clock.advance(seconds=10 * SLOW_SECONDS + 1)
    held.release(20)
    await eventually(lambda: len(held.begun) == 30 + ACCOUNT_CALLS_MAX)
    held.release(20)
    await flow.notification.settle()
    assert len(flow.requests_to("/slow")) == 50


async def test_a_new_endpoint_has_its_share_next_to_one_with_many_calls(flow: WebhookFlow) -> None:
    held = GatedClient(flow.caller)
    flow.notification = flow.another_worker(client=held)
    await flow.subscribe("/slow")
    await flow.notification.renew()
    await offer_events(flow, 50)
    await eventually(lambda: len(held.begun) == ACCOUNT_CALLS_MAX)
    held.release(10)
    await eventually(lambda: len(held.begun) == 10 + 20)
    await endpoints_of(flow).create(flow.account_id, EndpointWish(flow.url("/own")), OPERATOR)
    await offer_events(flow, 1)
    held.release(5)
    await eventually(lambda: "/own" in held.begun)
    held.release(36)
    await flow.notification.settle()


async def test_a_busy_process_keeps_calls_for_other_accounts(flow: WebhookFlow) -> None:
    held = GatedClient(flow.caller)
    flow.notification = flow.another_worker(calls_max=30, client=held)
    await flow.subscribe("/slow")
    await flow.notification.renew()
    await offer_events(flow, 50)
    await eventually(lambda: len(held.begun) == ACCOUNT_CALLS_MAX)
    held.release(10)
    await eventually(lambda: len(held.begun) == 10 + 30 // 2)
    held.release(40)
    await flow.notification.settle()
    assert len(flow.requests_to("/slow")) == 50


async def test_a_full_process_has_capacity_for_an_account_with_nothing_waiting(flow: WebhookFlow) -> None:
    other = await flow.steps.another_sender("other")
    await flow.subscribe("/a")
    await flow.subscribe("/b", sender=other)
    slow = PausingClient(flow.caller, sets_out=False)
    flow.notification = flow.another_worker(client=slow, waiting_max=5)
    await flow.notification.renew()
    await offer_events(flow, 20)
    await offer_events(flow, 2, other)

    await eventually(lambda: Counter(slow.begun) == {"/a": ACCOUNT_CALLS_MAX, "/b": 2})
    slow.resume.set()
    await flow.notification.settle()
    assert len(flow.requests_to("/a")) == ACCOUNT_CALLS_MAX + 5
    flow.clock.advance(seconds=60)
    await flow.run_due()
    assert len(flow.requests_to("/a")) == 20


async def test_idle_accounts_take_no_memory(flow: WebhookFlow) -> None:
    await flow.subscribe()
    for _ in range(3):
        await flow.add_events(*[DeliveryResult.DELIVERED] * 30)
        assert await flow.run_due() == 30
    assert flow.notification.capacity == 20_000
    assert await flow.stream.backlog(TicketKind.NOTIFY) == 0


# Answers


async def test_two_kilobytes_of_a_long_failure_answer_are_stored(database_url: str) -> None:
    said = {"/wordy": http_answer(b"w" * 9_000, status="500 Said")}
    async with open_delivery_steps(database_url) as steps, open_webhook_flow(steps, said=said) as flow:
        await flow.subscribe("/wordy")
        webhook_id = await flow.add_event()
        await flow.run_due()
        log = await flow.log(webhook_id)
    assert (log.status, log.http_status, log.error) == ("pending", 500, MISSED)
    assert (log.response_body, log.response_truncated) == (b"w" * 2048, True)
    assert log.duration_ms is not None
