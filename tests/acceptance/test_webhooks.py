"""Webhooks and events over HTTP: saved, shown, pinged, replayed, listed, only for their own account."""

import asyncio
import base64
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from posthouse.rules import ids
from posthouse.rules.event import EventType
from posthouse.rules.ids import AccountId
from posthouse.store import endpoints
from posthouse.store.seal import Sealer
from posthouse.store.webhook_schedule import WebhookResult
from tests.acceptance.account_webhook import AGO, URL, add_event, ended, log_of, saved
from tests.support.service import ABSENT, SEAL_KEY, Service, Tenant, uuid

EMAIL_EVENTS = ["email.delivered", "email.bounced", "email.failed"]
WEBHOOK_FIELDS = {"url", "events", "enabled", "created_at", "updated_at"}
DELIVERY_FIELDS = {
    "id", "event_id", "type", "message_id", "recipient_id", "url", "status", "attempt", "max_attempts", "http_status",
    "error", "duration_ms", "request_body", "response_body", "truncated", "replay_of", "created_at", "last_attempt_at",
    "next_attempt_at",
}  # fmt: skip
UNKNOWN_DELIVERY = "wd_01jbz3qk8e0000000000000000"

CALLS: Sequence[tuple[str, str, object]] = [
    ("GET", "/v1/webhook", ABSENT),
    ("PUT", "/v1/webhook", {"url": URL}),
    ("DELETE", "/v1/webhook", ABSENT),
    ("POST", "/v1/webhook/rotate-secret", ABSENT),
    ("POST", "/v1/webhook/ping", ABSENT),
    ("GET", "/v1/webhook/deliveries", ABSENT),
    ("POST", f"/v1/webhook/deliveries/{UNKNOWN_DELIVERY}/replay", ABSENT),
    ("POST", "/v1/webhook/replay", {"since": "2026-11-15T09:30:00Z"}),
    ("GET", "/v1/events", ABSENT),
]
READING = [call for call in CALLS if call[0] == "GET"]
CHANGING = [call for call in CALLS if call[0] != "GET"]


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


# Roles.


@pytest.mark.rule("HOOK-01")
@pytest.mark.parametrize(("method", "path", "body"), CALLS)
async def test_webhooks_require_a_login(regular: Tenant, method: str, path: str, body: object) -> None:
    for authorization in (None, regular.basic, await regular.key(may_read=True), "Bearer nonsense"):
        headers = {} if authorization is None else {"Authorization": authorization}
        answer = await regular.service.request(method, path, headers=headers, json=body)
        assert answer.is_refusal(401, "unauthorized")


@pytest.mark.rule("HOOK-02")
async def test_a_viewer_reads_and_changes_nothing(with_webhook: Tenant) -> None:
    before = (await with_webhook.call("GET", "/v1/webhook")).body["webhook"]
    for method, path, body in READING:
        assert (await with_webhook.call(method, path, body, role="viewer")).status == 200
    for method, path, body in CHANGING:
        assert (await with_webhook.call(method, path, body, role="viewer")).is_refusal(403, "forbidden")
    assert (await with_webhook.call("GET", "/v1/webhook")).body["webhook"] == before
    assert await log_of(with_webhook) == []


@pytest.mark.rule("HOOK-02")
@pytest.mark.parametrize("role", ["member", "admin", "owner"])
async def test_members_and_above_change(tenant: Tenant, role: str) -> None:
    assert (await tenant.call("PUT", "/v1/webhook", {"url": URL}, role=role)).status == 200
    assert (await tenant.call("POST", "/v1/webhook/rotate-secret", role=role)).status == 200
    ping = await tenant.call("POST", "/v1/webhook/ping", role=role)
    assert ping.status == 202
    replay = await tenant.call("POST", f"/v1/webhook/deliveries/{ping.body['delivery']['id']}/replay", role=role)
    assert replay.status == 202
    assert (await tenant.call("DELETE", "/v1/webhook", role=role)).status == 200


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
    assert (await tenant.call("GET", "/v1/webhook")).body["webhook"] == changed["webhook"]


@pytest.mark.rule("HOOK-04")
async def test_of_concurrent_first_saves_only_one_shows_the_secret(tenant: Tenant) -> None:
    await tenant.jwt()
    answers = await asyncio.gather(*[saved(tenant) for _ in range(5)])
    (secret,) = [answer.body["secret"] for answer in answers if "secret" in answer.body]
    assert await stored_secret(tenant) == secret


async def stored_secret(tenant: Tenant) -> str:
    sealed = await tenant.service.value("SELECT secret_sealed FROM endpoints WHERE account_id = $1", tenant.id)
    assert isinstance(sealed, bytes)
    sealer = Sealer({"first": base64.b64decode(SEAL_KEY)}, "first")
    return sealer.open(sealed, endpoints.secret_purpose(AccountId(tenant.id), tenant.id)).decode()


