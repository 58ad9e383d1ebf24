"""Delivery of accepted mail: as read by GET, at the receiving server, in the ledger and in the events."""

import asyncio
import base64
import email
import email.header
import email.policy
import json
import re
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from posthouse.rules import ids
from tests.support.accept_flow import SIMULATOR
from tests.support.nameserver import SERVFAIL
from tests.support.service import Tenant, uuid
from tests.support.service_processes import (
    HOSTNAME,
    LONG_LEASE,
    RETRY_MINUTES,
    RETURN_PATH_DOMAIN,
    ServiceProcesses,
    run_processes,
)
from tests.support.smtp_conversation import Delivered

ATTEMPTS_MAX = len(RETRY_MINUTES) + 1
# The receiver's other addresses: the first greets with a refusal, the second has no listener.
REFUSING, ABSENT = "127.0.0.2", "127.0.0.3"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def processes(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServiceProcesses]:
    """For all of these tests: every part in a process, a NATS server, two delivery workers."""
    database_url = await asyncio.to_thread(new_database)
    directory = tmp_path_factory.mktemp("office")
    async with run_processes(database_url, directory, workers=2, **LONG_LEASE) as processes:
        for name in ("one", "two", "three", "554-dot", "554-data", "lose-dot"):
            processes.destination(f"{name}.example.net")
        processes.destination("private.example.net", "10.1.2.3")
        processes.nameserver.records["null.example.net", "MX"] = ["0 ."]
        processes.nameserver.script["unknown.example.net"] = SERVFAIL
        yield processes


@pytest_asyncio.fixture(loop_scope="session")
async def sender(processes: ServiceProcesses) -> Tenant:
    """An account of this test, with 1,000 credits."""
    return await processes.service.account()


async def delivered(processes: ServiceProcesses, sender: Tenant, **fields: object) -> dict[str, Any]:
    """Sends the message; returns what GET shows when all recipients are final."""
    sent = await sender.accepts(sender.mail(**fields))
    (message,) = await processes.wait_until_final(sender, [sent["id"]])
    return message


