"""Calling a customer's webhook: one POST, one answer, within a few seconds in all, and to public servers only.

Whoever saved the URL decides what its name leads to, and may change that between two looks. So a name is
looked up once for each call, every one of its addresses is judged, and the connection is made to an address
that was judged: it stands in the place of the host for the HTTP client, which therefore has nothing to look
up, while the Host header, SNI and the certificate's check keep the name. Open connections are kept by address
and name, so that one is used again only while the name still leads there. The socket itself is opened by a
function that asks once more.

Whoever answers decides what comes back. No more than a few kilobytes of it are read and nothing is decompressed;
redirects, cookies and proxies don't exist. What happened is a value; nothing but a cancellation raises.
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

CALL_SECONDS_MAX: Final = 5.0
ANSWER_BYTES_MAX: Final = 2_048
# What the client may hold of an answer that nobody reads.
BUFFER_BYTES_MAX: Final = 4_096
HEADERS_MAX: Final = 100
HEADER_BYTES_MAX: Final = 8_192
WIRE_BYTES_MAX: Final = 32 * 1024
# Servers hang up on idle connections after 5 seconds or more. A request that crosses such a goodbye is lost and
# can't be repeated, since nobody knows whether it was read: so we are the first to hang up.
IDLE_SECONDS_MAX: Final = 4.0
# A server that is away must leave time to try the next address, but not for a whole list of them.
TRIES_MAX: Final = 3
EARLY_TRY_SHARE: Final = 0.3
AWAY_SECONDS: Final = 60.0
AWAY_MAX: Final = 10_000
PREPARED_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class WebhookAnswer:
    """A whole answer, or more of one than we read; any status, a redirect among them."""

    status: int
    body: bytes
    truncated: bool
    duration_ms: int
    address: str


@dataclass(frozen=True, slots=True)
class NoWebhookAnswer:
    """No answer, or one that broke off. The reason is told to the customer."""

    reason: str
    duration_ms: int


WebhookCallResult = WebhookAnswer | NoWebhookAnswer


class WebhookClient(Protocol):
    async def call(self, target: WebhookTarget, body: bytes, headers: Mapping[str, str]) -> WebhookCallResult:
        """POST this JSON there, once; `headers` come on top of those that every event has."""


def public_tls(authority_pem: str = "") -> ssl.SSLContext:
    """Trusts the machine's authorities, and the one given, if any, which is for tests."""
    context = ssl.create_default_context()
    if authority_pem:
        context.load_verify_locations(cadata=authority_pem)
    context.set_alpn_protocols(("http/1.1",))
    return context