@pytest.mark.rule("HOOK-05")
@pytest.mark.parametrize("events", [ABSENT, None, []])
async def test_without_events_all_three_are_sent(tenant: Tenant, events: object) -> None:
    given: dict[str, Any] = {} if events is ABSENT else {"events": events}
    assert (await saved(tenant, **given)).body["webhook"]["events"] == EMAIL_EVENTS


@pytest.mark.rule("HOOK-05")
async def test_an_event_that_is_named_twice_is_subscribed_to_once(tenant: Tenant) -> None:
    given = ["email.failed", "email.bounced", "email.failed"]
    assert (await saved(tenant, events=given)).body["webhook"]["events"] == ["email.bounced", "email.failed"]


@pytest.mark.rule("HOOK-05")
@pytest.mark.parametrize(
    ("body", "naming"),
    [
        ({"url": URL, "events": ["webhook.test"]}, "webhook.test"),
        ({"url": URL, "events": ["email.delivered", "email.opened"]}, "email.opened"),
        ({"url": URL, "events": ["EMAIL.DELIVERED"]}, "EMAIL.DELIVERED"),
        ({"url": URL, "events": [7]}, "events"),
        ({"url": URL, "events": "email.failed"}, "events"),
        ({"url": URL, "enabled": "yes"}, "enabled"),
        ({"url": URL, "enabled": None}, "enabled"),
        ({"url": None}, "url"),
        ({}, "url"),
        ({"url": URL, "secret": "whsec_mine"}, "secret"),
    ],
)
async def test_a_wrong_field_is_named_and_nothing_is_saved(tenant: Tenant, body: object, naming: str) -> None:
    answer = await tenant.call("PUT", "/v1/webhook", body)
    assert answer.is_refusal(400, "invalid_request", naming)
    assert (await tenant.call("GET", "/v1/webhook")).body["webhook"] is None


@pytest.mark.rule("HOOK-06")
@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://hooks.example.com/",
        "ftp://hooks.example.com/",
        "hooks.example.com",
        "https://localhost/",
        "https://hooks.localhost/",
        "https://intranet/",
        "https://printer.local/",
        "https://127.0.0.1/",
        "https://10.1.2.3/",
        "https://192.168.0.1/",
        "https://169.254.169.254/latest/meta-data",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[64:ff9b::7f00:1]/",
        "https://2130706433/",
        "https://0x7f.1/",
        "https://user:password@hooks.example.com/",
        "https://hooks.example.com:25/",
        "https://hooks.example.com:70000/",
        "https://hooks.example.com/#part",
        "https://hooks.example.com/a b",
        "https://hooks.example.com/" + "a" * 2_048,
    ],
)
async def test_a_url_must_be_https_and_public(regular: Tenant, url: str) -> None:
    answer = await regular.call("PUT", "/v1/webhook", {"url": url})
    assert answer.is_refusal(400, "invalid_request", "`url`")


@pytest.mark.rule("HOOK-06")
async def test_a_url_may_name_a_port(regular: Tenant) -> None:
    answer = await regular.call("PUT", "/v1/webhook", {"url": "https://hooks.example.com:8443/events"})
    assert answer.status == 200, answer.raw
    assert answer.body["webhook"]["url"] == "https://hooks.example.com:8443/events"


@pytest.mark.rule("HOOK-07")
async def test_disabling_cancels_pending_and_a_new_url_receives_pending(with_webhook: Tenant) -> None:
    _, first = await add_event(with_webhook)
    await saved(with_webhook, "https://other.example.com/")
    (pending,) = await log_of(with_webhook)
    assert (pending["id"], pending["status"]) == (first, "pending")
    await ended(with_webhook, first, result=WebhookResult.SUCCEEDED, http_status=204, duration_ms=5)
    (arrived,) = await log_of(with_webhook)
    assert (arrived["url"], arrived["status"]) == ("https://other.example.com/", "succeeded")
    _, second = await add_event(with_webhook)
    await saved(with_webhook, enabled=False)
    cancelled = {delivery["id"]: delivery for delivery in await log_of(with_webhook)}
    assert (cancelled[second]["status"], cancelled[second]["next_attempt_at"]) == ("failed", None)
    assert "disabled" in cancelled[second]["error"]
    assert cancelled[first] == arrived
    assert (
        await with_webhook.service.value("SELECT count(*) FROM webhook_schedule WHERE account_id = $1", with_webhook.id)
        == 0
    )


