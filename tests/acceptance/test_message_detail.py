"""A single message over HTTP: its history, the reason it waits, its content, only for its own account."""

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from posthouse.rules import ids
from posthouse.store import message_detail
from posthouse.store.delivery_outcomes import DeliveryResult
from tests.acceptance.tenant_worker import HOUR, TenantWorker, new_id
from tests.support.http_answer import Answer
from tests.support.service import Service, Tenant, uuid

WAIT = timedelta(minutes=5)
HOOK = "https://hooks.example.com/posthouse"
EMAIL_FIELDS = {
    "id", "status", "source", "from", "subject", "billing_status", "recipient_count", "credits_reserved", "created_at",
    "recipients",
}  # fmt: skip
RECIPIENT_FIELDS = {
    "id", "email", "status", "billing_status", "attempt_count", "last_smtp_code", "last_smtp_response", "delivered_at",
    "bounced_at",
}  # fmt: skip


@pytest_asyncio.fixture(loop_scope="session")
async def worker(tenant: Tenant) -> TenantWorker:
    return TenantWorker(tenant)


async def sent(tenant: Tenant, **fields: object) -> str:
    message_id: str = (await tenant.accepts(tenant.mail(**fields)))["id"]
    return message_id


async def shown(tenant: Tenant, message_id: str, **how: str) -> dict[str, Any]:
    answer = await tenant.call("GET", f"/v1/messages/{message_id}", **how)
    assert answer.status == 200, answer.raw
    message: dict[str, Any] = answer.body["message"]
    return message


async def recipient_of(tenant: Tenant, message_id: str) -> dict[str, Any]:
    (recipient,) = (await shown(tenant, message_id))["recipients"]
    assert isinstance(recipient, dict)
    return recipient


async def content_of(tenant: Tenant, message_id: str) -> dict[str, Any]:
    answer = await tenant.call("GET", f"/v1/messages/{message_id}/content")
    assert answer.status == 200, answer.raw
    content: dict[str, Any] = answer.body["content"]
    return content


async def raw_of(tenant: Tenant, message_id: str) -> Answer:
    """The only response that is not JSON."""
    service = tenant.service
    async with service.client.get(
        f"{service.url}/v1/messages/{message_id}/raw", headers={"Authorization": await tenant.jwt()}
    ) as response:
        return Answer(response.status, response.headers.copy(), await response.read())


@pytest.mark.rule("MSD-01")
async def test_the_detail_is_what_get_emails_shows_and_more(tenant: Tenant) -> None:
    await tenant.template("welcome", subject="Welcome, {{name}}", text="Hi {{name}}")
    message_id = await sent(
        tenant,
        to=["ada@example.org", "bob@example.net"],
        bcc="eve@example.com",
        subject="Grüße",
        tags=["first", "second"],
        reply_to="Help <help@example.com>",
        text=None,
        template="welcome",
        variables={"name": "Ada"},
    )
    email = (await tenant.get(message_id)).body
    message = await shown(tenant, message_id)
    assert {name: message[name] for name in EMAIL_FIELDS - {"recipients"}} == {
        name: email[name] for name in EMAIL_FIELDS - {"recipients"}
    }
    for recipient, known in zip(message["recipients"], email["recipients"], strict=True):
        assert {name: recipient[name] for name in RECIPIENT_FIELDS} == known
    assert [recipient["field"] for recipient in message["recipients"]] == ["to", "to", "bcc"]
    assert (message["tags"], message["template"]) == (["first", "second"], "welcome")
    assert message["envelope_from"] == f"news@{tenant.domain}"
    assert message["credential"]["id"] == ids.text(ids.CREDENTIAL, tenant.credential_id)
    assert message["credential"]["name"]
    assert message["accepted_request_id"].startswith("rq_")
    headers = {field["name"]: field["value"] for field in message["headers"]}
    assert headers["Reply-To"] == "Help <help@example.com>"
    assert headers["Message-ID"].startswith("<")
    assert "eve@" not in str(headers)


