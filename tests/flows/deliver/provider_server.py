"""A provider with hidden limits behind a real socket: reads SMTP, asks the provider, and replies."""

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from posthouse.mail.reply import Reply
from tests.flows.deliver.provider import Connection, Mail, Provider, dkim_domain_of

LINE_BYTES_MAX: Final = 1024 * 1024
CLOSING: Final = 421


class ProviderServer:
    """`now` are the provider's seconds, which may pass faster than real ones."""

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