@pytest.mark.rule("HOOK-08")
async def test_deleting_removes_the_log_and_pending_deliveries(with_webhook: Tenant) -> None:
    assert (await pinged(with_webhook))["status"] == "pending"
    await add_event(with_webhook)
    assert len(await log_of(with_webhook)) == 2
    answer = await with_webhook.call("DELETE", "/v1/webhook")
    assert (answer.status, answer.body["deleted"]) == (200, True)
    assert (await with_webhook.call("GET", "/v1/webhook")).body["webhook"] is None
    assert await log_of(with_webhook) == []
    assert (
        await with_webhook.service.value("SELECT count(*) FROM webhook_schedule WHERE account_id = $1", with_webhook.id)
        == 0
    )
    assert (await with_webhook.call("DELETE", "/v1/webhook")).is_refusal(404, "not_found")
    assert "secret" in (await saved(with_webhook)).body


@pytest.mark.rule("HOOK-09")
async def test_a_rotated_secret_replaces_the_old_secret(tenant: Tenant) -> None:
    assert (await tenant.call("POST", "/v1/webhook/rotate-secret")).is_refusal(404, "not_found")
    first = (await saved(tenant)).body["secret"]
    answer = await tenant.call("POST", "/v1/webhook/rotate-secret")
    assert set(answer.body) == {"secret", "request_id"}
    assert answer.status == 200
    assert answer.body["secret"].startswith("whsec_")
    assert answer.body["secret"] != first
    assert await stored_secret(tenant) == answer.body["secret"]


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
    assert await with_webhook.state() == before


@pytest.mark.rule("HOOK-10")
async def test_a_second_ping_waits_for_15_seconds(with_webhook: Tenant) -> None:
    await pinged(with_webhook)
    answer = await with_webhook.call("POST", "/v1/webhook/ping")
    assert answer.is_refusal(429, "rate_limited", "15 s")
    assert 1 <= int(answer.headers["Retry-After"]) <= 15
    await with_webhook.service.sql(
        "UPDATE endpoints SET pinged_at = pinged_at - interval '15 seconds' WHERE account_id = $1",
        with_webhook.id,
    )
    assert (await with_webhook.call("POST", "/v1/webhook/ping")).status == 202
    assert len(await log_of(with_webhook)) == 2


@pytest.mark.rule("HOOK-10")
async def test_of_simultaneous_pings_one_is_sent(with_webhook: Tenant) -> None:
    await with_webhook.jwt()
    answers = await asyncio.gather(*[with_webhook.call("POST", "/v1/webhook/ping") for _ in range(5)])
    assert sorted(answer.status for answer in answers) == [202, 429, 429, 429, 429]
    assert len(await log_of(with_webhook)) == 1


@pytest.mark.rule("HOOK-10")
async def test_without_an_enabled_webhook_nothing_is_pinged(tenant: Tenant) -> None:
    assert (await tenant.call("POST", "/v1/webhook/ping")).is_refusal(404, "not_found")
    await saved(tenant, enabled=False)
    assert (await tenant.call("POST", "/v1/webhook/ping")).is_refusal(409, "conflict", "disabled")
    await saved(tenant)
    assert (await tenant.call("POST", "/v1/webhook/ping")).status == 202


@pytest.mark.rule("HOOK-11")
async def test_the_log_is_listed_in_pages_newest_first(with_webhook: Tenant) -> None:
    start = datetime.now(UTC) - AGO
    made = [(await add_event(with_webhook, at=start + timedelta(milliseconds=number)))[1] for number in range(53)]
    newest_first = made[::-1]
    assert [delivery["id"] for delivery in await log_of(with_webhook)] == newest_first[:50]
    found: list[str] = []
    cursor, pages = "", 0
    while cursor is not None:
        answer = await with_webhook.call("GET", f"/v1/webhook/deliveries?limit=20{cursor and '&cursor='}{cursor}")
        found += [delivery["id"] for delivery in answer.body["deliveries"]]
        cursor = answer.body["next_cursor"]
        pages += 1
    assert (pages, found) == (3, newest_first)
    whole = await with_webhook.call("GET", "/v1/webhook/deliveries?limit=100")
    assert (len(whole.body["deliveries"]), whole.body["next_cursor"]) == (53, None)


@pytest.mark.rule("HOOK-11")
async def test_the_log_of_one_message(with_webhook: Tenant) -> None:
    sent = (await with_webhook.accepts())["id"]
    _, of_it = await add_event(with_webhook, sent)
    await add_event(with_webhook)
    await pinged(with_webhook)
    assert [delivery["id"] for delivery in await log_of(with_webhook, f"?message_id={sent}")] == [of_it]
    for unknown in ("em_01jbz3qk8e0000000000000000", "nonsense", "%00", ""):
        assert await log_of(with_webhook, f"?message_id={unknown}") == []


