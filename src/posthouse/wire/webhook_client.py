"""Calls a customer's webhook: a single POST within a few seconds in total, to public servers only.

The customer controls the DNS name and may change it between two queries (DNS rebinding). So each call resolves the
name once, checks all its addresses, and connects to a checked address: the HTTP client gets the address as the
host and resolves nothing, while the Host header, SNI and certificate check keep the name. Connections are pooled by
address and name, so a connection is reused only while the name still resolves to it. The function that opens the
socket checks the address again.

The response is untrusted too. Only a few kilobytes are read and nothing is decompressed; redirects, cookies and
proxies are off. The outcome is returned as a value; only a cancellation raises.
"""

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, partial
from ipaddress import ip_address
from typing import Final, Protocol, cast

import aiohttp
from aiohttp import ClientTimeout, hdrs
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client import ClientRequest
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import AddrInfoType, Connection
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.payload import BytesPayload
from aiohttp.tracing import Trace
from yarl import URL

from posthouse.rules.event import CONTENT_TYPE, USER_AGENT
from posthouse.rules.public_address import Address
from posthouse.rules.webhook_url import WebhookTarget
from posthouse.wire.dns import HostAddresses, NoAnswer, NoName, Resolver
from posthouse.wire.tls import verifying_context

CALL_SECONDS_MAX: Final = 5.0
ANSWER_BYTES_MAX: Final = 2_048
# How much of an unread answer the client may buffer.
BUFFER_BYTES_MAX: Final = 4_096
HEADERS_MAX: Final = 100
HEADER_BYTES_MAX: Final = 8_192
WIRE_BYTES_MAX: Final = 32 * 1024
# Servers close idle connections after 5 seconds or more. A request sent at that moment is lost and can't be
# repeated, since it may have been read: so we close first.
IDLE_SECONDS_MAX: Final = 4.0
# An unreachable address must not use up the time for the next, but a long list of addresses is not tried to its end.
TRIES_MAX: Final = 3
EARLY_TRY_SHARE: Final = 0.3
AWAY_SECONDS: Final = 60.0
AWAY_MAX: Final = 10_000
PREPARED_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class WebhookAnswer:
    """A complete answer, or a truncated one; any status, including redirects."""

    status: int
    body: bytes
    truncated: bool
    duration_ms: int
    address: str


@dataclass(frozen=True, slots=True)
class NoWebhookAnswer:
    """No answer, or an incomplete one. The customer sees the reason."""

    reason: str
    duration_ms: int


WebhookCallResult = WebhookAnswer | NoWebhookAnswer


class WebhookClient(Protocol):
    async def call(self, target: WebhookTarget, body: bytes, headers: Mapping[str, str]) -> WebhookCallResult:
        """POST this JSON once; `headers` are added to those of every event."""


def public_tls(authority_pem: str = "") -> ssl.SSLContext:
    """Trusts the machine's certificate authorities, and the given one (for tests)."""
    context = verifying_context()
    if authority_pem:
        context.load_verify_locations(cadata=authority_pem)
    context.set_alpn_protocols(("http/1.1",))
    return context


