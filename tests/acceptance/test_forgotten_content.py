"""`content: "forget"`: no one can read it from acceptance on, and once the message is final nothing holds it."""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support import faster
from tests.support.accept_flow import SIMULATOR
from tests.support.eventually import eventually
from tests.support.secrets_left import copies_of, dump
from tests.support.service import ABSENT, Tenant, uuid
from tests.support.service_processes import LONG_LEASE, ServiceProcesses, prepare_processes
from tests.support.smtp_listeners import SmtpListeners, queued_id, raw_mail, submit

SECRET: Final = "plum4711code"
ONE: Final = "one.example.net"


def secret_mail(tenant: Tenant, **changes: object) -> dict[str, Any]:
    """With the secret wherever content can be."""
    given: dict[str, object] = {
        "subject": f"Your code {SECRET}",
        "text": f"It is {SECRET}.",
        "html": f"<p>{SECRET}</p>",
        "headers": {"X-Code": SECRET},
        "attachments": [{"filename": "code.txt", "content": "cGx1bTQ3MTFjb2Rl"}],
        "content": "forget",
    }
    return tenant.mail(**(given | changes))


@pytest.mark.rule("FGT-01")
@pytest.mark.parametrize("given", ["keep", "", "Forget", 1, True, ["forget"], {"forget": True}], ids=json.dumps)
async def test_another_value_is_refused(regular: Tenant, given: object) -> None:
    await regular.refuses(regular.mail(content=given), 400, "invalid_request", "content")


@pytest.mark.rule("FGT-01")
async def test_null_keeps_the_content(tenant: Tenant) -> None:
    accepted = await tenant.accepts(tenant.mail(content=None))
    assert (accepted["subject"], accepted["headers"]) == ("Hello", {})
    assert "content" not in accepted
    assert (
        await tenant.service.value("SELECT count(forgets_content) FROM messages WHERE account_id = $1", tenant.id) == 0
    )


@pytest.mark.rule("FGT-02")
async def test_the_answer_its_replay_and_get_have_neither_subject_nor_headers(tenant: Tenant) -> None:
    first = await tenant.send(secret_mail(tenant), key="code")
    again = await tenant.send(secret_mail(tenant), key="code")
    shown = await tenant.get(first.body["id"])
    assert (first.status, again.status, again.headers["Idempotent-Replayed"]) == (202, 202, "true")
    assert {**first.body, "request_id": ""} == {**again.body, "request_id": ""}
    for answer in (first, again, shown):
        assert answer.body["content"] == "forget"
        assert not {"subject", "headers"} & answer.body.keys()
        assert SECRET.encode() not in answer.raw
    assert [recipient["email"] for recipient in shown.body["recipients"]] == ["ada@example.org"]
    kept = await tenant.send(secret_mail(tenant, content=None), key="code")
    assert kept.is_refusal(409, "idempotency_conflict")


@pytest.mark.rule("FGT-02", "FGT-07")
async def test_emails_of_a_batch_request_and_templates_are_forgotten(tenant: Tenant) -> None:
    await tenant.template("code", subject="Code {{code}}", text="It is {{code}}.")
    emails = [
        secret_mail(tenant, content=ABSENT, variables=None),
        tenant.mail(subject=None, text=None, template="code"),
    ]
    body = {"emails": emails, "defaults": {"content": "forget", "variables": {"code": SECRET}}}
    headers = {"Authorization": tenant.basic, "Idempotency-Key": tenant.new_key()}
    answer = await tenant.service.request("POST", "/emails/batch", headers=headers, json=body)
    again = await tenant.service.request("POST", "/emails/batch", headers=headers, json=body)
    for batch in (answer, again):
        assert [result.get("content") for result in batch.body["results"]] == ["forget", "forget"], batch.raw
        assert SECRET.encode() not in batch.raw
    stored = await tenant.service.sql("SELECT subject, forgets_content FROM messages WHERE account_id = $1", tenant.id)
    assert [tuple(row) for row in stored] == [("", True), ("", True)]
    assert [SECRET.encode() in await tenant.mime(result["id"]) for result in answer.body["results"]] == [True, True]


@pytest.mark.rule("FGT-03")
async def test_no_one_can_read_it_while_it_waits(tenant: Tenant) -> None:
    kept = await tenant.accepts(tenant.mail(subject=f"Kept {SECRET}x"))
    made = (await tenant.accepts(secret_mail(tenant)))["id"]
    assert SECRET.encode() in await tenant.mime(made)
    detail = await tenant.call("GET", f"/v1/messages/{made}")
    listed = await tenant.call("GET", "/v1/messages")
    export = await _file(tenant, "/v1/messages/export")
    assert (detail.body["message"]["content"], detail.body["message"]["headers"]) == ("forget", None)
    assert listed.body["messages"][0]["content"] == "forget"
    assert "content" not in listed.body["messages"][1]
    assert "subject" not in detail.body["message"]
    assert "subject" not in listed.body["messages"][0]
    assert SECRET.encode() not in detail.raw
    assert export.count(SECRET.encode()) == 1  # of the kept one
    for path in ("content", "raw", "attachments/0", "attachments/2"):
        answer = await tenant.call("GET", f"/v1/messages/{made}/{path}")
        assert answer.is_refusal(404, "not_found", "forget"), path
        assert (await tenant.call("GET", f"/v1/messages/{kept['id']}/content")).status == 200
    found = await tenant.call("GET", f"/v1/messages?subject={SECRET}")
    assert found.body["messages"] == []
    assert (await tenant.call("GET", f"/v1/messages?subject={SECRET}x")).body["messages"] != []


