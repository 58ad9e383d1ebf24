"""Mail submitted over SMTP by real clients, and its delivery."""

import asyncio
import email
import email.policy
import json
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from email.message import EmailMessage
from typing import Any, Final

import dkim
import pytest
import pytest_asyncio

from posthouse.rules import limits
from tests.acceptance.smart_host import smart_host
from tests.mail import submitted
from tests.support.eventually import eventually
from tests.support.service import Tenant, uuid
from tests.support.service_processes import (
    HOSTNAME,
    LONG_LEASE,
    RETURN_PATH_DOMAIN,
    ServiceProcesses,
    prepare_processes,
)
from tests.support.smtp_conversation import Delivered
from tests.support.smtp_listeners import SmtpListeners, dotted, keys_published_by, plain, queued_id, raw_mail, submit
from tests.support.smtp_service import SmtpConnection

ONE, TWO = "one.example.net", "two.example.net"
ELSEWHERE: Final = "127.0.0.9"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def processes(
    listeners: SmtpListeners, new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServiceProcesses]:
    """Every part in its own process: submitted mail goes through NATS to delivery."""
    database_url = await asyncio.to_thread(new_database)
    settings = {**listeners.settings, "HTTP__PUBLIC_URL": "https://mail.posthouse.example"}
    async with prepare_processes(
        database_url, tmp_path_factory.mktemp("submission"), **settings, **LONG_LEASE
    ) as processes:
        for name in (ONE, TWO):
            processes.destination(name)
        for part in ("dispatch", "delivery"):
            processes.start(part)
        submission = processes.start("submission")
        await processes.start_http()
        await listeners.open(submission)
        yield processes


@pytest_asyncio.fixture(loop_scope="session")
async def sender(processes: ServiceProcesses) -> Tenant:
    """An account of this test, with 1,000 credits."""
    return await processes.service.account()


async def final(processes: ServiceProcesses, sender: Tenant, said: str) -> dict[str, Any]:
    """What GET shows of the message named in the reply, when it is final."""
    (message,) = await processes.wait_until_final(sender, [queued_id(said)])
    assert message["source"] == "smtp"
    return message


def copies(processes: ServiceProcesses, *addresses: str) -> list[Delivered]:
    """Every recipient of these tests has a unique address."""
    return [copy for copy in processes.receiver.accepted if copy.recipient in addresses]


def parsed(raw: bytes) -> EmailMessage:
    message = email.message_from_bytes(raw, policy=email.policy.SMTP)
    assert isinstance(message, EmailMessage)
    return message


async def event_data(processes: ServiceProcesses, message: dict[str, Any]) -> list[dict[str, Any]]:
    """The data of its events, in the order of its recipients."""
    rows = await processes.service.sql(
        "SELECT type, body FROM events WHERE message_id = $1 ORDER BY position", uuid(message["id"])
    )
    return [json.loads(row["body"])["data"] | {"type": row["type"]} for row in rows]


# Real clients


Handing = Callable[[SmtpListeners, Tenant, bytes, Sequence[str]], str]
CLIENTS: Final[dict[str, Handing]] = {
    "smtplib-starttls": lambda listeners, sender, raw, to: listeners.by_smtplib(sender, raw, to),
    "smtplib-ssl": lambda listeners, sender, raw, to: listeners.by_smtplib(sender, raw, to, at_once=True),
    "curl-starttls": lambda listeners, sender, raw, to: listeners.by_curl(sender, raw, to),
    "curl-ssl": lambda listeners, sender, raw, to: listeners.by_curl(sender, raw, to, at_once=True),
    "swaks-login": lambda listeners, sender, raw, to: listeners.by_swaks(
        sender, to, "--tls", "-p", str(listeners.port), "--auth", "LOGIN", "--data",
        _file(listeners, raw)
    ),
    "swaks-pipelined": lambda listeners, sender, raw, to: listeners.by_swaks(
        sender, to, "--tlsc", "-p", str(listeners.tls_port), "--auth", "PLAIN", "--pipeline", "--data",
        _file(listeners, raw)
    ),
}  # fmt: skip


