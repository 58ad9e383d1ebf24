"""The fault matrix of webhooks: what the log says for each fault of a customer's endpoint or its DNS, and what follows.

All rows of the table are called in one round, each for its own account, with the contract's five seconds;
then the endpoints are repaired, and what is pending is sent again. The tests check what was seen after each round.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import pytest
import pytest_asyncio

from posthouse.rules.ids import AccountId
from posthouse.store.webhook_log import WebhookDelivery
from posthouse.wire.webhook_client import CALL_SECONDS_MAX
from tests.support.accept_flow import Sender
from tests.support.delivery_steps import open_delivery_steps
from tests.support.nameserver import SERVFAIL
from tests.support.webhook_flow import NAME, SECRET, WebhookFlow, certificates, is_signed, open_webhook_flow
from tests.support.webhook_receiver import BOMB, GIGABYTE, Request, WebhookReceiver, http_answer

pytestmark = pytest.mark.asyncio(loop_scope="module")

FIRST_WAIT: Final = timedelta(seconds=5)
TIMED_OUT: Final = "no complete answer within 5 seconds: time ran out while"
NOT_HTTP: Final = "the answer is not HTTP, or its headers are too long"
SAID: Final = {"/long-failure": http_answer(b"x" * 100_000, status="503 Said")}


@dataclass(frozen=True, slots=True)
class Row:
    """What the endpoint does, and what the log says of the first attempt; `error` is how its text begins.

    `server` is one of SERVERS, or a name in DNS that leads to none. `sent` is how many requests came through.
    """

    path: str
    http_status: int | None = None
    error: str | None = None
    body: bytes | None = None
    is_cut: bool = False
    server: str = ""
    sent: int = 1
    is_slow: bool = False

    @property
    def name(self) -> str:
        return self.server or self.path.strip("/")

    @property
    def is_taken(self) -> bool:
        return self.error is None


def answered(path: str, status: int, body: bytes, *, is_cut: bool = False) -> Row:
    is_taken = 200 <= status <= 299
    return Row(path, status, None if is_taken else f"The endpoint answered {status} instead of a 2xx.", body, is_cut)


def slow(path: str, doing: str, server: str = "") -> Row:
    return Row(path, error=f"{TIMED_OUT} {doing}", server=server, sent=0 if server else 1, is_slow=True)


def unheard(path: str, error: str) -> Row:
    return Row(path, error=error)


def unreached(server: str, error: str) -> Row:
    return Row("/events", error=error, server=server, sent=0)


# A certificate, and how it behaves.
SERVERS: Final = {
    "silent": ("sound", "silent"),
    "cut": ("sound", "cut"),
    "untrusted": ("untrusted", ""),
    "othername": ("othername", ""),
}
ROWS: Final = [
    # It takes its time.
    slow("/hang", "waiting for the answer"),
    slow("/hang-headers", "waiting for the answer"),
    slow("/hang-body", "reading the answer (200)"),
    slow("/drip", "reading the answer (200)"),
    slow("/events", "connecting", "silent"),
    # It answers something other than 2xx; no redirect is followed.
    answered("/redirect", 301, b""),
    answered("/redirect-inward", 307, b""),
    *[answered(f"/status/{status}", status, b"said") for status in (400, 404, 410, 429, 500, 502)],
    answered("/status/304", 304, b""),
    answered("/long-failure", 503, b"x" * 2_048, is_cut=True),
    # It answers 2xx, at length.
    answered("/endless", 200, b"x" * 2_048, is_cut=True),
    answered("/gzip", 200, BOMB),
    Row("/endless-gzip", 200, None, (BOMB * 3)[:2_048], is_cut=True),
    # It breaks off, or talks nonsense.
    unheard("/reset", "the connection"),
    unheard("/close", "the connection was closed while waiting for the answer"),
    unheard("/half", "the answer broke off or is not HTTP"),
    unheard("/garbage", NOT_HTTP),
    unheard("/huge-header", NOT_HTTP),
    # It can't be reached, or not safely.
    unreached("plain", "TLS failed"),
    unreached("cut", ""),
    unreached("untrusted", "the certificate is not valid for this host: "),
    unreached("othername", "the certificate is not valid for this host: "),
    unreached("refused", "could not connect: connection refused"),
    unreached("unknown.example.com", "unknown.example.com does not exist in DNS"),
    unreached("broken.example.com", "broken.example.com could not be looked up"),
    unreached("private.example.com", "private.example.com resolves to an address that is not public"),
    unreached("mixed.example.com", "mixed.example.com resolves to an address that is not public"),
]


@dataclass(slots=True)
class Seen:
    """What was on record and had arrived after a round."""

    at: datetime
    seconds: float
    logs: dict[str, WebhookDelivery] = field(default_factory=dict)
    requests: dict[str, list[Request]] = field(default_factory=dict)
    bytes_sent: int = 0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seen(new_database: Callable[[], str]) -> AsyncIterator[tuple[Seen, Seen]]:
    async with AsyncExitStack() as stack:
        steps = await stack.enter_async_context(open_delivery_steps(new_database()))
        flow = await stack.enter_async_context(open_webhook_flow(steps, seconds_max=CALL_SECONDS_MAX, said=SAID))
        ports = await _ports(flow, stack)
        _write_zone(flow)
        senders: dict[str, Sender] = {}
        delivery_ids: dict[str, UUID] = {}
        for number, row in enumerate(ROWS):
            sender = senders[row.name] = await steps.another_sender(f"account{number}")
            host, port = (row.server, 0) if "." in row.server else (NAME, ports.get(row.server, 0))
            await flow.subscribe(url=flow.url(f"{row.path}?{number}", host=host, port=port), sender=sender)
            delivery_ids[row.name] = await flow.add_event(sender=sender)
        first = await _round(flow, senders, delivery_ids)
        for number, sender in enumerate(senders.values()):
            await flow.subscribe(f"/events?{number}", sender=sender)
        flow.clock.advance(FIRST_WAIT - timedelta(milliseconds=1))
        assert await flow.run_due() == 0, "too early"
        flow.clock.advance(timedelta(milliseconds=1))
        yield first, await _round(flow, senders, delivery_ids)


async def _ports(flow: WebhookFlow, stack: AsyncExitStack) -> dict[str, int]:
    ports = {}
    for name, (certificate, behaviour) in SERVERS.items():
        server = WebhookReceiver(certificates().servers[certificate], behaviour=behaviour)
        ports[name] = (await stack.enter_async_context(server)).port
    plain = await asyncio.start_server(_speak_without_tls, "127.0.0.1", 0)
    ports["plain"] = (await stack.enter_async_context(plain)).sockets[0].getsockname()[1]
    unused = stack.enter_context(socket.socket())
    unused.bind(("127.0.0.1", 0))  # and doesn't listen
    ports["refused"] = unused.getsockname()[1]
    flow.ports.update(ports.values())
    return ports


async def _speak_without_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(http_answer(b"", status="400 Bad Request"))
    writer.close()


def _write_zone(flow: WebhookFlow) -> None:
    flow.nameserver.script["broken.example.com"] = SERVFAIL
    flow.nameserver.records["private.example.com", "A"] = ["10.0.0.1"]
    flow.nameserver.records["mixed.example.com", "A"] = ["127.0.0.1", "169.254.169.254"]


async def _round(flow: WebhookFlow, senders: dict[str, Sender], delivery_ids: dict[str, UUID]) -> Seen:
    flow.webhook_receiver.requests.clear()
    began_at = time.monotonic()
    await flow.run_due()
    seen = Seen(flow.clock.now(), time.monotonic() - began_at, bytes_sent=flow.webhook_receiver.bytes_sent)
    for number, (name, sender) in enumerate(senders.items()):
        seen.logs[name] = await flow.log(delivery_ids[name], AccountId(sender.account_id))
        seen.requests[name] = [
            request for request in flow.webhook_receiver.requests if request.line.split(" ")[1].endswith(f"?{number}")
        ]
    return seen


async def test_all_rows_have_unique_names() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)


async def test_calls_do_not_wait_for_each_other(seen: tuple[Seen, Seen]) -> None:
    """One after the other they would take as long as all of them together."""
    first, _ = seen
    assert CALL_SECONDS_MAX <= first.seconds < sum(log.duration_ms or 0 for log in first.logs.values()) / 1000


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_the_log_shows_what_happened_and_what_follows(seen: tuple[Seen, Seen], row: Row) -> None:
    first, _ = seen
    log = first.logs[row.name]
    assert (log.status, log.attempt, log.max_attempts) == ("succeeded" if row.is_taken else "pending", 1, 7)
    assert log.next_attempt_at == (None if row.is_taken else first.at + FIRST_WAIT)
    assert log.last_attempt_at == first.at
    assert log.http_status == row.http_status
    assert (log.response_body, log.response_truncated) == (row.body, row.is_cut)
    assert len(log.response_body or b"") <= 2_048
    if row.error is None:
        assert log.error is None
    else:
        assert log.error
        assert log.error.startswith(row.error)
    assert len(first.requests[row.name]) == row.sent
    assert log.duration_ms is not None
    if row.is_slow:
        assert log.duration_ms >= CALL_SECONDS_MAX * 1000 - 1


async def test_of_a_gigabyte_next_to_nothing_was_taken_and_nothing_was_decompressed(seen: tuple[Seen, Seen]) -> None:
    first, _ = seen
    assert first.bytes_sent < GIGABYTE / 25, "of two of them"
    bomb = first.logs["endless-gzip"]
    assert bomb.response_truncated
    assert bomb.response_body is not None
    assert bomb.response_body.startswith(BOMB)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_a_repaired_endpoint_gets_the_event_again_and_others_nothing(seen: tuple[Seen, Seen], row: Row) -> None:
    first, second = seen
    log = second.logs[row.name]
    if row.is_taken:
        assert log == first.logs[row.name]
        assert second.requests[row.name] == []
        return
    assert (log.status, log.attempt, log.http_status, log.error) == ("succeeded", 2, 200, None)
    assert (log.response_body, log.response_truncated, log.next_attempt_at) == (b"ok", False, None)
    (request,) = second.requests[row.name]
    assert request.body == log.request_body
    assert all(earlier.body == request.body for earlier in first.requests[row.name])
    assert is_signed(request, SECRET, int(second.at.timestamp()))
