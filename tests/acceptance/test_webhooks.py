"""Webhooks and events over HTTP: saved, shown, pinged, replayed, listed, only for their own account."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from posthouse.rules import ids
from posthouse.rules.event import EventType
from posthouse.store.webhook_schedule import WebhookResult
from tests.acceptance.account_webhook import AGO, URL, add_event, ended, log_of, saved
from tests.support.service import Tenant, uuid

EMAIL_EVENTS = ["email.delivered", "email.bounced", "email.failed"]
WEBHOOK_FIELDS = {"url", "events", "enabled", "created_at", "updated_at"}
DELIVERY_FIELDS = {
    "id", "event_id", "type", "message_id", "recipient_id", "url", "status", "attempt", "max_attempts", "http_status",
    "error", "duration_ms", "request_body", "response_body", "truncated", "replay_of", "created_at", "last_attempt_at",
    "next_attempt_at",
}  # fmt: skip


@pytest_asyncio.fixture(loop_scope="session")
async def with_webhook(tenant: Tenant) -> Tenant:
    """An account of this test, with a webhook."""
    await saved(tenant)
    return tenant


async def pinged(tenant: Tenant) -> dict[str, Any]:
    """A ping's delivery, as if the last ping were long ago."""
    await tenant.service.sql("UPDATE endpoints SET pinged_at = NULL WHERE account_id = $1", tenant.id)
    answer = await tenant.call("POST", "/v1/webhook/ping")
    assert answer.status == 202, answer.raw
    delivery: dict[str, Any] = answer.body["delivery"]
    return delivery


async def events_of(tenant: Tenant, query: str = "") -> dict[str, Any]:
    answer = await tenant.call("GET", f"/v1/events{query}")
    assert answer.status == 200, answer.raw
    return answer.body


# The endpoint.


@pytest.mark.rule("HOOK-03", "HOOK-04", "HOOK-05")
async def test_a_webhook_is_saved_and_its_secret_shown_once(tenant: Tenant) -> None:
    assert (await tenant.call("GET", "/v1/webhook")).body["webhook"] is None
    first = (await saved(tenant)).body
    assert first["secret"].startswith("whsec_")
    assert len(first["secret"]) == len("whsec_") + 43
    assert first["webhook"]["created_at"] == first["webhook"]["updated_at"]
    assert set(first["webhook"]) == WEBHOOK_FIELDS
    assert (first["webhook"]["url"], first["webhook"]["enabled"]) == (URL, True)
    assert first["webhook"]["events"] == EMAIL_EVENTS
    shown = await tenant.call("GET", "/v1/webhook")
    assert set(shown.body) == {"webhook", "health", "request_id"}
    assert shown.body["webhook"] == first["webhook"]
    changed = (await saved(tenant, "https://other.example.com/", events=["email.failed"], enabled=False)).body
    assert set(changed) == {"webhook", "request_id"}
    assert (changed["webhook"]["url"], changed["webhook"]["enabled"]) == ("https://other.example.com/", False)
    assert changed["webhook"]["events"] == ["email.failed"]
    assert changed["webhook"]["created_at"] == first["webhook"]["created_at"]
    assert changed["webhook"]["updated_at"] > first["webhook"]["updated_at"]
    for nothing in (None, list[str]()):
        assert (await saved(tenant, events=nothing)).body["webhook"]["events"] == EMAIL_EVENTS
    changed = (await saved(tenant, events=["email.failed", "email.bounced", "email.failed"])).body
    assert changed["webhook"]["events"] == ["email.bounced", "email.failed"]
    assert (await tenant.call("GET", "/v1/webhook")).body["webhook"] == changed["webhook"]


