"""A webhook receiver on real sockets, which answers as the request's path says.

Paths that are not in the tables below answer 200; `/status/503` answers 503. A `behaviour` is the whole server's,
before any request: "silent" accepts connections and sends nothing, not even TLS, "plain" speaks HTTP without TLS,
"cut" closes every connection. `/held` is answered 200 once the test sets `released`.
"""

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Self

HEAD_BYTES_MAX: Final = 64 * 1024
PIECE_BYTES: Final = 64 * 1024
DRIP_SECONDS: Final = 0.02
GIGABYTE: Final = 1 << 30
NO_BODY: Final = ("204", "205", "304")

BOMB: Final = gzip.compress(bytes(1 << 20), mtime=0)  # a thousand bytes that would become a million
OK: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PIECES_OF_BOMB: Final = b"%x\r\n%b\r\n" % (len(BOMB), BOMB)


def http_answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


# Answers after which the server waits for the next request.
ANSWERS: Final = {
    "/redirect": http_answer(b"", "Location: https://elsewhere.example.com/", status="301 Moved Permanently"),
    "/redirect-inward": http_answer(b"", "Location: https://127.0.0.1/", status="307 Temporary Redirect"),
    "/exact": http_answer(b"x" * 2048),
    "/longer": http_answer(b"x" * 2049),
    "/long": http_answer(b"x" * 100_000),
    "/gzip": http_answer(BOMB, "Content-Encoding: gzip"),
    "/deflate": http_answer(BOMB, "Content-Encoding: deflate, gzip, br"),
    "/chunked-gzip": CHUNKED.replace(b"OK", b"OK\r\nContent-Encoding: gzip")
    + b"%x\r\n%b\r\n0\r\n\r\n" % (len(BOMB), BOMB),
    "/chunked": CHUNKED + b"3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n",
    "/no-content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "/continue": b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
    "/early-hints": b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 3 + OK,
    "/cookie": http_answer(b"ok", "Set-Cookie: a=b; Path=/", "Set-Cookie: \x01=;;;=\x7f"),
    "/twice": OK + b"HTTP/1.1 500 Unasked\r\nContent-Length: 0\r\n\r\n",
    "/hang-headers": b"HTTP/1.1 200 OK\r\nContent-Le",
    "/hang-body": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
    "/hang-chunk": CHUNKED + b"10\r\nabc",
    "/hang": b"",
}
# Answers after which the server closes the connection.
CLOSING_ANSWERS: Final = {
    "/close": b"",
    "/half": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
    "/until-close": b"HTTP/1.1 200 OK\r\n\r\nabc",
    "/polite": http_answer(b"ok", "Connection: close"),
    "/longer-close": http_answer(b"x" * 5_000, "Connection: close"),
    "/long-close": http_answer(b"x" * 20_000, "Connection: close"),
    "/longest-close": http_answer(b"x" * 200_000, "Connection: close"),
    "/long-until-close": b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 200_000,
    "/long-chunks-close": CHUNKED + (b"fff\r\n" + b"x" * 0xFFF + b"\r\n") * 50 + b"0\r\n\r\n",
    "/long-chunk-cut": CHUNKED + b"ffff\r\n" + b"x" * 30_000,
    "/tiny-chunks-close": CHUNKED + b"1\r\nx\r\n" * 1_500 + b"0\r\n\r\n",
    "/tiny-chunks-cut": CHUNKED + b"1\r\nx\r\n" * 1_500,
    "/upgrade": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n" + b"y" * 10_000,
    "/garbage": b"\x16\x03\x01 nothing that anyone could read \x00\xff\r\n\r\n" * 10,
    "/chunked-garbage": CHUNKED + b"zz\r\nabc\r\n",
    "/chunked-endless-size": CHUNKED + b"f" * 100_000,
    "/chunked-huge-size": CHUNKED + b"ffffffffffffffffffff\r\nabc",
    "/two-lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
    "/odd-length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nabc",
    "/many-headers": b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 5_000 + b"Content-Length: 0\r\n\r\n",
    "/huge-header": b"HTTP/1.1 200 OK\r\nX-A: " + b"b" * 1_000_000 + b"\r\nContent-Length: 0\r\n\r\n",
    "/huge-reason": b"HTTP/1.1 200 " + b"b" * 1_000_000 + b"\r\nContent-Length: 0\r\n\r\n",
    "/odd-status": b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n",
    "/old": b"HTTP/1.0 200 OK\r\n\r\nold",
}


@dataclass(frozen=True, slots=True)
class Request:
    """A request; `connection` counts from 1, and `peer_port` is the client's."""

    line: str
    headers: dict[str, str]
    raw_names: tuple[str, ...]
    body: bytes
    connection: int
    server_name: str | None
    peer_port: int = 0


