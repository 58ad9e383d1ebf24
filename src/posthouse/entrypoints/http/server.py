"""The HTTP server: uvicorn with this service's options, in its own processes or on a running event loop.

Its connections limit a request's framing, and answer bytes that aren't HTTP with the error object.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.supervisors import Multiprocess

from posthouse.entrypoints.http import responses
from posthouse.entrypoints.http.request_head import RequestIds
from posthouse.entrypoints.http.request_middleware import RequestMiddleware
from posthouse.entrypoints.refusals import http_status
from posthouse.flows.shared.shares import FairShare
from posthouse.rules import credential, ids, limits
from posthouse.rules.refusal import Code, Refusal, invalid

# Longer than proxies and client pools keep an idle connection open, so that they close it and not this server.
KEEP_ALIVE_SECONDS: Final = 75

HEAD_BYTES_MAX: Final = 64 * 1024
HEAD_SECONDS_MAX: Final = 20.0
# For a chunked body: the sizes of chunks, their extensions and the trailer may take this much more than the body.
FRAMING_BYTES_MAX: Final = 64 * 1024
# A client that is still sending when it gets its response (a 413, a 401) must be able to finish, or never reads it.
DISCARDED_BYTES_MAX: Final = 64 * 1024 * 1024
DISCARDED_SECONDS_MAX: Final = 20.0
# A client that reads less than this of its response in this time is gone, or tries to tie up memory.
READ_BYTES_MIN: Final = 16 * 1024
READ_SECONDS_MAX: Final = 20.0


@dataclass(frozen=True, slots=True)
class ServerOptions:
    host: str
    port: int
    trusted_proxies: str
    log_level: str

    def for_uvicorn(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "port": self.port,
            "loop": "uvloop",
            "http": "posthouse.entrypoints.http.server:BoundedConnection",
            "ws": "none",
            "lifespan": "on",
            "proxy_headers": bool(self.trusted_proxies),
            "forwarded_allow_ips": self.trusted_proxies,
            "server_header": False,
            "access_log": False,
            "log_config": None,  # it logs like the rest of the process
            "log_level": self.log_level,
            "timeout_keep_alive": KEEP_ALIVE_SECONDS,
            "timeout_graceful_shutdown": limits.DRAIN_SECONDS_MAX,
        }


def serve(application_factory: str, options: ServerOptions, processes: int) -> None:
    """Serves until a signal stops this process."""
    if processes == 1:
        uvicorn.run(application_factory, factory=True, **options.for_uvicorn())
        return
    config = uvicorn.Config(application_factory, factory=True, workers=processes, **options.for_uvicorn())
    # uvicorn logs the address here, or exits if it is in use.
    with config.bind_socket() as bound:
        address = bound.getsockname()[:2]
    with SharedPort(bound.family, address) as port:
        Multiprocess(config, sockets=[port]).run()


class SharedPort(socket.socket):
    """Reserves a port. In each worker process to which it is sent, it becomes a new socket bound to that port.

    The kernel then spreads connections over the processes by a hash of their addresses (decision record 0020).
    """

    def __init__(self, family: int, address: tuple[str, int]) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        _bind_shared(self, address)

    def __reduce__(self) -> tuple[Callable[..., socket.socket], tuple[int, tuple[str, int]]]:
        return _shared_socket, (self.family, self.getsockname()[:2])


def _shared_socket(family: int, address: tuple[str, int]) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    _bind_shared(bound, address)
    return bound


def _bind_shared(unbound: socket.socket, address: tuple[str, int]) -> None:
    unbound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    unbound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    unbound.bind(address)


async def serve_on_running_loop(application: RequestMiddleware, options: ServerOptions, stop: asyncio.Event) -> bool:
    """Serves on the running event loop until `stop` is set, and returns when every request has its response.

    Returns False immediately if the address can't be served; uvicorn logs why.
    """
    server = _EmbeddedServer(uvicorn.Config(application, **options.for_uvicorn()))

    async def exit_on_stop() -> None:
        await stop.wait()
        server.should_exit = True

    stopper = asyncio.create_task(exit_on_stop())
    try:
        await server.serve()
    except SystemExit:
        return False
    finally:
        stopper.cancel()
    return True


class _EmbeddedServer(uvicorn.Server):
    """Handles no signals: the owner of the event loop does."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Dropped(list[tuple[bytes, bytes]]):
    """Discards the fields of a trailer: no endpoint reads them, and a trailer has no limit of its own."""

    def append(self, _: tuple[bytes, bytes]) -> None:
        pass


_DROPPED: Final = _Dropped()


