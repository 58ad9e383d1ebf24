"""Large answers: a client that doesn't read holds little of them, for a while, and keeps nobody else from theirs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.types import Message, Receive, Scope, Send

from posthouse.entrypoints.http import responses
from posthouse.entrypoints.http.connection import BoundedConnection
from posthouse.entrypoints.http.response_limits import ON_THEIR_WAY_BYTES_MAX, PIECE_BYTES, Outgoing
from tests.support.service import eventually
from tools.private_postgres import free_port

SCOPE: Scope = {"type": "http", "method": "GET", "path": "/v1/x", "headers": [], responses.REQUEST_ID_TEXT: "rq_1"}
START: Message = {"type": "http.response.start", "status": 200, "headers": []}


async def nothing() -> Message:
    return {"type": "http.request"}


def body(size: int) -> Message:
    return {"type": "http.response.body", "body": bytes(size)}


async def test_a_large_answer_goes_out_in_pieces_and_whole() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    way = Outgoing().way(SCOPE, nothing, send)
    await way(START)
    await way(body(3 * PIECE_BYTES + 1))
    assert sent[0] == START
    assert [len(one["body"]) for one in sent[1:]] == [PIECE_BYTES, PIECE_BYTES, PIECE_BYTES, 1]
    assert [one["more_body"] for one in sent[1:]] == [True, True, True, False]


async def test_a_small_answer_goes_out_as_it_is() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    way = Outgoing().way(SCOPE, nothing, send)
    await way(START)
    await way(body(PIECE_BYTES))
    assert sent == [START, body(PIECE_BYTES)]


async def test_what_finds_no_room_is_refused_and_room_comes_back() -> None:
    outgoing = Outgoing()
    is_taken = asyncio.Event()
    statuses: list[int] = []

    async def untaken(message: Message) -> None:
        if message["type"] == "http.response.body":
            await is_taken.wait()

    async def taken(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def answer(send: Send, size: int) -> None:
        way = outgoing.way(SCOPE, nothing, send)
        await way(dict(START))
        await way(body(size))

    held = asyncio.create_task(answer(untaken, ON_THEIR_WAY_BYTES_MAX))
    await asyncio.sleep(0)
    await answer(taken, PIECE_BYTES + 1)
    await answer(taken, PIECE_BYTES)
    assert statuses == [503, 200]
    is_taken.set()
    await held
    await answer(taken, PIECE_BYTES + 1)
    assert statuses == [503, 200, 200]


class Impatient(BoundedConnection):
    taking_seconds_max = 0.3


@asynccontextmanager
async def served(size: int) -> AsyncIterator[int]:
    out = Outgoing()

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        way = out.way({**scope, responses.REQUEST_ID_TEXT: "rq_1"}, receive, send)
        length = (b"content-length", str(size).encode())
        await way({"type": "http.response.start", "status": 200, "headers": [length]})
        await way({"type": "http.response.body", "body": bytes(size)})

    port = free_port()
    config = uvicorn.Config(
        application, host="127.0.0.1", port=port, http=Impatient, lifespan="off", log_level="critical"
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())

    async def has_started() -> bool:
        return server.started

    await eventually(has_started, bool)
    try:
        yield port
    finally:
        server.should_exit = True
        await serving


async def test_a_client_that_takes_nothing_is_hung_up_on_and_one_that_reads_gets_all_of_it() -> None:
    size = 16 * 1024 * 1024
    async with served(size) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        other_reader, other = await asyncio.open_connection("127.0.0.1", port)
        other.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert len((await other_reader.read(-1)).partition(b"\r\n\r\n")[2]) == size
        # It took what its socket holds, and not a byte more.
        await asyncio.sleep(1.5)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(size)
        writer.close()
        other.close()