def _file(listeners: SmtpListeners, raw: bytes) -> str:
    file = listeners.authority.directory / "swaks.eml"
    file.write_bytes(raw.replace(b"\r\n", b"\n"))
    return f"@{file}"


@pytest.mark.rule("SUB-01", "SUB-02", "SUB-08", "SUB-12")
@pytest.mark.parametrize("client", CLIENTS)
async def test_mail_of_real_clients_arrives_once_per_recipient(
    listeners: SmtpListeners, processes: ServiceProcesses, sender: Tenant, client: str
) -> None:
    if shutil.which(client.partition("-")[0]) is None and not client.startswith("smtplib"):
        pytest.skip("it is not installed")
    to = [f"{client}.{name}@{domain}" for name, domain in (("ada", ONE), ("bob", TWO), ("hidden", ONE))]
    raw = raw_mail(
        sender,
        client,
        f"Cc: {to[1]}",
        f"Bcc: {to[2]}",
        "X-Service-Tag: invoice",
        "X-Service-Tag: =?utf-8?q?Z=C3=BCrich?=",
        to=f"Ada <{to[0]}>",
        body=".\r\n..\r\n.dots",
    )
    message = await final(processes, sender, await asyncio.to_thread(CLIENTS[client], listeners, sender, raw, to))
    assert (message["status"], message["billing_status"]) == ("delivered", "settled")
    assert (message["from"], message["subject"]) == (f"News <news@{sender.domain}>", client)
    assert (message["recipient_count"], message["credits_reserved"]) == (3, 3)
    assert await sender.available() == 1_000 - 3
    assert sorted(copy.recipient for copy in copies(processes, *to)) == sorted(to)
    for copy in copies(processes, *to):
        assert copy.sender.startswith("bounces+")
        assert b"hidden" not in copy.message
        # Swaks adds its own line end.
        assert copy.message.removesuffix(b"\r\n").endswith((b"\r\n\r\n.\r\n..\r\n.dots", b".dots\r\n"))
        assert parsed(copy.message).get_all("X-Service-Tag") == ["invoice", "Zürich"]
    (row,) = await processes.service.sql("SELECT tags FROM messages WHERE id = $1", uuid(message["id"]))
    assert list(row["tags"]) == ["invoice", "Zürich"]
    assert [(data["type"], data["to"], data["from"]) for data in await event_data(processes, message)] == [
        ("email.delivered", address, f"news@{sender.domain}") for address in to
    ]


@pytest.mark.rule("SUB-01", "SUB-10", "SUB-11", "SUB-15")
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("postfix", path="/usr/sbin"), reason="needs Postfix, and root"
)
async def test_postfix_relays_through_us_splits_recipients_and_sends_bounces(
    listeners: SmtpListeners, processes: ServiceProcesses, sender: Tenant
) -> None:
    many = [f"many{number}@{ONE}" for number in range(70)]
    apache, author, nobody = "www-data@web1.localdomain", f"author@{TWO}", "nobody@single-label"
    async with smart_host(listeners, sender) as host:
        raw = raw_mail(sender, "A newsletter", "X-Service-Tag: smart-host", to="undisclosed-recipients:;")
        await asyncio.to_thread(host.send, raw, many, apache)
        # Postfix sends the author a bounce, from <>, for the permanent refusal.
        raw = raw_mail(sender, "To nobody", to=nobody)
        await asyncio.to_thread(host.send, raw, [nobody], author)

        async def is_done() -> bool:
            arrived = {copy.recipient for copy in processes.receiver.accepted}
            return arrived.issuperset([*many, author]) and not host.waiting()

        try:
            await eventually(is_done, bool)
        except AssertionError as error:
            raise AssertionError(host.said()) from error
        said = host.said()
    assert [len(copies(processes, address)) for address in many] == [1] * len(many)
    assert said.count("status=sent (250 2.0.0 queued as em_") == len(many) + 1
    assert "452 4.5.3" in said
    assert "553 5.1.3" in said
    rows = await processes.service.sql(
        "SELECT envelope_sender, recipient_count, tags, source FROM messages WHERE account_id = $1 ORDER BY 2 DESC",
        sender.id,
    )
    assert [tuple(row) for row in rows] == [
        (apache, 50, ["smart-host"], "smtp"),
        (apache, 20, ["smart-host"], "smtp"),
        ("", 1, None, "smtp"),
    ]
    (bounce,) = copies(processes, author)
    assert bounce.sender == ""
    assert parsed(bounce.message).get_content_type() == "multipart/report"