def by_address(message: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {recipient["email"]: recipient for recipient in message["recipients"]}


def copies_of(processes: ServiceProcesses, message: dict[str, Any]) -> dict[str, list[Delivered]]:
    """The received mail of each recipient, recognised by the token in the return path."""
    found: dict[str, list[Delivered]] = {recipient["email"]: [] for recipient in message["recipients"]}
    for copy in processes.receiver.accepted:
        if message_of(copy) == uuid(message["id"]).bytes:
            found.setdefault(copy.recipient, []).append(copy)
    return found


def message_of(copy: Delivered) -> bytes:
    """The message's id as in the return path: 48 characters of base 32, after a byte of position."""
    match = re.fullmatch(rf"bounces\+([a-z2-7]{{48}})@{re.escape(RETURN_PATH_DOMAIN)}", copy.sender)
    assert match, f"{copy.sender!r} is no return path of ours"
    return base64.b32decode(match[1].upper())[1:17]


def parsed(copy: Delivered) -> EmailMessage:
    message = email.message_from_bytes(copy.message, policy=email.policy.SMTP)
    assert isinstance(message, EmailMessage)
    return message


async def ledger_of(processes: ServiceProcesses, message: dict[str, Any]) -> list[tuple[int, str, int]]:
    rows = await processes.service.sql(
        "SELECT position, kind, amount FROM ledger WHERE message_id = $1 ORDER BY position", uuid(message["id"])
    )
    return [tuple(row) for row in rows]


def expected_ledger(message: dict[str, Any]) -> list[tuple[int, str, int]]:
    """The expected entries: a reserve for the message, and an entry for each final recipient."""
    kinds = {"delivered": "settle", "failed": "settle", "bounced": "release"}
    closed = [
        (number, kinds[recipient["status"]], 1)
        for number, recipient in enumerate(message["recipients"])
        if recipient["status"] in kinds
    ]
    return [(-1, "reserve", len(message["recipients"])), *closed]


async def events_of(processes: ServiceProcesses, message: dict[str, Any]) -> list[Any]:
    return await processes.service.sql(
        "SELECT * FROM events WHERE message_id = $1 ORDER BY position", uuid(message["id"])
    )


@pytest.mark.rule("DLV-01", "DLV-02", "DLV-03")
async def test_each_unique_recipient_gets_one_copy_in_any_field_and_domain(
    processes: ServiceProcesses, sender: Tenant
) -> None:
    message = await delivered(
        processes,
        sender,
        to=["Ada <ada@one.example.net>", "bob@two.example.net"],
        cc=["carla@three.example.net", "ADA@one.example.net"],
        bcc=["dan@one.example.net", "bob@TWO.example.net", "eve@two.example.net"],
    )
    assert (message["status"], message["billing_status"], message["source"]) == ("delivered", "settled", "api")
    assert (message["recipient_count"], message["credits_reserved"]) == (5, 5)
    copies = copies_of(processes, message)
    assert {address: len(found) for address, found in copies.items()} == {
        "ada@one.example.net": 1,
        "bob@two.example.net": 1,
        "carla@three.example.net": 1,
        "dan@one.example.net": 1,
        "eve@two.example.net": 1,
    }
    for recipient in message["recipients"]:
        (copy,) = copies[recipient["email"]]
        assert (recipient["status"], recipient["billing_status"]) == ("delivered", "settled")
        assert (recipient["attempt_count"], recipient["last_smtp_code"]) == (1, 250)
        assert recipient["last_smtp_response"] == f"2.0.0 taken as {copy.transaction}"
        assert recipient["delivered_at"] >= message["created_at"]
        assert recipient["bounced_at"] is None


# Decoded carelessly, this subject has a second line that begins with "Bcc:".
DISGUISED = "=?utf-8?q?Hello=0D=0ABcc:_mallory@one.example.net?="


@pytest.mark.rule("DLV-04")
async def test_no_copy_reveals_a_bcc_after_unfolding_and_decoding(processes: ServiceProcesses, sender: Tenant) -> None:
    hidden = ["hidden.recipient@one.example.net", "another.hidden@two.example.net"]
    message = await delivered(
        processes,
        sender,
        to=["open@one.example.net"],
        bcc=[f"Hidden Person <{hidden[0]}>", hidden[1]],
        subject=DISGUISED,
        html="<p>Grüße</p>",
        headers={"X-Note": "Ünïcode " * 30},
    )
    copies = [copy for found in copies_of(processes, message).values() for copy in found]
    assert len(copies) == 3
    for copy in copies:
        head, _, _ = copy.message.partition(b"\r\n\r\n")
        unfolded = re.sub(rb"\r\n(?=[ \t])", b"", head).decode("ascii")
        decoded = "\n".join(
            f"{name}:{email.header.make_header(email.header.decode_header(value))}"
            for name, _, value in (line.partition(":") for line in unfolded.split("\r\n"))
        )
        bodies = [str(part.get_content()) for part in parsed(copy).walk() if not part.is_multipart()]
        for text in (unfolded, decoded):
            assert not re.search(r"^(resent-)?bcc\s*:", text, re.MULTILINE | re.IGNORECASE), text
        for text in (copy.message.decode("ascii"), decoded, *bodies):
            assert "hidden" not in text.lower()


@pytest.mark.rule("DLV-06", "DLV-07")
async def test_delivered_mail_is_the_stored_mail_behind_trace_and_signature(
    processes: ServiceProcesses, sender: Tenant
) -> None:
    message = await delivered(
        processes,
        sender,
        to=["Ada <wire@one.example.net>"],
        cc=["wire@two.example.net"],
        reply_to="help@example.org",
        subject="Grüße",
        text=".\r\n.. dots, a long line: " + "x" * 2_000,
        tags=["welcome", "second tag"],
        attachments=[{"filename": "a.bin", "content": base64.b64encode(bytes(range(256))).decode()}],
    )
    stored = await sender.mime(message["id"])
    copies = copies_of(processes, message)
    for address in ("wire@one.example.net", "wire@two.example.net"):
        (copy,) = copies[address]
        assert copy.message.endswith(stored)
        added = email.message_from_bytes(copy.message[: -len(stored)] + b"\r\n", policy=email.policy.SMTP)
        assert set(added.keys()) <= {"Received", "DKIM-Signature", "Feedback-ID"}
        (received,) = added.get_all("Received") or []
        assert HOSTNAME in received
        assert message["id"].removeprefix("em_") in received
        whole = parsed(copy)
        for name in ("From", "To", "Cc", "Subject", "Date", "Message-ID", "MIME-Version", "Reply-To"):
            assert len(whole.get_all(name) or []) == 1, name
        assert whole.get_all("X-Service-Tag") == ["welcome", "second tag"]
        assert whole["Subject"] == "Grüße"
        assert b"\0" not in copy.message
        lines = copy.message.split(b"\r\n")
        assert not any(b"\r" in line or b"\n" in line or len(line) > 998 for line in lines)
    assert len({parsed(copy)["Message-ID"] for found in copies.values() for copy in found}) == 1


SILENT = "someone@lose-dot.example.net"
# Recipient, status, the last code and text of a server, number of attempts.
ENDINGS: list[tuple[str, str, int | None, str, int]] = [
    ("taken@one.example.net", "delivered", 250, "2.0.0 taken as", 1),
    ("greylist@two.example.net", "delivered", 250, "2.0.0 taken as", 3),
    ("550-rcpt@one.example.net", "bounced", 550, "5.1.1 no such user", 1),
    ("554-rcpt@two.example.net", "bounced", 554, "5.7.1 not wanted", 1),
    ("someone@554-data.example.net", "bounced", 554, "5.7.1 not wanted", 1),
    ("someone@554-dot.example.net", "bounced", 554, "5.7.1 not wanted", 1),
    ("someone@null.example.net", "bounced", None, "", 1),
    ("someone@nowhere.example.net", "bounced", None, "", 1),
    ("someone@private.example.net", "bounced", None, "", 1),
    ("451-rcpt@one.example.net", "failed", 451, "4.3.0 try again", ATTEMPTS_MAX),
    ("552-rcpt@two.example.net", "failed", 552, "5.2.2 mailbox full", ATTEMPTS_MAX),
    ("someone@unknown.example.net", "failed", None, "", ATTEMPTS_MAX),
    (f"deferred@{SIMULATOR}", "failed", 451, "", ATTEMPTS_MAX),
    # It takes the mail and says nothing after the final dot.
    (SILENT, "failed", None, "", ATTEMPTS_MAX),
]


@pytest.mark.rule("DLV-08", "DLV-09", "DLV-10", "DLV-11", "DLV-12", "DLV-13", "GET-09")
async def test_every_recipient_of_a_message_has_its_own_result(processes: ServiceProcesses, sender: Tenant) -> None:
    message = await delivered(
        processes, sender, to=[ending[0] for ending in ENDINGS[:5]], bcc=[ending[0] for ending in ENDINGS[5:]]
    )
    found = by_address(message)
    assert [
        (address, found[address]["status"], found[address]["last_smtp_code"], found[address]["attempt_count"])
        for address, *_ in ENDINGS
    ] == [(address, status, code, attempts) for address, status, code, _, attempts in ENDINGS]
    for address, status, code, text, _ in ENDINGS:
        recipient = found[address]
        if code is not None:
            assert recipient["last_smtp_response"].startswith(text)
        assert recipient["billing_status"] == ("released" if status == "bounced" else "settled")
        assert (recipient["delivered_at"] is not None, recipient["bounced_at"] is not None) == (
            status == "delivered",
            status == "bounced",
        )
    assert (message["status"], message["billing_status"]) == ("partial", "settled")
    assert message["credits_reserved"] == len(ENDINGS)
    assert await ledger_of(processes, message) == expected_ledger(message)
    bounced = sum(ending[1] == "bounced" for ending in ENDINGS)
    assert await sender.available() == 1_000 - len(ENDINGS) + bounced
    copies = copies_of(processes, message)
    unsure = copies.pop(SILENT)
    assert {address for address, taken in copies.items() if taken} == {
        ending[0] for ending in ENDINGS if ending[1] == "delivered"
    }
    assert all(len(taken) <= 1 for taken in copies.values())
    await has_its_events(processes, sender, message)
    assert len(unsure) == ATTEMPTS_MAX
    assert len({parsed(copy)["Message-ID"] for copy in unsure}) == 1
    ambiguous = "SELECT count(*) FROM attempts WHERE message_id = $1 AND is_ambiguous"
    assert await processes.service.value(ambiguous, uuid(message["id"])) == ATTEMPTS_MAX


async def has_its_events(processes: ServiceProcesses, sender: Tenant, message: dict[str, Any]) -> None:
    """An event for each recipient, with exactly the contract's fields."""
    events = await events_of(processes, message)
    assert [event["position"] for event in events] == list(range(len(message["recipients"])))
    for event, recipient in zip(events, message["recipients"], strict=True):
        event_body = json.loads(event["body"])
        assert event["type"] == f"email.{recipient['status']}"
        assert set(event_body) == {"id", "type", "created_at", "data"}
        assert (event_body["id"], event_body["type"]) == (ids.text(ids.EVENT, event["id"]), event["type"])
        assert event_body["created_at"].endswith("Z")
        assert message["created_at"] <= event_body["created_at"]
        assert datetime.fromisoformat(event_body["created_at"]) <= event["created_at"]
        data = event_body["data"]
        assert (data["email_id"], data["recipient_id"]) == (message["id"], recipient["id"])
        assert (data["to"], data["from"]) == (recipient["email"], f"news@{sender.domain}")
        assert data["subject"] == message["subject"][:200]
        assert data.get("smtp_code") == recipient["last_smtp_code"]
        if recipient["last_smtp_code"] is None:
            assert "smtp_code" not in data
        else:
            assert data["smtp_response"] == recipient["last_smtp_response"][:500]
        assert set(data) <= {"email_id", "recipient_id", "to", "from", "subject", "smtp_code", "smtp_response"}
        assert "" not in data.values()


@pytest.mark.rule("DLV-21")
async def test_simulated_recipients_complain_return_leave_and_wait(processes: ServiceProcesses, sender: Tenant) -> None:
    names = ["complained", "returned", "unsubscribed", "suppressed", "slow"]
    to = [f"{name}+{sender.unique}@{SIMULATOR}" for name in names]
    test_key = await sender.key("test")
    sent = await sender.accepts(sender.mail(to=to, tags=["list:news"]), authorization=test_key)
    (message,) = await processes.wait_until_final(sender, [sent["id"]])
    assert [(row["status"], row["attempt_count"]) for row in message["recipients"]] == [
        ("delivered", 1),
        ("delivered", 1),
        ("delivered", 1),
        ("bounced", 1),
        ("delivered", 2),
    ]
    shown = (await sender.call("GET", f"/v1/messages/{sent['id']}")).body["message"]["recipients"]
    assert [[report["kind"] for report in row["reports"]] for row in shown] == [["complaint"], ["bounce"], [], [], []]
    await has_its_events(processes, sender, message)
    # The consequence: the next mail of the list goes neither to the one that complained nor to the one that left.
    again = await sender.accepts(sender.mail(to=to[:3], tags=["list:news"]), authorization=test_key)
    (message,) = await processes.wait_until_final(sender, [again["id"]])
    assert [row["status"] for row in message["recipients"]] == ["bounced", "delivered", "bounced"]


@pytest.mark.rule("DLV-01", "DLV-08", "DLV-19")
async def test_a_single_process_without_a_stream_server_delivers_too(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    database_url = await asyncio.to_thread(new_database)
    # Two attempts: after two failed connections a destination is paused for a while.
    settings: dict[str, Any] = {"DELIVERY__RETRY_MINUTES": "0.02"}
    behaviours = {REFUSING: "554-connect"}
    async with run_processes(
        database_url, tmp_path, stream="memory", behaviours=behaviours, **settings, **LONG_LEASE
    ) as processes:
        processes.destination("one.example.net")
        processes.destination("refusing.example.net", REFUSING)
        processes.destination("absent.example.net", ABSENT)
        sender = await processes.service.account()
        message = await delivered(
            processes,
            sender,
            to=["ada@one.example.net", "550-rcpt@one.example.net"],
            cc=["greylist@one.example.net"],
            bcc=["bob@one.example.net", "someone@refusing.example.net", "someone@absent.example.net"],
        )
        assert [
            (recipient["status"], recipient["last_smtp_code"], recipient["attempt_count"])
            for recipient in message["recipients"]
        ] == [
            ("delivered", 250, 1),
            ("bounced", 550, 1),
            ("failed", 450, 2),
            ("delivered", 250, 1),
            ("failed", 554, 2),
            ("failed", None, 2),
        ]
        await has_its_events(processes, sender, message)
        assert await processes.broken_promises() == {}
        assert await processes.parts[0].terminate() == 0


@pytest.mark.rule("DLV-18")
async def test_the_ledger_balances_and_agrees_with_the_receiving_server(
    processes: ServiceProcesses,
) -> None:
    await processes.wait_until_all_final()
    assert await processes.broken_promises() == {}
    assert await processes.orphans() == 0
    assert await processes.service.value("SELECT count(*) FROM delivery_schedule") == 0
