"""A permanent connection to NATS: a lost connection is always replaced by a new one."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import nats.errors
import structlog
from nats.aio.client import Client

from posthouse.wire.stream import without_password

log = structlog.get_logger(__name__)

CONNECT_SECONDS_MAX: Final = 2
RECONNECT_SECONDS: Final = 0.5
POLL_SECONDS: Final = 0.25
CLOSE_SECONDS_MAX: Final = 2.0
FLUSH_SECONDS_MAX: Final = 2.0
# A server that accepts bytes but never answers is given up after this many pings.
PING_SECONDS: Final = 2
PINGS_UNANSWERED_MAX: Final = 2

# What the client raises when the server is unreachable, overloaded or misconfigured.
FAULTS: Final = (nats.errors.Error, OSError, TimeoutError)


class Outage:
    """Logs once that the server is unreachable, and once that it is back."""

    def __init__(self, name: str, servers: Sequence[str]) -> None:
        self._log = log.bind(connection=name, servers=[without_password(server) for server in servers])
        self._away: bool | None = None  # None: it was not reached yet

    def noticed(self, cause: object) -> None:
        if not self._away:
            self._log.warning("stream_away", cause=str(cause) or repr(cause))
        self._away = True

    def over(self) -> None:
        if self._away is not False:
            self._log.info("stream_back" if self._away else "stream_ready")
        self._away = False


async def keep_connected(servers: Sequence[str], name: str, use: Callable[[Client, Outage], Awaitable[None]]) -> None:
    """Run `use` on a connection; when either ends, start over with a new connection. Ends only by cancellation.

    The client's own reconnect is off on purpose: it replays its buffer, and an old acknowledgement would delete a
    new ticket that got the same number after the data were wiped.
    """
    outage = Outage(name, servers)
    while True:
        client = Client()
        closed = asyncio.Event()
        try:
            await _connect(client, servers, name, outage, closed)
            await _until_closed(client, use(client, outage), closed)
            outage.noticed(client.last_error)
        except FAULTS as fault:
            outage.noticed(fault)
        except Exception:
            log.exception("stream_failed", connection=name)
        finally:
            await shut(client)
        await asyncio.sleep(RECONNECT_SECONDS)


async def _connect(client: Client, servers: Sequence[str], name: str, outage: Outage, closed: asyncio.Event) -> None:
    async def on_error(fault: Exception) -> None:
        outage.noticed(fault)

    async def on_closed() -> None:
        closed.set()

    await client.connect(
        servers=list(servers),
        name=name,
        error_cb=on_error,
        closed_cb=on_closed,
        allow_reconnect=False,
        # The first connection is tried without end; the servers take turns.
        max_reconnect_attempts=-1,
        reconnect_time_wait=RECONNECT_SECONDS,  # type: ignore[arg-type] # fractions are slept as they are
        connect_timeout=CONNECT_SECONDS_MAX,
        ping_interval=PING_SECONDS,
        max_outstanding_pings=PINGS_UNANSWERED_MAX,
        flush_timeout=FLUSH_SECONDS_MAX,
    )


async def _until_closed(client: Client, using: Awaitable[None], closed: asyncio.Event) -> None:
    use = asyncio.ensure_future(using)
    end = asyncio.ensure_future(closed.wait())
    try:
        # Polled, because a pipe that breaks while the client closes suppresses its callback.
        while not (use.done() or client.is_closed):
            await asyncio.wait({use, end}, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if use.done():
            use.result()
    finally:
        end.cancel()
        # Once is not always enough: the client swallows a cancellation that meets it while flushing.
        while not use.done():
            use.cancel()
            await asyncio.wait({use}, timeout=POLL_SECONDS)
        await asyncio.gather(use, end, return_exceptions=True)


async def shut(client: Client) -> None:
    with contextlib.suppress(*FAULTS):
        async with asyncio.timeout(CLOSE_SECONDS_MAX):
            await client.close()


# Waits with a time limit.


async def wait_for(event: asyncio.Event, seconds: float) -> None:
    """Return when the event is set, or after these seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(seconds, 0.0)):
            await event.wait()
