"""Shared by tests of SMTP sessions: a message, deadlines, transfer modes, and a server with canned replies."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from posthouse.rules.outcome import Stage
from posthouse.wire.dialogue import SmtpContent
from posthouse.wire.smtp import ClientDeadlines, SmtpAccepted, SmtpFailure, SmtpResult, SmtpSession
from posthouse.wire.tls import CLEARTEXT, TlsPolicy
from tests.support.certificates import NAME
from tests.support.delivery_flow import deadlines
from tests.support.eventually import HANG_SECONDS
from tests.support.smtp_receiver import SmtpReceiver

SENDER = "bounces+token@sender.example.com"
CONTENT = b"From: a@sender.example.com\r\nSubject: dots\r\n\r\n.one\r\n..two\r\n.\r\nend\r\n"
MESSAGE = SmtpContent(CONTENT)
LARGE = SmtpContent(b"Subject: large\r\n\r\n" + (b"." + b"x" * 97 + b"\r\n") * 50_000)


PATIENT = deadlines(HANG_SECONDS, HANG_SECONDS, 2 * HANG_SECONDS)
SHORT = 0.2
HASTY_COMMAND = replace(PATIENT, command_seconds=SHORT, block_seconds=SHORT)
HASTY_DOT = replace(PATIENT, dot_seconds=SHORT)

# The four ways in which a message can be transferred.
TRANSFER_MODES = ["", "no-pipelining", "chunking", "chunking--no-pipelining"]


async def open_to(
    port: int,
    *,
    tls: TlsPolicy = CLEARTEXT,
    deadlines: ClientDeadlines = PATIENT,
    server_name: str = NAME,
    host: str = "127.0.0.1",
    **how: Any,
) -> SmtpSession | SmtpFailure:
    return await SmtpSession.open(
        host, port, hostname="sender.example.com", tls=tls, server_name=server_name, deadlines=deadlines, **how
    )


@contextlib.asynccontextmanager
async def session_with(
    receiver: SmtpReceiver, *, tls: TlsPolicy = CLEARTEXT, deadlines: ClientDeadlines = PATIENT
) -> AsyncIterator[SmtpSession]:
    session = await open_to(receiver.port, tls=tls, deadlines=deadlines)
    assert isinstance(session, SmtpSession), session
    try:
        yield session
    finally:
        session.quit()
        await asyncio.sleep(0.001)  # the QUIT is sent


async def deliver(
    session: SmtpSession,
    *recipients: str,
    message: SmtpContent = MESSAGE,
    before_dot: Callable[[], bool] = lambda: True,
    sender: str = SENDER,
) -> list[SmtpResult]:
    return await session.deliver(sender, recipients or ("ada@example.com",), message, before_dot)


async def result_of(
    words: str, recipient: str, *, deadlines: ClientDeadlines = PATIENT, message: SmtpContent = MESSAGE
) -> tuple[SmtpAccepted | SmtpFailure, SmtpReceiver, bool]:
    """The one recipient's result, the server afterwards, and whether the session could continue."""
    async with SmtpReceiver(words) as receiver, session_with(receiver, deadlines=deadlines) as session:
        (result,) = await deliver(session, recipient, message=message)
        return result, receiver, session.is_reusable


def failure_of(result: object) -> tuple[Stage, int | None, bool]:
    assert isinstance(result, SmtpFailure), result
    return result.stage, result.reply.code if result.reply else None, result.ambiguous


def reason_of(result: object) -> str:
    assert isinstance(result, SmtpFailure), result
    return result.reason


EHLO_PIPELINING = "250-mx.example.com\r\n250 PIPELINING"


class CannedServer:
    """Sends the first reply immediately and each further one in answer to anything; then hangs up or stays silent.

    Bytes are sent unchanged. With `hear_seconds` it continues on its own after hearing nothing for this long.
    """

    def __init__(
        self,
        *says: int | str | bytes | tuple[str, ...],
        pause_seconds: float = 0.0,
        hear_seconds: float | None = None,
        then_hangs_up: bool = False,
    ) -> None:
        self.heard: list[bytes] = []
        self.peers: list[str] = []
        self.port = 0
        self._talks: list[asyncio.Task[None]] = []
        self._says = [_lines(item) for item in says]
        self._pause_seconds = pause_seconds
        self._hear_seconds = hear_seconds
        self._then_hangs_up = then_hangs_up
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "CannedServer":
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *failure: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()
        await asyncio.wait(self._talks, timeout=5 if self._then_hangs_up else 0.1)
        for talk in self._talks:
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks.append(task)
        self.peers.append(writer.get_extra_info("peername")[0])
        try:
            for number, lines in enumerate(self._says):
                if number:
                    await self._hear(reader)
                for line in lines:
                    writer.write(line)
                    await asyncio.sleep(self._pause_seconds)
            if self._hear_seconds is not None:
                await self._hear(reader)
            if not self._then_hangs_up:
                while data := await reader.read(65_536):
                    self.heard.append(data)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(TimeoutError):
            self.heard.append(await asyncio.wait_for(reader.read(65_536), self._hear_seconds))


def _lines(said: int | str | bytes | tuple[str, ...]) -> list[bytes]:
    match said:
        case bytes():
            return [said]
        case int():
            return [b"%d said\r\n" % said]
        case str():
            return [f"{said}\r\n".encode()]
        case _:
            return [f"{line}\r\n".encode() for line in said]


@contextlib.asynccontextmanager
async def canned(
    *says: int | str | bytes | tuple[str, ...], deadlines: ClientDeadlines = PATIENT, **how: Any
) -> AsyncIterator[tuple[CannedServer, SmtpSession]]:
    """Such a server, and a session with it."""
    async with CannedServer(*says, **how) as server:
        session = await open_to(server.port, deadlines=deadlines)
        assert isinstance(session, SmtpSession)
        yield server, session
        session.quit()


# Each breaks the session; the last column is what the reason says.
BROKEN = [
    ("drop", "clos|broke"),
    ("hang", "no answer in time"),
    ("drip", "no answer in time"),
    ("endless", "more than"),
    ("flood", "more than"),
    ("overlong", "more than"),
    ("garbage", "no reply"),
]
