"""Load at a fixed rate: POST /emails at a fixed number of times a second, however long the answers take.

Requests are written without an HTTP library, so that the sender uses little of the machine it measures.
"""

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.support.eventually import HANG_SECONDS
from tests.support.service import Tenant

CONNECTIONS: Final = 64
ANSWER_SECONDS_MAX: Final = HANG_SECONDS
ACCEPTED: Final = 202

_numbers: Final = itertools.count(1)


def request(tenant: Tenant, to: str, **fields: object) -> bytes:
    """A whole request, with its own key."""
    return raw_request(tenant.basic, json.dumps(tenant.mail(to=to, **fields)).encode())


def raw_request(authorization: str, body: bytes) -> bytes:
    head = (
        "POST /emails HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: {authorization}\r\nContent-Type: application/json\r\n"
        f"Idempotency-Key: rate-load-{next(_numbers)}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@dataclass(slots=True)
class SentRequests:
    """How many answers of each kind; when each request was due, or could go, and how long it waited from then on."""

    answers: "Counter[int]" = field(default_factory=Counter)
    dues: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def is_well(self) -> bool:
        return set(self.answers) == {ACCEPTED}


async def post(
    port: int, requests: Iterable[bytes], *, per_second: float | None = None, connections: int = CONNECTIONS
) -> SentRequests:
    """Send each when it is due, or without a rate as fast as answers come; returns after the last answer."""
    sent = SentRequests()
    waiting: Iterator[tuple[int, bytes]] = enumerate(requests)
    begin = time.monotonic()

    async def send_on(connection: _Connection) -> None:
        for number, data in waiting:
            due = time.monotonic() if per_second is None else begin + number / per_second
            if (early := due - time.monotonic()) > 0:
                await asyncio.sleep(early)
            async with asyncio.timeout(HANG_SECONDS):
                sent.answers[await connection.ask(data)] += 1
            sent.dues.append(due - begin)
            sent.waits.append(time.monotonic() - due)

    loop = asyncio.get_running_loop()
    opened = [(await loop.create_connection(_Connection, "127.0.0.1", port))[1] for _ in range(connections)]
    try:
        async with asyncio.TaskGroup() as group:
            for connection in opened:
                group.create_task(send_on(connection))
    finally:
        for connection in opened:
            connection.close()
    sent.seconds = time.monotonic() - begin
    return sent


class _Connection(asyncio.Protocol):
    """One request after the other; an answer is read as far as its status, and as its length says."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._answer: asyncio.Future[int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def ask(self, request: bytes) -> "asyncio.Future[int]":
        assert self._transport is not None, "the server closed the connection"
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, body = self._buffer.partition(b"\r\n\r\n")
        if not end or self._answer is None:
            return
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        if len(body) >= int(length):
            self._buffer = b""
            if not self._answer.done():
                self._answer.set_result(int(head[9:12]))

    def connection_lost(self, fault: Exception | None) -> None:
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(f"the server closed the connection: {fault!r}"))
