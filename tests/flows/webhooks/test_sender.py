"""Notification: who is told what, when, how often, signed with which secret, and what is written down of it."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Final

import pytest
import pytest_asyncio

from posthouse.flows.shared.tickets import Tickets
from posthouse.flows.webhooks.sender import ACCOUNT_CALLS_MAX, ACCOUNT_WAITING_MAX, PUT_OFF_SECONDS_MAX
from posthouse.rules import ids
from posthouse.rules.event import test_body as ping_body
from posthouse.rules.ids import AccountId
from posthouse.rules.webhook_url import check_url
from posthouse.store import webhooks
from posthouse.store.delivery_outcomes import DeliveryResult
from posthouse.store.webhook_schedule import DELETED, DISABLED
from posthouse.wire.stream import TicketKind
from tests.support.hooks import answer
from tests.support.notice import NAME, SECRET, Lingering, Notices, is_signed, noticing
from tests.support.round_trip import SHARDS, on_the_road
from tests.support.rounds import beginning, new_id
from tests.support.service import eventually

MILLISECOND: Final = timedelta(milliseconds=1)
# The contract's own words: immediately, then after these.
WAITS: Final = (
    timedelta(seconds=5),
    timedelta(minutes=5),
    timedelta(minutes=30),
    timedelta(hours=2),
    timedelta(hours=5),
    timedelta(hours=10),
)
OTHER_SECRET: Final = "whsec_another_one"
MISSED: Final = "The endpoint answered 500; a 2xx is wanted."


@pytest_asyncio.fixture
async def notices(database_url: str) -> AsyncIterator[Notices]:
    async with beginning(database_url) as rounds, noticing(rounds) as notices:
        yield notices


def now_seconds(notices: Notices) -> int:
    return int(notices.clock.now().timestamp())


# What is told


async def test_results_of_mail_arrive_signed_as_the_contract_has_it_without_waiting_for_dispatch(
    database_url: str,
) -> None:
    async with on_the_road(database_url) as road, noticing(road.rounds, stream=road.stream) as notices:
        road.serve("example.org")
        postman = replace(road, delivery=road.another_worker(tickets=Tickets(road.stream, SHARDS)))
        await notices.subscribe("/events?a=1")
        message_id = await road.rounds.accept(["ada@example.org", "550-rcpt@example.org"])
        await postman.round()
        await notices.notification.renew()
        assert await notices.carry() == 2
        requests = notices.came("/events?a=1")
        events = [json.loads(request.body) for request in requests]
        for request in requests:
            assert request.line == "POST /events?a=1 HTTP/1.1"
            assert request.headers["content-type"] == "application/json"
            assert request.headers["user-agent"] == "Service-Webhook/1.0"
            assert request.headers["host"] == f"{NAME}:{notices.hooks.port}"
            assert is_signed(request, SECRET, now_seconds(notices))
        assert {one["type"] for one in events} == {"email.delivered", "email.bounced"}
        assert {one["data"]["email_id"] for one in events} == {ids.text(ids.MESSAGE, message_id)}
        assert len({one["id"] for one in events}) == 2
        stored = {bytes(body) for (body,) in await road.rounds.fetch("SELECT body FROM events")}
        assert {request.body for request in requests} == stored
        async with road.rounds.database.connection() as connection:
            log = await webhooks.list_deliveries(connection, notices.account_id, 10, message_id=message_id)
        assert {ids.text(ids.EVENT, one.event_id) for one in log} == {one["id"] for one in events}
        for one in log:
            assert (one.status, one.attempt, one.max_attempts, one.http_status, one.error) == (
                "succeeded", 1, 7, 200, None,
            )  # fmt: skip
            assert (one.response_body, one.response_truncated, one.url) == (b"ok", False, notices.url("/events?a=1"))
            assert (one.last_attempt_at, one.next_attempt_at) == (notices.clock.now(), None)
        assert await notices.calendar() == []
        assert await notices.stream.backlog(TicketKind.NOTIFY) == 0


async def test_without_an_endpoint_nothing_is_to_be_told(notices: Notices) -> None:
    assert await notices.tell(DeliveryResult.DELIVERED, DeliveryResult.BOUNCED) == []
    # Nor later: what happened before there was one is not told.
    await notices.subscribe()
    assert await notices.round() == 0
    assert notices.hooks.connections == 0


async def test_a_disabled_endpoint_hears_nothing_of_what_happens_meanwhile(notices: Notices) -> None:
    await notices.subscribe(enabled=False)
    assert await notices.tell() == []
    await notices.subscribe(enabled=True)
    assert await notices.round() == 0


async def test_only_what_was_asked_for_is_told(notices: Notices) -> None:
    await notices.subscribe(events=["email.bounced", "email.failed"])
    told = await notices.tell(
        DeliveryResult.DELIVERED, DeliveryResult.BOUNCED, DeliveryResult.FAILED, DeliveryResult.DELIVERED
    )
    assert len(told) == 2
    assert await notices.round() == 2
    assert sorted(request.body.split()[0] for request in notices.hooks.requests) == [b"bounced", b"failed"]


async def test_each_account_is_told_of_its_own(notices: Notices) -> None:
    other = await notices.rounds.another_sender("other")
    await notices.subscribe("/a")
    await notices.subscribe("/b", sender=other)
    await notices.tell()
    await notices.tell(DeliveryResult.BOUNCED, sender=other)
    assert await notices.round() == 2
    assert [request.body.split()[0] for request in notices.came("/a")] == [b"delivered"]
    assert [request.body.split()[0] for request in notices.came("/b")] == [b"bounced"]


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_any_2xx_is_success(notices: Notices, status: int) -> None:
    await notices.subscribe(f"/status/{status}")
    told = await notices.tell_one()
    await notices.round()
    assert await notices.told(told) == ("succeeded", 1, status, None)


# When


async def test_seven_attempts_each_in_its_time_counted_from_the_end_of_the_last_and_then_it_has_failed(
    notices: Notices,
) -> None:
    await notices.subscribe("/status/500")
    told = await notices.tell_one()
    for number, wait in enumerate(WAITS, 1):
        assert await notices.round() == 1
        log = await notices.log(told)
        assert (log.status, log.attempt, log.http_status, log.error) == ("pending", number, 500, MISSED)
        assert (log.response_body, log.last_attempt_at) == (b"said", notices.clock.now())
        assert log.next_attempt_at == notices.clock.now() + wait
        notices.clock.advance(wait - MILLISECOND)
        assert await notices.round() == 0, "a millisecond too early"
        assert len(notices.hooks.requests) == number
        notices.clock.advance(MILLISECOND)
    assert await notices.round() == 1
    log = await notices.log(told)
    assert (log.status, log.attempt, log.http_status, log.error) == ("failed", 7, 500, MISSED)
    assert log.next_attempt_at is None
    assert await notices.calendar() == []
    notices.clock.advance(days=1)
    assert await notices.round() == 0
    assert len(notices.hooks.requests) == 7


async def test_every_attempt_sends_the_same_bytes_and_is_signed_anew(notices: Notices) -> None:
    await notices.subscribe("/status/503")
    told = await notices.tell_one()
    times = []
    for wait in (*WAITS, timedelta(0)):
        await notices.round()
        times.append(now_seconds(notices))
        notices.clock.advance(wait)
    requests = notices.hooks.requests
    assert len(requests) == 7
    assert len({request.body for request in requests}) == 1
    assert all(is_signed(request, SECRET, t) for request, t in zip(requests, times, strict=True))
    assert len({request.headers["service-signature"] for request in requests}) == 7
    (body,) = await notices.rounds.fetch("SELECT body FROM events")
    assert requests[0].body == body[0]
    assert (await notices.told(told))[:2] == ("failed", 7)


async def test_the_wait_begins_when_the_answer_came_and_not_when_it_was_asked_for(notices: Notices) -> None:
    slow = Lingering(notices.caller, comes_back=False)
    notices.notification = notices.another_worker(caller=slow)
    await notices.subscribe("/status/500")
    told = await notices.tell_one()
    round_of_it = asyncio.create_task(notices.round())
    await slow.arrived.wait()
    notices.clock.advance(seconds=4)
    slow.goes_on.set()
    await round_of_it
    assert (await notices.log(told)).next_attempt_at == notices.clock.now() + WAITS[0]


async def test_success_ends_it_whenever_it_comes(notices: Notices) -> None:
    await notices.subscribe("/status/500")
    told = await notices.tell_one()
    await notices.round()
    await notices.subscribe("/events")
    notices.clock.advance(WAITS[0])
    await notices.round()
    assert await notices.told(told) == ("succeeded", 2, 200, None)
    notices.clock.advance(days=1)
    assert await notices.round() == 0


async def test_a_ping_is_sent_once_whatever_comes_of_it(notices: Notices) -> None:
    await notices.subscribe("/status/500")
    now = notices.clock.now()
    event_id, delivery_id = new_id(now), new_id(now)
    body = ping_body(event_id=event_id, created_at=now)
    async with notices.rounds.database.transaction() as tx:
        assert await webhooks.enter_ping(tx, notices.account_id, event_id, delivery_id, body, now, now)
    assert await notices.round() == 1
    assert await notices.told(delivery_id) == ("failed", 1, 500, MISSED)
    (request,) = notices.hooks.requests
    assert request.body == body
    assert json.loads(body)["data"]["test"] is True
    assert is_signed(request, SECRET, now_seconds(notices))
    notices.clock.advance(days=1)
    assert await notices.round() == 0


async def test_a_replay_sends_the_same_event_again_with_all_its_attempts_and_leaves_the_first_alone(
    notices: Notices,
) -> None:
    await notices.subscribe("/events")
    told = await notices.tell_one()
    await notices.round()
    before = await notices.log(told)
    await notices.subscribe("/status/500")
    notices.clock.advance(hours=1)
    now = notices.clock.now()
    replay_id = new_id(now)
    async with notices.rounds.database.transaction() as tx:
        assert await webhooks.enter_replay(tx, before, replay_id, 7, now, now)
    for number, wait in enumerate((*WAITS, timedelta(0)), 1):
        assert await notices.round() == 1
        assert (await notices.told(replay_id))[:3] == ("failed" if number == 7 else "pending", number, 500)
        assert is_signed(notices.hooks.requests[-1], SECRET, now_seconds(notices))
        notices.clock.advance(wait)
    assert len(notices.hooks.requests) == 8
    assert len({request.body for request in notices.hooks.requests}) == 1
    assert (await notices.log(replay_id)).event_id == before.event_id
    assert await notices.log(told) == before


# What the customer changes meanwhile


async def test_a_new_url_is_called_for_what_is_pending(notices: Notices) -> None:
    await notices.subscribe("/status/500")
    told = await notices.tell_one()
    await notices.round()
    await notices.subscribe("/moved")
    notices.clock.advance(WAITS[0])
    await notices.round()
    assert [request.line.split(" ")[1] for request in notices.hooks.requests] == ["/status/500", "/moved"]
    log = await notices.log(told)
    assert (log.status, log.url) == ("succeeded", notices.url("/moved"))


async def test_a_new_secret_signs_what_is_pending(notices: Notices) -> None:
    await notices.subscribe("/status/500")
    await notices.tell()
    await notices.round()
    async with notices.rounds.database.transaction() as tx:
        await webhooks.rotate_secret(tx, notices.account_id, notices.sealed(OTHER_SECRET), notices.clock.now())
    notices.clock.advance(WAITS[0])
    await notices.round()
    first, second = notices.hooks.requests
    assert is_signed(second, OTHER_SECRET, now_seconds(notices))
    assert not is_signed(second, SECRET, now_seconds(notices))
    assert first.body == second.body


@pytest.mark.parametrize("is_deleted", [False, True], ids=["disabled", "deleted"])
async def test_what_is_pending_is_cancelled_when_its_endpoint_is_found_gone(notices: Notices, is_deleted: bool) -> None:
    await notices.subscribe("/status/500")
    tried = await notices.tell_one()
    await notices.round()
    untried = await notices.tell_one()
    async with notices.rounds.database.transaction() as tx:
        change = webhooks.delete if is_deleted else webhooks.disable
        assert await change(tx, notices.account_id, notices.clock.now())
    notices.clock.advance(WAITS[0])
    assert await notices.round() == 2
    why = DELETED if is_deleted else DISABLED
    # Of an attempt that was made, what it brought is still told.
    assert await notices.told(tried) == ("failed", 1, 500, why)
    assert await notices.told(untried) == ("failed", 0, None, why)
    assert len(notices.hooks.requests) == 1
    assert await notices.calendar() == []


async def test_what_is_under_way_when_its_endpoint_is_disabled_is_recorded_and_not_sent_again(
    notices: Notices,
) -> None:
    slow = Lingering(notices.caller, comes_back=False)
    notices.notification = notices.another_worker(caller=slow)
    await notices.subscribe("/status/500")
    told = await notices.tell_one()
    round_of_it = asyncio.create_task(notices.round())
    await slow.arrived.wait()
    async with notices.rounds.database.transaction() as tx:
        assert await webhooks.disable(tx, notices.account_id, notices.clock.now())
        assert await webhooks.cancel_pending(tx, notices.account_id) == 0
    slow.goes_on.set()
    await round_of_it
    assert await notices.told(told) == ("pending", 1, 500, MISSED)
    notices.clock.advance(WAITS[0])
    await notices.round()
    assert await notices.told(told) == ("failed", 1, 500, DISABLED)
    assert len(notices.hooks.requests) == 1


async def test_what_is_under_way_when_its_endpoint_and_log_are_deleted_leaves_no_trace(notices: Notices) -> None:
    slow = Lingering(notices.caller, comes_back=False)
    notices.notification = notices.another_worker(caller=slow)
    await notices.subscribe()
    await notices.tell()
    round_of_it = asyncio.create_task(notices.round())
    await slow.arrived.wait()
    async with notices.rounds.database.transaction() as tx:
        await webhooks.disable(tx, notices.account_id, notices.clock.now())
        assert await webhooks.forget(tx, notices.account_id) == 1
        await webhooks.delete(tx, notices.account_id, notices.clock.now())
    slow.goes_on.set()
    await round_of_it
    assert await notices.rounds.fetch("SELECT 1 FROM webhook_deliveries") == []
    notices.clock.advance(days=1)
    assert await notices.round() == 0


async def test_a_url_that_is_no_longer_allowed_is_not_called_and_says_why(notices: Notices) -> None:
    strict = notices.another_worker(target_of=lambda url: check_url(url, own_domains=[NAME], ports=notices.ports))
    notices.notification = strict
    await notices.subscribe()
    told = await notices.tell_one()
    await notices.round()
    status, attempt, http_status, error = await notices.told(told)
    assert (status, attempt, http_status) == ("pending", 1, None)
    assert error is not None
    assert "this service itself" in error
    assert (await notices.log(told)).next_attempt_at == notices.clock.now() + WAITS[0]
    assert (notices.hooks.connections, notices.names.asked) == (0, [])


# Side by side


async def test_an_endpoint_that_hangs_delays_no_other_account(notices: Notices) -> None:
    other = await notices.rounds.another_sender("other")
    await notices.subscribe("/hang")
    await notices.subscribe("/quick", sender=other)
    await notices.tell(*[DeliveryResult.DELIVERED] * 25)
    quick = await notices.tell(*[DeliveryResult.DELIVERED] * 5, sender=other)
    hanging = asyncio.create_task(notices.round())

    async def seen() -> int:
        return len(notices.came("/quick"))

    await eventually(seen, lambda number: number == 5, within=2)
    assert not hanging.done()
    assert len(notices.came("/hang")) == ACCOUNT_CALLS_MAX, "so many at a time, and no more"
    await hanging
    assert len(notices.came("/hang")) == 25
    account_id = AccountId(other.account_id)
    assert [(await notices.told(one, account_id))[0] for one in quick] == ["succeeded"] * 5


async def test_what_finds_no_place_is_put_off_without_an_attempt_and_arrives_later(notices: Notices) -> None:
    other = await notices.rounds.another_sender("other")
    await notices.subscribe("/events")
    await notices.subscribe("/quick", sender=other)
    number, places = 570, ACCOUNT_CALLS_MAX + ACCOUNT_WAITING_MAX
    for recipients in [50] * (number // 50) + [number % 50]:
        await notices.tell(*[DeliveryResult.DELIVERED] * recipients)
    slow = Lingering(notices.caller, sets_out=False)
    notices.notification = notices.another_worker(caller=slow)
    await notices.notification.renew()
    await notices.hand_out()
    assert await notices.offer() == number

    async def put_off() -> list[tuple[int, int, float]]:
        return [row for row in await notices.calendar() if row[:2] == (0, 1)]

    late = await eventually(put_off, lambda rows: len(rows) == number - places)
    assert all(1 <= seconds <= PUT_OFF_SECONDS_MAX for _, _, seconds in late)
    assert len({seconds for _, _, seconds in late}) > len(late) / 2, "they don't come back all at once"
    assert len(slow.begun) == ACCOUNT_CALLS_MAX
    # Meanwhile another one's turn comes at once.
    await notices.tell(sender=other)
    await notices.hand_out()
    assert await notices.offer() == 1

    async def begun() -> list[str]:
        return slow.begun

    await eventually(begun, lambda paths: "/quick" in paths, within=2)
    slow.goes_on.set()
    await notices.notification.settle()
    assert len(notices.came("/events")) == places
    notices.clock.advance(seconds=late[-1][2])
    assert await notices.round() == number - places
    assert len(notices.came("/events")) == number
    assert len(notices.came("/quick")) == 1
    statuses = Counter(await notices.rounds.fetch("SELECT status, attempt FROM webhook_deliveries"))
    assert statuses == {("succeeded", 1): number + 1}


async def test_when_all_calls_are_taken_accounts_take_turns(notices: Notices) -> None:
    """Those who came first, and have plenty, must not hand the places on to themselves."""
    other = await notices.rounds.another_sender("other")
    await notices.subscribe("/hang")
    await notices.subscribe("/quick", sender=other)
    notices.notification = notices.another_worker(calls_max=3)
    await notices.notification.renew()
    await notices.tell(*[DeliveryResult.DELIVERED] * 12)
    await notices.hand_out()
    await notices.offer()

    async def seen() -> int:
        return len(notices.came("/hang"))

    await eventually(seen, lambda number: number == 3)
    await notices.tell(*[DeliveryResult.DELIVERED] * 2, sender=other)
    await notices.hand_out()
    await notices.offer()
    await notices.notification.settle()
    paths = [request.line.split(" ")[1] for request in notices.hooks.requests]
    assert Counter(paths) == {"/hang": 12, "/quick": 2}
    assert paths.index("/quick") <= 6
    assert max(place for place, path in enumerate(paths) if path == "/quick") <= 9


async def test_a_full_house_has_a_place_for_whoever_has_none(notices: Notices) -> None:
    other = await notices.rounds.another_sender("other")
    await notices.subscribe("/a")
    await notices.subscribe("/b", sender=other)
    slow = Lingering(notices.caller, sets_out=False)
    notices.notification = notices.another_worker(caller=slow, waiting_max=5)
    await notices.notification.renew()
    await notices.tell(*[DeliveryResult.DELIVERED] * 20)
    await notices.hand_out()
    await notices.offer()
    await notices.tell(*[DeliveryResult.DELIVERED] * 2, sender=other)
    await notices.hand_out()
    await notices.offer()

    async def begun() -> Counter[str]:
        return Counter(slow.begun)

    await eventually(begun, lambda paths: paths == {"/a": ACCOUNT_CALLS_MAX, "/b": 2}, within=2)
    slow.goes_on.set()
    await notices.notification.settle()
    assert len(notices.came("/a")) == ACCOUNT_CALLS_MAX + 5
    notices.clock.advance(seconds=60)
    await notices.round()
    assert len(notices.came("/a")) == 20


async def test_accounts_that_are_done_with_leave_nothing_behind(notices: Notices) -> None:
    await notices.subscribe()
    for _ in range(3):
        await notices.tell(*[DeliveryResult.DELIVERED] * 30)
        assert await notices.round() == 30
    assert notices.notification.room == 20_000
    assert await notices.stream.backlog(TicketKind.NOTIFY) == 0


# Answers


async def test_of_a_failure_with_a_long_answer_two_kilobytes_are_kept(database_url: str) -> None:
    said = {"/wordy": answer(b"w" * 9_000, status="500 Said")}
    async with beginning(database_url) as rounds, noticing(rounds, said=said) as notices:
        await notices.subscribe("/wordy")
        told = await notices.tell_one()
        await notices.round()
        log = await notices.log(told)
    assert (log.status, log.http_status, log.error) == ("pending", 500, MISSED)
    assert (log.response_body, log.response_truncated) == (b"w" * 2048, True)


async def test_an_answer_replaces_what_the_attempt_before_it_left(notices: Notices) -> None:
    await notices.subscribe("/status/500")
    told = await notices.tell_one()
    await notices.round()
    await notices.subscribe("/reset")
    notices.clock.advance(WAITS[0])
    await notices.round()
    log = await notices.log(told)
    assert (log.status, log.attempt, log.http_status, log.response_body) == ("pending", 2, None, None)
    assert log.error is not None
    assert "waiting for the answer" in log.error
