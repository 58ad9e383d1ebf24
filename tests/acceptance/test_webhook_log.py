"""The log of webhook deliveries over HTTP: filtered, with every attempt, sent again as a whole, summed up."""

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio

from posthouse.rules import ids
from posthouse.rules.event import EventType
from posthouse.rules.ids import AccountId
from posthouse.rules.ticket import WebhookTicket
from posthouse.store import webhook_log, webhook_schedule
from posthouse.store.webhook_schedule import WebhookOutcome, WebhookResult
from tests.acceptance.account_webhook import AGO, add_event, ended, log_of, saved
from tests.support.accept_flow import new_id
from tests.support.service import Service, Tenant

HOUR = timedelta(hours=1)


@pytest_asyncio.fixture(loop_scope="session")
async def with_webhook(tenant: Tenant) -> Tenant:
    await saved(tenant)
    return tenant


def spelled(at: datetime) -> str:
    return quote(at.isoformat())


async def failed(tenant: Tenant, at: datetime | None = None) -> str:
    """The id of a delivery that has failed."""
    _, delivery_id = await add_event(tenant, at=at)
    await ended(tenant, delivery_id, result=WebhookResult.FAILED, http_status=503, error="it answered 503")
    return delivery_id


async def replay_all(tenant: Tenant, since: datetime) -> dict[str, Any]:
    answer = await tenant.call("POST", "/v1/webhook/replay", {"since": since.isoformat()})
    assert answer.status == 202, answer.raw
    return answer.body


async def pending_of(tenant: Tenant) -> object:
    return await tenant.service.value("SELECT count(*) FROM webhook_schedule WHERE account_id = $1", tenant.id)


@pytest.mark.rule("HOOK-20")
async def test_the_log_is_filtered_by_status_type_and_time(with_webhook: Tenant) -> None:
    start = datetime.now(UTC) - AGO
    _, waiting = await add_event(with_webhook, at=start)
    _, bounced = await add_event(with_webhook, type_=EventType.BOUNCED, at=start + timedelta(seconds=1))
    lost = await failed(with_webhook, start + timedelta(seconds=2))
    _, taken = await add_event(with_webhook, at=start + timedelta(seconds=3))
    await ended(with_webhook, taken, result=WebhookResult.SUCCEEDED, http_status=204)
    second = spelled(start + timedelta(seconds=1))
    third = spelled(start + timedelta(seconds=2))
    for query, wanted in {
        "status=pending": [bounced, waiting],
        "status=succeeded": [taken],
        "status=failed": [lost],
        "type=email.bounced": [bounced],
        "type=email.delivered&status=pending": [waiting],
        f"since={second}": [taken, lost, bounced],
        f"until={second}": [waiting],
        f"since={second}&until={third}": [bounced],
        f"since={third}&until={second}": [],
        "since=0001-01-01T00:00:00Z&until=9999-12-31T23:59:59Z&limit=1": [taken],
    }.items():
        assert [delivery["id"] for delivery in await log_of(with_webhook, f"?{query}")] == wanted, query
    message_id = (await log_of(with_webhook, "?status=failed"))[0]["message_id"]
    of_it = f"?message_id={message_id}"
    assert len(await log_of(with_webhook, f"{of_it}&status=failed")) == 1
    assert await log_of(with_webhook, f"{of_it}&status=pending") == []
    for query in ("status=lost", "status=", "type=email.opened", "since=yesterday", "since=2026-11-15", "until=%00"):
        answer = await with_webhook.call("GET", f"/v1/webhook/deliveries?{query}")
        assert answer.is_refusal(400, "invalid_request", query.split("=")[0]), query