def open_socket(info: AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = info
    return socket.socket(family, kind, protocol)


class HttpWebhookClient:
    """Create it within a running event loop, and close it. The owner bounds the number of concurrent calls."""

    def __init__(
        self,
        *,
        resolver: Resolver,
        may_connect: Callable[[Address], bool],
        tls: ssl.SSLContext,
        seconds_max: float = CALL_SECONDS_MAX,
        open_socket: Callable[[AddrInfoType], socket.socket] = open_socket,
    ) -> None:
        self._resolver = resolver
        self._may_connect = may_connect
        # Cached, since it is checked for every call, and the list of forbidden networks is long.
        self._allowed = lru_cache(PREPARED_MAX)(partial(_allowed, may_connect))
        self._seconds_max = seconds_max
        self._open_socket = open_socket
        self._loop = asyncio.get_running_loop()
        self._away: dict[str, float] = {}
        self._last_try = ClientTimeout(total=None)
        self._early_try = ClientTimeout(total=None, sock_connect=seconds_max * EARLY_TRY_SHARE)
        self._session = aiohttp.ClientSession(
            connector=_Connector(tls, self._checked_socket),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=self._last_try,
            auto_decompress=False,
            trust_env=False,
            read_bufsize=BUFFER_BYTES_MAX,
            max_line_size=HEADER_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            max_headers=HEADERS_MAX,
        )

    async def close(self) -> None:
        await self._session.close()

    async def call(self, target: WebhookTarget, body: bytes, headers: Mapping[str, str]) -> WebhookCallResult:
        started_at = self._loop.time()
        state = _State()
        _state.set(state)
        try:
            async with asyncio.timeout(self._seconds_max):
                addresses = await self._addresses(target)
                if isinstance(addresses, str):
                    return NoWebhookAnswer(addresses, self._since(started_at))
                state.doing = "connecting"
                response, address = await self._post(target, addresses, body, headers)
                state.doing, state.response = f"reading the answer ({response.status})", response
                read = await _read(response.content)
            return WebhookAnswer(
                status=response.status,
                body=read[:ANSWER_BYTES_MAX],
                truncated=len(read) > ANSWER_BYTES_MAX,
                duration_ms=self._since(started_at),
                address=address,
            )
        except TimeoutError:
            reason = f"no complete answer within {self._seconds_max:g} seconds: time ran out while {state.doing}"
        except aiohttp.ClientError as error:
            reason = _reason(error, state)
        finally:
            state.end()
        return NoWebhookAnswer(reason, self._since(started_at))

    def _since(self, started_at: float) -> int:
        return round((self._loop.time() - started_at) * 1000)

    async def _addresses(self, target: WebhookTarget) -> tuple[str, ...] | str:
        """The addresses to try, in order; or why there are none. A single forbidden address forbids them all."""
        found: tuple[Address, ...]
        if target.address is not None:
            found = (target.address,)
        else:
            answer = await self._resolver.addresses(target.host)
            match answer:
                case NoName():
                    return f"{target.host} does not exist in DNS"
                case NoAnswer(reason):
                    return f"{target.host} could not be looked up: {reason}"
                case HostAddresses(addresses):
                    found = addresses
        if not found:
            return f"{target.host} has no address in DNS"
        allowed = self._allowed(found)
        if not allowed:
            return f"{target.host} resolves to an address that is not public"
        if len(allowed) == 1:
            return allowed
        # IPv4 first: many networks have no IPv6 route and notice it slowly.
        return tuple(sorted(allowed, key=lambda address: (self._is_away(address), ":" in address))[:TRIES_MAX])

    async def _post(
        self, target: WebhookTarget, addresses: tuple[str, ...], body: bytes, headers: Mapping[str, str]
    ) -> tuple[aiohttp.ClientResponse, str]:
        """The answer's headers and the address that sent them. Only an unreachable address leads to the next."""
        for address in addresses[:-1]:
            try:
                return await self._post_to(address, target, body, headers, self._early_try), address
            except aiohttp.ClientSSLError:
                raise
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
                self._note_away(address)
        return await self._post_to(addresses[-1], target, body, headers, self._last_try), addresses[-1]

    async def _post_to(
        self,
        address: str,
        target: WebhookTarget,
        body: bytes,
        headers: Mapping[str, str],
        timeout: ClientTimeout,  # noqa: ASYNC109 (the client's own parameter)
    ) -> aiohttp.ClientResponse:
        url, common = _prepared(target, address)
        return await self._session.post(
            url,
            data=BytesPayload(body, content_type=CONTENT_TYPE),
            headers={**common, **headers},
            server_hostname=target.host,
            allow_redirects=False,
            timeout=timeout,
        )

    def _is_away(self, address: str) -> bool:
        return self._away.get(address, 0.0) > self._loop.time()

    def _note_away(self, address: str) -> None:
        if len(self._away) >= AWAY_MAX:
            self._away.clear()
        self._away[address] = self._loop.time() + AWAY_SECONDS

    def _checked_socket(self, info: AddrInfoType) -> socket.socket:
        if not self._may_connect(ip_address(info[4][0])):
            raise PermissionError(errno.EACCES, "the address is not public")
        return self._open_socket(info)


class _State:
    """The progress of a call, for the failure reason and for clean-up."""

    __slots__ = ("doing", "response", "transport")

    def __init__(self) -> None:
        self.doing = "looking up the name"
        self.transport: asyncio.Transport | None = None
        self.response: aiohttp.ClientResponse | None = None

    def end(self) -> None:
        """Abort the connection, unless the answer was complete and the connection is back in the pool."""
        if self.response is not None:
            if self.response.connection is None:
                return
            self.response.close()
        # A regular close would wait for the server's TLS shutdown without limit.
        if self.transport is not None:
            self.transport.abort()


_state: Final[ContextVar[_State]] = ContextVar("state")


class _Handler(ResponseHandler):
    """Bounds the bytes that are read for a request, framing included.

    The client's own bounds are per header and per chunk: endless small chunks, or endless 1xx answers, would cost
    CPU for as long as the call may take.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._bytes_left = 0

    def begin(self) -> None:
        self._bytes_left = WIRE_BYTES_MAX

    def data_received(self, data: bytes) -> None:
        was_full = self._bytes_left < 0
        self._bytes_left -= len(data)
        # No new data means: continue with the buffered data.
        if self._bytes_left >= 0 or not data:
            super().data_received(data)
            return
        if not was_full:
            super().data_received(data[: self._bytes_left])
            # Fails a call that still waits for headers; a body is kept as far as it was read.
            self.set_exception(HttpProcessingError(message="too many bytes"))
        self._pause_transport_reading()


class _Connector(aiohttp.TCPConnector):
    """Records in the call's state which connection it got."""

    def __init__(self, tls: ssl.SSLContext, open_socket: Callable[[AddrInfoType], socket.socket]) -> None:
        super().__init__(
            ssl=tls,
            resolver=_NoResolver(),
            use_dns_cache=False,
            limit=0,
            keepalive_timeout=IDLE_SECONDS_MAX,
            happy_eyeballs_delay=None,
            socket_factory=open_socket,
        )
        self._factory = cast(partial[ResponseHandler], partial(_Handler, loop=self._loop))

    async def connect(
        self,
        req: ClientRequest,
        traces: list[Trace],
        timeout: ClientTimeout,  # noqa: ASYNC109 (the client's own parameter)
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        state = _state.get()
        state.transport, state.doing = connection.transport, "waiting for the answer"
        if isinstance(connection.protocol, _Handler):
            connection.protocol.begin()
        return connection


class _NoResolver(AbstractResolver):
    """The client only gets addresses: any DNS query by it is a bug."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        raise PermissionError(errno.EACCES, f"{host} at port {port} was to be looked up a second time ({family.name})")

    async def close(self) -> None:
        pass


def _allowed(may_connect: Callable[[Address], bool], addresses: tuple[Address, ...]) -> tuple[str, ...]:
    """All of them, or none."""
    return tuple(map(str, addresses)) if all(map(may_connect, addresses)) else ()


@lru_cache(PREPARED_MAX)
def _prepared(target: WebhookTarget, address: str) -> tuple[URL, Mapping[str, str]]:
    """The URL with the address in place of the host, and the headers of every event."""
    bracketed = f"[{address}]" if ":" in address else address
    return URL(f"https://{bracketed}:{target.port}{target.path_and_query}", encoded=True), {
        hdrs.HOST: target.authority,
        hdrs.CONTENT_TYPE: CONTENT_TYPE,
        hdrs.USER_AGENT: USER_AGENT,
        hdrs.ACCEPT: "*/*",
        hdrs.ACCEPT_ENCODING: "identity",
    }


async def _read(content: aiohttp.StreamReader) -> bytes:
    """The answer's body, up to one byte more than is kept."""
    read = await content.read(ANSWER_BYTES_MAX + 1)
    while len(read) <= ANSWER_BYTES_MAX and not content.at_eof():
        read += await content.read(ANSWER_BYTES_MAX + 1 - len(read))
    return read


def _reason(error: aiohttp.ClientError, state: _State) -> str:
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return f"the certificate is not valid for this host: {_fault(error.certificate_error)}"
        case aiohttp.ClientConnectorSSLError():
            return f"TLS failed: {_fault(error.os_error)}"
        case aiohttp.ClientConnectorError():
            return f"could not connect: {_fault(error.os_error)}"
        case aiohttp.ClientOSError():
            return f"the connection broke while {state.doing}: {_fault(error)}"
        case aiohttp.ServerDisconnectedError():
            return f"the connection was closed while {state.doing}"
        case aiohttp.ClientResponseError():
            return "the answer is not HTTP, or its headers are too long"
        case aiohttp.ClientPayloadError():
            return f"the answer broke off or is not HTTP: the failure came while {state.doing}"
        case _:
            return f"the call failed while {state.doing}: {type(error).__name__}"


def _fault(error: Exception) -> str:
    """The operating system's or TLS library's text, without error numbers."""
    match error:
        case ssl.SSLCertVerificationError():
            return error.verify_message
        case ssl.SSLError():
            return (error.reason or "unknown").lower().replace("_", " ")
        case OSError(errno=int(number)):
            return os.strerror(number).lower()
        case OSError():
            return str(error).lower() or type(error).__name__
        case _:
            return type(error).__name__
