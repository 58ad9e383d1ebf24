"""Mail submitted over SMTP by real clients, and its delivery."""

import asyncio
import email
import email.policy
import json
import os
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
    LONG_LEASE,
    ServiceProcesses,
    prepare_processes,
)
from tests.support.smtp_conversation import Delivered
from tests.support.smtp_listeners import SmtpListeners, keys_published_by, queued_id, raw_mail, submit
from tests.support.smtp_service import SmtpConnection

ONE, TWO = "one.example.net", "two.example.net"


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


# The SMTP session


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