@pytest.mark.rule("HOOK-20")
async def test_pages_of_a_filtered_log_lead_to_its_end(with_webhook: Tenant) -> None:
    wanted = [await failed(with_webhook) if number % 3 == 0 else await add_event(with_webhook) for number in range(7)]
    found: list[str] = []
    cursor = ""
    while cursor is not None:
        answer = await with_webhook.call(
            "GET", f"/v1/webhook/deliveries?status=failed&limit=1{cursor and '&cursor='}{cursor}"
        )
        found += [delivery["id"] for delivery in answer.body["deliveries"]]
        cursor = answer.body["next_cursor"]
    assert sorted(found) == sorted(delivery for delivery in wanted if isinstance(delivery, str))


@pytest.mark.rule("HOOK-21")
async def test_every_attempt_of_a_delivery_is_shown(with_webhook: Tenant) -> None:
    _, delivery_id = await add_event(with_webhook)
    value = ids.parse(ids.WEBHOOK_DELIVERY, delivery_id)
    assert value is not None
    at = datetime.now(UTC)
    answered = b"\xff\x00 busy " + b"x" * 600
    results: list[dict[str, Any]] = [
        {"result": WebhookResult.DEFERRED, "error": "No answer within 5 s.", "duration_ms": 5_000},
        {"result": WebhookResult.POSTPONED},
        {"result": WebhookResult.DEFERRED, "http_status": 500, "error": "It answered 500.", "response_body": answered},
        {"result": WebhookResult.SUCCEEDED, "http_status": 200, "duration_ms": 7, "response_body": b"ok"},
    ]
    times = [at + timedelta(seconds=number) for number in range(len(results))]
    fence = 0
    for now, result in zip(times, results, strict=True):
        next_at = None if result["result"] is WebhookResult.SUCCEEDED else now
        async with with_webhook.service.pool.acquire() as connection, connection.transaction():
            ticket = WebhookTicket(AccountId(with_webhook.id), value, fence, with_webhook.id)
            (claimed,) = await webhook_schedule.claim(connection, new_id(now), [ticket], now, now + AGO)
            url = None if result["result"] is WebhookResult.POSTPONED else claimed.url
            outcome = WebhookOutcome(*claimed.key, url=url, next_at=next_at, **result)
            await webhook_schedule.record(connection, [outcome], now)
        fence = claimed.fence + 1
    answer = await with_webhook.call("GET", f"/v1/webhook/deliveries/{delivery_id}", role="viewer")
    assert answer.status == 200, answer.raw
    delivery = answer.body["delivery"]
    attempts = delivery.pop("attempts")
    assert [delivery] == await log_of(with_webhook)
    assert [datetime.fromisoformat(attempt.pop("at")) for attempt in attempts] == [
        now.replace(microsecond=now.microsecond // 1000 * 1000)
        for now, result in zip(times, results, strict=True)
        if result["result"] is not WebhookResult.POSTPONED
    ]
    assert attempts == [
        {"http_status": None, "duration_ms": 5_000, "error": "No answer within 5 s.", "response_body": None,
         "truncated": False},
        {"http_status": 500, "duration_ms": None, "error": "It answered 500.",
         "response_body": answered[:512].decode("utf-8", "replace"), "truncated": True},
        {"http_status": 200, "duration_ms": 7, "error": None, "response_body": "ok", "truncated": False},
    ]  # fmt: skip


@pytest.mark.rule("HOOK-22")
async def test_all_that_failed_is_sent_again_once(with_webhook: Tenant, service: Service) -> None:
    start = datetime.now(UTC) - HOUR
    other = await service.account()
    await saved(other)
    theirs = await failed(other, start)
    await failed(with_webhook, start - timedelta(seconds=1))
    lost = {await failed(with_webhook, start + number * timedelta(seconds=1)) for number in range(3)}
    _, taken = await add_event(with_webhook)
    await ended(with_webhook, taken, result=WebhookResult.SUCCEEDED, http_status=200)
    await add_event(with_webhook)
    before = await with_webhook.state()
    done = await replay_all(with_webhook, start)
    assert (done["replayed"], done["next_since"]) == (3, None)
    replays = [delivery for delivery in await log_of(with_webhook) if delivery["replay_of"]]
    assert {replay["replay_of"] for replay in replays} == lost
    assert {(replay["status"], replay["attempt"], replay["max_attempts"]) for replay in replays} == {("pending", 0, 7)}
    events = {delivery["id"]: delivery["event_id"] for delivery in await log_of(with_webhook)}
    assert all(replay["event_id"] == events[replay["replay_of"]] for replay in replays)
    assert await pending_of(with_webhook) == 4
    # Neither what is pending nor what has succeeded since is added once more; what failed again is.
    assert (await replay_all(with_webhook, start))["replayed"] == 0
    await ended(with_webhook, replays[0]["id"], result=WebhookResult.SUCCEEDED, http_status=200)
    await ended(with_webhook, replays[1]["id"], result=WebhookResult.FAILED, http_status=500)
    again = await replay_all(with_webhook, start)
    assert (again["replayed"], await pending_of(with_webhook)) == (1, 3)
    assert await with_webhook.state() == before
    assert [delivery["id"] for delivery in await log_of(other)] == [theirs]


@pytest.mark.rule("HOOK-22")
async def test_a_replay_of_all_is_limited_and_needs_an_enabled_webhook(tenant: Tenant) -> None:
    since = {"since": "2026-11-15T09:30:00Z"}
    assert (await tenant.call("POST", "/v1/webhook/replay", since)).is_refusal(404, "not_found")
    await saved(tenant, enabled=False)
    assert (await tenant.call("POST", "/v1/webhook/replay", since)).is_refusal(409, "conflict", "disabled")
    await saved(tenant)
    for body in ({}, {"since": None}, {"since": "yesterday"}, {**since, "until": "now"}):
        assert (await tenant.call("POST", "/v1/webhook/replay", body)).status == 400
    async with tenant.service.pool.acquire() as connection, connection.transaction():
        assert await webhook_log.try_lock_replay(connection, AccountId(tenant.id))
        assert (await tenant.call("POST", "/v1/webhook/replay", since)).is_refusal(409, "conflict", "later")
    answers = [await tenant.call("POST", "/v1/webhook/replay", since) for _ in range(4)]
    assert answers[-1].is_refusal(429, "rate_limited")
    assert int(answers[-1].headers["Retry-After"]) >= 1


@pytest.mark.rule("HOOK-23")
async def test_the_health_of_a_webhook_counts_its_calls(tenant: Tenant) -> None:
    assert (await tenant.call("GET", "/v1/webhook")).body["health"] is None
    await saved(tenant)
    began_at = datetime.now(UTC) - timedelta(milliseconds=1)
    health = (await tenant.call("GET", "/v1/webhook")).body["health"]
    since = datetime.fromisoformat(health.pop("since"))
    assert began_at <= since + timedelta(days=1) <= datetime.now(UTC)
    assert health == {
        "state": "new", "failing_since": None, "calls": 0, "failures": 0, "p50_ms": None, "p95_ms": None
    }  # fmt: skip
    for duration in (10, 20, 30):
        _, taken = await add_event(tenant)
        await ended(tenant, taken, result=WebhookResult.SUCCEEDED, http_status=200, duration_ms=duration)
    _, lost = await add_event(tenant)
    next_at = datetime.now(UTC) + HOUR
    await ended(tenant, lost, result=WebhookResult.DEFERRED, next_at=next_at, http_status=500, duration_ms=5_000)
    health = (await tenant.call("GET", "/v1/webhook", role="viewer")).body["health"]
    assert (health["calls"], health["failures"], health["p50_ms"], health["p95_ms"]) == (4, 1, 20, 5_000)
    await tenant.service.sql(
        "UPDATE endpoints SET failing_since = now() - interval '3 days' WHERE account_id = $1", tenant.id
    )
    health = (await tenant.call("GET", "/v1/webhook")).body["health"]
    assert health["state"] == "failing"
    assert datetime.now(UTC) - datetime.fromisoformat(health["failing_since"]) > timedelta(days=2)
