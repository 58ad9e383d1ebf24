"""The process that serves the HTTP API.

The web framework takes half a second to import: commands that don't serve HTTP must not import this module.
"""

import asyncio
import multiprocessing
import resource
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from importlib.metadata import version
from typing import Final

from posthouse import config
from posthouse.clock import DatabaseClock
from posthouse.compose.database import divided, open_database
from posthouse.compose.flows import Flows
from posthouse.compose.monitoring import monitored
from posthouse.compose.periodic_checks import measured, noted, refreshed, synchronized
from posthouse.compose.process import (
    CannotListen,
    collect_rarely,
    configure_logging,
    end_with_parent,
    log_capture,
    prefer_event_loop,
)
from posthouse.compose.stream import open_stream
from posthouse.compose.tracing import open_tracer
from posthouse.config import Settings
from posthouse.entrypoints.http.access_log import AccessLog, LineWriter
from posthouse.entrypoints.http.app import create_app
from posthouse.entrypoints.http.request_middleware import RequestMiddleware
from posthouse.entrypoints.http.routes.service import ServiceInfo, SmtpSubmission
from posthouse.entrypoints.http.server import ServerOptions, serve, serve_on_running_loop
from posthouse.entrypoints.workers import repeated
from posthouse.flows.shared.shared_database import SharedDatabase
from posthouse.randomness import SystemRandomness
from posthouse.rules.rate_limit import Rate
from posthouse.traces import Tracer
from posthouse.wire.stream import Stream

# uvicorn imports it again in each of several processes.
APPLICATION: Final = f"{__name__}:application"
# For work that requests wait for.
LOOK_PAUSE_SECONDS: Final = 1.0


def application() -> RequestMiddleware:
    """The HTTP application of a process that runs nothing else; uvicorn calls it."""
    if multiprocessing.parent_process() is not None:
        end_with_parent()
    settings = config.load()
    configure_logging(settings.service.log_level)
    log_capture(settings)
    stop = asyncio.Event()

    @asynccontextmanager
    async def monitored_stream() -> AsyncIterator[Stream | None]:
        # No other process reads a stream in this process's memory: without NATS, mail is due immediately.
        async with (
            monitored(settings, {"http"}, stop.is_set),
            open_stream(settings, "http", or_memory=False) as stream,
        ):
            yield stream

    return _application(settings, monitored_stream, on_stop=stop.set)


def serve_http(settings: Settings, address: tuple[str, int], processes: int) -> None:
    """Serve only HTTP, in this many processes, until a signal to stop."""
    configure_logging(settings.service.log_level)
    serve(APPLICATION, ServerOptions(*address, settings.http.trusted_proxies, settings.service.log_level), processes)


async def run_http(
    settings: Settings, stream: Stream | None, clock: DatabaseClock, address: tuple[str, int], stop: asyncio.Event
) -> None:
    """Serve HTTP next to other parts of the service, whose clock it shares."""
    options = ServerOptions(*address, settings.http.trusted_proxies, settings.service.log_level)
    if not await serve_on_running_loop(_application(settings, lambda: nullcontext(stream), clock), options, stop):
        raise CannotListen(
            f"HTTP can't be served at {options.host}, port {options.port}; the log says why. Choose another "
            "address with --host and --port, or http.host and http.port."
        )


def _application(
    settings: Settings,
    open_stream: Callable[[], AbstractAsyncContextManager[Stream | None]],
    shared_clock: DatabaseClock | None = None,
    on_stop: Callable[[], None] = lambda: None,
) -> RequestMiddleware:
    clock = shared_clock or DatabaseClock()

    @asynccontextmanager
    async def open_flows() -> AsyncIterator[tuple[Flows, Tracer | None]]:
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            stream = await enter(open_stream())
            for_intake, for_others = divided(settings.database.pool_max)
            intake_database = await enter(open_database(settings, connections_max=for_intake, clock=clock))
            database = await enter(
                open_database(settings, connections_max=for_others, clock=clock, kind=SharedDatabase)
            )
            if shared_clock is None:
                await enter(synchronized(settings, clock, intake_database))
            flows = Flows(settings, database, clock, intake_database=intake_database, stream=stream)
            await enter(refreshed(flows.control_cache))
            await enter(noted(flows.last_used))
            await enter(measured(flows.disk_space))
            tracer = await enter(open_tracer(settings, "http", clock, flows.context.randomness))
            collect_rarely()
            prefer_event_loop()
            await enter(repeated(flows.next_message.look, pause_seconds=LOOK_PAUSE_SECONDS))
            await enter(repeated(flows.live.look, pause_seconds=LOOK_PAUSE_SECONDS))
            yield flows, tracer

    return create_app(
        open_flows,
        clock,
        SystemRandomness(),
        service_info(settings),
        Rate(settings.http.unauthenticated_per_second, settings.http.unauthenticated_burst),
        names_proxies=bool(settings.http.trusted_proxies),
        captures=settings.delivery.captures,
        connections_max=_connections_max(settings),
        on_stop=on_stop,
        access_log=_access_log(settings),
    )


def service_info(settings: Settings) -> ServiceInfo:
    submission = settings.submission
    return ServiceInfo(
        name="Posthouse",
        version=version("posthouse"),
        docs_url=f"{settings.http.public_url}/docs",
        sends_own_mail=bool(settings.service.sender),
        submission=SmtpSubmission(
            host=settings.service.hostname,
            starttls_port=submission.port or None,
            tls_port=submission.tls_port or None,
        )
        if settings.smtp.tls_certificate_file
        else None,
        captures=settings.delivery.captures,
        simulator_domain=settings.delivery.simulator_domain,
    )


def _access_log(settings: Settings) -> AccessLog | None:
    is_logged = settings.http.access_log and settings.service.log_level in ("debug", "info")
    return AccessLog(LineWriter(sys.stdout)) if is_logged else None


def _connections_max(settings: Settings) -> int:
    """Every connection is an open file, and the process needs other files too."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.http.connections_max
    return wanted if files == resource.RLIM_INFINITY else max(1, min(wanted, files * 3 // 4))