@pytest.mark.rule("HOOK-11")
@pytest.mark.parametrize(
    "query", ["limit=0", "limit=101", "limit=x", "limit=", "cursor=nonsense", "cursor=%00", "cursor=",
              "cursor=ev_01jbz3qk8e0000000000000000"],
)  # fmt: skip
async def test_a_wrong_page_of_the_log_is_refused(regular: Tenant, query: str) -> None:
    answer = await regular.call("GET", f"/v1/webhook/deliveries?{query}")
    assert answer.is_refusal(400, "invalid_request", query.split("=")[0])


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


@pytest.mark.rule("HOOK-13")
async def test_a_replay_goes_to_the_present_url_unless_disabled(with_webhook: Tenant) -> None:
    ping = await pinged(with_webhook)
    path = f"/v1/webhook/deliveries/{ping['id']}/replay"
    await saved(with_webhook, enabled=False)
    assert (await with_webhook.call("POST", path)).is_refusal(409, "conflict", "disabled")
    await saved(with_webhook, "https://other.example.com/")
    replay = (await with_webhook.call("POST", path)).body["delivery"]
    assert (replay["url"], replay["type"], replay["max_attempts"]) == ("https://other.example.com/", "webhook.test", 7)
    assert (replay["event_id"], replay["replay_of"]) == (ping["event_id"], ping["id"])


@pytest.mark.rule("HOOK-14")
async def test_another_accounts_delivery_is_not_found_like_an_unknown(with_webhook: Tenant, service: Service) -> None:
    other = await service.account()
    await saved(other)
    sent = (await with_webhook.accepts())["id"]
    _, theirs = await add_event(with_webhook, sent)
    refusals = []
    for given in (theirs, UNKNOWN_DELIVERY, "nonsense", "%00", theirs.replace("wd_", "ev_"), theirs.upper()):
        for method, path in (("POST", f"{given}/replay"), ("GET", given)):
            answer = await other.call(method, f"/v1/webhook/deliveries/{path}")
            assert answer.is_refusal(404, "not_found")
            refusals.append({name: value for name, value in answer.body.items() if name != "request_id"})
    assert refusals == refusals[:1] * len(refusals)
    assert await log_of(other) == await log_of(other, f"?message_id={sent}") == []
    assert await log_of(other, f"?cursor={theirs}") == []
    for query in ("", f"?message_id={sent}", "?type=email.delivered"):
        assert (await events_of(other, query))["events"] == []
    assert len(await log_of(with_webhook)) == 1


# Events.


@pytest.mark.rule("EVT-01")
async def test_events_are_read_oldest_first_and_followed(tenant: Tenant) -> None:
    empty = await events_of(tenant)
    assert (empty["events"], empty["next_cursor"], empty["has_more"]) == ([], None, False)
    start = datetime.now(UTC) - AGO
    made = [(await add_event(tenant, at=start + timedelta(milliseconds=number)))[0] for number in range(53)]
    assert [event["id"] for event in (await events_of(tenant))["events"]] == made[:50]
    found: list[str] = []
    page, pages = await events_of(tenant, "?limit=20"), 1
    while True:
        found += [event["id"] for event in page["events"]]
        if not page["has_more"]:
            break
        page, pages = await events_of(tenant, f"?limit=20&after={page['next_cursor']}"), pages + 1
    assert (pages, found) == (3, made)
    follow = f"?after={page['next_cursor']}"
    nothing_new = await events_of(tenant, follow)
    assert (nothing_new["events"], nothing_new["next_cursor"]) == ([], page["next_cursor"])
    later, _ = await add_event(tenant, at=start + timedelta(seconds=1))
    assert [event["id"] for event in (await events_of(tenant, follow))["events"]] == [later]


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
@pytest.mark.parametrize(
    "query", ["limit=0", "limit=101", "limit=x", "after=nonsense", "after=%00", "after=", "after=wd_01jbz3qk8e",
              "type=email.opened", "type=", "type=%00"],
)  # fmt: skip
async def test_invalid_event_filters_are_refused(regular: Tenant, query: str) -> None:
    answer = await regular.call("GET", f"/v1/events?{query}")
    assert answer.is_refusal(400, "invalid_request", query.split("=")[0])


@pytest.mark.rule("EVT-04")
async def test_an_event_is_listed_once_earlier_events_are_stored(with_webhook: Tenant) -> None:
    now = datetime.now(UTC)
    settled, _ = await add_event(with_webhook, at=now - timedelta(seconds=15))
    # A test that stands still for minutes finds it unsettled too.
    await add_event(with_webhook, at=now + timedelta(hours=1))
    page = await events_of(with_webhook)
    assert [event["id"] for event in page["events"]] == [settled]
    assert page["has_more"] is False
