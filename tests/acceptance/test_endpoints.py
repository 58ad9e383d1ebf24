"""Endpoints from a message to the receiver, through real processes; verified by the library of Standard Webhooks."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from posthouse.rules.credential import Scope
from tests.support import webhook_accounts
from tests.support.accept_flow import SIMULATOR
from tests.support.eventually import eventually
from tests.support.http_answer import Answer
from tests.support.service import ABSENT, StartService, Tenant
from tests.support.service_processes import ServiceProcesses, prepare_processes
from tests.support.webhook_flow import NAME, certificates
from tests.support.webhook_receiver import Request, WebhookReceiver

SENT_SECONDS_MAX: Final = 60.0
URL: Final = "https://hooks.example.com/"
ENDPOINTS_MAX: Final = 10


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def receiver() -> AsyncIterator[WebhookReceiver]:
    async with WebhookReceiver(certificates().servers["sound"]) as receiver:
        yield receiver


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def processes(
    receiver: WebhookReceiver, new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServiceProcesses]:
    directory: Path = tmp_path_factory.mktemp("endpoints")
    authority = directory / "authority.pem"
    authority.write_bytes(certificates().authority_pem)
    settings = webhook_accounts.webhook_settings(receiver.port, authority)
    async with prepare_processes(new_database(), directory, stream="memory", **settings) as processes:
        processes.nameserver.records[NAME, "A"] = ["127.0.0.1"]
        await processes.start_http("dispatch", "delivery", "notification")
        await processes.service.prepare_sender()
        yield processes


def url_of(receiver: WebhookReceiver, path: str) -> str:
    return f"https://{NAME}:{receiver.port}{path}"


async def created(tenant: Tenant, url: str, **fields: object) -> tuple[str, str]:
    """An endpoint's id and its secret."""
    answer = await tenant.call("POST", "/v1/endpoints", {"url": url, **fields})
    assert answer.status == 201, answer.raw
    return answer.body["endpoint"]["id"], answer.body["secret"]


def came(receiver: WebhookReceiver, path: str) -> list[Request]:
    return [request for request in receiver.requests if request.line == f"POST {path} HTTP/1.1"]


def events_at(receiver: WebhookReceiver, path: str, secret: str) -> list[dict[str, Any]]:
    """What came there, each verified as a receiver would."""
    return [Webhook(secret).verify(request.body, request.headers) for request in came(receiver, path)]


async def log_of(tenant: Tenant, endpoint_id: str, number: int, status: str = "succeeded") -> list[dict[str, Any]]:
    async def read() -> list[dict[str, Any]]:
        listed = await tenant.call("GET", f"/v1/endpoints/{endpoint_id}/deliveries")
        deliveries: list[dict[str, Any]] = listed.body["deliveries"]
        return deliveries

    def is_there(log: list[dict[str, Any]]) -> bool:
        return len(log) >= number and all(delivery["status"] == status for delivery in log)

    return await eventually(read, is_there, within=SENT_SECONDS_MAX)


@pytest.mark.rule("END-10")
async def test_every_final_result_is_sent_in_the_form_of_standard_webhooks(
    processes: ServiceProcesses, receiver: WebhookReceiver
) -> None:
    tenant = await processes.service.account()
    endpoint_id, secret = await created(tenant, url_of(receiver, "/standard"))
    ends = {f"{end}@{SIMULATOR}": f"email.{end}" for end in ("delivered", "bounced", "failed")}
    sent = await tenant.accepts(
        tenant.mail(to=list(ends), subject="Grüße", tags=["orders"], metadata={"order": "1001"})
    )
    log = await log_of(tenant, endpoint_id, len(ends))

    events = events_at(receiver, "/standard", secret)
    assert {event["data"]["to"]: event["type"] for event in events} == ends
    assert {event["id"] for event in events} == {delivery["event_id"] for delivery in log}
    for request, event in zip(came(receiver, "/standard"), events, strict=True):
        assert request.headers["webhook-id"] == event["id"]
        assert "service-signature" not in request.headers
        data = event["data"]
        assert (data["email_id"], data["subject"]) == (sent["id"], "Grüße")
        assert (data["mode"], data["tags"], data["metadata"]) == ("live", ["orders"], {"order": "1001"})
        assert ("reason" in data) is (event["type"] != "email.delivered")
    assert {event["data"].get("reason") for event in events} >= {None, "simulated"}


