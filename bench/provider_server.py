"""Providers with hidden limits behind real sockets, and hours of our mail to them, with a clock sixty times as fast."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, Self

from posthouse.mail.reply import Reply
from posthouse.wire.carrier import IDLE_SECONDS_MAX
from tests.flows.deliver.provider import HOUR, Connection, Mail, Provider, dkim_domain_of
from tests.flows.deliver.provider_run import (
    DESTINATIONS,
    GRID_SECONDS,
    SCALE,
    Policy,
    ProviderResult,
    due,
    limits,
    messages,
    result_of,
    step,
)
from tests.support.delivery_flow import DeliveryFlow, deadlines, open_delivery_flow

DEADLINES: Final = deadlines(10, 20, 30)
LINE_BYTES_MAX: Final = 1024 * 1024
CLOSING: Final = 421


class ProviderServer:
    """Reads SMTP, asks the provider, and replies.

    `now` are the provider's seconds, which may pass faster than real ones.
    """

    def __init__(self, provider: Provider, host: str, port: int, now: Callable[[], float]) -> None:
        self.provider = provider
        self._host = host
        self._port = port
        self._now = now
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=LINE_BYTES_MAX)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await self._converse(reader, writer)
        self._serving.discard(task)
        writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def say(line: str) -> None:
            writer.write(line.encode() + b"\r\n")

        provider = self.provider
        connection = Connection(writer.get_extra_info("peername")[0])
        sender = recipient = ""
        say(f"220 mx.{provider.name}.example ESMTP")
        while line := await reader.readline():
            verb, _, rest = line.decode("latin-1").strip().partition(" ")
            refusal: Reply | None = None
            match verb.upper():
                case "EHLO" | "HELO":
                    say(f"250-mx.{provider.name}.example\r\n250-PIPELINING\r\n250 ENHANCEDSTATUSCODES")
                case "MAIL":
                    sender, recipient = _path(rest), ""
                    refusal = provider.at_mail(connection, Mail(sender, ""), self._now())
                    if refusal is not None:
                        sender = ""
                    else:
                        say("250 2.1.0 OK")
                case "RCPT" if not sender:
                    say("503 5.5.1 MAIL first")
                case "RCPT":
                    recipient = _path(rest)
                    say("250 2.1.5 OK")
                case "DATA" if not recipient:
                    say("503 5.5.1 RCPT first")
                case "DATA":
                    say("354 go on")
                    content = await reader.readuntil(b"\r\n.\r\n")
                    mail = Mail(sender, recipient, dkim_domain_of(content))
                    refusal = provider.at_dot(connection, mail, self._now())
                    if refusal is None:
                        say(f"250 {provider.take(connection, mail, self._now()).text}")
                    sender = recipient = ""
                case "RSET":
                    sender = recipient = ""
                    say("250 2.0.0 OK")
                case "QUIT":
                    say("221 2.0.0 bye")
                    return
                case _:
                    say("250 2.0.0 OK")
            if refusal is not None:
                provider.refuse(Mail(sender, recipient), refusal, self._now())
                say(f"{refusal.code} {refusal.text}")
                if refusal.code == CLOSING:
                    return


def _path(rest: str) -> str:
    return rest.partition("<")[2].partition(">")[0]


async def run_on_sockets(
    url: str, seed: int, *, hours: float, destinations: Mapping[str, type[Provider]] = DESTINATIONS, part: float = 1.0
) -> dict[str, ProviderResult]:
    """An hour takes a minute."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    providers = {name: kind(seed, SCALE) for name, kind in destinations.items()}
    born = messages(seed, providers, part)

    def now() -> float:
        return (loop.time() - began) * SCALE

    async with AsyncExitStack() as stack:
        flow = await stack.enter_async_context(
            open_delivery_flow(url, lane_limits=limits(Policy.LEARNING), seed=seed, deadlines=DEADLINES)
        )
        for number, (name, provider) in enumerate(providers.items(), 1):
            host = f"127.0.1.{number}"
            await stack.enter_async_context(ProviderServer(provider, host, flow.receiver.port, now))
            flow.serve(name, address=host)
        began = loop.time()
        await _drive_on_sockets(flow, born, hours * HOUR, now)
    return {name: result_of(provider, born, name) for name, provider in providers.items()}


async def _drive_on_sockets(
    flow: DeliveryFlow, born: Mapping[str, float], seconds: float, now: Callable[[], float]
) -> None:
    coming = deque(sorted(born, key=lambda to: born[to]))
    began, loop = flow.clock.monotonic(), asyncio.get_running_loop()
    while (at := now()) < seconds:
        flow.clock.advance(seconds=at - (flow.clock.monotonic() - began))
        await step(flow, due(coming, born, at))
        # What was idle for half a minute of the fast clock.
        flow.carrier.close_idle(loop.time() + IDLE_SECONDS_MAX * (1 - 1 / SCALE))
        await asyncio.sleep(GRID_SECONDS / SCALE)
