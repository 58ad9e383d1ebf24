"""Webhooks from a message to the customer's server, through real processes: sent once, signed, retried."""

import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.acceptance.test_sessions import as_user, person
from tests.support import webhook_accounts
from tests.support.accept_flow import SIMULATOR
from tests.support.eventually import eventually
from tests.support.service import Tenant
from tests.support.service_processes import LONG_LEASE, ServiceProcesses, prepare_processes
from tests.support.webhook_accounts import signed_at
from tests.support.webhook_flow import NAME, certificates
from tests.support.webhook_receiver import Request, WebhookReceiver

FIRST_WAIT = timedelta(seconds=5)
# How many calls a URL that never answered gets at a time.
FEW = 10


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def webhook_receiver() -> AsyncIterator[WebhookReceiver]:
    async with WebhookReceiver(certificates().servers["sound"]) as webhook_receiver:
        yield webhook_receiver


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def processes(
    webhook_receiver: WebhookReceiver, new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServiceProcesses]:
    directory: Path = tmp_path_factory.mktemp("webhooks")
    authority = directory / "authority.pem"
    authority.write_bytes(certificates().authority_pem)
    settings = webhook_accounts.webhook_settings(webhook_receiver.port, authority)
    async with prepare_processes(new_database(), directory, stream="memory", **settings, **LONG_LEASE) as processes:
        processes.nameserver.records[NAME, "A"] = ["127.0.0.1"]
        await processes.start_http("dispatch", "delivery", "notification")
        await processes.service.prepare_sender()
        yield processes


async def subscribed(
    processes: ServiceProcesses, webhook_receiver: WebhookReceiver, path: str, **fields: object
) -> tuple[Tenant, str]:
    """An account with a webhook at this path, and its secret."""
    tenant = await processes.service.account()
    url = f"https://{NAME}:{webhook_receiver.port}{path}"
    answer = await tenant.call("PUT", "/v1/webhook", {"url": url, **fields})
    assert answer.status == 200, answer.raw
    return tenant, answer.body["secret"]


def came(webhook_receiver: WebhookReceiver, path: str) -> list[Request]:
    return [request for request in webhook_receiver.requests if request.line == f"POST {path} HTTP/1.1"]


async def log_of(tenant: Tenant, is_wanted: Callable[[dict[str, Any]], bool], number: int) -> list[dict[str, Any]]:
    async def read() -> list[dict[str, Any]]:
        deliveries: list[dict[str, Any]] = (await tenant.call("GET", "/v1/webhook/deliveries")).body["deliveries"]
        return deliveries

    return await eventually(read, lambda log: len(log) == number and all(map(is_wanted, log)))


@pytest.mark.rule("HOOK-16")
async def test_every_final_result_is_sent_once_and_signed(
    processes: ServiceProcesses, webhook_receiver: WebhookReceiver
) -> None:
    began_at = datetime.now(UTC).timestamp()
    tenant, secret = await subscribed(processes, webhook_receiver, "/final")
    ends = {f"{end}@{SIMULATOR}": f"email.{end}" for end in ("delivered", "bounced", "failed")}
    sent = await tenant.accepts(tenant.mail(to=list(ends), subject="Grüße"))
    log = await log_of(tenant, lambda delivery: delivery["status"] == "succeeded", len(ends))
    message = (await tenant.get(sent["id"])).body
    recipients = {recipient["email"]: recipient for recipient in message["recipients"]}

    requests = came(webhook_receiver, "/final")
    assert len(requests) == len(ends), "once each, and none at the moment of the 202"
    events = [json.loads(request.body) for request in requests]
    assert {event["data"]["to"]: event["type"] for event in events} == ends
    assert {event["id"] for event in events} == {event["event_id"] for event in log}
    for request, event in zip(requests, events, strict=True):
        t = signed_at(request, secret)
        assert t is not None
        assert int(began_at) <= t <= datetime.now(UTC).timestamp()
        assert request.headers["content-type"] == "application/json"
        assert request.headers["user-agent"] == "Service-Webhook/1.0"
        data = event["data"]
        assert (data["email_id"], data["subject"], data["from"]) == (sent["id"], "Grüße", message["from"])
        assert data["recipient_id"] == recipients[data["to"]]["id"]
        assert data.get("smtp_code") == recipients[data["to"]]["last_smtp_code"]
        assert "test" not in data


@pytest.mark.rule("HOOK-16")
async def test_deferrals_and_unsubscribed_events_are_not_sent(
    processes: ServiceProcesses, webhook_receiver: WebhookReceiver
) -> None:
    tenant, _ = await subscribed(processes, webhook_receiver, "/bounces", events=["email.bounced"])
    await tenant.accepts(tenant.mail(to=[f"{end}@{SIMULATOR}" for end in ("deferred", "delivered", "bounced")]))
    await log_of(tenant, lambda delivery: delivery["status"] == "succeeded", 1)
    assert [json.loads(request.body)["type"] for request in came(webhook_receiver, "/bounces")] == ["email.bounced"]