@pytest.mark.rule("MSD-03", "MSD-04", "DAY-04")
async def test_a_greylisted_message_shows_its_history(tenant: Tenant, worker: TenantWorker) -> None:
    message_id = await sent(tenant)
    new = await recipient_of(tenant, message_id)
    assert (new["attempts"], new["waiting"]["reason"]) == ([], "due")

    (first,) = await worker.claim(message_id)
    under_way = await recipient_of(tenant, message_id)
    assert under_way["waiting"]["reason"] == "sending"
    assert under_way["waiting"]["text"] == "being sent by a worker"
    assert [
        (attempt["is_under_way"], attempt["outcome"], attempt["duration_ms"]) for attempt in under_way["attempts"]
    ] == [(True, None, None)]

    said = {"stage": "rcpt", "mx_host": "mx1.example.org", "response": "4.7.1 Greylisted, come back later"}
    await worker.record(first, DeliveryResult.DEFERRED, **said)
    waiting = await recipient_of(tenant, message_id)
    assert waiting["status"] == "deferred"
    assert waiting["waiting"]["reason"] == "greylisted"
    next_at = datetime.fromisoformat(waiting["waiting"]["next_at"])
    assert timedelta(0) < next_at - datetime.now(UTC) <= WAIT
    assert waiting["waiting"]["text"] == (
        "greylisted by mx1.example.org: 451 4.7.1 Greylisted, come back later; "
        f"next try at {next_at:%Y-%m-%d %H:%M:%S} UTC, after 1 attempt"
    )

    await worker.deliver(message_id)
    ended = await recipient_of(tenant, message_id)
    assert (ended["status"], ended["waiting"]) == ("delivered", None)
    assert ended["delivered_at"] is not None
    assert (ended["bounced_at"], ended["failed_at"]) == (None, None)
    first, second = ended["attempts"]
    assert first.pop("started_at") <= second.pop("started_at")
    assert 0 <= first.pop("duration_ms") < 60_000
    assert 0 <= second.pop("duration_ms") < 60_000
    assert first == {
        "outcome": "deferred",
        "is_under_way": False,
        "is_ambiguous": False,
        "relay": None,
        "mx_host": "mx1.example.org",
        "remote_ip": "192.0.2.1",
        "tls_version": "TLSv1.3",
        "tls_cipher": "TLS_AES_256_GCM_SHA384",
        "stage": "rcpt",
        "code": 451,
        "response": "4.7.1 Greylisted, come back later",
        "explanation": waiting["explanation"],
    }
    assert (second["outcome"], second["mx_host"], second["stage"], second["code"]) == (
        "delivered",
        "mx.example.org",
        "dot",
        250,
    )


@pytest.mark.rule("WHY-01")
async def test_every_recipient_and_attempt_is_explained(tenant: Tenant, worker: TenantWorker) -> None:
    message_id = await sent(tenant)
    new = (await recipient_of(tenant, message_id))["explanation"]
    assert set(new) == {"reason", "headline", "cause", "what_to_do"}
    assert (new["reason"], new["cause"]) == ("waiting", None)

    (first,) = await worker.claim(message_id)
    under_way = await recipient_of(tenant, message_id)
    assert [under_way["explanation"]["reason"], under_way["attempts"][0]["explanation"]["reason"]] == ["sending"] * 2

    await worker.record(first, DeliveryResult.DEFERRED, stage="rcpt", response="4.2.2 The mailbox is full")
    waiting = await recipient_of(tenant, message_id)
    assert waiting["explanation"]["headline"] == "The mailbox is full."
    assert waiting["explanation"]["cause"] == "recipient"
    assert waiting["explanation"]["what_to_do"].startswith("Nothing for now: it is tried again automatically.")

    await worker.deliver(message_id, DeliveryResult.BOUNCED, stage="rcpt", code=550, response="5.1.1 User unknown")
    ended = await recipient_of(tenant, message_id)
    assert ended["explanation"] == ended["attempts"][-1]["explanation"]
    assert ended["explanation"]["reason"] == "unknown_address"
    assert [attempt["explanation"]["reason"] for attempt in ended["attempts"]] == ["mailbox_full", "unknown_address"]


