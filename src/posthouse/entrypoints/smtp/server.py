"""The SMTP server: where it listens, one look at all connections now and then, and the end of them all."""

import asyncio
import functools
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from posthouse.entrypoints.smtp import replies
from posthouse.entrypoints.smtp.connection import Bounds, Connection, ServerDeadlines, ServerState
from posthouse.entrypoints.smtp.service import Service
from posthouse.entrypoints.smtp.tls import TlsFiles

log = structlog.get_logger(__name__)

# Connections that the kernel holds for us while we are busy.
BACKLOG: Final = 512
# Of a drain's time: after it no message is received any more, so that those being taken can end.
RECEIVING_PART: Final = 0.75
DRAIN_LOOK_SECONDS: Final = 0.02
# Of new connections, before those that are there have their turn again.
ACCEPTED_AT_ONCE_MAX: Final = 16
AFTER_FAILURE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Listener:
    host: str
    port: int
    is_secure: bool = False  # from its first byte on
    is_shared: bool = False  # with other processes


class SmtpServer:
    def __init__(
        self,
        service: Service,
        *,
        tls: TlsFiles | None = None,
        bounds: Bounds | None = None,
        deadlines: ServerDeadlines | None = None,
    ) -> None:
        """Without a certificate TLS is not offered; where authentication is needed nobody can then send."""
        self._tls = tls
        self._deadlines = deadlines or ServerDeadlines()
        self._lobby = ServerState(service, None if tls is None else tls.context, bounds or Bounds(), self._deadlines)
        self._sockets: list[socket.socket] = []
        self._accepting: list[socket.socket] = []  # those that no loop accepts for
        self._listening: list[asyncio.Server] = []
        self._running: list[asyncio.Task[None]] = []
        self._looking: asyncio.TimerHandle | None = None

    @property
    def ports(self) -> list[int]:
        """Of the listeners, in their order."""
        return [one.getsockname()[1] for one in self._sockets]

    @property
    def connection_count(self) -> int:
        return len(self._lobby.connections)

    @property
    def held_bytes(self) -> int:
        """Of messages that are being received or taken."""
        return self._lobby.room.used_bytes

    async def listen(self, listeners: Sequence[Listener]) -> None:
        """Serve until drained. Raises OSError when an address is not to be had; then nothing is served."""
        loop = asyncio.get_running_loop()
        if self._tls is None and any(one.is_secure for one in listeners):
            raise ValueError("a listener that is secure from its first byte on needs a certificate")
        try:
            self._sockets = [_bound(one) for one in listeners]
        except OSError:
            self._stop_listening()
            raise
        for one, bound in zip(listeners, self._sockets, strict=True):
            if one.is_secure:
                self._accepting.append(bound)
                self._accept_again(loop, bound)
            else:
                make = functools.partial(Connection, self._lobby, loop, starts_secure=False)
                self._listening.append(await loop.create_server(make, sock=bound, backlog=BACKLOG))
        if self._tls is not None:
            self._running.append(asyncio.create_task(self._tls.watch()))
        self._look()

    async def drain(self, seconds: float) -> None:
        """No new connections; idle ones are closed; messages that are on their way are received and taken."""
        lobby = self._lobby
        lobby.is_draining = True
        self._stop_listening()
        for connection in list(lobby.connections):
            connection.end()
        await self._emptied(seconds * RECEIVING_PART)
        for connection in list(lobby.connections):
            connection.break_off(replies.CLOSING)
        await self._emptied(seconds * (1 - RECEIVING_PART))
        tasks = [*lobby.tasks, *self._running]
        for connection in list(lobby.connections):
            connection.abort()
        await _cancelled(tasks)
        if self._looking is not None:
            self._looking.cancel()

    def _accept_secure(self, loop: asyncio.AbstractEventLoop, bound: socket.socket) -> None:
        """Connections are counted here, before their handshake, which is what they cost most by."""
        for _ in range(ACCEPTED_AT_ONCE_MAX):
            try:
                accepted, address = bound.accept()
            except BlockingIOError:
                return
            except (ConnectionAbortedError, InterruptedError):
                continue  # it left before it was let in
            except OSError as error:  # no descriptor left, most likely
                log.warning("accept_failed", error=str(error))
                loop.remove_reader(bound)
                loop.call_later(AFTER_FAILURE_SECONDS, self._accept_again, loop, bound)
                return
            connection = Connection(self._lobby, loop, starts_secure=True)
            if connection.arrive(address) is not None:
                accepted.close()
                continue
            accepted.setblocking(False)
            # Loops see to this themselves only for connections that they accept.
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.open_secure(accepted)

    def _accept_again(self, loop: asyncio.AbstractEventLoop, bound: socket.socket) -> None:
        if bound in self._accepting:
            loop.add_reader(bound, self._accept_secure, loop, bound)

    def _stop_listening(self) -> None:
        for listening in self._listening:
            listening.close()
        self._listening.clear()
        for task in self._running:
            task.cancel()
        for bound in self._accepting:
            asyncio.get_running_loop().remove_reader(bound)
        self._accepting.clear()
        for bound in self._sockets:
            bound.close()
        self._sockets.clear()

    def _look(self) -> None:
        """One timer for all: a connection that lasts a moment never sets one."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in list(self._lobby.connections):
            connection.look(now)
        self._looking = loop.call_later(self._deadlines.look_seconds, self._look)

    async def _emptied(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while (self._lobby.connections or self._lobby.tasks) and loop.time() < until:  # noqa: ASYNC110 (it ends a process)
            await asyncio.sleep(DRAIN_LOOK_SECONDS)


def _bound(listener: Listener) -> socket.socket:
    bound = socket.create_server(
        (listener.host, listener.port),
        family=socket.AF_INET6 if ":" in listener.host else socket.AF_INET,
        backlog=BACKLOG,
        reuse_port=listener.is_shared,
    )
    bound.setblocking(False)
    return bound


async def _cancelled(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
