"""The same exchanges over asyncio's streams: an attempt that is cancelled ends at once, with its connection."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, Protocol

from posthouse_sdk.transport import ANSWER_BYTES_MAX, Answer, Proxy, Request, Route

HEAD_BYTES_MAX: Final = 2**16
INTERIM_ANSWERS_MAX: Final = 10
_NO_BODY: Final = frozenset({204, 304})

_status_line: Final = re.compile(r"HTTP/1\.[01] ([1-5][0-9]{2})(?: .*)?", re.ASCII).fullmatch
_chunk_size: Final = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?\r?\n").fullmatch


class AsyncTransport(Protocol):
    async def exchange(self, request: Request, timeout_seconds: float) -> Answer:
        """As that of `Transport`."""
        ...


class AsyncHttpTransport:
    """The usual transport. `proxy` is `http://host:port`; `ssl_context` says whom to trust, by default the system's."""

    def __init__(self, *, proxy: str | None = None, ssl_context: ssl.SSLContext | None = None) -> None:
        self._proxy = Proxy.parsed(proxy) if proxy else None
        self._ssl_context = ssl_context

    async def exchange(self, request: Request, timeout_seconds: float) -> Answer:
        route = Route.of(request, self._proxy)
        try:
            async with asyncio.timeout(timeout_seconds), self._opened(route) as (reader, writer):
                passed = self._proxy.headers if self._proxy and not route.is_secure else {}
                writer.write(_head(request, route, passed) + (request.body or b""))
                await writer.drain()
                return await _answer(reader)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise ConnectionError("the connection ended in the middle of the answer") from error

    @asynccontextmanager
    async def _opened(self, route: Route) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        where = (self._proxy.host, self._proxy.port) if self._proxy else (route.host, route.port)
        is_secure_at_once = route.is_secure and self._proxy is None
        reader, writer = await asyncio.open_connection(
            *where, limit=HEAD_BYTES_MAX, ssl=self._trusted() if is_secure_at_once else None
        )
        try:
            if self._proxy and route.is_secure:
                await _pass_through(reader, writer, route, self._proxy)
                await writer.start_tls(self._trusted(), server_hostname=route.host)
            yield reader, writer
        finally:
            # Nothing is left to be written, so nothing is lost by not waiting for a polite end.
            writer.transport.abort()

    def _trusted(self) -> ssl.SSLContext:
        if self._ssl_context is None:
            self._ssl_context = ssl.create_default_context()
        return self._ssl_context


def _head(request: Request, route: Route, passed: Mapping[str, str]) -> bytes:
    default = 443 if route.is_secure else 80
    host = route.authority.removesuffix(f":{default}")
    headers = {"Host": host, **request.headers, **passed, "Accept-Encoding": "identity", "Connection": "close"}
    if request.body is not None:
        headers["Content-Length"] = str(len(request.body))
    lines = [f"{request.method} {route.target} HTTP/1.1"] + [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("ascii")


async def _pass_through(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, route: Route, proxy: Proxy) -> None:
    lines = [f"CONNECT {route.authority} HTTP/1.1", f"Host: {route.authority}"]
    lines += [f"{name}: {value}" for name, value in proxy.headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode("ascii"))
    status, _ = await _read_head(reader)
    if status != 200:
        raise ConnectionError(f"the proxy answered {status}")


async def _answer(reader: asyncio.StreamReader) -> Answer:
    for _ in range(INTERIM_ANSWERS_MAX):
        status, headers = await _read_head(reader)
        if status >= 200:
            return Answer(status, headers, await _read_body(reader, status, headers))
    raise ConnectionError("there was no end of interim answers")


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    matched = _status_line(first)
    pairs = [line.partition(":") for line in lines]
    if not matched or not all(colon for _, colon, _ in pairs):
        raise ConnectionError("the answer was not HTTP")
    return int(matched[1]), {name.lower(): value.strip() for name, _, value in pairs}


async def _read_body(reader: asyncio.StreamReader, status: int, headers: Mapping[str, str]) -> bytes:
    if status in _NO_BODY:
        return b""
    if "transfer-encoding" in headers:
        if headers["transfer-encoding"].lower() != "chunked":
            raise ConnectionError("the answer has an unknown transfer encoding")
        return await _read_chunks(reader)
    length = headers.get("content-length")
    if length is None:
        return await _read_to_the_end(reader)
    if not (length.isascii() and length.isdigit()):
        raise ConnectionError("the answer has a length that is none")
    return await reader.readexactly(ANSWER_BYTES_MAX + 1 if len(length) > 7 else min(int(length), ANSWER_BYTES_MAX + 1))


async def _read_to_the_end(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while len(body) <= ANSWER_BYTES_MAX and (piece := await reader.read(ANSWER_BYTES_MAX + 1 - len(body))):
        body += piece
    return bytes(body)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while True:
        matched = _chunk_size(await reader.readuntil(b"\n"))
        if not matched:
            raise ConnectionError("the answer has a chunk that is none")
        size = int(matched[1], 16)
        if size == 0:
            return bytes(body)
        body += await reader.readexactly(min(size, ANSWER_BYTES_MAX + 1 - len(body)))
        if len(body) > ANSWER_BYTES_MAX:
            return bytes(body)
        await reader.readexactly(2)