@pytest.mark.rule("END-10")
async def test_a_body_that_was_changed_is_not_verified(processes: ServiceProcesses, receiver: WebhookReceiver) -> None:
    tenant = await processes.service.account()
    endpoint_id, secret = await created(tenant, url_of(receiver, "/changed"))
    await tenant.accepts(tenant.mail(to=f"delivered@{SIMULATOR}"))
    await log_of(tenant, endpoint_id, 1)
    (request,) = came(receiver, "/changed")
    Webhook(secret).verify(request.body, request.headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(request.body.replace(b"delivered", b"bounced"), request.headers)


@pytest.mark.rule("END-04")
async def test_an_endpoint_gets_what_its_filters_let_through(
    processes: ServiceProcesses, receiver: WebhookReceiver
) -> None:
    tenant = await processes.service.account()
    everything, _ = await created(tenant, url_of(receiver, "/all"))
    wanted: dict[str, dict[str, object]] = {
        "/bounces": {"types": ["email.bounced"]},
        "/tagged": {"tags": ["orders", "other"], "types": ["email.delivered"]},
        "/untagged": {"tags": ["nothing"]},
        "/own-domain": {"sender_domains": [tenant.domain.upper()], "types": ["email.delivered"]},
        "/other-domain": {"sender_domains": ["other.example.com"]},
        "/tests": {"mode": "test"},
        "/live": {"mode": "live", "types": ["email.delivered"]},
    }
    for path, fields in wanted.items():
        await created(tenant, url_of(receiver, path), **fields)
    await tenant.accepts(tenant.mail(to=[f"delivered@{SIMULATOR}", f"bounced@{SIMULATOR}"], tags=["orders"]))
    await log_of(tenant, everything, 2)
    expected = {"/bounces": ["email.bounced"], "/tagged": ["email.delivered"]}
    expected |= {"/own-domain": ["email.delivered"], "/live": ["email.delivered"]}

    async def arrived() -> dict[str, list[str]]:
        return {
            path: [json.loads(request.body)["type"] for request in came(receiver, path)]
            for path in wanted
            if came(receiver, path)
        }

    await eventually(arrived, lambda found: found == expected, within=SENT_SECONDS_MAX)


@pytest.mark.rule("END-04")
@pytest.mark.parametrize(
    "fields",
    [
        {"types": ["email.opened"]},
        {"types": ["webhook.test"]},
        {"sender_domains": ["not a domain"]},
        {"sender_domains": [f"d{number}.example.com" for number in range(21)]},
        {"tags": ["x" * 129]},
        {"tags": [""]},
        {"mode": "both"},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_filters_that_can_not_be_are_refused(regular: Tenant, fields: dict[str, object]) -> None:
    answer = await regular.call("POST", "/v1/endpoints", {"url": URL, **fields})
    assert (answer.status, answer.body["code"]) == (400, "invalid_request")


@pytest.mark.rule("END-05")
async def test_an_endpoints_own_headers_are_sent_and_never_shown(
    processes: ServiceProcesses, receiver: WebhookReceiver
) -> None:
    tenant = await processes.service.account()
    url = url_of(receiver, "/headers")
    endpoint_id, _ = await created(tenant, url, headers={"Authorization": "Bearer s3cret", "X-Team": "a b"})
    shown = await tenant.call("GET", f"/v1/endpoints/{endpoint_id}")
    assert b"s3cret" not in shown.raw
    assert shown.body["endpoint"]["header_names"] == ["Authorization", "X-Team"]
    assert (await tenant.call("PUT", f"/v1/endpoints/{endpoint_id}", {"url": url})).status == 200
    await tenant.accepts(tenant.mail(to=f"delivered@{SIMULATOR}"))
    await log_of(tenant, endpoint_id, 1)
    (request,) = came(receiver, "/headers")
    assert (request.headers["authorization"], request.headers["x-team"]) == ("Bearer s3cret", "a b")
    stored = await tenant.service.value("SELECT headers_sealed FROM endpoints WHERE account_id = $1", tenant.id)
    assert b"s3cret" not in stored


@pytest.mark.rule("END-05")
@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "other.example.com"},
        {"content-length": "0"},
        {"Webhook-Signature": "v1,"},
        {"X-Forwarded-For": "127.0.0.1"},
        {"X A": "b"},
        {"X-A": "b\r\nX-B: c"},
        {"X-A": "ü"},
        {"X-A": "x" * 1_001},
        {"X-A": "b", "x-a": "c"},
        {f"X-{number}": "b" for number in range(6)},
    ],
    ids=lambda headers: next(iter(headers)),
)
async def test_headers_that_can_not_be_sent_are_refused(regular: Tenant, headers: dict[str, str]) -> None:
    answer = await regular.call("POST", "/v1/endpoints", {"url": URL, "headers": headers})
    assert (answer.status, answer.body["code"]) == (400, "invalid_request")
    assert "`headers" in answer.body["error"]