@pytest.mark.rule("HOOK-05")
async def test_a_wrong_field_is_named_and_nothing_is_saved(tenant: Tenant) -> None:
    wrong: list[tuple[Mapping[str, object], str]] = [
        ({"url": URL, "events": ["webhook.test"]}, "webhook.test"),
        ({"url": URL, "events": ["email.delivered", "email.opened"]}, "email.opened"),
        ({"url": URL, "events": ["EMAIL.DELIVERED"]}, "EMAIL.DELIVERED"),
        *(({"url": URL, "events": events}, "events") for events in ([7], "email.failed")),
        *(({"url": URL, "enabled": enabled}, "enabled") for enabled in ("yes", None)),
        *(({"url": url}, "url") for url in (None, "http://hooks.example.com/", "https://127.0.0.1/")),
        ({}, "url"),
        ({"url": URL, "secret": "whsec_mine"}, "secret"),
    ]
    for body, naming in wrong:
        assert (await tenant.call("PUT", "/v1/webhook", body)).is_refusal(400, "invalid_request", naming), body
    assert (await tenant.call("GET", "/v1/webhook")).body["webhook"] is None


# Pings and deliveries.


@pytest.mark.rule("HOOK-10", "HOOK-12", "HOOK-15")
async def test_a_ping_is_a_free_test_event_without_retries(with_webhook: Tenant) -> None:
    before = await with_webhook.state()
    answer = await with_webhook.call("POST", "/v1/webhook/ping")
    assert answer.status == 202
    delivery = answer.body["delivery"]
    assert set(delivery) == DELIVERY_FIELDS
    assert answer.body["event_id"] == delivery["event_id"]
    assert (delivery["type"], delivery["status"], delivery["url"]) == ("webhook.test", "pending", URL)
    assert (delivery["attempt"], delivery["max_attempts"]) == (0, 1)
    assert delivery["next_attempt_at"] == delivery["created_at"]
    empty = ("message_id", "recipient_id", "http_status", "error", "duration_ms", "response_body", "replay_of",
             "last_attempt_at")  # fmt: skip
    assert {name: delivery[name] for name in empty} == dict.fromkeys(empty)
    body = json.loads(delivery["request_body"])
    assert (body["id"], body["type"], body["data"]["test"]) == (delivery["event_id"], "webhook.test", True)
    assert body["created_at"] == delivery["created_at"]
    assert delivery["truncated"] is False
    assert await log_of(with_webhook) == [delivery]
    (call,) = await with_webhook.service.sql(
        "SELECT id, next_at <= now() AS is_due FROM webhook_schedule WHERE account_id = $1", with_webhook.id
    )
    assert (ids.text(ids.WEBHOOK_DELIVERY, call["id"]), call["is_due"]) == (delivery["id"], True)
    again = await with_webhook.call("POST", "/v1/webhook/ping")
    assert again.is_refusal(429, "rate_limited", "15 s")
    assert 1 <= int(again.headers["Retry-After"]) <= 15
    assert await with_webhook.state() == before


@pytest.mark.rule("HOOK-12")
async def test_a_delivery_shows_request_and_response(with_webhook: Tenant) -> None:
    sent = (await with_webhook.accepts())["id"]
    recipient_id = (await with_webhook.get(sent)).body["recipients"][0]["id"]
    event_id, delivery_id = await add_event(with_webhook, sent)
    answered = b"\xff not text \x00 " + b"x" * 3_000
    await ended(
        with_webhook,
        delivery_id,
        result=WebhookResult.DEFERRED,
        next_at=datetime.now(UTC) + timedelta(hours=1),
        http_status=500,
        error="it answered 500",
        duration_ms=12,
        response_body=answered,
    )
    (shown,) = await log_of(with_webhook)
    assert set(shown) == DELIVERY_FIELDS
    assert (shown["event_id"], shown["type"]) == (event_id, "email.delivered")
    assert (shown["message_id"], shown["recipient_id"]) == (sent, recipient_id)
    assert (shown["status"], shown["attempt"], shown["max_attempts"]) == ("pending", 1, 7)
    assert (shown["http_status"], shown["error"], shown["duration_ms"]) == (500, "it answered 500", 12)
    assert shown["response_body"] == answered[:2_048].decode("utf-8", "replace")
    assert shown["truncated"] is True
    assert json.loads(shown["request_body"])["data"]["recipient_id"] == recipient_id
    assert shown["created_at"] < shown["last_attempt_at"] < shown["next_attempt_at"]


