"""Several processes on one port: each takes one new connection at a time, and then rests, so that others get theirs.

A connection stays with the process that took it. Whoever is awake first would otherwise take all that come together,
and serve them one after another while the others have nothing to do. The more a process has, the longer it rests. For
each that has just ended it takes another without a rest, so that clients may connect for every request; and while a
crowd waits, turns are for more and more of them.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final

import structlog
import uvloop

from posthouse.entrypoints.http.connection import BoundedConnection

log = structlog.get_logger(__name__)

# For each connection that the process has, up to so many: nobody is kept waiting for long when there are thousands.
PAUSE_SECONDS: Final = 0.001
COUNTED_MAX: Final = 4
# As long as somebody always waits, so many turns are for one connection each; each of so many further ones is for twice
# as many as the one before, and all after them for as many as the last.
SINGLE_TURNS: Final = 32
DOUBLED_TURNS: Final = 6
# How long those that ended may be replaced without a rest.
REPLACED_SECONDS_MAX: Final = 0.1
AFTER_FAILURE_SECONDS: Final = 1.0


class SharedConnection(BoundedConnection):
    """Tells whoever took it when it is over."""

    when_over: Callable[[], None]

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.when_over()


class SharingLoop(uvloop.Loop):
    """An event loop whose servers take turns with those of other processes on the same socket."""

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], SharedConnection], *, sock: socket.socket, backlog: int, ssl: object
    ) -> "Turns":
        if ssl is not None:
            raise ValueError("a shared port speaks no TLS: that ends at the proxy")
        return Turns(self, protocol_factory, sock, backlog)


class Turns:
    """Takes connections until it is closed; the socket is the caller's to close."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol_factory: Callable[[], SharedConnection],
        sock: socket.socket,
        backlog: int,
    ) -> None:
        self._loop = loop
        self._protocol_factory = protocol_factory
        self._socket = sock
        self._pause: asyncio.TimerHandle | None = None  # as long as it rests
        self._has_failed = False
        self._turns = 0  # since nobody waited
        self._ended = 0  # and not replaced yet
        self._last_end = 0.0
        self._beginning: set[asyncio.Task[Any]] = set()
        sock.setblocking(False)
        sock.listen(backlog)
        self._listen()

    def close(self) -> None:
        self._loop.remove_reader(self._socket)
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    def _listen(self) -> None:
        self._pause, self._has_failed = None, False
        self._loop.add_reader(self._socket, self._take_turn)

    def _take_turn(self) -> None:
        left = 2 ** min(max(0, self._turns + 1 - SINGLE_TURNS), DOUBLED_TURNS)
        while left:
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                self._turns = 0
                return  # nobody waits any more, or the client has left
            except OSError as error:  # no descriptor left, most likely
                log.warning("accept_failed", error=str(error))
                self._has_failed = True
                self._rest(AFTER_FAILURE_SECONDS)
                return
            count = self._begin(connection)
            if not self._is_replacement():
                left -= 1
        self._turns += 1
        self._rest(PAUSE_SECONDS * min(count, COUNTED_MAX))

    def _begin(self, connection: socket.socket) -> int:
        """How many there are now."""
        protocol = self._protocol_factory()
        protocol.when_over = self._note_end
        beginning = self._loop.create_task(self._loop.connect_accepted_socket(lambda: protocol, connection))
        self._beginning.add(beginning)
        beginning.add_done_callback(self._beginning.discard)
        return len(protocol.connections) + len(self._beginning)

    def _is_replacement(self) -> bool:
        """Whether it comes for one that has just ended."""
        self._forget_ended()
        if self._ended:
            self._ended -= 1
            return True
        return False

    def _rest(self, seconds: float) -> None:
        self._loop.remove_reader(self._socket)
        self._pause = self._loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self._listen()
        self._take_turn()  # or learns that nobody waits

    def _note_end(self) -> None:
        self._forget_ended()
        self._ended += 1
        self._last_end = self._loop.time()
        if self._pause is not None and not self._has_failed:
            self._pause.cancel()
            self._go_on()

    def _forget_ended(self) -> None:
        if self._loop.time() - self._last_end > REPLACED_SECONDS_MAX:
            self._ended = 0