@pytest.mark.rule("FGT-03")
async def test_test_suites_and_pages_of_captured_mail_do_not_show_it(tenant: Tenant) -> None:
    key = await tenant.key("test", may_read=True)
    made = (await tenant.accepts(secret_mail(tenant), authorization=key))["id"]
    waited = await tenant.service.request(
        "GET", "/v1/messages/next?recipient=ada@example.org&wait=1", headers={"Authorization": key}
    )
    assert waited.is_refusal(404, "not_found", "forget")
    assert SECRET.encode() not in waited.raw
    assert await tenant.service.value("SELECT subject FROM messages WHERE id = $1", uuid(made)) == ""


@pytest.mark.rule("FGT-04", "FGT-05", "FGT-06")
async def test_once_it_is_final_neither_database_nor_logs_nor_stream_contain_it(
    listeners: SmtpListeners, new_database: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(faster.SHORT_PAUSES, "1")
    database_url = await asyncio.to_thread(new_database)
    async with prepare_processes(database_url, tmp_path, **listeners.settings, **LONG_LEASE) as processes:
        processes.destination(ONE)
        submission = processes.start("submission")
        await processes.start_http()
        await listeners.open(submission)
        tenant = await processes.service.account()
        made = await _sent(listeners, tenant)
        cancelled = await tenant.accepts(secret_mail(tenant, send_at=_later()))
        kept = await tenant.accepts(tenant.mail(subject="apricot4712", to=f"kept@{ONE}"))
        # Nothing is delivered yet, so that bodies are there.
        assert copies_of(SECRET, await dump(database_url))
        for part in ("dispatch", "delivery", "maintenance"):
            processes.start(part)
        await processes.wait_until_final(tenant, [*made, kept["id"]])
        # The one for later keeps its body, as long as it may be sent.
        assert SECRET.encode() in await tenant.mime(cancelled["id"])
        assert (await tenant.cancel(cancelled["id"])).status == 200
        await processes.wait_until_final(tenant, [cancelled["id"]])
        await _until_forgotten(processes)

        arrived = [message for message in processes.receiver.accepted if SECRET.encode() in message.message]
        assert {message.recipient for message in arrived} == {f"{name}@{ONE}" for name in ("http", "template", "smtp")}
        assert b"x-service-content" not in arrived[-1].message.lower()
        dumped = await dump(database_url)
        assert copies_of("apricot4712", dumped)
        assert copies_of(SECRET, dumped) == []
        assert processes.nats is not None
        for directory in (tmp_path, Path(processes.nats.data)):
            files = [path for path in directory.rglob("*") if path.is_file() and path != processes.log]
            assert files
            assert [path for path in files if copies_of(SECRET, path.read_bytes())] == []
        events = await processes.service.sql("SELECT body FROM events WHERE account_id = $1", tenant.id)
        said = [json.loads(row["body"])["data"] for row in events]
        assert sorted("subject" in data for data in said) == [False] * len(made) + [True]
        for message_id in (*made, cancelled["id"]):
            shown = (await tenant.get(message_id)).body
            assert (shown["content"], len(shown["recipients"])) == ("forget", 1)
        assert await processes.broken_promises() == {}


async def _file(tenant: Tenant, path: str) -> bytes:
    headers = {"Authorization": await tenant.jwt()}
    async with tenant.service.client.get(tenant.service.url + path, headers=headers) as response:
        return await response.read()


async def _sent(listeners: SmtpListeners, tenant: Tenant) -> list[str]:
    """Over every interface; one of them bounces."""
    await tenant.template("code", subject="Code {{code}}", text="It is {{code}}.")
    sent = [
        secret_mail(tenant, to=f"http@{ONE}"),
        secret_mail(tenant, to=f"550-rcpt@{ONE}"),
        tenant.mail(
            to=f"template@{ONE}", subject=None, text=None, template="code", variables={"code": SECRET}, content="forget"
        ),
        secret_mail(tenant, to=f"delivered@{SIMULATOR}"),
    ]
    made = [(await tenant.accepts(mail))["id"] for mail in sent]
    async with listeners.session(tenant) as line:
        raw = raw_mail(tenant, f"Code {SECRET}", f"X-Code: {SECRET}", "x-service-Content: Forget", body=SECRET)
        made.append(queued_id(await submit(line, raw, [f"smtp@{ONE}"], sender=f"news@{tenant.domain}")))
        other = raw_mail(tenant, "Hello", "X-Service-Content: keep")
        assert (await submit(line, other, [f"smtp@{ONE}"], sender=f"news@{tenant.domain}")).startswith("550 5.6.0")
    return made


def _later() -> str:
    return (datetime.now(UTC) + timedelta(days=1)).isoformat()


async def _until_forgotten(processes: ServiceProcesses) -> None:
    async def waiting() -> int:
        processes.check()
        number: int = await processes.service.value("SELECT count(*) FROM bodies_to_delete")
        return number

    await eventually(waiting, lambda number: number == 0)
