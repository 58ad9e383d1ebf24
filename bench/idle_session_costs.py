"""What idle SMTP sessions cost the server, and whether new clients are served as well as without them, at any size.

The idle come from several addresses of the loopback: first in cleartext, greeted and no more; then, on a new server,
within TLS and with their password checked. New clients come before, during and after them, each for a session and a
message.
"""

import asyncio
import contextlib
import gc
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from tests.faults.idle_clients import PER_SOURCE, Cost, IdleClient, open_clients, reset, source_address
from tests.support.service import Tenant
from tests.support.service_processes import prepare_processes
from tests.support.smtp_listeners import HOST, NAME, SmtpListeners, plain, raw_mail, submit
from tests.support.smtp_service import SmtpConnection

# Capacity for those who come while the idle are there; the others are too many.
MORE_SESSIONS: Final = 10
TOO_MANY: Final = 100
NEW_SESSIONS_FEW: Final = 20
# The first look up what the server then knows.
WARM_SESSIONS: Final = 10
GONE_SECONDS_MAX: Final = 30.0
EHLO: Final = "EHLO idle.example"
# Of clients being refused, and of connections to PostgreSQL that opened or closed meanwhile.
DESCRIPTORS_MORE_MAX: Final = 20
TEXT: Final = "Your parcel has left our warehouse and should reach you within two working days.\r\n" * 12


class NewSession(NamedTuple):
    """How long the session took to open, from the first packet to the accepted password; and then a message."""

    session_seconds: float
    message_seconds: float


@dataclass(frozen=True, slots=True)
class Findings:
    """`replies` are those to clients that came when the server was full."""

    kind: str
    sessions: int
    sessions_max: int
    opening_seconds: float
    processor_part: float
    before: Cost
    idle: Cost
    full: Cost
    left: Cost
    descriptors_max: int
    sessions_before: Sequence[NewSession]
    sessions_during: Sequence[NewSession]
    sessions_after: Sequence[NewSession]
    replies: Sequence[str]

    @property
    def bytes_each(self) -> float:
        return (self.idle.resident_bytes - self.before.resident_bytes) / self.sessions

    @property
    def answer_seconds(self) -> list[float]:
        """Of new clients while the idle were there."""
        return [sum(session) for session in self.sessions_during]

    @property
    def new_session_ratio(self) -> float:
        """The ratio of a session and its message during the idle sessions to those before and after."""
        without = median(sum(session) for session in (*self.sessions_before, *self.sessions_after))
        return median(self.answer_seconds) / without

    @property
    def has_bounded_descriptors(self) -> bool:
        return (
            self.full.descriptors <= self.before.descriptors + self.sessions_max + DESCRIPTORS_MORE_MAX
            and self.left.descriptors <= self.before.descriptors + DESCRIPTORS_MORE_MAX
        )


@dataclass(frozen=True, slots=True)
class NewClients:
    """Clients that come one after the other, each for a session and a message, all over TLS."""

    listeners: SmtpListeners
    tenant: Tenant
    context: ssl.SSLContext

    async def open_sessions(self, count: int) -> list[NewSession]:
        return [await self._open_session() for _ in range(count)]

    async def _open_session(self) -> NewSession:
        content = raw_mail(self.tenant, "Your order 48213 is on its way", body=TEXT)
        begun = time.monotonic()
        async with self.line(self.listeners.tls_port, self.context) as line:
            await line.reply()
            *_, reply = await line.say("EHLO new.example", plain(self.tenant.username, self.tenant.password))
            assert reply.startswith("235 "), f"a new client was not let in: {reply or 'hung up'}"
            admitted = time.monotonic()
            reply = await submit(line, content, ["ada@example.org"], sender=f"news@{self.tenant.domain}")
            assert reply.startswith("250 "), f"a new client's mail was not accepted: {reply or 'hung up'}"
            return NewSession(admitted - begun, time.monotonic() - admitted)

    async def turned_away(self, count: int, *, is_secure: bool) -> list[str]:
        """The reply to each; none within TLS from the first byte on: a handshake would cost what is short.

        They have the prefix of idle sessions: for a prefix with fewer connections, the server would drop one of those.
        """
        replies = []
        for _ in range(count):
            try:
                port = self.listeners.tls_port if is_secure else self.listeners.port
                async with self.line(port, self.context if is_secure else None, source_address(0)) as line:
                    replies.append(await line.reply() or "hung up")
            except OSError:
                replies.append("hung up")
        return replies

    @contextlib.asynccontextmanager
    async def line(
        self, port: int, context: ssl.SSLContext | None, source: str = HOST
    ) -> AsyncIterator[SmtpConnection]:
        reader, writer = await asyncio.open_connection(
            HOST, port, ssl=context, server_hostname=None if context is None else NAME, local_addr=(source, 0)
        )
        try:
            yield SmtpConnection(reader, writer)
        finally:
            writer.transport.abort()


