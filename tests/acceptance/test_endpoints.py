"""Endpoints from a message to the receiver, through real processes; verified by PyPI's and npm's `standardwebhooks`."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from posthouse.clock import DatabaseClock
from posthouse.flows.inbound.reports import Reports
from posthouse.flows.inbound.unsubscribe import Unsubscribe
from posthouse.flows.operate.alert_check import AlertCheck
from posthouse.flows.shared.service_mail import NoServiceMail, ServiceMail
from posthouse.mail.envelope import MailReference
from posthouse.rules import ids, unsubscribe
from posthouse.rules.credential import Scope
from posthouse.rules.endpoint import FurtherType
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.unsubscribe import ListMember
from posthouse.store import endpoint_events
from posthouse.store.endpoint_events import AccountEvent
from tests.acceptance.npm_webhooks import verified_by_npm
from tests.support import webhook_accounts
from tests.support.accept_flow import SIMULATOR
from tests.support.context import context
from tests.support.eventually import eventually
from tests.support.feedback_loop import TRUSTED, complaint_check
from tests.support.fresh_database import open_database
from tests.support.http_answer import Answer
from tests.support.inbound_reports import bounce, complaint
from tests.support.service import ABSENT, StartService, Tenant
from tests.support.service_processes import LONG_LEASE, ServiceProcesses, prepare_processes
from tests.support.webhook_flow import NAME, certificates
from tests.support.webhook_receiver import Request, WebhookReceiver

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
    async with prepare_processes(new_database(), directory, stream="memory", **settings, **LONG_LEASE) as processes:
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
    """What came there, each verified as receivers in Python do."""
    return [Webhook(secret).verify(request.body, request.headers) for request in came(receiver, path)]


async def log_of(tenant: Tenant, endpoint_id: str, number: int, status: str = "succeeded") -> list[dict[str, Any]]:
    async def read() -> list[dict[str, Any]]:
        listed = await tenant.call("GET", f"/v1/endpoints/{endpoint_id}/deliveries")
        deliveries: list[dict[str, Any]] = listed.body["deliveries"]
        return deliveries

    def is_there(log: list[dict[str, Any]]) -> bool:
        return len(log) >= number and all(delivery["status"] == status for delivery in log)

    return await eventually(read, is_there)


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
    assert await verified_by_npm(secret, came(receiver, "/standard")) == events
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

    await eventually(arrived, lambda found: found == expected)


WRONG: list[dict[str, object]] = [
    {"types": ["email.opened"]},
    {"types": ["webhook.test"]},
    {"sender_domains": ["not a domain"]},
    {"sender_domains": [f"d{number}.example.com" for number in range(21)]},
    {"tags": ["x" * 129]},
    {"tags": [""]},
    {"mode": "both"},
    {"headers": {"Host": "other.example.com"}},
    {"headers": {"content-length": "0"}},
    {"headers": {"Webhook-Signature": "v1,"}},
    {"headers": {"X-Forwarded-For": "127.0.0.1"}},
    {"headers": {"X A": "b"}},
    {"headers": {"X-A": "b\r\nX-B: c"}},
    {"headers": {"X-A": "ü"}},
    {"headers": {"X-A": "x" * 1_001}},
    {"headers": {"X-A": "b", "x-a": "c"}},
    {"headers": {f"X-{number}": "b" for number in range(6)}},
    {"url": "http://hooks.example.com/"},
    {"url": "https://127.0.0.1/"},
    {"url": "https://u:p@hooks.example.com/"},
]


@pytest.mark.rule("END-03", "END-04", "END-05")
async def test_what_can_not_be_is_refused_and_named_when_made_or_changed(tenant: Tenant) -> None:
    endpoint_id, _ = await created(tenant, URL)
    for fields in WRONG:
        (name,) = fields
        for method, path in (("POST", ""), ("PUT", f"/{endpoint_id}")):
            answer = await tenant.call(method, f"/v1/endpoints{path}", {"url": URL, **fields})
            assert answer.is_refusal(400, "invalid_request", f"`{name}"), fields


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
    for secret in (old, new):
        assert await verified_by_npm(secret, came(receiver, "/rotated")) == events_at(receiver, "/rotated", secret)
    await tenant.service.sql(
        "UPDATE endpoints SET previous_until = now() - interval '1 second' WHERE account_id = $1", tenant.id
    )
    await tenant.accepts(tenant.mail(to=f"delivered@{SIMULATOR}"))
    await log_of(tenant, endpoint_id, 2)
    assert len(events_at(receiver, "/rotated", new)) == 2
    with pytest.raises(WebhookVerificationError):
        events_at(receiver, "/rotated", old)
    (_, late) = came(receiver, "/rotated")
    assert await verified_by_npm(old, [late]) == [None]
    # At most four earlier secrets sign at the same time.
    path = f"/v1/endpoints/{endpoint_id}/rotate-secret"
    assert [(await tenant.call("POST", path)).status for _ in range(5)][-1] == 409


@pytest.mark.rule("END-06")
async def test_what_a_change_leaves_out_stays(tenant: Tenant) -> None:
    url = "https://hooks.example.com/all"
    wish = {
        "url": url, "types": ["email.bounced"], "sender_domains": [tenant.domain], "tags": ["orders"], "mode": "live",
        "headers": {"Authorization": "Bearer x"}, "enabled": False,
    }  # fmt: skip
    made = (await tenant.call("POST", "/v1/endpoints", wish)).body["endpoint"]
    path = f"/v1/endpoints/{made['id']}"

    async def changed(**fields: object) -> dict[str, object]:
        answer = await tenant.call("PUT", path, fields)
        assert answer.status == 200, answer.raw
        shown: dict[str, object] = answer.body["endpoint"]
        return {name: value for name, value in shown.items() if name != "updated_at"}

    before = {name: value for name, value in made.items() if name != "updated_at"}
    assert await changed() == before
    assert await changed(url=url) == before
    assert await changed(headers=None) == before
    assert await changed(tags=["other"]) == before | {"tags": ["other"]}
    cleared = await changed(types=None, sender_domains=None, tags=None, mode=None, headers={}, enabled=True)
    assert (cleared["sender_domains"], cleared["tags"], cleared["mode"], cleared["header_names"]) == ([], [], None, [])
    assert len(cleared["types"]) > 3  # type: ignore[arg-type]
    assert cleared["enabled"] is True


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

    listed = await eventually(tried, lambda found: found.body["deliveries"][0]["attempt"] > 0)
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

    (of_webhook,) = await eventually(webhook_log, lambda log: len(log) == 1 and log[0]["status"] == "succeeded")
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

    await eventually(log, lambda found: bool(found) and found[0]["attempt"] > 0)
    saved = await tenant.call("PUT", f"/v1/endpoints/{endpoint_id}", {"url": url, "enabled": False})
    assert (saved.status, saved.body["endpoint"]["enabled"]) == (200, False)
    (cancelled,) = await eventually(log, lambda found: found[0]["status"] == "failed")
    assert cancelled["error"] == "It was cancelled: the webhook endpoint is disabled."
    assert (await tenant.call("POST", f"/v1/endpoints/{endpoint_id}/ping")).status == 409
    assert (await tenant.call("DELETE", f"/v1/endpoints/{endpoint_id}")).body["deleted"] is True
    assert (await tenant.call("GET", f"/v1/endpoints/{endpoint_id}")).status == 404
    assert (await tenant.call("GET", "/v1/endpoints")).body["endpoints"] == []


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


def message_of(sent: dict[str, Any]) -> MessageId:
    message_id = ids.parse(ids.MESSAGE, sent["id"])
    assert message_id is not None
    return MessageId(message_id)


async def sent_to(tenant: Tenant, *local_parts: str, **fields: object) -> dict[str, Any]:
    to = [f"{local_part}@{SIMULATOR}" for local_part in local_parts]
    accepted: dict[str, Any] = await tenant.accepts(tenant.mail(to=to, **fields))
    return accepted


async def events_of(
    tenant: Tenant, receiver: WebhookReceiver, endpoint: tuple[str, str], path: str, number: int
) -> list[dict[str, Any]]:
    """All that the endpoint got, once there are this many."""
    endpoint_id, secret = endpoint
    log = await log_of(tenant, endpoint_id, number)
    assert len(log) == number
    return events_at(receiver, path, secret)


@pytest.mark.rule("END-11")
async def test_a_first_deferral_is_an_event_and_a_second_is_not(
    processes: ServiceProcesses, receiver: WebhookReceiver
) -> None:
    tenant = await processes.service.account()
    wanted = await created(tenant, url_of(receiver, "/deferred"), types=["email.deferred"])
    sent = await sent_to(tenant, "deferred", tags=["slow"], metadata={"order": "7"})
    (event,) = await events_of(tenant, receiver, wanted, "/deferred", 1)
    data = event["data"]
    assert (event["type"], data["email_id"], data["to"]) == ("email.deferred", sent["id"], f"deferred@{SIMULATOR}")
    assert (data["tags"], data["metadata"], data["mode"]) == (["slow"], {"order": "7"}, "live")
    assert data["reason"]
    assert 400 <= data["smtp_code"] <= 499
    await tenant.service.sql("UPDATE delivery_schedule SET next_at = now() WHERE account_id = $1", tenant.id)

    async def attempts() -> int:
        count: int = await tenant.service.value(
            "SELECT max(attempt_count) FROM recipients WHERE account_id = $1", tenant.id
        )
        return count

    await eventually(attempts, lambda count: count >= 2)
    assert len(await log_of(tenant, wanted[0], 1)) == 1


@pytest.mark.rule("END-11")
async def test_a_cancellation_is_an_event(processes: ServiceProcesses, receiver: WebhookReceiver) -> None:
    tenant = await processes.service.account()
    wanted = await created(tenant, url_of(receiver, "/cancelled"), types=["email.cancelled"])
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    sent = await sent_to(tenant, "ada", "bob", send_at=later)
    headers = {"Authorization": await tenant.scoped_key(Scope.SEND)}
    for _ in range(2):
        cancelled = await tenant.service.request("POST", f"/emails/{sent['id']}/cancel", headers=headers)
        assert cancelled.status == 200, cancelled.raw
    events = await events_of(tenant, receiver, wanted, "/cancelled", 2)
    assert {event["data"]["to"] for event in events} == {f"ada@{SIMULATOR}", f"bob@{SIMULATOR}"}
    assert {event["type"] for event in events} == {"email.cancelled"}


@pytest.mark.rule("END-11", "END-16", "END-17")
async def test_complaints_and_late_bounces_are_events_only_for_endpoints(
    processes: ServiceProcesses, receiver: WebhookReceiver
) -> None:
    tenant = await processes.service.account()
    assert (await tenant.call("PUT", "/v1/webhook", {"url": url_of(receiver, "/unaware")})).status == 200
    types = ["email.complained", "email.returned"]
    wanted = await created(tenant, url_of(receiver, "/reported"), types=types)
    sent = [await sent_to(tenant, "delivered", subject=subject) for subject in ("One", "Two")]
    # Only a delivered message can come back.
    await processes.wait_until_final(tenant, [answer["id"] for answer in sent])
    messages = [message_of(answer) for answer in sent]
    address = f"delivered@{SIMULATOR}"
    async with open_database(tenant.service.database_url) as database:
        reports = Reports(
            context(database, DatabaseClock(), return_path=(b"k" * 32,)),
            return_path_domain="bounces.example.com",
            complaint_check=complaint_check(),
        )
        about = [[MailReference.of(tenant.id, message_id, 0)] for message_id in messages]
        for _ in range(2):
            await reports.receive(complaint(), about[0], TRUSTED)
            await reports.receive(bounce(address, status="5.2.2", code=552), about[1], TRUSTED)
        # It comes from no feedback loop: anyone can write that.
        await reports.receive(complaint(kind="fraud"), about[1], "203.0.113.9")
    events = await events_of(tenant, receiver, wanted, "/reported", 2)
    by_type = {event["type"]: event["data"] for event in events}
    assert by_type["email.complained"]["subject"] == "One"
    returned = by_type["email.returned"]
    assert (returned["subject"], returned["smtp_code"], returned["reason"]) == ("Two", 552, "mailbox_full")

    async def feed(query: str) -> list[str]:
        listed = await tenant.call("GET", f"/v1/events{query}")
        return [event["type"] for event in listed.body["events"]]

    message_id = ids.text(ids.MESSAGE, messages[1])

    # An event is listed once all events of its time are.
    async def listed() -> list[str]:
        return await feed(f"?type=email.returned&message_id={message_id}")

    assert await eventually(listed, bool) == ["email.returned"]
    assert await feed("?type=email.complained") == ["email.complained"]
    assert await feed(f"?type=email.complained&message_id={message_id}") == []
    assert await feed("") == ["email.delivered"] * 2
    assert {json.loads(request.body)["type"] for request in came(receiver, "/unaware")} == {"email.delivered"}


@pytest.mark.rule("END-11")
async def test_an_unsubscription_is_one_event(processes: ServiceProcesses, receiver: WebhookReceiver) -> None:
    tenant = await processes.service.account()
    wanted = await created(tenant, url_of(receiver, "/left"), types=["email.unsubscribed"], tags=["list:news"])
    other = await created(tenant, url_of(receiver, "/left-other"), tags=["list:other"])
    key = bytes(range(unsubscribe.KEY_BYTES))
    async with open_database(tenant.service.database_url) as database:
        flow = Unsubscribe(context(database, DatabaseClock(), unsubscribe=(key,)))
        for _ in range(2):
            await flow.unsubscribe(unsubscribe.token(ListMember(AccountId(tenant.id), "news", "ada@example.org"), key))
    (event,) = await events_of(tenant, receiver, wanted, "/left", 1)
    assert (event["type"], event["data"]) == ("email.unsubscribed", {"to": "ada@example.org", "list": "news"})
    assert await log_of(tenant, other[0], 0) == []


@pytest.mark.rule("END-11")
async def test_the_simulators_addresses_make_the_events_that_they_name(
    processes: ServiceProcesses, receiver: WebhookReceiver
) -> None:
    tenant = await processes.service.account()
    types = {f"email.{name}": f"{name}@{SIMULATOR}" for name in ("complained", "returned", "unsubscribed")}
    wanted = await created(tenant, url_of(receiver, "/simulated"), types=list(types))
    await sent_to(tenant, *(name.partition("@")[0] for name in types.values()), tags=["list:news"])
    events = await events_of(tenant, receiver, wanted, "/simulated", len(types))
    assert {event["type"]: event["data"]["to"] for event in events} == types


@pytest.mark.rule("END-12")
async def test_a_domain_verified_or_missing_is_an_event(processes: ServiceProcesses, receiver: WebhookReceiver) -> None:
    tenant = await processes.service.account()
    types = ["domain.verified", "domain.endangered", "domain.lost"]
    wanted = await created(tenant, url_of(receiver, "/domains"), types=types)
    await created(tenant, url_of(receiver, "/domains-of-tests"), types=types, mode="test")
    name = f"new.{tenant.unique}.example.org"
    added = await tenant.call("POST", "/v1/domains", {"name": name})
    zone = processes.nameserver.zone

    async def verify() -> None:
        await tenant.service.sql("UPDATE domains SET asked_at = NULL WHERE account_id = $1", tenant.id)
        assert (await tenant.call("POST", f"/v1/domains/{name}/verify")).status == 200

    published = {record["name"]: [record["value"]] for record in added.body["domain"]["records"] if record["value"]}
    await verify()
    zone.update(published)
    await verify()
    await verify()
    for record in published:
        del zone[record]
    await verify()
    await tenant.service.sql(
        "UPDATE domains SET missing_since = missing_since - interval '8 days' WHERE account_id = $1 AND name = $2",
        tenant.id, name,
    )  # fmt: skip
    await verify()
    events = await events_of(tenant, receiver, wanted, "/domains", 3)
    assert sorted((event["type"], event["data"]["domain"]) for event in events) == sorted(
        (each, name) for each in types
    )
    assert came(receiver, "/domains-of-tests") == []


@pytest.mark.rule("END-12")
async def test_an_alert_is_one_event_for_each_endpoint_that_chose_it(
    processes: ServiceProcesses, receiver: WebhookReceiver
) -> None:
    tenant = await processes.service.account()
    wanted = await created(tenant, url_of(receiver, "/alerts"), types=["alert.raised", "alert.cleared"])
    chosen = {"alerts": [{"kind": "credits_left", "threshold": 500}]}
    for role in ("owner", "viewer"):
        assert (await tenant.call("PUT", "/v1/account/alerts", chosen, role=role)).status == 200

    @asynccontextmanager
    async def no_mail() -> AsyncIterator[ServiceMail]:
        yield NoServiceMail()

    async with open_database(tenant.service.database_url) as database:
        check = AlertCheck(context(database, DatabaseClock()), open_service_mail=no_mail)
        for left in (100, 90, 5_000, 5_000):
            await tenant.service.sql("UPDATE accounts SET available = $2 WHERE id = $1", tenant.id, left)
            await check.run()
    events = await events_of(tenant, receiver, wanted, "/alerts", 2)
    assert {event["type"] for event in events} == {"alert.raised", "alert.cleared"}
    raised = next(event["data"] for event in events if event["type"] == "alert.raised")
    assert (raised["alert"], raised["value"], raised["threshold"]) == ("credits_left", 100, 500)


@pytest.mark.rule("END-14")
async def test_what_failed_since_then_is_sent_again_once(
    processes: ServiceProcesses, receiver: WebhookReceiver
) -> None:
    tenant = await processes.service.account()
    path = "/status/500?replayed"
    endpoint_id, secret = await created(tenant, url_of(receiver, path))
    other, _ = await created(tenant, url_of(receiver, "/status/500?other"))
    since = datetime.now(UTC).isoformat()
    await sent_to(tenant, "delivered", "bounced")
    async with open_database(tenant.service.database_url) as database, database.transaction() as tx:
        event = AccountEvent(AccountId(tenant.id), FurtherType.DOMAIN_LOST, {"domain": "lost.example.com"})
        await endpoint_events.enter_of_account(tx, [event], datetime.now(UTC))

    async def tried() -> list[dict[str, Any]]:
        listed = await tenant.call("GET", f"/v1/endpoints/{endpoint_id}/deliveries")
        deliveries: list[dict[str, Any]] = listed.body["deliveries"]
        return deliveries

    await eventually(tried, lambda log: len(log) == 3 and all(one["attempt"] for one in log))
    # As if all attempts were made.
    await tenant.service.sql("DELETE FROM webhook_schedule WHERE account_id = $1", tenant.id)
    await tenant.service.sql(
        "UPDATE webhook_deliveries SET status = 'failed', next_attempt_at = NULL WHERE account_id = $1", tenant.id
    )
    url = url_of(receiver, "/replayed")
    assert (await tenant.call("PUT", f"/v1/endpoints/{endpoint_id}", {"url": url})).status == 200
    replays = [await tenant.call("POST", f"/v1/endpoints/{endpoint_id}/replay", {"since": since}) for _ in range(2)]
    assert [(answer.status, answer.body["replayed"]) for answer in replays] == [(202, 3), (202, 0)]

    async def arrived() -> int:
        return len(came(receiver, "/replayed"))

    await eventually(arrived, lambda count: count >= 3)
    events = events_at(receiver, "/replayed", secret)
    assert sorted(event["type"] for event in events) == ["domain.lost", "email.bounced", "email.delivered"]
    first = {request.headers["webhook-id"]: request.body for request in came(receiver, path)}
    assert {request.headers["webhook-id"]: request.body for request in came(receiver, "/replayed")} == first
    assert {delivery["replay_of"] for delivery in await tried()} > {None}
    of_other = (await tenant.call("GET", f"/v1/endpoints/{other}/deliveries")).body["deliveries"]
    assert [delivery["status"] for delivery in of_other] == ["failed"] * 3


@pytest.mark.rule("END-19")
async def test_owners_get_an_email_about_a_failing_endpoint_which_stays_enabled(
    processes: ServiceProcesses, receiver: WebhookReceiver
) -> None:
    tenant = await processes.service.account()
    owner = await tenant.user("owner")
    path = "/status/500?fails"
    endpoint_id, _ = await created(tenant, url_of(receiver, path))
    await tenant.service.sql(
        "UPDATE endpoints SET answered_at = now() - interval '9 days', failing_since = now() - interval '3 days'"
        " WHERE account_id = $1",
        tenant.id,
    )
    await sent_to(tenant, "delivered")

    async def notices() -> list[str]:
        return await tenant.service.mailed_texts(owner)

    texts = await eventually(notices, bool)
    assert [NAME in text and "/v1/endpoints/{id}/ping" in text for text in texts] == [True]

    async def read() -> dict[str, Any]:
        body: dict[str, Any] = (await tenant.call("GET", f"/v1/endpoints/{endpoint_id}")).body
        return body

    # The email is sent while the result of the call is recorded.
    shown = await eventually(read, lambda found: found["health"]["failures"] >= 1)
    assert (shown["endpoint"]["enabled"], shown["endpoint"]["state"]) == (True, "failing")
    log = await tenant.call("GET", "/v1/audit-log")
    assert ("endpoint.failing", NAME) in [(entry["action"], entry["target"]) for entry in log.body["entries"]]


@pytest.mark.rule("END-01")
async def test_the_webhook_is_not_among_the_endpoints(tenant: Tenant) -> None:
    """Not even under the id that it has in the table: a key with the scope of endpoints must not reach it."""
    assert (await tenant.call("PUT", "/v1/webhook", {"url": URL})).status == 200
    endpoint_id, _ = await created(tenant, URL)
    listed = await tenant.call("GET", "/v1/endpoints")
    assert [each["id"] for each in listed.body["endpoints"]] == [endpoint_id]
    path = f"/v1/endpoints/{ids.text(ids.ENDPOINT, tenant.id)}"
    calls: list[tuple[str, str, Any]] = [
        ("GET", "", ABSENT),
        ("PUT", "", {"enabled": False}),
        ("DELETE", "", ABSENT),
        ("POST", "/rotate-secret", ABSENT),
        ("POST", "/ping", ABSENT),
        ("GET", "/deliveries", ABSENT),
        ("POST", "/replay", {"since": "2026-01-01T00:00:00Z"}),
    ]
    for method, further, body in calls:
        assert (await tenant.call(method, path + further, body)).is_refusal(404, "not_found", "endpoint")
    pinged = await tenant.call("POST", "/v1/webhook/ping")
    of_webhook = pinged.body["delivery"]["id"]
    of_endpoint = (await tenant.call("POST", f"/v1/endpoints/{endpoint_id}/ping")).body["delivery"]["id"]
    for family, delivery_id in (("endpoints", of_webhook), ("webhook", of_endpoint)):
        assert (await tenant.call("GET", f"/v1/{family}/deliveries/{delivery_id}")).status == 404
        assert (await tenant.call("POST", f"/v1/{family}/deliveries/{delivery_id}/replay")).status == 404
    assert (await tenant.call("GET", "/v1/webhook")).body["webhook"]["enabled"] is True