# What is stored and sent


@pytest.mark.rule("SUB-08", "SUB-09")
async def test_headers_are_completed_secrets_removed_and_all_is_signed(
    listeners: SmtpListeners, processes: ServiceProcesses, sender: Tenant
) -> None:
    to = [f"stored@{ONE}", f"secret.copy@{TWO}"]
    raw = raw_mail(
        sender,
        "Grüße",
        f"Bcc: Secret <{to[1]}>,",
        "\tsecret.other@example.org",
        "Resent-Bcc: secret.third@example.org",
        "Return-Path: <secret.path@example.org>",
        f"Authentication-Results: {HOSTNAME}; dkim=pass header.d=secret.example",
        "X-Kept: as  it\tis",
        to=to[0],
        body="Grüße aus Zürich. " * 100,
    )
    async with listeners.session(sender) as line:
        message = await final(processes, sender, await submit(line, raw, to, sender=f"news@{sender.domain}"))
    stored = await sender.mime(message["id"])
    keys = await keys_published_by(processes, sender)
    assert message["subject"] == "Grüße"
    for copy in copies(processes, *to):
        assert copy.message.endswith(stored)
        assert b"secret" not in copy.message.lower()
        assert copy.message.isascii()
        assert all(len(line) <= 998 and b"\r" not in line and b"\n" not in line for line in copy.message.split(b"\r\n"))
        mail = parsed(copy.message)
        for name in ("From", "To", "Subject", "Date", "Message-ID", "MIME-Version"):
            assert len(mail.get_all(name) or []) == 1, name
        assert message["id"].removeprefix("em_") in str(mail["Message-ID"])
        assert mail["Subject"] == "Grüße"
        assert b"X-Kept: as  it\tis\r\n" in copy.message
        assert mail.get_content().strip() == ("Grüße aus Zürich. " * 100).strip()
        signatures = mail.get_all("DKIM-Signature") or []
        assert len(signatures) == 2
        for number in range(len(signatures)):
            assert dkim.DKIM(copy.message).verify(idx=number, dnsfunc=lambda name, **_: keys.get(name))
    assert len(copies(processes, *to)) == 2


@pytest.mark.rule("SUB-09")
async def test_a_complete_message_is_stored_byte_for_byte(
    listeners: SmtpListeners, processes: ServiceProcesses, sender: Tenant
) -> None:
    dated = ("Date: Sun, 1 Mar 2026 12:00:00 +0000", "Message-ID: <own@example.com>", "Mime-Version: 1.0 (as is)")
    raw = raw_mail(
        sender, "=?utf-8?q?as_it_is?=", *dated, "x-ODD:  folded\r\n\t value ", body=".\r\n..\r\n--  \r\nx" + " " * 9
    )
    async with listeners.session(sender) as line:
        sent = await submit(line, raw, ["delivered@simulator.invalid"], sender="odd")
    assert await sender.mime(queued_id(sent)) == raw