async def measure(
    new_clients: NewClients, process: int, sessions: int, seconds: float, new_sessions: int, *, is_secure: bool
) -> Findings:
    tenant = new_clients.tenant
    words = [EHLO, plain(tenant.username, tenant.password)] if is_secure else [EHLO]
    context = new_clients.context if is_secure else None
    port = new_clients.listeners.tls_port if is_secure else new_clients.listeners.port

    async def come(count: int) -> list[IdleClient]:
        return await open_clients(count, port, [f"{word}\r\n".encode() for word in words], context=context)

    await new_clients.open_sessions(WARM_SESSIONS)
    sessions_before = await new_clients.open_sessions(new_sessions)
    before = Cost.of(process)
    started = time.monotonic()
    clients = await come(sessions)
    opening_seconds = time.monotonic() - started
    # The garbage collector must not scan their objects while new clients are timed.
    gc.collect()
    gc.freeze()
    idle = Cost.of(process)
    await asyncio.sleep(seconds)
    after = Cost.of(process)
    sessions_during = await new_clients.open_sessions(new_sessions)
    # The server may still be closing the clients' connections, and then has less capacity than it should.
    await _left(process, after.descriptors)
    further = await come(MORE_SESSIONS)
    replies = await new_clients.turned_away(TOO_MANY, is_secure=is_secure)
    full = Cost.of(process)
    lost = sum(client.closed_at is not None for client in (*clients, *further))
    assert not lost, f"{lost} of {sessions + MORE_SESSIONS} sessions were disconnected"
    for client in (*clients, *further):
        reset(client)
    gc.unfreeze()
    left = await _left(process, before.descriptors)
    return Findings(
        kind="TLS, authenticated" if is_secure else "cleartext, greeted",
        sessions=sessions,
        sessions_max=sessions + MORE_SESSIONS,
        opening_seconds=opening_seconds,
        processor_part=(after.processor_seconds - idle.processor_seconds) / seconds,
        before=before,
        idle=after,
        full=full,
        left=left,
        descriptors_max=_descriptors_max(process),
        sessions_before=sessions_before,
        sessions_during=sessions_during,
        sessions_after=await new_clients.open_sessions(new_sessions),
        replies=replies,
    )


async def _left(process: int, descriptors: int) -> Cost:
    """What the server has once the clients have left, or after it had enough time to notice."""
    deadline = time.monotonic() + GONE_SECONDS_MAX
    while (cost := Cost.of(process)).descriptors > descriptors and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.2)
    return cost


def _descriptors_max(process: int) -> int:
    limits = Path(f"/proc/{process}/limits").read_text().splitlines()
    (line,) = [line for line in limits if line.startswith("Max open files")]
    return int(line.split()[3])


async def measure_both(
    url: str, workplace: Path, sessions: int, seconds: float, new_sessions: int = NEW_SESSIONS_FEW
) -> list[Findings]:
    listeners = SmtpListeners.make(workplace)
    settings = {
        **listeners.settings,
        "SMTP__CONNECTIONS_MAX": str(sessions + MORE_SESSIONS),
        "SMTP__CONNECTIONS_PER_ADDRESS_MAX": str(PER_SOURCE + MORE_SESSIONS),
    }
    async with prepare_processes(url, workplace, stream="memory", **settings) as processes:
        found = []
        for is_secure in (False, True):
            part = processes.start("submission")
            await listeners.open(part)
            processes.clients.append(await part.open_client())
            new_clients = NewClients(listeners, await processes.clients[-1].account(), listeners.trusting())
            found.append(
                await measure(new_clients, part.running.pid, sessions, seconds, new_sessions, is_secure=is_secure)
            )
            part.kill()
        return found


def is_bounded(found: Sequence[Findings]) -> bool:
    """Whether no client over the limit was let in, and descriptors are bounded and given back."""
    in_the_clear, secure = found
    return (
        all(reply.startswith("421 ") for reply in in_the_clear.replies)
        and all(reply == "hung up" for reply in secure.replies)
        and all(findings.has_bounded_descriptors for findings in found)
    )
