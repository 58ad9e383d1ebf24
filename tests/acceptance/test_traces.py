"""One message's trace across separate processes, as a collector gets it; and what is never in it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from posthouse import traces
from posthouse.rules import ids
from tests.support import webhook_accounts
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.otlp_collector import CollectedSpan, OtlpCollector
from tests.support.service import Tenant
from tests.support.service_processes import LONG_LEASE, ServiceProcesses, prepare_processes
from tests.support.smtp_listeners import SmtpListeners, raw_mail, submit
from tests.support.webhook_flow import NAME, certificates
from tests.support.webhook_receiver import WebhookReceiver

pytestmark = pytest.mark.long

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{SPAN}-00"
DESTINATION = "there.example.net"


Running = tuple[ServiceProcesses, OtlpCollector, WebhookReceiver, SmtpListeners]


@asynccontextmanager
async def running(database_url: str, directory: Path, **settings: str) -> AsyncIterator[Running]:
    """Every part in its own process."""
    authority = directory / "webhooks.pem"
    authority.write_bytes(certificates().authority_pem)
    listeners = SmtpListeners.make(directory)
    async with OtlpCollector() as collector, WebhookReceiver(certificates().servers["sound"]) as receiver:
        chosen = {
            **webhook_accounts.webhook_settings(receiver.port, authority),
            **listeners.settings,
            "TRACING__ENDPOINT": collector.endpoint,
            **settings,
        }
        async with prepare_processes(database_url, directory, **chosen, **LONG_LEASE) as processes:
            processes.nameserver.records[NAME, "A"] = ["127.0.0.1"]
            processes.destination(DESTINATION)
            for word in ("dispatch", "delivery", "notification"):
                processes.start(word)
            submission = processes.start("submission")
            await processes.start_http()
            await listeners.open(submission)
            yield processes, collector, receiver, listeners


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def traced(new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """Processes that trace everything, for several tests: each looks at its own traces."""
    database_url = await asyncio.to_thread(new_database)
    async with running(database_url, tmp_path_factory.mktemp("traced"), TRACING__SHARE="1") as everything:
        yield everything


async def with_webhook(tenant: Tenant, receiver: WebhookReceiver, path: str = "/events") -> str:
    """The secret of its webhook."""
    hook = {"url": f"https://{NAME}:{receiver.port}{path}", "events": ["email.delivered", "email.bounced"]}
    answer = await tenant.call("PUT", "/v1/webhook", hook)
    assert answer.status < 300, answer.raw
    secret: str = answer.body["secret"]
    return secret


async def collected(collector: OtlpCollector, *names: str, of: Tenant | None = None) -> list[CollectedSpan]:
    """The spans, or those of the account's traces, once these names have come, each as often as it is listed."""
    wanted = Counter(names)

    def own() -> list[CollectedSpan]:
        spans = collector.spans
        if of is None:
            return spans
        named = {span.trace_id for span in spans if span.attributes.get(traces.ACCOUNT) == ids.text(ids.ACCOUNT, of.id)}
        return [span for span in spans if span.trace_id in named]

    return await eventually(own, lambda spans: not wanted - Counter(span.name for span in spans))


def tree(spans: Sequence[CollectedSpan], of: str) -> list[Any]:
    """Names, each with those of its parts, in the order of their beginnings."""
    found: list[Any] = []
    for span in spans:
        if span.parent_id == of:
            parts = tree(spans, span.span_id)
            found.append([span.name, *parts] if parts else span.name)
    return found


@pytest.mark.rule("HTTP-17")
async def test_a_message_has_one_trace_from_the_request_to_the_webhook_and_its_replay_across_all_processes(
    traced: Running,
) -> None:
    processes, collector, receiver, _ = traced
    tenant = await processes.service.account()
    await with_webhook(tenant, receiver)
    answer = await tenant.send(tenant.mail(to=f"ada@{DESTINATION}"), headers={"traceparent": TRACEPARENT})
    assert answer.status == 202
    spans = await collected(collector, "POST /emails", "deliver", "webhook", of=tenant)
    (call,) = [request for request in receiver.requests if TRACE in request.headers["traceparent"]]
    (delivery,) = (await tenant.call("GET", "/v1/webhook/deliveries")).body["deliveries"]
    replayed = await tenant.call("POST", f"/v1/webhook/deliveries/{delivery['id']}/replay")
    assert replayed.status == 202, replayed.raw
    with_replay = await collected(collector, "webhook", "webhook", of=tenant)

    assert [span.trace_id for span in with_replay if span.name == "webhook"] == [TRACE, TRACE]
    assert {span.trace_id for span in spans} == {TRACE}
    assert tree(spans, SPAN) == [
        [
            "POST /emails",
            "commit",
            ["deliver", "ticket", "claim", "smtp", ["record", ["webhook", "ticket", "claim", "call", "record"]]],
        ]
    ]
    assert len({span.process["process.pid"] for span in spans}) == 3
    by_part = {span.name: span.process["posthouse.part"] for span in spans if span.name not in ("ticket", "record")}
    assert by_part == {
        "POST /emails": "http",
        "commit": "http",
        "deliver": "delivery",
        "claim": "notification",
        "smtp": "delivery",
        "webhook": "notification",
        "call": "notification",
    }
    by_name = {span.name: span for span in spans}
    assert call.headers["traceparent"] == f"00-{TRACE}-{by_name['call'].span_id}-01"
    account = ids.text(ids.ACCOUNT, tenant.id)
    assert by_name["POST /emails"].attributes == {
        traces.REQUEST: answer.body["request_id"],
        traces.ACCOUNT: account,
        traces.MESSAGE: answer.body["id"],
        traces.RECIPIENTS: 1,
        traces.CODE: "accepted",
    }
    assert by_name["deliver"].attributes == {
        traces.ACCOUNT: account,
        traces.MESSAGE: answer.body["id"],
        traces.RECIPIENTS: 1,
        traces.ATTEMPT: 1,
        traces.OUTCOME: "delivered",
    }
    smtp = by_name["smtp"].attributes
    assert (smtp[traces.SERVER], smtp[traces.SMTP_CODE]) == (f"mx.{DESTINATION}", 250)
    assert by_name["call"].attributes == {traces.HTTP_STATUS: 200}
    assert [span.name for span in spans if span.is_error or span.ended_at < span.began_at] == []
    assert {span.kind for span in spans} == {"server", "internal", "consumer", "client"}