@pytest.mark.rule("MSD-06")
async def test_events_have_their_webhook_deliveries_and_replays(tenant: Tenant, worker: TenantWorker) -> None:
    assert (await tenant.call("PUT", "/v1/webhook", {"url": HOOK})).status == 200
    message_id = await sent(tenant, to=["ada@example.org", "bob@example.net"])
    other = await sent(tenant)
    await worker.deliver(other)
    assert (await shown(tenant, message_id))["events"] == []
    await worker.deliver(message_id, DeliveryResult.BOUNCED)
    message = await shown(tenant, message_id)
    assert [event["type"] for event in message["events"]] == ["email.bounced"] * 2
    assert [recipient["recipient_id"] for recipient in message["events"]] == [
        recipient["id"] for recipient in message["recipients"]
    ]
    log = (await tenant.call("GET", f"/v1/webhook/deliveries?message_id={message_id}")).body["deliveries"]
    known = {delivery["event_id"]: delivery for delivery in log}
    for event in message["events"]:
        (delivery,) = event["webhook_deliveries"]
        assert delivery == {name: known[event["id"]][name] for name in delivery}
        assert (delivery["status"], delivery["attempt"], delivery["http_status"]) == ("pending", 0, None)
        assert delivery["next_attempt_at"] is not None

    first = message["events"][0]["webhook_deliveries"][0]["id"]
    replay = (await tenant.call("POST", f"/v1/webhook/deliveries/{first}/replay")).body["delivery"]["id"]
    again = (await shown(tenant, message_id))["events"]
    assert [delivery["id"] for delivery in again[0]["webhook_deliveries"]] == [replay, first]
    assert [delivery["replay_of"] for delivery in again[0]["webhook_deliveries"]] == [first, None]
    assert len(again[1]["webhook_deliveries"]) == 1


@pytest.mark.rule("MSD-07")
async def test_only_the_latest_of_very_many_attempts_are_shown(tenant: Tenant) -> None:
    message_id = await sent(tenant)
    await tenant.service.sql(
        "INSERT INTO attempts (account_id, message_id, position, fence, worker_id, started_at, finished_at, outcome)"
        " SELECT $1, $2, 0, number, $3, $4::timestamptz + number * interval '1 second', $4, 'postponed'"
        " FROM generate_series(1, 2001) number",
        tenant.id,
        uuid(message_id),
        new_id(),
        datetime.now(UTC) - HOUR,
    )
    message = await shown(tenant, message_id)
    (recipient,) = message["recipients"]
    assert message["is_shortened"]
    assert len(recipient["attempts"]) == message_detail.ATTEMPTS_SHOWN_MAX == 2_000
    started = [attempt["started_at"] for attempt in recipient["attempts"]]
    assert started == sorted(started)


# Content.


@pytest.mark.rule("MSD-08")
async def test_content_is_shown_part_by_part(tenant: Tenant) -> None:
    message_id = await sent(
        tenant,
        subject="Grüße 🎉",
        html='<p>Grüße</p><img src="cid:logo">',
        bcc="eve@example.com",
        attachments=[
            {"filename": "logo.png", "content": base64.b64encode(b"\x89PNG").decode(), "content_id": "logo"},
            {"filename": "Übung 1.pdf", "content": base64.b64encode(b"%PDF" * 100).decode()},
        ],
    )
    content = await content_of(tenant, message_id)
    assert content["subject"] == "Grüße 🎉"
    assert content["text"].strip() == "Good morning."
    assert content["html"].strip() == '<p>Grüße</p><img src="cid:logo">'
    assert content["attachments"] == [
        {
            "part": 2,
            "filename": "logo.png",
            "content_type": "image/png",
            "size": 4,
            "content_id": "logo",
            "is_inline": True,
        },
        {
            "part": 3,
            "filename": "Übung 1.pdf",
            "content_type": "application/pdf",
            "size": 400,
            "content_id": None,
            "is_inline": False,
        },
    ]
    assert {"From", "To", "Subject", "Date", "Message-ID"} <= {field["name"] for field in content["headers"]}
    assert "eve@" not in str(content)
    plain = await content_of(tenant, await sent(tenant))
    assert (plain["html"], plain["attachments"], plain["is_shortened"]) == (None, [], False)


