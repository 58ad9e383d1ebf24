"""The SMTP server: its listeners and certificate, a periodic check of all deadlines, and the drain when it stops."""

import asyncio
import functools
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from posthouse.entrypoints.smtp import replies
from posthouse.entrypoints.smtp.connection import Bounds, Connection, ServerDeadlines, ServerState
from posthouse.entrypoints.smtp.service import Service

log = structlog.get_logger(__name__)

# Connections that the kernel queues while the process is busy.
BACKLOG: Final = 512
# The share of the drain time in which messages are still received; the rest is for accepting them.
RECEIVING_PART: Final = 0.75
DRAIN_CHECK_SECONDS: Final = 0.02
# New connections per loop iteration, so that existing connections don't wait long.
ACCEPTED_BATCH_MAX: Final = 16
AFTER_FAILURE_SECONDS: Final = 1.0

# Renewals happen weeks before expiry, so this only decides how long an operator waits to see the result.
CERTIFICATE_CHECK_SECONDS: Final = 5.0
# For encrypted keys: without a password OpenSSL would prompt at the terminal and wait.
_NO_PASSWORD: Final = ""
# Times and sizes of both files.
_Signature = tuple[tuple[int, int], ...]


class TlsFiles:
    """The server's certificate: a context shared by all connections, reloaded when the files change.

    Raises if the files are invalid at the start; later an invalid file is logged, and the old
    certificate stays.
    """

    def __init__(self, certificate_file: Path, key_file: Path) -> None:
        self._certificate_file = certificate_file
        self._key_file = key_file
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Resumption saves little here, and ticket keys that live as long as the process weaken forward secrecy.
        self.context.num_tickets = 0
        self.context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
        self._seen = self._signature()
        self.context.load_cert_chain(certificate_file, key_file, _NO_PASSWORD)

    def renew(self) -> bool:
        """Reloads changed files; returns whether it did."""
        try:
            signature = self._signature()
            if signature == self._seen:
                return False
            # A mismatched pair would leave the context without a key, so it is first tried on another context.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                self._certificate_file, self._key_file, _NO_PASSWORD
            )
            self.context.load_cert_chain(self._certificate_file, self._key_file, _NO_PASSWORD)
        except OSError as error:
            log.warning("certificate_unreadable", file=str(self._certificate_file), error=str(error))
            return False
        self._seen = signature
        log.info("certificate_renewed", file=str(self._certificate_file))
        return True

    async def watch(self, seconds: float = CERTIFICATE_CHECK_SECONDS) -> None:
        """Check for changed files until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            self.renew()

    def _signature(self) -> _Signature:
        files = [file.stat() for file in (self._certificate_file, self._key_file)]
        return tuple([(file.st_mtime_ns, file.st_size) for file in files])


@dataclass(frozen=True, slots=True)
class Listener:
    host: str
    port: int
    is_secure: bool = False  # TLS from the first byte
    is_shared: bool = False  # shared with other processes


class SmtpServer:
    def __init__(
        self,
        service: Service,
        *,
        tls: TlsFiles | None = None,
        bounds: Bounds | None = None,
        deadlines: ServerDeadlines | None = None,
    ) -> None:
        """Without a certificate TLS is not offered; if authentication is required, no client can send then."""
        self._tls = tls
        self._deadlines = deadlines or ServerDeadlines()
        self._state = ServerState(service, None if tls is None else tls.context, bounds or Bounds(), self._deadlines)
        self._sockets: list[socket.socket] = []
        self._accepting: list[socket.socket] = []  # accepted here, not by the event loop
        self._listening: list[asyncio.Server] = []
        self._running: list[asyncio.Task[None]] = []
        self._deadline_check: asyncio.TimerHandle | None = None

    @property
    def ports(self) -> list[int]:
        """The ports, in the order of the listeners."""
        return [bound.getsockname()[1] for bound in self._sockets]

    @property
    def connection_count(self) -> int:
        return len(self._state.connections)

    @property
    def held_bytes(self) -> int:
        """Memory of messages that are being received or accepted."""
        return self._state.memory.taken

    async def listen(self, listeners: Sequence[Listener]) -> None:
        """Serve until drained. Raises OSError when an address can't be bound; then nothing is served."""
        loop = asyncio.get_running_loop()
        if self._tls is None and any(listener.is_secure for listener in listeners):
            raise ValueError("a listener with TLS from the first byte needs a certificate")
        try:
            self._sockets = [_bound(listener) for listener in listeners]
        except OSError:
            self._stop_listening()
            raise
        for listener, bound in zip(listeners, self._sockets, strict=True):
            if listener.is_secure:
                self._accepting.append(bound)
                self._accept_again(loop, bound)
            else:
                make = functools.partial(Connection, self._state, loop, starts_secure=False)
                self._listening.append(await loop.create_server(make, sock=bound, backlog=BACKLOG))
        if self._tls is not None:
            self._running.append(asyncio.create_task(self._tls.watch()))
        self._check_deadlines()

    async def drain(self, seconds: float) -> None:
        """Accept no more connections, close idle ones, finish receiving and accepting messages."""
        state = self._state
        state.is_draining = True
        self._stop_listening()
        for connection in list(state.connections):
            connection.end()
        await self._emptied(seconds * RECEIVING_PART)
        for connection in list(state.connections):
            connection.close_with(replies.CLOSING)
        await self._emptied(seconds * (1 - RECEIVING_PART))
        tasks = [*state.tasks, *self._running]
        for connection in list(state.connections):
            connection.abort()
        await _cancelled(tasks)
        if self._deadline_check is not None:
            self._deadline_check.cancel()

    def _accept_secure(self, loop: asyncio.AbstractEventLoop, bound: socket.socket) -> None:
        """Connections are counted here, before the handshake, which is their main cost."""
        for _ in range(ACCEPTED_BATCH_MAX):
            try:
                accepted, address = bound.accept()
            except BlockingIOError:
                return
            except (ConnectionAbortedError, InterruptedError):
                continue  # the client disconnected before the accept
            except OSError as error:  # most likely out of file descriptors
                log.warning("accept_failed", error=str(error))
                loop.remove_reader(bound)
                loop.call_later(AFTER_FAILURE_SECONDS, self._accept_again, loop, bound)
                return
            connection = Connection(self._state, loop, starts_secure=True)
            if connection.register(address) is not None:
                accepted.close()
                continue
            accepted.setblocking(False)
            # Event loops set this only on connections that they accept.
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

    def _check_deadlines(self) -> None:
        """One timer for all connections, so that short connections never set one."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in list(self._state.connections):
            connection.check_deadlines(now)
        self._deadline_check = loop.call_later(self._deadlines.check_seconds, self._check_deadlines)

    async def _emptied(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while (self._state.connections or self._state.tasks) and loop.time() < until:  # noqa: ASYNC110 (it ends a process)
            await asyncio.sleep(DRAIN_CHECK_SECONDS)


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