@pytest.mark.rule("SUB-06")
async def test_the_envelope_decides_the_recipients_and_headers_only_the_field(
    listeners: SmtpListeners, processes: ServiceProcesses, sender: Tenant
) -> None:
    to = [f"env.to@{ONE}", f"env.blind@{ONE}", f"ENV.to@{ONE.upper()}"]
    raw = raw_mail(sender, "Envelope", f"Cc: env.not@{ONE}", to=f"env.to@{ONE}, env.never@{TWO}")
    async with listeners.session(sender) as line:
        message = await final(processes, sender, await submit(line, raw, to, sender=f"news@{sender.domain}"))
    assert [recipient["email"] for recipient in message["recipients"]] == to[:2]
    assert (message["recipient_count"], message["credits_reserved"]) == (2, 2)
    assert {copy.recipient for copy in processes.receiver.accepted if copy.recipient.lower().startswith("env.")} == set(
        to[:2]
    )


@pytest.mark.rule("SUB-10", "SUB-11")
async def test_any_envelope_sender_is_accepted_and_shown(
    listeners: SmtpListeners, processes: ServiceProcesses, sender: Tenant
) -> None:
    senders = {
        f"env{number}@{TWO}": envelope_sender
        for number, envelope_sender in enumerate(["apache@web1", "a.b+c@elsewhere.example", "root", ""])
    }
    async with listeners.session(sender) as line:
        for to, envelope_sender in senders.items():
            raw = raw_mail(sender, "Odd senders", to=to)
            message = await final(processes, sender, await submit(line, raw, [to], sender=envelope_sender))
            (event,) = await event_data(processes, message)
            (copy,) = copies(processes, to)
            assert event.get("from", "") == envelope_sender
            assert copy.sender == "" if not envelope_sender else copy.sender.endswith(f"@{RETURN_PATH_DOMAIN}")


@pytest.mark.rule("SUB-12")
async def test_credits_are_reserved_settled_and_released_as_over_http(
    listeners: SmtpListeners, processes: ServiceProcesses, sender: Tenant
) -> None:
    to = [f"billed@{ONE}", f"550-rcpt+billed@{ONE}", f"billed@{TWO}"]
    async with listeners.session(sender) as line:
        raw = raw_mail(sender, "Billed", to=", ".join(to))
        message = await final(processes, sender, await submit(line, raw, to, sender=f"news@{sender.domain}"))
    assert [(recipient["status"], recipient["billing_status"]) for recipient in message["recipients"]] == [
        ("delivered", "settled"),
        ("bounced", "released"),
        ("delivered", "settled"),
    ]
    assert (message["status"], message["billing_status"], message["credits_reserved"]) == ("partial", "settled", 3)
    assert await sender.available() == 1_000 - 2
    assert [data["type"] for data in await event_data(processes, message)] == [
        "email.delivered",
        "email.bounced",
        "email.delivered",
    ]
    rows = await processes.service.sql(
        "SELECT position, kind, amount FROM ledger WHERE message_id = $1 ORDER BY 1", uuid(message["id"])
    )
    assert [tuple(row) for row in rows] == [(-1, "reserve", 3), (0, "settle", 1), (1, "release", 1), (2, "settle", 1)]


# The SMTP session


@pytest.mark.rule("SUB-03", "SUB-04")
async def test_login_needs_tls_and_mail_needs_a_login(listeners: SmtpListeners, sender: Tenant) -> None:
    async with listeners.line(is_secure=False) as line:
        line.writer.write(b"EHLO client.example\r\n")
        offers = [await line.reader.readline()]
        while offers[-1][3:4] == b"-":
            offers.append(await line.reader.readline())
        words = {offer[4:].strip().split()[0].decode() for offer in offers[1:]}
        assert words == {"PIPELINING", "SIZE", "8BITMIME", "STARTTLS", "ENHANCEDSTATUSCODES", "CHUNKING"}
        replies = await line.say(
            plain(sender.username, sender.password), "MAIL FROM:<a@b.example>", "RCPT TO:<a@b.example>"
        )
        assert [reply[:10] for reply in replies] == ["538 5.7.11", "530 5.7.0 ", "530 5.7.0 "]
    async with listeners.line() as line:
        replies = await line.say("EHLO client.example", "MAIL FROM:<a@b.example>", "DATA")
        assert [reply[:9] for reply in replies[1:]] == ["530 5.7.0", "530 5.7.0"]


