"""Our SMTP servers: submission and inbound listen in the same way."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from posthouse.compose.errors import CannotListen
from posthouse.config import Settings
from posthouse.entrypoints.smtp.connection import Bounds
from posthouse.entrypoints.smtp.server import Listener, SmtpServer
from posthouse.entrypoints.smtp.service import Service
from posthouse.entrypoints.smtp.tls import TlsFiles

log = structlog.get_logger(__name__)

SMTP_DRAIN_SECONDS_MAX: Final = 15.0


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
    await server.drain(SMTP_DRAIN_SECONDS_MAX)


def _tls_files(settings: Settings) -> TlsFiles | None:
    """The certificate of our SMTP servers; an OSError when its files can't be used."""
    if not settings.smtp.tls_certificate_file:
        return None
    return TlsFiles(Path(settings.smtp.tls_certificate_file), Path(settings.smtp.tls_key_file))


def _bounds(settings: Settings) -> Bounds:
    return Bounds(
        connections_max=settings.smtp.connections_max,
        connections_per_address_max=settings.smtp.connections_per_address_max,
    )