def open_socket(info: AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = info
    return socket.socket(family, kind, protocol)


class HttpWebhookClient:
    """Made within a running event loop, and closed by whoever made it. How many call at once is theirs to bound."""

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
        # Asked for every call, and the list of forbidden networks is long.
        self._allowed = lru_cache(PREPARED_MAX)(partial(_allowed, may_connect))
        self._seconds_max = seconds_max
        self._open_socket = open_socket
        self._loop = asyncio.get_running_loop()
        self._away: dict[str, float] = {}
        self._last_try = ClientTimeout(total=None)
        self._early_try = ClientTimeout(total=None, sock_connect=seconds_max * EARLY_TRY_SHARE)
        self._session = aiohttp.ClientSession(
            connector=_Connector(tls, self._judged_socket),
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
            reason = f"no whole answer within {self._seconds_max:g} seconds: time ran out while {state.doing}"
        except aiohttp.ClientError as error:
            reason = _reason(error, state)
        finally:
            state.end()
        return NoWebhookAnswer(reason, self._since(started_at))

    def _since(self, started_at: float) -> int:
        return round((self._loop.time() - started_at) * 1000)

    async def _addresses(self, target: WebhookTarget) -> tuple[str, ...] | str:
        """Where to try, in order; or why nowhere. One address that is forbidden forbids them all."""
        found: tuple[Address, ...]
        if target.address is not None:
            found = (target.address,)
        else:
            answer = await self._resolver.addresses(target.host)
            match answer:
                case NoName():
                    return f"there is no {target.host} in DNS"
                case NoAnswer(reason):
                    return f"{target.host} could not be looked up: {reason}"
                case HostAddresses(addresses):
                    found = addresses
        if not found:
            return f"{target.host} has no address in DNS"
        allowed = self._allowed(found)
        if not allowed:
            return f"{target.host} leads to an address that is not public"
        if len(allowed) == 1:
            return allowed
        # Version 4 first: many networks have no way out for version 6, and find out slowly.
        return tuple(sorted(allowed, key=lambda one: (self._is_away(one), ":" in one))[:TRIES_MAX])

    async def _post(
        self, target: WebhookTarget, addresses: tuple[str, ...], body: bytes, headers: Mapping[str, str]
    ) -> tuple[aiohttp.ClientResponse, str]:
        """The answer as far as its headers, and who gave it. Only what could not be reached leads to the next."""
        for address in addresses[:-1]:
            try:
                return await self._post_to(address, target, body, headers, self._early_try), address
            except aiohttp.ClientSSLError:
                raise
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
                self._note_away(address)
        return await self._post_to(addresses[-1], target, body, headers, self._last_try), addresses[-1]

    async def _post_to(
        self, address: str, target: WebhookTarget, body: bytes, headers: Mapping[str, str], patience: ClientTimeout
    ) -> aiohttp.ClientResponse:
        url, every = _prepared(target, address)
        return await self._session.post(
            url,
            data=BytesPayload(body, content_type=CONTENT_TYPE),
            headers={**every, **headers},
            server_hostname=target.host,
            allow_redirects=False,
            timeout=patience,
        )

    def _is_away(self, address: str) -> bool:
        return self._away.get(address, 0.0) > self._loop.time()

    def _note_away(self, address: str) -> None:
        if len(self._away) >= AWAY_MAX:
            self._away.clear()
        self._away[address] = self._loop.time() + AWAY_SECONDS

    def _judged_socket(self, info: AddrInfoType) -> socket.socket:
        if not self._may_connect(ip_address(info[4][0])):
            raise PermissionError(errno.EACCES, "the address is not public")
        return self._open_socket(info)


class _State:
    """How far a call has come, for the reason that is told and for what must be closed."""

    __slots__ = ("doing", "response", "transport")

    def __init__(self) -> None:
        self.doing = "looking up the name"
        self.transport: asyncio.Transport | None = None
        self.response: aiohttp.ClientResponse | None = None

    def end(self) -> None:
        """Cut the connection, unless the answer was whole and the connection is kept for others by now."""
        if self.response is not None:
            if self.response.connection is None:
                return
            self.response.close()
        # The client says goodbye and waits for the other side's, as long as that one likes.
        if self.transport is not None:
            self.transport.abort()


_state: Final[ContextVar[_State]] = ContextVar("state")


class _Handler(ResponseHandler):
    """Looks at so many bytes of what comes back to one request, framing and all, and at no more.

    The client's own bounds are for one header or one chunk: an endless row of small ones, or of answers that only
    announce another, would cost time of ours for as long as the call may take.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._bytes_left = 0

    def begin(self) -> None:
        self._bytes_left = WIRE_BYTES_MAX

    def data_received(self, data: bytes) -> None:
        is_full = self._bytes_left < 0
        self._bytes_left -= len(data)
        # Nothing new means: go on with what was put aside.
        if self._bytes_left >= 0 or not data:
            super().data_received(data)
            return
        if not is_full:
            super().data_received(data[: self._bytes_left])
            # Whoever still waits for the headers has waited for too many; a body is told as far as it came.
            self.set_exception(HttpProcessingError(message="too many bytes"))
        self._pause_transport_reading()


class _Connector(aiohttp.TCPConnector):
    """Tells the call which connection it got."""

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
    """The client is given addresses. If it ever wants to look one up, something is wrong with it or with us."""

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
    """The URL with the address in the place of the host, and the headers that every event has."""
    bracketed = f"[{address}]" if ":" in address else address
    return URL(f"https://{bracketed}:{target.port}{target.path_and_query}", encoded=True), {
        hdrs.HOST: target.authority,
        hdrs.CONTENT_TYPE: CONTENT_TYPE,
        hdrs.USER_AGENT: USER_AGENT,
        hdrs.ACCEPT: "*/*",
        hdrs.ACCEPT_ENCODING: "identity",
    }


async def _read(content: aiohttp.StreamReader) -> bytes:
    """The answer's body, or one byte more than is kept of it."""
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
    """In the operating system's or the TLS library's words, without the numbers around them."""
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