async def _accepted(account: Tenant) -> dict[str, int]:
    """All but the schedule, which delivery of earlier mail empties meanwhile."""
    return {table: count for table, count in (await account.counts()).items() if table != "delivery_schedule"}


@pytest.mark.rule("SUB-05")
async def test_commands_before_tls_are_forgotten(
    listeners: SmtpListeners, processes: ServiceProcesses, sender: Tenant
) -> None:
    before = await _accepted(sender)
    injected = f"STARTTLS\r\nEHLO x\r\n{plain(sender.username, sender.password)}\r\nMAIL FROM:<a@b.example>\r\n"
    async with listeners.line(is_secure=False) as line:
        await line.say("EHLO client.example")
        (reply,) = await line.say(injected.encode(), replies=1)
        assert reply.startswith("554 5.5.1 ")
        assert await line.rest() == ""
    # Nor is cleartext in place of the handshake.
    async with listeners.line(is_secure=False) as line:
        await line.say("EHLO client.example")
        (reply,) = await line.say("STARTTLS")
        assert reply.startswith("220 ")
        line.writer.write(b"EHLO x\r\nNOOP\r\n")
        assert not re.search(r"^2\d\d", await line.rest(), re.MULTILINE)
    assert await _accepted(sender) == before


@pytest.mark.rule("SUB-14")
async def test_wrong_logins_get_equal_replies_and_the_third_disconnects(
    listeners: SmtpListeners, processes: ServiceProcesses, sender: Tenant
) -> None:
    narrow = await sender.credential(["192.0.2.0/24"])
    tries = [
        plain(sender.username, "wrong"),
        plain("smtp_nobody", sender.password),
        plain(sender.username, sender.password[:-1]),
    ]
    async with listeners.line(source=ELSEWHERE) as line:
        replies = await line.say("EHLO client.example", *tries)
        assert replies[1].startswith("535 5.7.8 ")
        assert replies[1] == replies[2]
        assert replies[3].startswith("421 4.7.0 ")
        assert await line.rest() == ""
    async with listeners.line(source=ELSEWHERE) as line:
        replies = await line.say("EHLO client.example", plain(narrow.username, narrow.password))
        assert replies[1].startswith("535 5.7.1 ")
        assert ELSEWHERE in replies[1]
    # No secret is in a log.
    for part in processes.parts:
        for secret in (sender.password[:-1], narrow.password, sender.username):
            assert secret not in part.log.read_text(errors="replace"), part.words


@pytest.mark.rule("SUB-15")
async def test_the_51st_recipient_is_deferred_and_the_others_get_the_mail(
    listeners: SmtpListeners, processes: ServiceProcesses, sender: Tenant
) -> None:
    to = [f"r{number}@simulator.invalid" for number in range(51)]
    async with listeners.session(sender) as line:
        replies = await line.say("MAIL FROM:<>", *(f"RCPT TO:<{address}>" for address in to), "DATA")
        assert [reply[:9] for reply in replies[1:-1]] == ["250 2.1.5"] * 50 + ["452 4.5.3"]
        (reply,) = await line.say(dotted(raw_mail(sender, "Fifty")), replies=1)
        assert queued_id(reply)
        # The rest, in another transaction, as the reply says.
        assert queued_id(await submit(line, raw_mail(sender, "One more"), to[50:], sender=""))
    assert (await sender.counts())["recipients"] == 51


# Refusals: the content, and the beginning of the reply


TO: Final = ["delivered@simulator.invalid"]


async def _given(line: SmtpConnection, raw: bytes, to: Sequence[str] = TO) -> str:
    return await submit(line, raw, to, sender="anyone@example.com")


def _without_from(sender: Tenant, *fields: str) -> bytes:
    return "\r\n".join([*fields, "Subject: x", "", "Hi.", ""]).encode()


