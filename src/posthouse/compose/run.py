"""Several parts of the service in one process, on one event loop and one stream."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import nullcontext

from posthouse.clock import DatabaseClock
from posthouse.compose.monitoring import monitored
from posthouse.compose.periodic_checks import service_clock
from posthouse.compose.process import collect_rarely, configure_logging, log_capture
from posthouse.compose.stream import open_stream
from posthouse.config import Settings
from posthouse.wire.stream import Stream

Part = Coroutine[object, object, None]


async def run(
    settings: Settings, parts: frozenset[str], http_address: tuple[str, int] | None, stop: asyncio.Event
) -> None:
    """Run the parts until `stop`.

    When a part ends, for any reason, all end, each in an orderly way; then the first fault is raised.
    """
    configure_logging(settings.service.log_level)
    log_capture(settings)
    needs_stream = parts - {"inbound", "maintenance"}
    async with (
        monitored(settings, parts if http_address is None else parts | {"http"}, stop.is_set),
        open_stream(settings, "-".join(sorted(needs_stream)), or_memory="delivery" in parts)
        if needs_stream
        else nullcontext() as stream,
        service_clock(settings) as clock,
    ):
        running = [*_parts(settings, parts, stream, clock, http_address, stop)]
        collect_rarely()
        ends = await asyncio.gather(*(_then_stop(part, stop) for part in running), return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end


# Each part is imported only if it runs: the HTTP server and the HTTP client take half a second each.
def _parts(
    settings: Settings,
    parts: frozenset[str],
    stream: Stream | None,
    clock: DatabaseClock,
    http_address: tuple[str, int] | None,
    stop: asyncio.Event,
) -> Iterator[Part]:
    if http_address is not None:
        from posthouse.compose.http import run_http

        yield run_http(settings, stream, clock, http_address, stop)
    if "submission" in parts:
        from posthouse.compose.smtp import run_submission

        yield run_submission(settings, stream, clock, stop)
    if "inbound" in parts:
        from posthouse.compose.smtp import run_inbound

        yield run_inbound(settings, clock, stop)
    if stream is not None:
        yield from _stream_parts(settings, parts, stream, clock, stop)
    if "maintenance" in parts:
        from posthouse.compose.maintenance import run_maintenance

        yield run_maintenance(settings, clock, stop)


def _stream_parts(
    settings: Settings, parts: frozenset[str], stream: Stream, clock: DatabaseClock, stop: asyncio.Event
) -> Iterator[Part]:
    if "dispatch" in parts:
        from posthouse.compose.delivery import run_dispatch

        # Only parts in this process can read a stream in its memory.
        with_webhooks = bool(settings.stream.addresses) or "notification" in parts
        yield run_dispatch(settings, stream, clock, stop, with_webhooks=with_webhooks)
    if "delivery" in parts:
        from posthouse.compose.delivery import run_delivery

        yield run_delivery(settings, stream, clock, stop)
    if "notification" in parts:
        from posthouse.compose.webhooks import run_webhooks

        yield run_webhooks(settings, stream, clock, stop)


async def _then_stop(part: Part, stop: asyncio.Event) -> None:
    try:
        await part
    finally:
        stop.set()