@pytest.mark.rule("MSD-10")
async def test_raw_bytes_are_the_stored_bytes_and_safe_to_open(tenant: Tenant) -> None:
    message_id = await sent(tenant, bcc="eve@example.com", html="<script>alert(1)</script>")
    answer = await raw_of(tenant, message_id)
    assert answer.status == 200
    assert answer.raw == await tenant.mime(message_id)
    assert b"eve@example.com" not in answer.raw
    assert answer.headers["Content-Type"] == "message/rfc822"
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{message_id}.eml"'
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["X-Request-ID"]


@pytest.mark.rule("MSD-11")
async def test_expired_content_says_until_when_it_was_stored(tenant: Tenant, service: Service) -> None:
    message_id = await sent(tenant)
    await service.sql("DELETE FROM bodies WHERE account_id = $1 AND message_id = $2", tenant.id, uuid(message_id))
    created_at = datetime.fromisoformat((await tenant.get(message_id)).body["created_at"])
    kept_until = f"{created_at.date() + timedelta(days=3):%Y-%m-%d}"
    for part in ("/content", "/raw"):
        answer = await tenant.call("GET", f"/v1/messages/{message_id}{part}")
        assert answer.is_refusal(404, "not_found", "no longer stored", kept_until, "3 days")
    message = await shown(tenant, message_id)
    assert (message["headers"], message["subject"]) == (None, "Hello")


async def attachment_of(tenant: Tenant, message_id: str, part: object) -> Answer:
    service = tenant.service
    async with service.client.get(
        f"{service.url}/v1/messages/{message_id}/attachments/{part}",
        headers={"Authorization": await tenant.jwt("viewer")},
    ) as response:
        return Answer(response.status, response.headers.copy(), await response.read())


def attached(filename: str, content: bytes, **more: str) -> dict[str, str]:
    return {"filename": filename, "content": base64.b64encode(content).decode(), **more}


@pytest.mark.rule("MSD-12")
async def test_an_attachment_is_returned_to_be_stored_and_not_shown(tenant: Tenant) -> None:
    html = b"<script>alert(1)</script>"
    files = [attached("a.html", html), attached("b.png", b"\x89PNG"), attached("c.svg", b"<svg/>")]
    message_id = await sent(tenant, attachments=files)
    listed = (await content_of(tenant, message_id))["attachments"]
    assert [item["part"] for item in listed] == [1, 2, 3]
    types = []
    for item, file in zip(listed, files, strict=True):
        answer = await attachment_of(tenant, message_id, item["part"])
        assert (answer.status, answer.raw) == (200, base64.b64decode(file["content"]))
        assert answer.headers["Content-Disposition"] == f'attachment; filename="{file["filename"]}"'
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
        assert answer.headers["Cache-Control"] == "no-store"
        types.append(answer.headers["Content-Type"])
    assert types == ["application/octet-stream", "image/png", "application/octet-stream"]
    for part in (0, 4, -1, "x", "1e1", "99999999999999999999", "%D9%A1"):
        answer = await attachment_of(tenant, message_id, part)
        assert (answer.status, answer.body["code"]) == (404, "not_found")


@pytest.mark.rule("MSD-12")
async def test_an_attachment_of_a_large_message_is_returned(tenant: Tenant) -> None:
    content = bytes(range(256)) * 4_096
    message_id = await sent(tenant, attachments=[attached("large.bin", content)])
    answer = await attachment_of(tenant, message_id, 1)
    assert (answer.status, answer.raw == content) == (200, True)
