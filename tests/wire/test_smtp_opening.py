"""How an SMTP session is opened: connection, greeting, EHLO and TLS, and every way in which that fails."""

import asyncio
import contextlib
import socket
from dataclasses import replace

import pytest

from posthouse.mail.reply import Reply
from posthouse.rules.outcome import Stage
from posthouse.wire.smtp import Login, SmtpAccepted, SmtpSession, extensions_of
from posthouse.wire.tls import CLEARTEXT, TlsPolicy, TlsUse
from tests.support.certificates import Certificates
from tests.support.smtp_receiver import SmtpReceiver
from tests.support.steady_loop import ON_STEADY_LOOP
from tests.wire.smtp_sessions import (
    BROKEN,
    CONTENT,
    HASTY_COMMAND,
    HASTY_DOT,
    LARGE,
    MESSAGE,
    PATIENT,
    SENDER,
    SHORT,
    TRANSFER_MODES,
    CannedServer,
    deliver,
    failure_of,
    open_to,
    reason_of,
    session_with,
)

# Opening


async def test_a_closed_port_is_a_failure_to_connect() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        failure = await open_to(unused.getsockname()[1])
    assert failure_of(failure) == (Stage.CONNECT, None, False)
    assert "refused" in reason_of(failure).lower()


async def test_a_connection_that_is_never_accepted_times_out() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        address = listening.getsockname()
        with contextlib.ExitStack() as stack:
            for _ in range(4):  # fill the queue, so that further ones are not answered
                received = stack.enter_context(socket.socket())
                received.setblocking(False)
                received.connect_ex(address)
            failure = await open_to(
                address[1], deadlines=replace(PATIENT, connect_seconds=SHORT, greeting_seconds=SHORT)
            )
    assert failure_of(failure)[1:] == (None, False)
    assert failure_of(failure)[0] in (Stage.CONNECT, Stage.GREETING)


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.9"])
async def test_the_source_address_can_be_set(source: str) -> None:
    async with CannedServer("554 no") as server:
        failure = await open_to(server.port, source_address=source)
        assert failure_of(failure) == (Stage.GREETING, 554, False)
    assert server.peers == [source]


@pytest.mark.parametrize(
    ("words", "stage", "code"),
    [
        ("421-connect", Stage.GREETING, 421),
        ("450-connect", Stage.GREETING, 450),
        ("554-connect", Stage.GREETING, 554),
        ("421-ehlo", Stage.EHLO, 421),
        ("450-ehlo", Stage.EHLO, 450),
        ("502-ehlo--554-helo", Stage.EHLO, 554),
        ("502-ehlo--drop-helo", Stage.EHLO, None),
    ],
)
async def test_a_refused_opening_has_its_stage(words: str, stage: Stage, code: int | None) -> None:
    async with SmtpReceiver(words) as receiver:
        failure = await open_to(receiver.port)
        assert failure_of(failure) == (stage, code, False)


@ON_STEADY_LOOP
@pytest.mark.parametrize(("act", "reason"), BROKEN)
@pytest.mark.parametrize(("at", "stage"), [("connect", Stage.GREETING), ("ehlo", Stage.EHLO)])
async def test_a_server_that_closes_while_opening(act: str, reason: str, at: str, stage: Stage) -> None:
    deadlines = PATIENT
    if act in ("hang", "drip"):
        deadlines = replace(PATIENT, greeting_seconds=SHORT) if at == "connect" else HASTY_COMMAND
    async with SmtpReceiver(f"{act}-{at}") as receiver:
        failure = await open_to(receiver.port, deadlines=deadlines)
        assert failure_of(failure) == (stage, None, False)
        assert any(part in reason_of(failure) for part in reason.split("|")), reason_of(failure)


async def test_a_second_greeting_is_not_the_reply_to_ehlo() -> None:
    async with SmtpReceiver("twice-connect") as receiver:
        assert failure_of(await open_to(receiver.port))[1:] == (None, False)


