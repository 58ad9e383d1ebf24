"""The response to a send, its rows in the database, and reading the message."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from posthouse.rules import ids
from tests.support.service import Service, Tenant, uuid

ATTACHMENT = {"filename": "note.txt", "content": "aGVsbG8="}
MESSAGE_FIELDS = {
    "id", "status", "source", "from", "subject", "billing_status", "recipient_count", "credits_reserved",
    "created_at", "recipients", "request_id",
}  # fmt: skip
RECIPIENT_FIELDS = {
    "id", "email", "status", "billing_status", "attempt_count", "last_smtp_code", "last_smtp_response",
    "delivered_at", "bounced_at",
}  # fmt: skip


@pytest.mark.rule("RESP-01", "RESP-02", "RESP-03", "RESP-04")
async def test_a_202_says_queued_and_echoes_the_request(regular: Tenant) -> None:
    body = regular.mail(
        from_=f"Acme <news@{regular.domain}>",
        to="Ada <ada@example.org>",
        cc="bob@example.org",
        bcc=["cy@example.org", "Di <di@example.org>", "ada@example.org"],
        reply_to="Help <help@example.net>",
        subject="Grüße 💌",
        headers={"X-One": "1", "x-two": "zwei"},
        tags="welcome",
        attachments=[ATTACHMENT],
    )
    sent = await regular.accepts(body)
    assert re.fullmatch(r"em_[0-9a-z]{26}", sent["id"])
    assert (sent["status"], sent["source"], sent["billing_status"]) == ("queued", "api", "reserved")
    assert (sent["recipient_count"], sent["credits_reserved"]) == (4, 4)
    assert {name: sent[name] for name in ("from", "reply_to", "subject", "headers", "bcc")} == {
        name: body[name] for name in ("from", "reply_to", "subject", "headers", "bcc")
    }
    assert (sent["to"], sent["cc"]) == (["Ada <ada@example.org>"], ["bob@example.org"])
    assert sent["tags"] == ["welcome"]
    assert [(attachment["filename"], attachment["size"]) for attachment in sent["attachments"]] == [("note.txt", 5)]


@pytest.mark.rule("RESP-05", "MONEY-01")
async def test_a_202_means_rows_in_the_database(service: Service, tenant: Tenant) -> None:
    key = tenant.new_key()
    body = tenant.mail(to="Ada <ada@Example.org>", cc="bob@example.net", bcc="cy@example.org")
    sent = await tenant.accepts(body, key=key)
    message_id = uuid(sent["id"])
    (message,) = await service.sql("SELECT * FROM messages WHERE account_id = $1", tenant.id)
    assert (message["id"], message["status"], message["source"]) == (message_id, "queued", "api")
    assert (message["recipient_count"], message["open_count"], message["credits_reserved"]) == (3, 3, 3)
    assert message["credential_id"] == tenant.credential_id
    recipients = await service.sql("SELECT * FROM recipients WHERE account_id = $1 ORDER BY position", tenant.id)
    assert [(row["field"], row["email"], row["status"]) for row in recipients] == [
        ("to", "ada@example.org", "queued"),
        ("cc", "bob@example.net", "queued"),
        ("bcc", "cy@example.org", "queued"),
    ]
    assert await tenant.mime(sent["id"])
    schedule = await service.sql("SELECT * FROM delivery_schedule WHERE account_id = $1 ORDER BY position", tenant.id)
    assert {row["message_id"] for row in schedule} == {message_id}
    assert [row["position"] for row in schedule] == [row["position"] for row in recipients]
    (reserve,) = await service.sql("SELECT * FROM ledger WHERE account_id = $1", tenant.id)
    assert (reserve["message_id"], reserve["kind"], reserve["amount"]) == (message_id, "reserve", 3)
    (remembered,) = await service.sql("SELECT * FROM idempotency WHERE account_id = $1", tenant.id)
    assert (remembered["key"], remembered["message_id"]) == (key, message_id)
    assert remembered["credential_id"] == tenant.credential_id


@pytest.mark.rule("GET-01", "GET-02", "MONEY-06")
async def test_a_message_is_read_with_its_recipients(regular: Tenant) -> None:
    body = regular.mail(from_=f"Acme <news@{regular.domain}>", to=["Ada <ada@example.org>"], bcc="bob@example.org")
    began_at = datetime.now(UTC) - timedelta(milliseconds=1)
    sent = await regular.accepts(body)
    read = (await regular.get(sent["id"])).body
    assert set(read) >= MESSAGE_FIELDS
    assert {name: read[name] for name in ("id", "from", "subject", "recipient_count", "credits_reserved")} == {
        name: sent[name] for name in ("id", "from", "subject", "recipient_count", "credits_reserved")
    }
    assert (read["status"], read["source"], read["billing_status"]) == ("queued", "api", "reserved")
    created_at = datetime.fromisoformat(read["created_at"])
    assert created_at.tzinfo is not None
    assert began_at <= created_at <= datetime.now(UTC)
    assert [recipient["email"] for recipient in read["recipients"]] == ["ada@example.org", "bob@example.org"]
    for recipient in read["recipients"]:
        assert set(recipient) >= RECIPIENT_FIELDS
        assert recipient["id"].startswith("rc_")
        assert (recipient["status"], recipient["billing_status"]) == ("queued", "reserved")
        assert recipient["attempt_count"] == 0
        nothing_yet = ("last_smtp_code", "last_smtp_response", "delivered_at", "bounced_at")
        assert [recipient[name] for name in nothing_yet] == [None] * 4
    assert len({recipient["id"] for recipient in read["recipients"]}) == 2


def unknown_ids() -> list[str]:
    spelled = ids.text(ids.MESSAGE, ids.new_message_id(datetime.now(UTC), bytes(range(10))))
    old = ids.text(ids.MESSAGE, ids.new_message_id(datetime(2001, 1, 1, tzinfo=UTC), bytes(10)))
    far = ids.text(ids.MESSAGE, ids.new_message_id(datetime(2400, 1, 1, tzinfo=UTC), bytes(10)))
    odd = ["x", "em_", "em_" + "z" * 26, "em_" + "0" * 26, "7", "null", "em_%00", "%F0%9F%92%8C", "a" * 2_000]
    return [spelled, old, far, spelled.upper(), spelled.removeprefix("em_"), "rc_" + spelled[3:], *odd]


@pytest.mark.rule("GET-03", "CODE-06")
async def test_an_invalid_id_is_not_found(regular: Tenant) -> None:
    for message_id in unknown_ids():
        assert (await regular.get(message_id)).is_refusal(404, "not_found")


@pytest.mark.rule("GET-04")
async def test_another_accounts_message_is_not_found_like_an_unknown(regular: Tenant, other_tenant: Tenant) -> None:
    sent = await other_tenant.accepts()
    unknown = unknown_ids()[0]
    for authorization in (regular.basic, await regular.jwt(), await regular.key(may_read=True)):
        theirs = await regular.get(sent["id"], authorization=authorization)
        missing_id = await regular.get(unknown, authorization=authorization)
        assert theirs.is_refusal(404, "not_found")

        def without_request_id(answer: Any) -> tuple[bytes, dict[str, str]]:
            request_id = answer.headers["X-Request-ID"]
            changing = {"Date", "X-Request-ID"}
            kept = {name: value for name, value in answer.headers.items() if name not in changing}
            return answer.raw.replace(request_id.encode(), b""), kept

        assert without_request_id(theirs) == without_request_id(missing_id)


@pytest.mark.rule("GET-05")
async def test_a_key_on_get_is_not_used(regular: Tenant) -> None:
    key = regular.new_key()
    sent = await regular.accepts(key=key)
    headers = {"Authorization": regular.basic, "Idempotency-Key": key}
    for value in (key, "", "k" * 300):
        answer = await regular.service.request(
            "GET", f"/emails/{sent['id']}", headers=headers | {"Idempotency-Key": value}
        )
        assert answer.status == 200
        assert "Idempotent-Replayed" not in answer.headers


@pytest.mark.rule("GET-07")
async def test_reading_is_not_rate_limited(service: Service) -> None:
    slow = await service.account(rate=(1, 1))
    sent = await slow.accepts()
    await slow.use_up_rate()
    answers = [await slow.get(sent["id"]) for _ in range(100)]
    assert {answer.status for answer in answers} == {200}
    assert (await slow.send()).status == 429
