"""Monitoring of a process: its metrics and whether it is ready, on a separate port; nothing unless a port is set.

The client library of Prometheus is slow to import, so it is imported only if a port is set.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from typing import Final

import structlog

from posthouse import metrics
from posthouse.clock import DatabaseClock
from posthouse.compose.context import context_of
from posthouse.compose.database import UnsafeDatabase, open_database, require_tables, why_unavailable
from posthouse.compose.process import CannotListen
from posthouse.config import Settings
from posthouse.entrypoints.workers import repeated
from posthouse.flows.operate.monitor import Monitor
from posthouse.rules.refusal import Refusal
from posthouse.store.postgres import Database

log = structlog.get_logger(__name__)

DRAINING: Final = "draining: the process finishes its work, and accepts nothing new"
NO_ANSWER: Final = "PostgreSQL does not answer"
DATABASE_SECONDS_MAX: Final = 2.0
FIGURES_PAUSE_SECONDS: Final = 10.0


@asynccontextmanager
async def monitored(settings: Settings, parts: Collection[str], is_draining: Callable[[], bool]) -> AsyncIterator[None]:
    """Serve /metrics, /livez and /readyz of a process with these parts."""
    if not settings.monitoring.port:
        yield
        return
    from posthouse.entrypoints.monitoring import MonitoringServer

    metrics.PART.replace({(part,): 1 for part in parts})
    metrics.INFO.set(1, version("posthouse"))
    async with AsyncExitStack() as stack:
        clock = DatabaseClock()
        # A separate connection, opened at first use, because the readiness check must not wait for the process's work.
        database = await stack.enter_async_context(open_database(settings, connections_max=1, clock=clock))
        monitor = Monitor(context_of(settings, database, clock), ticket_lease=settings.workers.ticket_lease)
        server = MonitoringServer(_reasons(database, is_draining))
        try:
            listening, port = await server.listen(settings.monitoring.host, settings.monitoring.port)
        except OSError as error:
            raise CannotListen(
                f"/metrics can't be served at {settings.monitoring.host}, port {settings.monitoring.port}: {error}. "
                "Choose another address with monitoring.host and monitoring.port, or set the port to 0 for none."
            ) from error
        stack.callback(listening.close)
        log.info("monitoring_listening", host=settings.monitoring.host, port=port, parts=sorted(parts))
        if "dispatch" in parts:
            await stack.enter_async_context(repeated(monitor.measure_queue, pause_seconds=FIGURES_PAUSE_SECONDS))
        if "maintenance" in parts:
            await stack.enter_async_context(repeated(monitor.measure_storage, pause_seconds=FIGURES_PAUSE_SECONDS))
        yield


def _reasons(database: Database, is_draining: Callable[[], bool]) -> Callable[[], Awaitable[list[str]]]:
    async def reasons() -> list[str]:
        found = [DRAINING] if is_draining() else []
        lack = await _database_lack(database)
        return [*found, lack] if lack else found

    return reasons


async def _database_lack(database: Database) -> str:
    try:
        async with asyncio.timeout(DATABASE_SECONDS_MAX):
            await require_tables(database)
    except TimeoutError:
        return NO_ANSWER
    except Refusal as refusal:
        return why_unavailable(refusal) or refusal.text
    except UnsafeDatabase as error:
        return str(error)
    return ""