class BoundedConnection(HttpToolsProtocol):
    """Without limits, an endless head or trailer, or a response that is never read, would stay in memory."""

    _network: str | None = None  # under which the connection is counted
    _head_bytes = 0
    _framing_bytes = 0
    _is_reading_head = False
    _is_reading_body = False
    _discarded_bytes = 0
    _timer: asyncio.TimerHandle | None = None
    read_seconds_max = READ_SECONDS_MAX
    _unread_bytes = 0
    _read_check: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connections: FairShare[str] | None = self.app_state.get(responses.CONNECTIONS)
        if connections is not None:
            network = credential.peer_network(self.client[0]) if self.client else ""
            if not connections.take_units(network):
                self._refuse(_too_many_connections())
                return
            self._network = network
        self._start_timer(HEAD_SECONDS_MAX)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._network is not None:
            self.app_state[responses.CONNECTIONS].release_units(self._network)
            self._network = None
        self._stop_timer()
        self._stop_read_check()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        on_stop: Callable[[], None] | None = self.app_state.get(responses.ON_STOP)
        if on_stop is not None:
            on_stop()
        super().shutdown()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._read_check = self.loop.call_later(self.read_seconds_max, self._check_reading)

    def resume_writing(self) -> None:
        self._stop_read_check()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        cycle = self.cycle
        super().data_received(data)
        if self._is_reading_head:
            # Most heads arrive in one piece, and need no timer.
            self._start_timer(HEAD_SECONDS_MAX)
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self.send_400_response("The request's head is too large.")
        elif self._is_reading_body:
            if self.cycle is cycle:  # otherwise part of the data belonged to the head
                self._framing_bytes += len(data)
            if self._framing_bytes > FRAMING_BYTES_MAX:
                self._refuse_framing()
            elif self.cycle.response_complete:
                self._discarded_bytes += len(data)
                self._start_timer(DISCARDED_SECONDS_MAX)
                if self._discarded_bytes > DISCARDED_BYTES_MAX:
                    self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0
        self._is_reading_head = True

    def on_headers_complete(self) -> None:
        self._is_reading_head = False
        self._is_reading_body = True
        self._discarded_bytes = self._framing_bytes = 0
        if self._timer is not None:
            self._stop_timer()
        super().on_headers_complete()
        self.scope[responses.RESPOND] = partial(_respond, self.cycle)  # type: ignore[typeddict-unknown-key]
        self.headers = _DROPPED

    def on_body(self, body: bytes) -> None:
        self._framing_bytes -= 2 * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_reading_body = False
        if self._timer is not None:
            self._stop_timer()
        self.scope[responses.IS_BODY_HERE] = True  # type: ignore[typeddict-unknown-key]
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(invalid(f"{msg} Speak HTTP/1.1, with a head of at most {HEAD_BYTES_MAX // 1024} KiB."))

    def _refuse(self, refusal: Refusal) -> None:
        """Send the error without a request, or instead of its response, and close the connection."""
        request_ids: RequestIds = self.app_state[responses.REQUEST_IDS]
        request_id = ids.text(ids.REQUEST, request_ids.new())
        body = responses.encoded({"error": refusal.text, "code": refusal.code.value, "request_id": request_id})
        headers = {**responses.error_headers(refusal), "x-request-id": request_id, **responses.EVERY}
        self.transport.write(_response(http_status(refusal.code), headers, body, is_last=True))
        self.transport.close()

    def _refuse_framing(self) -> None:
        cycle = self.cycle
        cycle.disconnected = True  # its endpoint can't write any more
        cycle.message_event.set()
        if cycle.response_started or self.pipeline:
            self.transport.close()
        else:
            self.send_400_response("The request's chunks are too small, or its trailer is too large.")

    def _start_timer(self, seconds: float) -> None:
        """Close the connection after this time, unless the timer runs already or is stopped before."""
        if self._timer is None:
            self._timer = self.loop.call_later(seconds, self._time_out)

    def _time_out(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_reading(self) -> None:
        unread_bytes = self.transport.get_write_buffer_size()
        if self._unread_bytes - unread_bytes < READ_BYTES_MIN:
            self._read_check = None
            self.transport.abort()
            return
        self._unread_bytes = unread_bytes
        self._read_check = self.loop.call_later(self.read_seconds_max, self._check_reading)

    def _stop_read_check(self) -> None:
        if self._read_check is not None:
            self._read_check.cancel()
            self._read_check = None


async def _respond(cycle: RequestResponseCycle, status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Send the whole response to a request in one write; uvicorn takes two."""
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()
    if cycle.disconnected:
        return
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    dated = [b"%b: %b\r\n" % header for header in cycle.default_headers]
    cycle.transport.write(_response(status, headers, body, dated, is_last=not cycle.keep_alive))
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()


def _response(
    status: int, headers: Mapping[str, str], body: bytes, dated: Sequence[bytes] = (), *, is_last: bool
) -> bytes:
    """A response in JSON, with its head; `dated` are the lines that all responses of the server have."""
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    if is_last:
        lines.append("connection: close\r\n")
    lines.append(f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n")
    return b"".join([STATUS_LINE[status], *dated, "".join(lines).encode("latin-1"), body])


def _too_many_connections() -> Refusal:
    return Refusal(
        Code.TEMPORARY_FAILURE, "This address has too many connections: reuse those you have, or try again later.", 5
    )