async def test_a_server_without_ehlo_gets_helo() -> None:
    async with SmtpReceiver("502-ehlo") as receiver, session_with(receiver) as session:
        assert session.extensions == {}
        assert isinstance((await deliver(session))[0], SmtpAccepted)
    assert receiver.commands[:3] == ["EHLO sender.example.com", "HELO sender.example.com", f"MAIL FROM:<{SENDER}>"]


async def test_extensions_are_read_in_any_case_and_form() -> None:
    reply = Reply(250, None, "mx.example.com at your service\nsize 1000 \npipelining\nAUTH=LOGIN PLAIN\n8BITMIME")
    assert extensions_of(reply) == {"SIZE": "1000", "PIPELINING": "", "AUTH": "LOGIN PLAIN", "8BITMIME": ""}


# TLS


@pytest.mark.parametrize("way", TRANSFER_MODES)
async def test_a_verified_session_has_tls_details(way: str, certificates: Certificates, verified: TlsPolicy) -> None:
    async with (
        SmtpReceiver(f"{way}--starttls", certificates=certificates) as receiver,
        session_with(receiver, tls=verified) as session,
    ):
        assert session.tls is not None
        assert (session.tls.version, session.tls.is_verified) == ("TLSv1.3", True)
        assert session.tls.cipher.startswith("TLS_")
        assert [command.split()[0] for command in receiver.commands] == ["EHLO", "STARTTLS", "EHLO"]
        assert "STARTTLS" not in session.extensions, "what was offered before TLS counts no longer"
        for message in (MESSAGE, LARGE, MESSAGE):
            assert isinstance((await deliver(session, message=message))[0], SmtpAccepted)
    assert [received.tls for received in receiver.accepted] == ["TLSv1.3"] * 3
    assert [received.message for received in receiver.accepted] == [CONTENT, LARGE.content, CONTENT]


@ON_STEADY_LOOP
@pytest.mark.parametrize("act", ["drop", "hang", "lose"])
async def test_silence_after_the_dot_is_ambiguous_under_tls_too(
    act: str, certificates: Certificates, verified: TlsPolicy
) -> None:
    deadlines = HASTY_DOT if act == "hang" else PATIENT
    async with (
        SmtpReceiver("starttls", certificates=certificates) as receiver,
        session_with(receiver, tls=verified, deadlines=deadlines) as session,
    ):
        (result,) = await deliver(session, f"{act}-dot@example.com")
        assert failure_of(result) == (Stage.DOT, None, True)
        assert not session.is_reusable


@pytest.mark.parametrize("words", ["starttls", "starttls-untrusted", "starttls-othername"])
async def test_opportunistic_tls_accepts_any_certificate(
    words: str, certificates: Certificates, opportunistic: TlsPolicy
) -> None:
    async with (
        SmtpReceiver(words, certificates=certificates) as receiver,
        session_with(receiver, tls=opportunistic) as session,
    ):
        assert session.tls is not None
        assert not session.tls.is_verified
        assert isinstance((await deliver(session))[0], SmtpAccepted)


@pytest.mark.parametrize("words", ["starttls-untrusted", "starttls-othername"])
async def test_an_invalid_certificate_fails_a_verified_session(
    words: str, certificates: Certificates, verified: TlsPolicy
) -> None:
    async with SmtpReceiver(words, certificates=certificates) as receiver:
        failure = await open_to(receiver.port, tls=verified)
        assert failure_of(failure) == (Stage.STARTTLS, None, False)
        assert "certificate is not valid" in reason_of(failure)
    assert receiver.accepted == []


async def test_without_starttls_only_opportunistic_uses_cleartext(
    opportunistic: TlsPolicy, verified: TlsPolicy
) -> None:
    async with SmtpReceiver() as receiver:
        async with session_with(receiver, tls=opportunistic) as session:
            assert session.tls is None
            assert isinstance((await deliver(session))[0], SmtpAccepted)
        assert failure_of(await open_to(receiver.port, tls=verified)) == (Stage.STARTTLS, None, False)