@pytest.mark.rule("END-08")
async def test_for_a_day_calls_are_signed_with_both_secrets(
    processes: ServiceProcesses, receiver: WebhookReceiver
) -> None:
    tenant = await processes.service.account()
    endpoint_id, old = await created(tenant, url_of(receiver, "/rotated"))
    rotated = await tenant.call("POST", f"/v1/endpoints/{endpoint_id}/rotate-secret")
    assert rotated.status == 200
    new = rotated.body["secret"]
    shown = await tenant.call("GET", f"/v1/endpoints/{endpoint_id}")
    assert shown.body["endpoint"]["previous_secret_until"] == rotated.body["previous_secret_until"]
    await tenant.accepts(tenant.mail(to=f"delivered@{SIMULATOR}"))
    await log_of(tenant, endpoint_id, 1)
    assert len(events_at(receiver, "/rotated", old)) == len(events_at(receiver, "/rotated", new)) == 1
    await tenant.service.sql(
        "UPDATE endpoints SET previous_until = now() - interval '1 second' WHERE account_id = $1", tenant.id
    )
    await tenant.accepts(tenant.mail(to=f"delivered@{SIMULATOR}"))
    await log_of(tenant, endpoint_id, 2)
    assert len(events_at(receiver, "/rotated", new)) == 2
    with pytest.raises(WebhookVerificationError):
        events_at(receiver, "/rotated", old)


@pytest.mark.rule("END-09")
async def test_a_ping_is_sent_once_and_an_account_pings_rarely(
    processes: ServiceProcesses, receiver: WebhookReceiver
) -> None:
    tenant = await processes.service.account()
    pinged, secret = await created(tenant, url_of(receiver, "/pinged"), types=["email.bounced"])
    other, _ = await created(tenant, url_of(receiver, "/not-pinged"))
    answer = await tenant.call("POST", f"/v1/endpoints/{pinged}/ping")
    assert answer.status == 202
    assert (await tenant.call("POST", f"/v1/endpoints/{other}/ping")).status == 429
    (delivery,) = await log_of(tenant, pinged, 1)
    assert (delivery["id"], delivery["max_attempts"]) == (answer.body["delivery"]["id"], 1)
    (event,) = events_at(receiver, "/pinged", secret)
    assert (event["id"], event["type"], event["data"]["test"]) == (answer.body["event_id"], "webhook.test", True)
    shown = await tenant.call("GET", f"/v1/endpoints/{pinged}")
    assert shown.body["endpoint"]["state"] == "answering"


@pytest.mark.rule("END-13")
async def test_the_log_shows_every_attempt_of_the_endpoint(
    processes: ServiceProcesses, receiver: WebhookReceiver
) -> None:
    tenant = await processes.service.account()
    endpoint_id, _ = await created(tenant, url_of(receiver, "/status/500"))
    other, _ = await created(tenant, url_of(receiver, "/logged"))
    await tenant.accepts(tenant.mail(to=f"delivered@{SIMULATOR}"))
    await log_of(tenant, other, 1)

    async def tried() -> Answer:
        return await tenant.call("GET", f"/v1/endpoints/{endpoint_id}/deliveries?status=pending&type=email.delivered")

    listed = await eventually(tried, lambda found: found.body["deliveries"][0]["attempt"] > 0, within=SENT_SECONDS_MAX)
    (delivery,) = listed.body["deliveries"]
    one = await tenant.call("GET", f"/v1/endpoints/deliveries/{delivery['id']}")
    assert [attempt["http_status"] for attempt in one.body["delivery"]["attempts"]] == [500] * delivery["attempt"]
    assert json.loads(one.body["delivery"]["request_body"])["data"]["mode"] == "live"
    assert (await tenant.call("GET", f"/v1/webhook/deliveries/{delivery['id']}")).status == 404
    again = await tenant.call("POST", f"/v1/endpoints/deliveries/{delivery['id']}/replay")
    assert (again.status, again.body["delivery"]["replay_of"]) == (202, delivery["id"])
    assert again.body["delivery"]["event_id"] == delivery["event_id"]
    wrong = await tenant.call("GET", f"/v1/endpoints/{endpoint_id}/deliveries?type=email.opened")
    assert wrong.status == 400


