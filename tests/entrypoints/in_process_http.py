"""Requests to the HTTP application without a server, for pages that need no services."""

from dataclasses import dataclass, field
from typing import Final

from starlette.types import Message

from posthouse.clock import DatabaseClock
from posthouse.entrypoints.http.app import create_router
from posthouse.entrypoints.http.request_body import BodyReader
from posthouse.entrypoints.http.request_head import RequestIds
from posthouse.entrypoints.http.request_limits import ConcurrencyLimit, UnauthenticatedLimit
from posthouse.entrypoints.http.request_middleware import RequestMiddleware
from posthouse.entrypoints.http.send_email import SendEndpoint
from posthouse.randomness import SystemRandomness
from posthouse.rules.rate_limit import Rate


@dataclass(slots=True)
class Reply:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    async def add(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.body += message.get("body", b"")


_READER: Final = BodyReader()
_SEND_ENDPOINT: Final = SendEndpoint(_READER)
_CLOCK: Final = DatabaseClock()
_ROUTER: Final = create_router()
_ROUTER.state.reader = _READER
# A module of tests asks more often than unauthenticated clients may.
_LIMIT: Final = UnauthenticatedLimit(_CLOCK, Rate(100_000, 100_000))
APPLICATION: Final = RequestMiddleware(
    _ROUTER, _SEND_ENDPOINT, RequestIds(_CLOCK, SystemRandomness()), _LIMIT, ConcurrencyLimit()
)


async def get(address: str, **headers: str) -> Reply:
    return await ask("GET", address, b"", **headers)


async def ask(method: str, address: str, body: bytes, **headers: str) -> Reply:
    """A header `accept_encoding` is sent as `accept-encoding`."""
    path, _, query = address.partition("?")
    reply = Reply()

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    await APPLICATION(scope, receive, reply.add)
    return reply