@pytest.mark.rule("HOOK-13", "HOOK-15")
async def test_a_replay_sends_the_same_event_with_all_attempts(with_webhook: Tenant) -> None:
    _, delivery_id = await add_event(with_webhook)
    await ended(
        with_webhook, delivery_id, result=WebhookResult.FAILED, http_status=410, error="it answered 410", duration_ms=3
    )
    (original,) = await log_of(with_webhook)
    before = await with_webhook.state()
    answer = await with_webhook.call("POST", f"/v1/webhook/deliveries/{delivery_id}/replay")
    assert answer.status == 202
    replay = answer.body["delivery"]
    assert set(answer.body) == {"delivery", "request_id"}
    assert set(replay) == DELIVERY_FIELDS
    same = ("event_id", "type", "message_id", "recipient_id", "request_body")
    assert {name: replay[name] for name in same} == {name: original[name] for name in same}
    assert (replay["status"], replay["attempt"], replay["max_attempts"]) == ("pending", 0, 7)
    assert (replay["replay_of"], replay["http_status"], replay["error"]) == (delivery_id, None, None)
    assert replay["id"] != delivery_id
    assert await log_of(with_webhook) == [replay, original]
    assert await with_webhook.state() == before


# Events.


@pytest.mark.rule("EVT-01")
async def test_an_event_is_shown_as_it_is_stored(with_webhook: Tenant) -> None:
    await add_event(with_webhook)
    (shown,) = (await events_of(with_webhook))["events"]
    (delivery,) = await log_of(with_webhook)
    assert shown == json.loads(delivery["request_body"])
    assert set(shown) == {"id", "type", "created_at", "data"}
    assert shown["data"]["subject"] == "Grüße"


@pytest.mark.rule("EVT-02")
async def test_events_of_one_type(tenant: Tenant) -> None:
    start = datetime.now(UTC) - AGO
    types = [EventType.DELIVERED, EventType.BOUNCED, EventType.DELIVERED, EventType.FAILED, EventType.BOUNCED]
    made = [
        (await add_event(tenant, type_=event_type, at=start + timedelta(milliseconds=number)))[0]
        for number, event_type in enumerate(types)
    ]
    first = await events_of(tenant, "?type=email.bounced&limit=1")
    assert ([event["id"] for event in first["events"]], first["has_more"]) == ([made[1]], True)
    second = await events_of(tenant, f"?type=email.bounced&limit=1&after={first['next_cursor']}")
    assert ([event["id"] for event in second["events"]], second["has_more"]) == ([made[4]], False)
    assert (await events_of(tenant, "?type=webhook.test"))["events"] == []


@pytest.mark.rule("EVT-02")
async def test_events_of_one_message(tenant: Tenant) -> None:
    sent = (await tenant.accepts())["id"]
    of_it, _ = await add_event(tenant, sent)
    await add_event(tenant)
    await tenant.service.sql(
        "UPDATE recipients SET status = 'delivered', delivered_at = $3, billing_status = 'settled'"
        " WHERE account_id = $1 AND message_id = $2",
        tenant.id, uuid(sent), datetime.now(UTC) - AGO,
    )  # fmt: skip
    page = await events_of(tenant, f"?message_id={sent}")
    assert ([event["id"] for event in page["events"]], page["has_more"]) == ([of_it], False)
    assert (await events_of(tenant, f"?message_id={sent}&type=email.bounced"))["events"] == []
    assert (await events_of(tenant, f"?message_id={sent}&after={of_it}"))["events"] == []
    for unknown in ("em_01jbz3qk8e0000000000000000", "nonsense", "%00", ""):
        assert (await events_of(tenant, f"?message_id={unknown}"))["events"] == []


@pytest.mark.rule("EVT-03")
async def test_invalid_event_filters_are_refused(regular: Tenant) -> None:
    for query in ("after=wd_01jbz3qk8e", "type=email.opened", "type=", "type=%00"):
        answer = await regular.call("GET", f"/v1/events?{query}")
        assert answer.is_refusal(400, "invalid_request", query.split("=")[0]), query
