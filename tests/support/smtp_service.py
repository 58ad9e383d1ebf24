"""A service behind our SMTP server that records what it receives, and the server around it."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Self
from uuid import UUID

from posthouse.entrypoints.smtp.connection import Bounds, ServerDeadlines
from posthouse.entrypoints.smtp.replies import ServerReply
from posthouse.entrypoints.smtp.server import Listener, SmtpServer, TlsFiles
from posthouse.entrypoints.smtp.service import Envelope, Policy
from posthouse.flows.shared.principal import Principal
from posthouse.rules.credential import Mode
from posthouse.rules.ids import AccountId, CredentialId
from posthouse.rules.refusal import Code, Refusal
from tests.support.eventually import HANG_SECONDS

NAME = "mx.example.com"
USERNAME = "smtp_ada"
PASSWORD = "correct horse"
PRINCIPAL = Principal(AccountId(UUID(int=1)), CredentialId(UUID(int=2)), Mode.LIVE)
QUEUED = ServerReply(250, "2.0.0", "queued as em_1")

SUBMISSION = Policy(NAME, needs_authentication=True)
INBOUND = Policy(NAME, needs_authentication=False)


@dataclass
class RecordingService:
    """Accepts all mail; `gate`, if set, makes it wait."""

    policy: Policy = INBOUND
    reply: ServerReply = QUEUED
    gate: asyncio.Event | None = None
    fault: Exception | None = None
    accepted: list[tuple[Principal | None, Envelope, bytes]] = field(default_factory=list)
    begun: int = 0
    logins: list[tuple[str, str, str]] = field(default_factory=list)

    async def authenticate(self, username: str, password: str, peer: str) -> Principal:
        self.logins.append((username, password, peer))
        if self.gate is not None:
            await self.gate.wait()
        if (username, password) != (USERNAME, PASSWORD):
            raise Refusal(Code.UNAUTHORIZED, "The SMTP username or password is wrong, or was revoked.")
        return PRINCIPAL

    def check_recipient(self, address: str, count: int) -> ServerReply | None:  # noqa: ARG002
        return ServerReply(550, "5.1.1", "Unknown.") if address.startswith("unknown") else None

    async def accept(self, principal: Principal | None, envelope: Envelope, content: bytes) -> ServerReply:
        self.begun += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        self.accepted.append((principal, envelope, content))
        return self.reply

    @property
    def contents(self) -> list[bytes]:
        return [content for _, _, content in self.accepted]


@contextlib.asynccontextmanager
async def run_smtp_server(
    service: RecordingService,
    *,
    tls: TlsFiles | None = None,
    bounds: Bounds | None = None,
    deadlines: ServerDeadlines | None = None,
    listeners: Sequence[Listener] = (Listener("127.0.0.1", 0),),
    drain_seconds: float = 0.2,
) -> AsyncIterator[SmtpServer]:
    server = SmtpServer(service, tls=tls, bounds=bounds, deadlines=deadlines)
    await server.listen(listeners)
    try:
        yield server
    finally:
        await server.drain(drain_seconds)


@dataclass
class SmtpConnection:
    """A client that writes raw bytes and reads replies, one by one or all at once."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    @contextlib.asynccontextmanager
    async def to(
        cls,
        port: int,
        *,
        greeted: bool = True,
        source: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> AsyncIterator[Self]:
        """A connection, by default after its greeting."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=tls, server_hostname=server_name, local_addr=(source, 0), limit=2**20
        )
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line = cls(reader, writer)
        try:
            if greeted:
                greeting = await line.reply()
                if not greeting:
                    raise ConnectionResetError("the server closed the connection")
                assert greeting.startswith("220 "), greeting
            yield line
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def reply(self) -> str:
        """The next reply's last line; empty at the end of the connection."""
        async with asyncio.timeout(HANG_SECONDS):
            while True:
                try:
                    text = (await self.reader.readline()).decode()
                except ConnectionError:
                    return ""
                if text[3:4] != "-":
                    return text.rstrip("\r\n")

    async def say(self, *commands: str | bytes, replies: int | None = None) -> list[str]:
        """Writes all at once; one reply to each command unless `replies` differs."""
        for command in commands:
            self.writer.write(command if isinstance(command, bytes) else command.encode() + b"\r\n")
        return [await self.reply() for _ in range(len(commands) if replies is None else replies)]

    async def say_until_refused(self, command: str) -> str:
        """Repeats it while the answer is 250; returns the first other answer."""
        while True:
            (reply,) = await self.say(command)
            if not reply.startswith("250"):
                return reply
            await asyncio.sleep(0.02)  # time in which the server may take away what it granted

    async def rest(self) -> str:
        """Everything until the server closes the connection."""
        async with asyncio.timeout(HANG_SECONDS):
            try:
                return (await self.reader.read(-1)).decode()
            except ConnectionError:
                return ""
