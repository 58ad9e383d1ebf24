"""The HTTP server: uvicorn with this service's options, in its own processes or on a running event loop."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import uvicorn
from uvicorn.supervisors import Multiprocess

from posthouse.entrypoints.http.frame import Frame

DRAIN_SECONDS_MAX: Final = 20
# Longer than proxies and client pools keep an idle connection, so that they close it, not this server.
KEEP_ALIVE_SECONDS: Final = 75


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
            "http": "posthouse.entrypoints.http.connection:BoundedConnection",
            "ws": "none",
            "lifespan": "on",
            "proxy_headers": bool(self.trusted_proxies),
            "forwarded_allow_ips": self.trusted_proxies,
            "server_header": False,
            "access_log": False,
            "log_config": None,  # its lines are those of the process
            "log_level": self.log_level,
            "timeout_keep_alive": KEEP_ALIVE_SECONDS,
            "timeout_graceful_shutdown": DRAIN_SECONDS_MAX,
        }


def serve(application_factory: str, options: ServerOptions, processes: int) -> None:
    """Serves until a signal stops this process."""
    if processes == 1:
        uvicorn.run(application_factory, factory=True, **options.for_uvicorn())
        return
    config = uvicorn.Config(application_factory, factory=True, workers=processes, **options.for_uvicorn())
    # uvicorn logs the address here, or exits when it is in use.
    with config.bind_socket() as bound:
        address = bound.getsockname()[:2]
    with SharedPort(bound.family, address) as port:
        Multiprocess(config, sockets=[port]).run()


class SharedPort(socket.socket):
    """Reserves a port. In each worker process that it is sent to, it becomes a new socket bound to that port.

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


async def serve_on_running_loop(application: Frame, options: ServerOptions, stop: asyncio.Event) -> bool:
    """Serves on the running event loop until `stop` is set, and returns when every request has its response.

    Returns False at once when the address can't be served; uvicorn logs why.
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