@pytest.mark.rule("END-16")
async def test_the_webhook_and_the_feed_know_nothing_of_endpoints(
    processes: ServiceProcesses, receiver: WebhookReceiver
) -> None:
    tenant = await processes.service.account()
    saved = await tenant.call("PUT", "/v1/webhook", {"url": url_of(receiver, "/old")})
    assert saved.status == 200
    endpoint_id, _ = await created(tenant, url_of(receiver, "/new"))
    await tenant.accepts(tenant.mail(to=f"delivered@{SIMULATOR}", tags=["orders"], metadata={"a": "b"}))
    (delivery,) = await log_of(tenant, endpoint_id, 1)

    async def webhook_log() -> list[dict[str, Any]]:
        deliveries: list[dict[str, Any]] = (await tenant.call("GET", "/v1/webhook/deliveries")).body["deliveries"]
        return deliveries

    (of_webhook,) = await eventually(
        webhook_log, lambda log: len(log) == 1 and log[0]["status"] == "succeeded", within=SENT_SECONDS_MAX
    )
    assert of_webhook["event_id"] == delivery["event_id"]
    (old,), (new,) = came(receiver, "/old"), came(receiver, "/new")
    assert json.loads(old.body)["data"].keys().isdisjoint({"mode", "tags", "metadata", "reason"})
    assert "webhook-id" not in old.headers
    data = json.loads(new.body)["data"]
    assert {**json.loads(old.body)["data"], "mode": "live", "tags": ["orders"], "metadata": {"a": "b"}} == data
    assert (await tenant.call("DELETE", "/v1/webhook")).status == 200
    assert len(await log_of(tenant, endpoint_id, 1)) == 1


@pytest.mark.rule("END-02")
async def test_an_account_has_ten_endpoints_each_with_a_secret_shown_once(tenant: Tenant) -> None:
    secrets = set()
    for number in range(ENDPOINTS_MAX):
        _, secret = await created(tenant, f"{URL}{number}")
        secrets.add(secret)
        assert len(Webhook(secret)._whsecret) == 32
    assert len(secrets) == ENDPOINTS_MAX
    answer = await tenant.call("POST", "/v1/endpoints", {"url": URL})
    assert (answer.status, answer.body["code"]) == (409, "conflict")
    listed = await tenant.call("GET", "/v1/endpoints")
    assert [each["url"] for each in listed.body["endpoints"]] == [f"{URL}{number}" for number in range(ENDPOINTS_MAX)]
    assert not [secret for secret in secrets if secret.encode() in listed.raw]


@pytest.mark.rule("END-02")
async def test_no_endpoint_is_created_while_a_worker_of_the_version_before_lives(tenant: Tenant) -> None:
    await tenant.service.sql("INSERT INTO workers (id, expires_at) VALUES ($1, now() + interval '1 hour')", tenant.id)
    try:
        answer = await tenant.call("POST", "/v1/endpoints", {"url": URL})
        assert (answer.status, answer.body["code"]) == (503, "temporary_failure")
    finally:
        await tenant.service.sql("DELETE FROM workers WHERE id = $1", tenant.id)
    await created(tenant, URL)


@pytest.mark.rule("END-03")
@pytest.mark.parametrize(
    "url", ["http://hooks.example.com/", "https://127.0.0.1/", "https://localhost/", "https://u:p@hooks.example.com/"]
)
async def test_urls_are_checked_as_a_webhooks(tenant: Tenant, url: str) -> None:
    assert (await tenant.call("POST", "/v1/endpoints", {"url": url})).status == 400
    endpoint_id, _ = await created(tenant, URL)
    assert (await tenant.call("PUT", f"/v1/endpoints/{endpoint_id}", {"url": url})).status == 400


