"""Large responses: a client that doesn't read holds little memory, for a short time, and delays no other client."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.types import Message, Receive, Scope, Send

from posthouse.entrypoints.http import responses
from posthouse.entrypoints.http.request_limits import PIECE_BYTES, SENDING_BYTES_MAX, ResponseLimits
from posthouse.entrypoints.http.server import BoundedConnection
from tests.support.eventually import eventually
from tools.private_postgres import free_port

SCOPE: Scope = {"type": "http", "method": "GET", "path": "/v1/x", "headers": [], responses.REQUEST_ID_TEXT: "rq_1"}
START: Message = {"type": "http.response.start", "status": 200, "headers": []}


async def nothing() -> Message:
    return {"type": "http.request"}


def body(size: int) -> Message:
    return {"type": "http.response.body", "body": bytes(size)}


async def test_a_large_response_is_sent_whole_in_pieces() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    limited = ResponseLimits().limited(SCOPE, nothing, send)
    await limited(START)
    await limited(body(3 * PIECE_BYTES + 1))
    assert sent[0] == START
    assert [len(message["body"]) for message in sent[1:]] == [PIECE_BYTES, PIECE_BYTES, PIECE_BYTES, 1]
    assert [message["more_body"] for message in sent[1:]] == [True, True, True, False]


async def test_a_small_response_is_sent_unchanged() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    limited = ResponseLimits().limited(SCOPE, nothing, send)
    await limited(START)
    await limited(body(PIECE_BYTES))
    assert sent == [START, body(PIECE_BYTES)]


async def test_a_large_response_is_refused_until_there_is_memory_for_it() -> None:
    limits = ResponseLimits()
    is_read = asyncio.Event()
    statuses: list[int] = []

    async def unread(message: Message) -> None:
        if message["type"] == "http.response.body":
            await is_read.wait()

    async def read(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def respond(send: Send, size: int) -> None:
        limited = limits.limited(SCOPE, nothing, send)
        await limited(dict(START))
        await limited(body(size))

    held = asyncio.create_task(respond(unread, SENDING_BYTES_MAX))
    await asyncio.sleep(0)
    await respond(read, PIECE_BYTES + 1)
    await respond(read, PIECE_BYTES)
    assert statuses == [503, 200]
    is_read.set()
    await held
    await respond(read, PIECE_BYTES + 1)
    assert statuses == [503, 200, 200]


async def test_unread_responses_of_an_address_leave_memory_for_others() -> None:
    limits = ResponseLimits()
    statuses: list[int] = []

    async def unread(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def read(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def respond(send: Send, address: str, size: int) -> None:
        limited = limits.limited({**SCOPE, "client": (address, 1)}, nothing, send)
        await limited(dict(START))
        await limited(body(size))

    held = [asyncio.create_task(respond(unread, "192.0.2.1", SENDING_BYTES_MAX // 64)) for _ in range(64)]
    await asyncio.sleep(0)
    await respond(read, "192.0.2.1", SENDING_BYTES_MAX // 64)
    await respond(read, "192.0.2.2", SENDING_BYTES_MAX // 8)
    assert statuses == [503, 200]
    for task in held:
        task.cancel()


class Impatient(BoundedConnection):
    read_seconds_max = 0.3


@asynccontextmanager
async def served(size: int) -> AsyncIterator[uvicorn.Server]:
    limits = ResponseLimits()

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        limited = limits.limited({**scope, responses.REQUEST_ID_TEXT: "rq_1"}, receive, send)
        length = (b"content-length", str(size).encode())
        await limited({"type": "http.response.start", "status": 200, "headers": [length]})
        await limited({"type": "http.response.body", "body": bytes(size)})

    port = free_port()
    config = uvicorn.Config(
        application, host="127.0.0.1", port=port, http=Impatient, lifespan="off", log_level="critical"
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    await eventually(lambda: server.started)
    try:
        yield server
    finally:
        server.should_exit = True
        await serving


async def test_a_client_that_does_not_read_is_cut_off_and_readers_get_all() -> None:
    size = 16 * 1024 * 1024
    async with served(size) as server:
        port = server.config.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        other_reader, other = await asyncio.open_connection("127.0.0.1", port)
        other.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert len((await other_reader.read(-1)).partition(b"\r\n\r\n")[2]) == size
        # It got what its socket buffer holds, and nothing more.
        await eventually(lambda: not server.server_state.connections)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(size)
        writer.close()
        other.close()
