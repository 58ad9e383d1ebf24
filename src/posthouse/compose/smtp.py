"""The SMTP servers: submission for customers, and inbound mail."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import structlog

from posthouse.clock import DatabaseClock
from posthouse.compose.database import open_database
from posthouse.compose.flows import Flows
from posthouse.compose.periodic_checks import measured, noted, refreshed
from posthouse.compose.process import CannotListen, prefer_event_loop
from posthouse.compose.tracing import open_tracer
from posthouse.config import Settings
from posthouse.entrypoints.smtp.connection import Bounds
from posthouse.entrypoints.smtp.inbound import Inbound
from posthouse.entrypoints.smtp.server import Listener, SmtpServer, TlsFiles
from posthouse.entrypoints.smtp.service import Service
from posthouse.entrypoints.smtp.submission import Submission
from posthouse.rules import limits
from posthouse.wire.stream import Stream

log = structlog.get_logger(__name__)

INBOUND_CONNECTIONS_MAX: Final = 4


async def serve_smtp(settings: Settings, service: Service, listeners: Sequence[Listener], stop: asyncio.Event) -> None:
    try:
        server = SmtpServer(service, tls=_tls_files(settings), bounds=_bounds(settings))
        await server.listen(listeners)
    except OSError as error:
        raise CannotListen(
            f"SMTP can't be served: {error}. Check the address and the certificate, under [submission], [inbound] and "
            "[smtp] in the settings; ports below 1024 are for root, or a process with CAP_NET_BIND_SERVICE."
        ) from error
    for listener in listeners:
        log.info("smtp_listening", host=listener.host, port=listener.port, tls=listener.is_secure)
    await stop.wait()
    await server.drain(limits.DRAIN_SECONDS_MAX)


def _tls_files(settings: Settings) -> TlsFiles | None:
    """The certificate of our SMTP servers; an OSError if its files can't be used."""
    if not settings.smtp.tls_certificate_file:
        return None
    return TlsFiles(Path(settings.smtp.tls_certificate_file), Path(settings.smtp.tls_key_file))


def _bounds(settings: Settings) -> Bounds:
    return Bounds(
        connections_max=settings.smtp.connections_max,
        connections_per_address_max=settings.smtp.connections_per_address_max,
    )


async def run_submission(settings: Settings, stream: Stream | None, clock: DatabaseClock, stop: asyncio.Event) -> None:
    """The part that accepts mail from customers over SMTP."""
    prefer_event_loop()
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_database(settings, clock=clock))
        flows = Flows(settings, database, clock, intake_database=database, stream=stream)
        await stack.enter_async_context(refreshed(flows.control_cache))
        await stack.enter_async_context(noted(flows.last_used))
        await stack.enter_async_context(measured(flows.disk_space))
        stack.push_async_callback(flows.intake.drain)
        randomness = flows.context.randomness
        submission = Submission(
            admission=flows.admission,
            intake=flows.intake,
            clock=clock,
            randomness=randomness,
            hostname=settings.service.hostname,
            tracer=await stack.enter_async_context(open_tracer(settings, "submission", clock, randomness)),
        )
        listeners = [
            Listener(settings.submission.host, port, is_secure, is_shared=True)
            for port, is_secure in ((settings.submission.port, False), (settings.submission.tls_port, True))
            if port
        ]
        await serve_smtp(settings, submission, listeners, stop)


async def run_inbound(settings: Settings, clock: DatabaseClock, stop: asyncio.Event) -> None:
    """The part that receives bounces and complaints over SMTP."""
    async with open_database(settings, connections_max=INBOUND_CONNECTIONS_MAX, clock=clock) as database:
        flows = Flows(settings, database, clock)
        inbound = Inbound(
            reports=flows.reports,
            hostname=settings.service.hostname,
            return_path_domain=settings.return_path,
            feedback_address=settings.inbound.feedback_address,
        )
        listener = Listener(settings.inbound.host, settings.inbound.port, is_shared=True)
        async with measured(flows.disk_space):
            await serve_smtp(settings, inbound, [listener], stop)
