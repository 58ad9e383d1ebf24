"""One HTTP exchange after another, over a connection of its own each: with the standard library's client."""

from __future__ import annotations

import base64
import http.client
import io
import socket
import ssl
import time
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from posthouse_sdk import checks

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

# An answer that is longer is not read to its end: no real one comes near.
ANSWER_BYTES_MAX: Final = 2**20


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """`headers` have their names in lower case; `body` ends after ANSWER_BYTES_MAX + 1 bytes."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Transport(Protocol):
    def exchange(self, request: Request, timeout_seconds: float) -> Answer:
        """The answer, whatever its status; redirects are not followed.

        Raises TimeoutError when the whole takes longer than that, another OSError when there is no whole answer.
        Called from several threads at once.
        """
        ...


@dataclass(frozen=True, slots=True)
class Proxy:
    """`http://host:port`, with a user name and password or without."""

    host: str
    port: int
    headers: Mapping[str, str] = field(repr=False)

    @classmethod
    def parsed(cls, url: str) -> Proxy:
        parts = urllib.parse.urlsplit(url)
        bare = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        checks.base_url(bare)
        headers = {}
        if parts.username:
            pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            headers["Proxy-Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode("ascii")
        return cls(parts.hostname or "", parts.port or 80, headers)


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request's connection goes, and what is asked for there."""

    host: str
    port: int
    is_secure: bool
    target: str
    authority: str

    @classmethod
    def of(cls, request: Request, proxy: Proxy | None) -> Route:
        parts = urllib.parse.urlsplit(request.url)
        is_secure = parts.scheme == "https"
        host = parts.hostname or ""
        port = parts.port or (443 if is_secure else 80)
        # A proxy is asked for the whole address, unless it only connects us to the service.
        target = request.url if proxy and not is_secure else parts.path or "/"
        named = f"[{host}]" if ":" in host else host
        return cls(host, port, is_secure, target, f"{named}:{port}")


class HttpTransport:
    """The usual transport. `proxy` is `http://host:port`; `ssl_context` says whom to trust, by default the system's."""

    def __init__(self, *, proxy: str | None = None, ssl_context: ssl.SSLContext | None = None) -> None:
        self._proxy = Proxy.parsed(proxy) if proxy else None
        self._ssl_context = ssl_context

    def exchange(self, request: Request, timeout_seconds: float) -> Answer:
        deadline = time.monotonic() + timeout_seconds
        connection = _Connection(Route.of(request, self._proxy), self._proxy, self._trusted, deadline)
        try:
            return connection.exchange(request)
        except http.client.HTTPException as error:
            raise ConnectionError(f"the answer was not whole, or not HTTP ({type(error).__name__})") from error
        finally:
            connection.end()

    def _trusted(self) -> ssl.SSLContext:
        # Made when it is first needed: reading all the system's certificates takes a while.
        if self._ssl_context is None:
            self._ssl_context = ssl.create_default_context()
        return self._ssl_context


class _Connection(http.client.HTTPConnection):
    """A connection whose every step ends at one deadline."""

    def __init__(
        self, route: Route, proxy: Proxy | None, trusted: Callable[[], ssl.SSLContext], deadline: float
    ) -> None:
        super().__init__(route.host, route.port)
        self._route = route
        self._proxy = proxy
        self._trusted = trusted
        self._deadline = deadline
        self._open: socket.socket | None = None

    def end(self) -> None:
        if self._open is not None:
            self._open.close()

    def connect(self) -> None:
        where = (self._proxy.host, self._proxy.port) if self._proxy else (self._route.host, self._route.port)
        self._open = bare = _connected(*where, self._deadline)
        if self._proxy and self._route.is_secure:
            self._pass_through(bare, self._proxy)
        if self._route.is_secure:
            bare.settimeout(_left(self._deadline))
            self._open = bare = self._trusted().wrap_socket(bare, server_hostname=self._route.host)
        self.sock = _Deadlined(bare, self._deadline)

    def exchange(self, request: Request) -> Answer:
        passed = self._proxy.headers if self._proxy and not self._route.is_secure else {}
        headers = {**request.headers, **passed, "Connection": "close"}
        self.request(request.method, self._route.target, request.body, headers)
        with self.getresponse() as response:
            body = bytearray()
            while len(body) <= ANSWER_BYTES_MAX and (piece := response.read(ANSWER_BYTES_MAX + 1 - len(body))):
                body += piece
            if response.length and len(body) <= ANSWER_BYTES_MAX:
                raise ConnectionError("the connection ended in the middle of the answer")
            return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, bytes(body))

    def _pass_through(self, bare: socket.socket, proxy: Proxy) -> None:
        lines = [f"CONNECT {self._route.authority} HTTP/1.1", f"Host: {self._route.authority}"]
        lines += [f"{name}: {value}" for name, value in proxy.headers.items()]
        tunnel = _Deadlined(bare, self._deadline)
        tunnel.sendall("\r\n".join([*lines, "", ""]).encode("ascii"))
        response = http.client.HTTPResponse(tunnel, method="CONNECT")  # type: ignore[arg-type]
        response.begin()
        if response.status != http.HTTPStatus.OK:
            raise ConnectionError(f"the proxy answered {response.status}")


class _Deadlined:
    """What http.client needs of a socket, each step with what is left of the time."""

    def __init__(self, bare: socket.socket, deadline: float) -> None:
        self._bare = bare
        self._deadline = deadline

    def sendall(self, data: ReadableBuffer) -> None:
        self._bare.settimeout(_left(self._deadline))
        self._bare.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reading(self._bare, self._deadline))

    def close(self) -> None:
        """http.client closes the socket as soon as the head of the last answer is there, and reads on."""


class _Reading(io.RawIOBase):
    """Bytes of a socket, until a deadline."""

    def __init__(self, bare: socket.socket, deadline: float) -> None:
        self._bare = bare
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        self._bare.settimeout(_left(self._deadline))
        return self._bare.recv_into(buffer)


def _connected(host: str, port: int, deadline: float) -> socket.socket:
    """Connected to the first of the host's addresses that takes us."""
    failure: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        bare = socket.socket(family, kind, protocol)
        try:
            bare.settimeout(_left(deadline))
            bare.connect(address)
            bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            bare.close()
            failure = error
        else:
            return bare
    raise failure or ConnectionError(f"{host} has no address")


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the attempt took too long")
    return left