@ON_STEADY_LOOP
@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        ("starttls-refused", 454, "refused"),
        ("starttls-broken", None, ""),  # its words may come before or after the handshake begins
        ("starttls-hang", None, "handshake failed"),
        ("starttls-injected", None, "answers nothing"),
        ("starttls-half", None, "cleartext after STARTTLS"),
    ],
)
async def test_broken_tls_fails_this_session_and_cleartext_remains(
    words: str,
    code: int | None,
    reason: str,
    certificates: Certificates,
    opportunistic: TlsPolicy,
) -> None:
    async with SmtpReceiver(words, certificates=certificates) as receiver:
        deadlines = replace(PATIENT, handshake_seconds=SHORT) if "hang" in words else PATIENT
        failure = await open_to(receiver.port, tls=opportunistic, deadlines=deadlines)
        assert failure_of(failure) == (Stage.STARTTLS, code, False)
        assert reason in reason_of(failure)
        async with session_with(receiver) as session:
            assert isinstance((await deliver(session))[0], SmtpAccepted)


@pytest.mark.parametrize("name", ["", ".example.com", "a" * 300 + ".example.com"])
async def test_an_invalid_server_name_fails_the_handshake(
    name: str, certificates: Certificates, verified: TlsPolicy
) -> None:
    async with SmtpReceiver("starttls", certificates=certificates) as receiver:
        failure = await open_to(receiver.port, tls=verified, server_name=name)
        assert failure_of(failure) == (Stage.STARTTLS, None, False)


def test_a_verifying_policy_needs_a_verifying_context(opportunistic: TlsPolicy) -> None:
    with pytest.raises(ValueError, match="does not verify"):
        TlsPolicy(TlsUse.REQUIRED_VERIFIED, opportunistic.context)
    with pytest.raises(ValueError, match="needs an SSLContext"):
        TlsPolicy(TlsUse.OPPORTUNISTIC)


# Login


LOGIN = Login("posthouse", "secret")


@pytest.mark.parametrize("mechanism", ["plain", "login"])
async def test_a_login_comes_after_verified_tls(
    certificates: Certificates, verified: TlsPolicy, mechanism: str
) -> None:
    async with SmtpReceiver(f"starttls--auth-{mechanism}", certificates=certificates) as receiver:
        session = await open_to(receiver.port, tls=verified, login=LOGIN)
        assert isinstance(session, SmtpSession)
        assert isinstance((await deliver(session))[0], SmtpAccepted)
        session.quit()
        said = [line.split()[0] for line in receiver.commands]
    assert said[:3] == ["EHLO", "STARTTLS", "EHLO"]
    assert said[3] == "AUTH"


async def test_a_wrong_password_is_a_refusal_at_auth(certificates: Certificates, verified: TlsPolicy) -> None:
    async with SmtpReceiver("starttls--auth-refused", certificates=certificates) as receiver:
        failure = await open_to(receiver.port, tls=verified, login=LOGIN)
    assert failure_of(failure) == (Stage.AUTH, 535, False)


async def test_a_login_is_never_sent_without_verified_tls(opportunistic: TlsPolicy) -> None:
    for policy in (CLEARTEXT, opportunistic):
        with pytest.raises(ValueError, match="only over verified TLS"):
            await open_to(9, tls=policy, login=LOGIN)


async def test_tls_can_begin_before_the_greeting(certificates: Certificates, verified: TlsPolicy) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hello\r\n")
        await reader.readline()
        writer.write(b"250 hello\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=certificates.servers["sound"])
    async with server:
        session = await open_to(server.sockets[0].getsockname()[1], tls=verified, is_implicit_tls=True)
        assert isinstance(session, SmtpSession)
        assert session.tls is not None
        assert session.tls.is_verified
        session.quit()