@pytest.mark.rule("HOOK-17")
async def test_a_failed_webhook_is_retried_with_the_same_body(
    processes: ServiceProcesses, webhook_receiver: WebhookReceiver
) -> None:
    tenant, secret = await subscribed(processes, webhook_receiver, "/status/500")
    began_at = datetime.now(UTC)
    await tenant.accepts(tenant.mail(to=f"delivered@{SIMULATOR}"))
    (failed,) = await log_of(tenant, lambda delivery: delivery["attempt"] == 1, 1)
    assert (failed["status"], failed["http_status"], failed["response_body"]) == ("pending", 500, "said")
    tried_at, next_at = (datetime.fromisoformat(failed[name]) for name in ("last_attempt_at", "next_attempt_at"))
    # The wait counts from the end of the request; the time of the attempt is stored with its result, a little later.
    assert next_at >= began_at + FIRST_WAIT
    assert began_at < tried_at < next_at
    url = f"https://{NAME}:{webhook_receiver.port}/recovered"
    assert (await tenant.call("PUT", "/v1/webhook", {"url": url})).status == 200
    (sent_delivery,) = await log_of(tenant, lambda delivery: delivery["status"] == "succeeded", 1)
    assert (sent_delivery["attempt"], sent_delivery["url"], sent_delivery["next_attempt_at"]) == (2, url, None)
    (first,), (second,) = came(webhook_receiver, "/status/500"), came(webhook_receiver, "/recovered")
    assert first.body == second.body
    times = signed_at(first, secret), signed_at(second, secret)
    assert times[0] is not None
    assert times[1] is not None
    assert times[1] - times[0] >= 5


@pytest.mark.rule("HOOK-18")
async def test_a_url_that_never_answered_gets_few_calls_until_it_does(
    processes: ServiceProcesses, webhook_receiver: WebhookReceiver
) -> None:
    path = "/status/503?never"
    tenant, _ = await subscribed(processes, webhook_receiver, path)
    began_at = datetime.now(UTC)
    await tenant.accepts(tenant.mail(to=[f"delivered+{number}@{SIMULATOR}" for number in range(FEW * 3)]))
    log = await log_of(tenant, lambda delivery: delivery["attempt"] or delivery["error"], FEW * 3)
    calls = len(came(webhook_receiver, path))
    assert FEW <= calls <= FEW + 1 + (datetime.now(UTC) - began_at) / FIRST_WAIT
    waiting = [delivery for delivery in log if not delivery["attempt"]]
    assert waiting
    assert all(delivery["error"].startswith("It waits: the endpoint has not answered") for delivery in waiting)
    url = f"https://{NAME}:{webhook_receiver.port}/answers"
    assert (await tenant.call("PUT", "/v1/webhook", {"url": url})).status == 200
    assert (await tenant.call("POST", "/v1/webhook/ping")).status == 202
    await eventually(lambda: bool(came(webhook_receiver, "/answers")))
    await tenant.accepts(tenant.mail(to=[f"delivered+{number}@{SIMULATOR}" for number in range(FEW * 3)]))
    await eventually(lambda: len(came(webhook_receiver, "/answers")) > FEW * 3)


@pytest.mark.rule("HOOK-19", "ALT-05")
async def test_owners_get_an_email_when_the_webhook_failed_for_days(
    processes: ServiceProcesses, webhook_receiver: WebhookReceiver
) -> None:
    service = processes.service
    tenant, _ = await subscribed(processes, webhook_receiver, "/status/500?days")
    owner, viewer = await tenant.user("owner"), await tenant.user("viewer")
    alerted = await person(tenant)
    chosen = {"alerts": [{"kind": "webhook_failing"}]}
    assert (await as_user(service, "PUT", "/v1/account/alerts", alerted.token, chosen)).status == 200
    await service.sql("UPDATE endpoints SET failing_since = now() - interval '2 days' WHERE account_id = $1", tenant.id)
    for _ in range(2):
        await tenant.accepts(tenant.mail(to=f"delivered@{SIMULATOR}"))
    (text,) = await eventually(lambda: service.mailed_texts(owner), lambda texts: bool(texts))
    assert NAME in text
    assert "/v1/webhook/ping" in text
    await log_of(tenant, lambda delivery: delivery["attempt"] >= 1, 2)
    assert len(await service.mailed_texts(owner)) == 1
    assert await service.mailed_texts(viewer) == []
    assert await service.mailed_texts(alerted.email) == []
    for _ in range(2):
        await service.operator.alert_check.run()
    assert len(await service.mailed_texts(alerted.email)) == 1
    assert len(await service.mailed_texts(owner)) == 1
    entries = (await tenant.call("GET", "/v1/audit-log")).body["entries"]
    assert [(entry["actor"]["name"], entry["target"]) for entry in entries if entry["action"] == "webhook.failing"] == [
        ("posthouse", NAME)
    ]
    webhook = (await tenant.call("GET", "/v1/webhook")).body["webhook"]
    assert webhook["enabled"] is True