@pytest.mark.rule("HTTP-17")
async def test_a_trace_has_every_attempt_and_mail_over_smtp_has_one_too(traced: Running) -> None:
    processes, collector, _, listeners = traced
    tenant = await processes.service.account()
    async with listeners.session(tenant) as line:
        mail = raw_mail(tenant, "a")
        reply = await submit(line, mail, [f"greylist+a@{DESTINATION}"], sender=f"news@{tenant.domain}")
    assert reply.startswith("250")
    await processes.wait_until_all_final()
    number = await processes.service.value("SELECT count(*) FROM attempts WHERE account_id = $1", tenant.id)
    spans = await collected(collector, "submission", *["deliver"] * number, of=tenant)

    assert number > 1
    assert len({span.trace_id for span in spans}) == 1
    attempt = ["deliver", "ticket", "claim", "smtp", "record"]
    assert tree(spans, "") == [["submission", "commit", *[attempt] * number]]
    attempts = [span.attributes for span in spans if span.name == "deliver"]
    assert [(one[traces.ATTEMPT], one[traces.OUTCOME]) for one in attempts] == [
        (count, "deferred" if count < number else "delivered") for count in range(1, number + 1)
    ]


@pytest.mark.rule("HTTP-17")
async def test_a_caller_is_followed_only_if_the_operator_says_so(database_url: str, tmp_path: Path) -> None:
    async with running(database_url, tmp_path, TRACING__FOLLOW_CALLERS="true") as (processes, collector, _, _):
        tenant = await processes.service.account()
        for flags in ("00", "01"):
            await tenant.send(
                tenant.mail(to=f"ada@{DESTINATION}"), headers={"traceparent": f"00-{TRACE}-{SPAN}-{flags}"}
            )
        await tenant.send(tenant.mail(to=f"ada@{DESTINATION}"))
        await processes.wait_until_all_final()
        spans = await collected(collector, "POST /emails", "deliver")
        stored = await processes.service.value("SELECT count(trace) FROM messages")
    assert [span.name for span in spans].count("POST /emails") == 1
    assert stored == 1


@pytest.mark.rule("HTTP-17")
async def test_no_address_subject_reply_or_secret_is_in_a_span(traced: Running) -> None:
    """Each is planted, in mail that is delivered, refused by its server, and refused by us."""
    processes, collector, receiver, _ = traced
    before = len(collector.spans)
    tenant = await processes.service.account()
    secret = await with_webhook(tenant, receiver, "/a-path-that-is-a-secret")
    key = await tenant.key()
    fields = {"subject": "Subject-Planted", "text": "Text-Planted", "tags": ["tag-planted"]}
    for local in ("Planted", "550-rcpt+Planted", "550-dot+Planted"):
        mail = tenant.mail(to=f"{local}@{DESTINATION}", **fields)
        assert (await tenant.send(mail, authorization=key, key=f"Key-Planted-{local}")).status == 202
    refused = tenant.mail(from_="Planted@not-mine.example", **fields)
    assert (await tenant.send(refused, authorization=key)).status >= 400
    assert (await tenant.send(authorization="Bearer ph_live_Planted")).status == 401
    await collected(collector, *["POST /emails"] * 3, *["deliver", "webhook"] * 3, of=tenant)
    # Those of no account come in the same batches.
    await eventually(lambda: sum(span.name == "POST /emails" for span in collector.spans[before:]) >= 5)
    spans = collector.spans[before:]
    replies = await processes.service.sql(
        "SELECT response FROM attempts WHERE response IS NOT NULL AND account_id = $1", tenant.id
    )
    bodies = b"".join(collector.bodies)

    assert {span.attributes[traces.CODE] for span in spans if span.name == "POST /emails"} >= {
        "accepted",
        "unauthorized",
    }
    assert {span.attributes[traces.OUTCOME] for span in spans if span.name == "deliver"} >= {"delivered", "bounced"}
    assert {name for span in spans for name in span.attributes} <= set(traces.ATTRIBUTES)
    planted = ["planted", "a-path-that-is-a-secret", secret, key.removeprefix("Bearer "), tenant.password]
    planted += [row["response"] for row in replies]
    assert [text for text in planted if text.lower().encode() in bodies.lower()] == []


@pytest.mark.rule("HTTP-17")
async def test_a_collector_that_never_answers_delays_neither_mail_nor_the_end_of_a_process(
    database_url: str, tmp_path: Path
) -> None:
    called = asyncio.Event()

    async def take_and_say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        called.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(take_and_say_nothing, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        endpoint = f"http://127.0.0.1:{port}/v1/traces"
        async with running(database_url, tmp_path, TRACING__SHARE="1", TRACING__ENDPOINT=endpoint) as (processes, *_):
            tenant = await processes.service.account()
            assert (await tenant.send(tenant.mail(to=f"ada@{DESTINATION}"))).status == 202
            await processes.wait_until_all_final()
            await asyncio.wait_for(called.wait(), HANG_SECONDS)
            (delivery,) = [part for part in processes.parts if "delivery" in part.words]
            await delivery.terminate()
