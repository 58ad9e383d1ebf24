"""The HTTP server: uvicorn as this service wants it, in processes of its own or beside other work in one."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import uvicorn

from posthouse.entrypoints.http.frame import Frame

DRAIN_SECONDS_MAX: Final = 20
# Longer than proxies and client pools keep an idle connection, so that they close it, not we.
KEEP_ALIVE_SECONDS: Final = 75


@dataclass(frozen=True, slots=True)
class Listening:
    host: str
    port: int
    trusted_proxies: str
    log_level: str

    def options(self) -> dict[str, Any]:
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
            "log_level": self.log_level,
            "timeout_keep_alive": KEEP_ALIVE_SECONDS,
            "timeout_graceful_shutdown": DRAIN_SECONDS_MAX,
        }


def serve(application_factory: str, listening: Listening, processes: int) -> None:
    """Until this process is told to stop by a signal."""
    options = listening.options()
    if processes > 1:
        options["loop"] = "posthouse.entrypoints.http.sharing:SharingLoop"
        options["http"] = "posthouse.entrypoints.http.sharing:SharedConnection"
    uvicorn.run(application_factory, factory=True, workers=processes, **options)


async def serve_beside(application: Frame, listening: Listening, stop: asyncio.Event) -> bool:
    """On the running event loop, until told to stop; returns when every request has its answer.

    Or, with False, at once, when it can't be served there; the log then says why.
    """
    server = _Beside(uvicorn.Config(application, **listening.options()))

    async def end_when_told() -> None:
        await stop.wait()
        server.should_exit = True

    ending = asyncio.create_task(end_when_told())
    try:
        await server.serve()
    except SystemExit:
        return False
    finally:
        ending.cancel()
    return True


class _Beside(uvicorn.Server):
    """Leaves signals to whoever runs the event loop."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