LARGE: Final = "x" * 76 + "\r\n"
CONTENTS: Final[dict[str, tuple[str, Callable[[Tenant], bytes]]]] = {
    "From of a domain that is not the account's": (
        "550 5.7.1", lambda sender: raw_mail(sender, "x").replace(sender.domain.encode(), b"elsewhere.example.com")),
    "Sender of a domain that is not the account's": (
        "550 5.7.1", lambda sender: raw_mail(sender, "x", "Sender: list@elsewhere.example.com")),
    "a subdomain of the account's": (
        "550 5.7.1", lambda sender: raw_mail(sender, "x").replace(b"news@", b"news@sub.")),
    "no From": ("550 5.6.0", lambda sender: _without_from(sender)),
    "two From fields": (
        "550 5.6.0", lambda sender: raw_mail(sender, "x", f"From: news@{sender.domain}")),
    "two mailboxes in From": (
        "550 5.6.0", lambda sender: _without_from(sender, f"From: a@{sender.domain}, b@{sender.domain}")),
    "two Sender fields": (
        "550 5.6.0", lambda sender: raw_mail(sender, "x", *[f"Sender: news@{sender.domain}"] * 2)),
    "no header at all": ("550 5.6.0", lambda _: b"\r\nHello.\r\n"),
    "nothing at all": ("550 5.6.0", lambda _: b""),
    "a line of the header that is no field": ("550 5.6.0", lambda sender: raw_mail(sender, "x", "no field")),
    "a NUL in the header": ("550 5.6.0", lambda sender: raw_mail(sender, "x", "X-Note: a\0b")),
    "a line break in an encoded word": (
        "550 5.6.0", lambda sender: raw_mail(sender, "=?utf-8?q?a=0D=0ABcc:_x@y.example?=")),
    "one click without a list": ("550 5.6.0", lambda sender: raw_mail(sender, "x", "X-Service-Unsubscribe: one-click")),
    "metadata with a wrong name": ("550 5.6.0", lambda sender: raw_mail(sender, "x", "X-Service-Metadata-a@b: x")),
    "metadata without a name": ("550 5.6.0", lambda sender: raw_mail(sender, "x", "X-Service-Metadata-: x")),
    "metadata that is too long": (
        "550 5.6.0", lambda sender: raw_mail(sender, "x", f"X-Service-Metadata-a: {'x' * 501}")),
    "metadata that is given twice": (
        "550 5.6.0", lambda sender: raw_mail(sender, "x", *["X-Service-Metadata-a: x"] * 2)),
    "too much metadata": (
        "550 5.6.0", lambda sender: raw_mail(sender, "x", *[f"X-Service-Metadata-n{n}: x" for n in range(21)])),
    "51 Received fields": ("554 5.4.6", lambda sender: raw_mail(sender, "x", *["Received: by a"] * 51)),
    "a signed mail that breaks the limits": (
        "554 5.6.0", lambda sender: raw_mail(
            sender, "x", 'Content-Type: multipart/signed; protocol="application/pgp-signature"; boundary=b',
            body="--b\r\n\r\n" + "ü" * 999 + "\r\n--b\r\nContent-Type: application/pgp-signature\r\n\r\nx\r\n--b--")),
    "more than 10 MiB": (
        "552 5.3.4", lambda sender: raw_mail(sender, "x", body=LARGE * (limits.MIME_BYTES_MAX // len(LARGE) + 1))),
    "more than 10 MiB once it is fit for every server": (
        "552 5.3.4", lambda sender: raw_mail(sender, "x", body=("ü" * 38 + "\r\n") * (9 * 1024 * 1024 // 78))),
}  # fmt: skip


@pytest.mark.rule("META-06", "META-02")
async def test_metadata_fields_are_removed_and_shown(
    listeners: SmtpListeners, processes: ServiceProcesses, sender: Tenant
) -> None:
    to = f"with.pairs@{ONE}"
    raw = raw_mail(
        sender, "Hello", "X-Service-Metadata-order: 1001", "x-service-METADATA-Shop: =?utf-8?q?Z=C3=BCrich?="
    )
    async with listeners.session(sender) as line:
        message = await final(processes, sender, await _given(line, raw, [to]))
    assert message["metadata"] == {"order": "1001", "Shop": "Zürich"}
    (copy,) = copies(processes, to)
    assert b"metadata-" not in copy.message.lower()
    assert b"1001" not in copy.message
    assert [b"metadata" in json.dumps(data).encode() for data in await event_data(processes, message)] == [False]


@pytest.mark.rule("SUB-07", "SUB-13", "SUB-16", "SUB-17", "SUB-18")
async def test_refused_mail_costs_nothing_and_the_session_continues(
    listeners: SmtpListeners, processes: ServiceProcesses, sender: Tenant
) -> None:
    before = await sender.state()
    async with listeners.session(sender) as line:
        replies = {name: await _given(line, make(sender)) for name, (_, make) in CONTENTS.items()}
        assert {name: reply[:9] for name, reply in replies.items()} == {
            name: code for name, (code, _) in CONTENTS.items()
        }
        assert all(len(reply) > 30 for reply in replies.values()), "a refusal says what to do"
        assert await sender.state() == before
        assert queued_id(await _given(line, raw_mail(sender, "And now a right one")))


@pytest.mark.rule("SUB-17")
async def test_a_declared_size_is_refused_before_the_content(listeners: SmtpListeners, sender: Tenant) -> None:
    async with listeners.session(sender) as line:
        too_large = limits.MIME_BYTES_MAX + 1
        replies = await line.say(f"MAIL FROM:<> SIZE={too_large}", f"MAIL FROM:<> SIZE={too_large - 1}")
        assert [reply[:9] for reply in replies] == ["552 5.3.4", "250 2.1.0"]


@pytest.mark.rule("SUB-13")
async def test_limits_of_the_account_are_temporary_refusals(
    listeners: SmtpListeners, processes: ServiceProcesses, sender: Tenant
) -> None:
    service = processes.service
    poor = await service.account(credits=1)
    hasty = await service.account(rate=(1, 1))
    young = await service.account(warmup=[2])
    suspended = await service.account()
    async with listeners.session(suspended) as line:
        await service.operator.suspend(suspended.id)
        before = await suspended.state()
        reply = await _given(line, raw_mail(suspended, "Suspended"))
        assert reply.startswith("450 4.7.1 "), reply
        # Not even mail that would be refused permanently.
        assert (await _given(line, raw_mail(sender, "Of another"))).startswith("450 4.7.1 ")
        assert await suspended.state() == before
        await service.operator.resume(suspended.id)
        assert queued_id(await _given(line, raw_mail(suspended, "Resumed")))
    for account, code in ((poor, "450 4.7.1"), (hasty, "450 4.7.1"), (young, "451 4.7.1")):
        async with listeners.session(account) as line:
            two = ["delivered+1@simulator.invalid", "delivered+2@simulator.invalid"]
            first = await _given(line, raw_mail(account, "First"), two if account is young else TO)
            assert queued_id(first)
            accepted = await _accepted(account)
            if account is hasty:
                await hasty.use_up_rate()
            reply = await _given(line, raw_mail(account, "Second"))
            assert reply.startswith(code), reply
            assert await _accepted(account) == accepted


@pytest.mark.rule("SUB-19")
async def test_invalid_recipients_are_refused_individually(listeners: SmtpListeners, sender: Tenant) -> None:
    paths = {
        "<grün@example.org>": "553 5.6.7",
        "<ada@grün.example>": "553 5.6.7",
        "<ada@localhost>": "553 5.1.3",
        "<ada@[192.0.2.1]>": "553 5.1.3",
        '<"quoted local"@example.org>': "553 5.1.3",
        "<@relay.example:ada@example.org>": "553 5.1.3",
        "<ada>": "501 5.1.3",
        "<>": "501 5.1.3",
        "<postmaster>": "553 5.1.3",
        "ada@example.org": "501 5.1.3",
        "<ada@example.org> SMTPUTF8": "555 5.5.4",
        "<ada@example.org> NOTIFY=NEVER ORCPT=rfc822;ada@example.org": "555 5.5.4",
    }
    async with listeners.session(sender) as line:
        replies = await line.say("MAIL FROM:<>", *(f"RCPT TO:{path}" for path in paths))
        assert dict(zip(paths, (reply[:9] for reply in replies[1:]), strict=True)) == paths


@pytest.mark.rule("SUB-20")
async def test_a_message_may_be_chunked_and_end_without_a_line_end(
    listeners: SmtpListeners, processes: ServiceProcesses, sender: Tenant
) -> None:
    raw = raw_mail(sender, "Chunks", body=".\r\nno dot is doubled\r\n.\r\nthe end")[:-2]
    async with listeners.session(sender) as line:
        cut = raw.index(b"\r\n.\r\n") + 1  # between CR and LF
        replies = await line.say(
            "MAIL FROM:<> BODY=8BITMIME",
            f"RCPT TO:<{TO[0]}>",
            f"BDAT {cut}\r\n".encode() + raw[:cut],
            f"BDAT {len(raw) - cut} LAST\r\n".encode() + raw[cut:],
        )
    stored = await sender.mime(queued_id(replies[-1]))
    assert stored.endswith(b"\r\n\r\n.\r\nno dot is doubled\r\n.\r\nthe end\r\n")


@pytest.mark.rule("SUB-21")
async def test_only_crlf_ends_a_line_and_only_a_dot_line_ends_a_message(
    listeners: SmtpListeners, processes: ServiceProcesses, sender: Tenant
) -> None:
    before = await sender.state()
    async with listeners.session(sender) as line:
        (reply,) = await line.say(b"NOOP\nMAIL FROM:<a@example.com>\rRCPT TO:<a@example.com>\r\n", replies=1)
        assert reply.startswith("500 5.5.2 ")
        for end in (b"\n.\n", b"\r.\r", b"\n.\r\n", b"\r\n.\n", b"\r\n.\r", b"\r\n\n.\r\n"):
            await line.say("MAIL FROM:<a@example.com>", f"RCPT TO:<{TO[0]}>", "DATA")
            written = raw_mail(sender, "Ends").removesuffix(b"\r\n") + end + b"QUIT\r\n.\r\n"
            replies = await line.say(written, "NOOP")
            assert [reply[:9] for reply in replies] == ["550 5.6.0", "250 2.0.0"], (end, replies)
    assert await sender.state() == before


@pytest.mark.rule("SUB-08", "SUB-09", "UNSUB-04")
async def test_mail_of_real_programs_arrives_with_valid_signatures(
    listeners: SmtpListeners, processes: ServiceProcesses
) -> None:
    sender = await processes.service.account(domain="example.com")
    messages = {mail.name: mail.raw for mail in (*submitted.UNTOUCHED, *submitted.AMENDED, *submitted.REENCODED)}
    sent = {}
    async with listeners.session(sender) as line:
        for name, raw in messages.items():
            to = f"shape.{name}@{ONE}"
            sent[to] = queued_id(await submit(line, raw, [to], sender="a@example.com"))
    await processes.wait_until_all_final()
    keys = await keys_published_by(processes, sender)
    for to, message in sent.items():
        (copy,) = copies(processes, to)
        assert copy.message.endswith(await sender.mime(message)), to
        for number in range(2):
            assert dkim.DKIM(copy.message).verify(idx=number, dnsfunc=lambda name, **_: keys.get(name)), to
        assert b"secret@" not in copy.message, to
    # One of them has a one-click unsubscribe link.
    (copy,) = copies(processes, f"shape.one-click@{ONE}")
    assert parsed(copy.message)["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    assert b"X-Service-Unsubscribe" not in copy.message
