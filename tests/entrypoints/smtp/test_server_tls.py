"""The SMTP server with TLS: STARTTLS and implicit TLS, logins, and renewal of the certificate."""

import asyncio
import base64
import contextlib
import smtplib
import ssl
from dataclasses import replace
from pathlib import Path

import aiosmtplib
import pytest

from posthouse.entrypoints.smtp.connection import Bounds, ServerDeadlines
from posthouse.entrypoints.smtp.server import Listener, SmtpServer
from tests.support.certificates import Authority
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.smtp_service import (
    INBOUND,
    NAME,
    PASSWORD,
    PRINCIPAL,
    SUBMISSION,
    USERNAME,
    RecordingService,
    SmtpConnection,
    run_smtp_server,
)
from tests.support.steady_loop import ON_STEADY_LOOP

MAIL = "From: ada@example.com\r\nSubject: dots\r\n\r\n.one\r\n..two\r\nend\r\n"
SHORT = ServerDeadlines(check_seconds=0.02, closing_seconds=0.02)
BOTH = (Listener("127.0.0.1", 0), Listener("127.0.0.1", 0, is_secure=True))


@pytest.mark.parametrize("is_implicit", [False, True])
async def test_aiosmtplib_logs_in_and_sends(authority: Authority, trusting: ssl.SSLContext, is_implicit: bool) -> None:
    service = RecordingService(SUBMISSION)
    async with run_smtp_server(service, tls=authority.files, listeners=BOTH) as server:
        client = aiosmtplib.SMTP(
            hostname="127.0.0.1",
            port=server.ports[is_implicit],
            use_tls=is_implicit,
            start_tls=not is_implicit,
            tls_context=_without_name(trusting),
            username=USERNAME,
            password=PASSWORD,
            timeout=HANG_SECONDS,
        )
        async with client:
            for _ in range(3):
                await client.sendmail("ada@example.com", ["bob@example.com", "eve@example.com"], MAIL)
    assert [principal for principal, _, _ in service.accepted] == [PRINCIPAL] * 3
    assert service.contents == [MAIL.encode()] * 3
    envelope = service.accepted[0][1]
    assert envelope.recipients == ("bob@example.com", "eve@example.com")
    assert (envelope.sender, envelope.is_secure, envelope.peer) == ("ada@example.com", True, "127.0.0.1")


@pytest.mark.parametrize("is_implicit", [False, True])
async def test_smtplib_logs_in_and_sends(authority: Authority, trusting: ssl.SSLContext, is_implicit: bool) -> None:
    service = RecordingService(SUBMISSION)

    def send(port: int) -> None:
        context = _without_name(trusting)
        with (
            smtplib.SMTP_SSL("127.0.0.1", port, context=context, timeout=HANG_SECONDS)
            if is_implicit
            else smtplib.SMTP("127.0.0.1", port, timeout=HANG_SECONDS) as client
        ):
            if not is_implicit:
                client.starttls(context=context)
            client.login(USERNAME, PASSWORD)
            client.sendmail("ada@example.com", ["bob@example.com"], MAIL)

    async with run_smtp_server(service, tls=authority.files, listeners=BOTH) as server:
        await asyncio.to_thread(send, server.ports[is_implicit])
    assert service.contents == [MAIL.encode()]


@pytest.mark.rule("SUB-05")
async def test_cleartext_after_220_ends_the_connection(authority: Authority) -> None:
    service = RecordingService(INBOUND)
    async with run_smtp_server(service, tls=authority.files) as server, SmtpConnection.to(server.ports[0]) as line:
        assert [reply[:3] for reply in await line.say("EHLO client.example.com", "STARTTLS")] == ["250", "220"]
        line.writer.write(b"EHLO x\r\nMAIL FROM:<>\r\nRCPT TO:<bob@example.com>\r\nDATA\r\nhi\r\n.\r\n")
        assert "250" not in repr(await _raw_rest(line))
    assert service.accepted == []


async def test_starttls_resets_the_session_and_early_commands_are_read(
    authority: Authority, trusting: ssl.SSLContext
) -> None:
    """The first commands may arrive with the last bytes of the handshake."""
    service = RecordingService(INBOUND)
    async with run_smtp_server(service, tls=authority.files) as server, SmtpConnection.to(server.ports[0]) as line:
        await line.say(
            "EHLO before.example.com", "MAIL FROM:<eve@example.com>", "RCPT TO:<eve@example.com>", "STARTTLS"
        )
        await line.writer.start_tls(_without_name(trusting))
        replies = await line.say(
            "DATA", "EHLO after", "MAIL FROM:<>", "RCPT TO:<bob@example.com>", "DATA", b"x\r\n.\r\n"
        )
    assert [reply[:3] for reply in replies] == ["503", "250", "250", "250", "354", "250"]
    envelope = service.accepted[0][1]
    assert (envelope.sender, envelope.recipients, envelope.client_name) == ("", ("bob@example.com",), "after")
    assert envelope.is_secure


async def test_the_third_wrong_password_ends_the_connection(authority: Authority, trusting: ssl.SSLContext) -> None:
    service = RecordingService(SUBMISSION)
    wrong = "AUTH PLAIN " + base64.b64encode(b"\0smtp_ada\0wrong").decode()
    async with (
        run_smtp_server(service, tls=authority.files, deadlines=SHORT) as server,
        SmtpConnection.to(server.ports[0]) as line,
    ):
        assert (await line.say("EHLO x", wrong))[1].startswith("538 5.7.11")
        await line.say("STARTTLS")
        await line.writer.start_tls(_without_name(trusting))
        assert [reply[:3] for reply in await line.say("EHLO x", wrong, wrong, wrong)] == ["250", "535", "535", "421"]
        assert await line.rest() == ""
    assert len(service.logins) == 3