class WebhookReceiver:
    """`said` adds paths to the closing answers: each has an answer, or another for every request.

    `tls` is the server's context; without it there is no TLS. `when_answered` is called after each answer that keeps
    the connection open.
    """

    def __init__(
        self,
        tls: ssl.SSLContext | None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        behaviour: str = "",
        said: Mapping[str, bytes | Iterator[bytes]] | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.requests: list[Request] = []
        self.connections = 0
        self.came = asyncio.Event()
        self.released = asyncio.Event()
        self.bytes_sent = 0
        self.when_answered: Callable[[Request], None] = lambda _: None
        self._tls = tls
        self._behaviour = behaviour
        self._said: dict[str, bytes | Iterator[bytes]] = {**CLOSING_ANSWERS, **(said or {})}
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        tls = self._tls if self._behaviour == "" else None
        self._server = await asyncio.start_server(self._serve, self.host, self.port, ssl=tls, limit=HEAD_BYTES_MAX)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *failure: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()

    def say(self, path: str, answer: bytes | None) -> None:
        """From now on this closing answer at a path; None takes it back."""
        self._said.pop(path, None)
        if answer is not None:
            self._said[path] = answer

    async def all_closed(self, seconds_max: float) -> bool:
        """Whether all connections end within this time."""
        if self._serving:
            await asyncio.wait(self._serving, timeout=seconds_max)
        return not self._serving

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.ensure_future(self._converse(reader, writer, self.connections))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        try:
            if self._behaviour == "cut":
                return
            if self._behaviour == "silent":
                await reader.read()
                return
            async for request in self._requests(reader, writer, number):
                self.requests.append(request)
                self.came.set()
                if not await self._act(request.line.split(" ")[1], reader, writer):
                    return
                self.when_answered(request)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.transport.abort()

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> AsyncIterator[Request]:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii")
            line, *fields = head[:-4].split("\r\n")
            pairs = [field.split(": ", 1) for field in fields]
            headers = {name.lower(): value for name, value in pairs}
            body = await reader.readexactly(int(headers["content-length"]))
            session = writer.get_extra_info("ssl_object")
            asked_for = getattr(session, "asked_for", None)
            peer_port = writer.get_extra_info("peername")[1]
            yield Request(line, headers, tuple([name for name, _ in pairs]), body, number, asked_for, peer_port)

    async def _act(self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection stays open."""
        match path.split("?")[0]:
            case "/reset":
                writer.transport.abort()
            case "/held":
                await self.released.wait()
                writer.write(OK)
                return True
            case "/drip":
                await self._drip(writer, http_answer(b"x" * 2_000))
            case "/drip-chunks":
                await self._drip(writer, CHUNKED + b"1\r\nx\r\n" * 2_000)
            case "/endless":
                await self._endless(writer, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % GIGABYTE, b"x")
            case "/endless-gzip":
                await self._endless(writer, CHUNKED.replace(b"OK", b"OK\r\nContent-Encoding: gzip"), PIECES_OF_BOMB)
            case "/endless-extensions":
                await self._endless(writer, CHUNKED, b"1;%b\r\nx\r\n" % (b"a" * 1_000))
            case "/endless-headers":
                await self._endless(writer, b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n")
            case "/endless-line":
                await self._endless(writer, b"HTTP/1.1 200 OK\r\nX-A: ", b"b")
            case "/endless-continues":
                await self._endless(writer, b"", b"HTTP/1.1 100 Continue\r\n\r\n")
            case "/endless-chunks":
                await self._endless(writer, CHUNKED, b"1\r\nx\r\n")
            case said if said in ANSWERS:
                writer.write(ANSWERS[said])
                if said.startswith("/hang"):
                    await reader.read()  # until the client closes
                    return False
                return True
            case said if said in self._said:
                answer = self._said[said]
                writer.write(answer if isinstance(answer, bytes) else next(answer))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
            case status if status.startswith("/status/"):
                code = status.removeprefix("/status/")
                writer.write(http_answer(b"" if code in NO_BODY else b"said", status=f"{code} Said"))
                return True
            case _:
                writer.write(OK)
                return True
        return False

    async def _drip(self, writer: asyncio.StreamWriter, text: bytes) -> None:
        for byte in text:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(DRIP_SECONDS)

    async def _endless(self, writer: asyncio.StreamWriter, head: bytes, again: bytes) -> None:
        """A gigabyte, or as much of it as the client reads."""
        piece = again * (PIECE_BYTES // len(again))
        writer.write(head)
        while self.bytes_sent < GIGABYTE:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)  # a drain that needn't wait never lets the loop see that the client has gone
            self.bytes_sent += len(piece)


def record_server_names(context: ssl.SSLContext) -> ssl.SSLContext:
    """Requests then have the server name of the TLS handshake (SNI)."""

    def note(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        connection.asked_for = name  # type: ignore[attr-defined]

    context.sni_callback = note
    return context