@pytest.mark.rule("END-06", "END-07")
async def test_a_disabled_or_deleted_endpoint_gets_nothing_and_its_deliveries_say_why(
    processes: ServiceProcesses, receiver: WebhookReceiver
) -> None:
    tenant = await processes.service.account()
    url = url_of(receiver, "/status/503?disabled")
    endpoint_id, _ = await created(tenant, url)
    await tenant.accepts(tenant.mail(to=f"delivered@{SIMULATOR}"))

    async def log() -> list[dict[str, Any]]:
        listed = await tenant.call("GET", f"/v1/endpoints/{endpoint_id}/deliveries")
        deliveries: list[dict[str, Any]] = listed.body["deliveries"]
        return deliveries

    await eventually(log, lambda found: bool(found) and found[0]["attempt"] > 0, within=SENT_SECONDS_MAX)
    saved = await tenant.call("PUT", f"/v1/endpoints/{endpoint_id}", {"url": url, "enabled": False})
    assert (saved.status, saved.body["endpoint"]["enabled"]) == (200, False)
    (cancelled,) = await eventually(log, lambda found: found[0]["status"] == "failed", within=SENT_SECONDS_MAX)
    assert cancelled["error"] == "It was cancelled: the webhook endpoint is disabled."
    assert (await tenant.call("POST", f"/v1/endpoints/{endpoint_id}/ping")).status == 409
    assert (await tenant.call("DELETE", f"/v1/endpoints/{endpoint_id}")).body["deleted"] is True
    assert (await tenant.call("GET", f"/v1/endpoints/{endpoint_id}")).status == 404
    assert (await tenant.call("GET", "/v1/endpoints")).body["endpoints"] == []


@pytest.mark.rule("END-01")
async def test_a_key_needs_the_scope(tenant: Tenant) -> None:
    allowed = {"Authorization": await tenant.scoped_key(Scope.ENDPOINTS)}
    refused = {"Authorization": await tenant.scoped_key(Scope.SEND, Scope.READ, Scope.EVENTS)}
    service = tenant.service
    answer = await service.request("POST", "/v1/endpoints", headers=allowed, json={"url": URL})
    assert answer.status == 201, answer.raw
    assert (await service.request("GET", "/v1/endpoints", headers=refused)).status == 401
    assert (await service.request("GET", "/v1/webhook", headers=allowed)).status == 401
    assert (await tenant.call("GET", "/v1/endpoints", role="viewer")).status == 200
    assert (await tenant.call("POST", "/v1/endpoints", {"url": URL}, role="viewer")).status == 403


@pytest.mark.rule("END-15")
async def test_another_accounts_endpoint_is_not_found(tenant: Tenant, stranger: Tenant) -> None:
    endpoint_id, _ = await created(tenant, URL)
    for method, path, body in (
        ("GET", "", ABSENT),
        ("PUT", "", {"url": URL}),
        ("DELETE", "", ABSENT),
        ("POST", "/rotate-secret", ABSENT),
        ("POST", "/ping", ABSENT),
        ("GET", "/deliveries", ABSENT),
    ):
        answer = await stranger.call(method, f"/v1/endpoints/{endpoint_id}{path}", body)
        assert (answer.status, answer.body["code"]) == (404, "not_found"), path


@pytest.mark.rule("END-18")
async def test_an_operator_can_switch_endpoints_off(
    processes: ServiceProcesses, receiver: WebhookReceiver, start_service: StartService
) -> None:
    tenant = await processes.service.account()
    endpoint_id, _ = await created(tenant, url_of(receiver, "/off"))
    off = await start_service(processes.service.database_url, WEBHOOKS__ENDPOINTS="false")
    authorization = {"Authorization": await tenant.jwt()}
    for method, path, body in (
        ("POST", "", {"url": URL}),
        ("PUT", f"/{endpoint_id}", {"url": URL}),
        ("POST", f"/{endpoint_id}/ping", ABSENT),
    ):
        answer = await off.request(method, f"/v1/endpoints{path}", headers=authorization, json=body)
        assert (answer.status, answer.body["code"]) == (403, "forbidden"), path
    listed = await off.request("GET", "/v1/endpoints", headers=authorization)
    assert len(listed.body["endpoints"]) == 1