async def test_a_delayed_login_delays_no_other_connection(authority: Authority, trusting: ssl.SSLContext) -> None:
    service = RecordingService(SUBMISSION, gate=asyncio.Event())
    login = "AUTH PLAIN " + base64.b64encode(f"\0{USERNAME}\0{PASSWORD}".encode()).decode()
    async with run_smtp_server(service, tls=authority.files) as server, contextlib.AsyncExitStack() as stack:
        delayed, other = [await stack.enter_async_context(SmtpConnection.to(server.ports[0])) for _ in range(2)]
        await delayed.say("EHLO x", "STARTTLS")
        await delayed.writer.start_tls(_without_name(trusting))
        await delayed.say("EHLO x")
        delayed.writer.write(login.encode() + b"\r\n")
        assert (await other.say("EHLO x", "NOOP"))[1] == "250 2.0.0 OK"
        # A drain ends a delayed login with 421 and does not wait for it.
        await asyncio.wait_for(server.drain(10 * HANG_SECONDS), HANG_SECONDS)
        assert (await delayed.rest()).startswith("421 4.3.2")


@ON_STEADY_LOOP
async def test_an_endless_handshake_is_cut_off(authority: Authority) -> None:
    deadlines = replace(SHORT, handshake_seconds=0.2)
    async with run_smtp_server(
        RecordingService(INBOUND), tls=authority.files, deadlines=deadlines, listeners=BOTH
    ) as server:
        async with (
            SmtpConnection.to(server.ports[0]) as plain,
            SmtpConnection.to(server.ports[1], greeted=False) as secure,
        ):
            assert (await plain.say("EHLO x", "STARTTLS"))[1].startswith("220")
            assert server.connection_count == 2
            plain.writer.write(b"\x16\x03\x01")
            assert await plain.rest() == ""
            assert await secure.rest() == ""
        await eventually(lambda: server.connection_count == 0)


async def test_a_drain_does_not_wait_for_handshakes(authority: Authority) -> None:
    async with (
        run_smtp_server(RecordingService(INBOUND), tls=authority.files, listeners=BOTH) as server,
        SmtpConnection.to(server.ports[0]) as plain,
        SmtpConnection.to(server.ports[1], greeted=False) as secure,
    ):
        await plain.say("EHLO x", "STARTTLS")
        await eventually(lambda: server.connection_count == 2)
        await asyncio.wait_for(server.drain(10 * HANG_SECONDS), HANG_SECONDS)
        assert server.connection_count == 0
        assert await secure.rest() == ""


async def test_connections_are_counted_before_their_handshake(authority: Authority) -> None:
    bounds = Bounds(connections_per_address_max=1)
    async with run_smtp_server(RecordingService(INBOUND), tls=authority.files, bounds=bounds, listeners=BOTH) as server:
        async with (
            SmtpConnection.to(server.ports[1], greeted=False),
            SmtpConnection.to(server.ports[1], greeted=False) as second,
        ):
            assert await second.rest() == ""
        await eventually(lambda: server.connection_count == 0)


@ON_STEADY_LOOP
async def test_a_client_that_does_not_log_in_is_cut_off(authority: Authority) -> None:
    deadlines = replace(SHORT, authentication_seconds=0.3)
    service = RecordingService(SUBMISSION)
    async with (
        run_smtp_server(service, tls=authority.files, deadlines=deadlines) as server,
        SmtpConnection.to(server.ports[0]) as line,
    ):
        assert (await line.say_until_refused("NOOP")).startswith("421 4.4.2")


async def test_a_renewed_certificate_is_used_and_a_broken_file_is_not(
    tmp_path: Path, authority: Authority, trusting: ssl.SSLContext
) -> None:
    own = Authority(authority.ca, tmp_path)
    own.issue(NAME)
    files = own.files
    async with run_smtp_server(RecordingService(INBOUND), tls=files, listeners=BOTH) as server:

        async def names() -> list[str]:
            _, writer = await asyncio.open_connection("127.0.0.1", server.ports[1], ssl=_without_name(trusting))
            certificate = writer.get_extra_info("peercert")
            writer.close()
            return [name for _, name in certificate["subjectAltName"]]

        assert await names() == [NAME]
        assert not files.renew()
        own.issue("new.example.com")
        assert files.renew()
        assert await names() == ["new.example.com"]
        whole = own.key_file.read_bytes()
        other = authority.ca.issue_cert("other.example.com").private_key_pem.bytes()
        for broken in (b"", whole[:100], other):
            own.key_file.write_bytes(broken)
            assert not files.renew()
            assert await names() == ["new.example.com"]
        own.key_file.unlink()
        assert not files.renew()
        own.issue("newest.example.com")
        assert files.renew()
        assert await names() == ["newest.example.com"]


async def test_a_secure_listener_needs_a_certificate() -> None:
    with pytest.raises(ValueError, match="certificate"):
        await SmtpServer(RecordingService(INBOUND)).listen([Listener("127.0.0.1", 0, is_secure=True)])


async def test_an_address_in_use_is_an_error() -> None:
    async with run_smtp_server(RecordingService(INBOUND)) as server:
        with pytest.raises(OSError, match="in use"):
            await SmtpServer(RecordingService(INBOUND)).listen([Listener("127.0.0.1", server.ports[0])])


async def _raw_rest(line: SmtpConnection) -> bytes:
    async with asyncio.timeout(HANG_SECONDS):
        try:
            return await line.reader.read(-1)
        except ConnectionError:
            return b""


def _without_name(trusting: ssl.SSLContext) -> ssl.SSLContext:
    trusting.check_hostname = False
    return trusting
