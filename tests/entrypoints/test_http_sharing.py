"""Processes that share a port take turns with its connections."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import structlog
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from posthouse.entrypoints.http import sharing
from posthouse.entrypoints.http.sharing import Turns

CLIENTS = 20
PATIENCE_SECONDS = 10.0


class Process:
    """One of several on a port, which counts what it was given, and says hello."""

    def __init__(self, sock: socket.socket) -> None:
        self.taken = 0
        self.state = ServerState()
        self.socket = sock
        self.turns = Turns(asyncio.get_running_loop(), self.connection, self.socket, CLIENTS)

    def close(self) -> None:
        self.turns.close()
        self.socket.close()

    def connection(self) -> HttpToolsProtocol:
        self.taken += 1
        return Hello(uvicorn.Config(Hello), self.state, {}, asyncio.get_running_loop())


class Hello(HttpToolsProtocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.write(b"hello")
        transport.close()


class Exhausted(socket.socket):
    """Has no descriptor left for its first connection."""

    is_full = True

    def accept(self) -> tuple[socket.socket, object]:
        if self.is_full:
            self.is_full = False
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


@asynccontextmanager
async def on_one_port(count: int) -> AsyncIterator[tuple[int, list[Process]]]:
    async with AsyncExitStack() as opened:
        first = socket.create_server(("127.0.0.1", 0))
        processes = [Process(sock) for sock in [first, *(first.dup() for _ in range(count - 1))]]
        for process in processes:
            opened.callback(process.close)
        yield first.getsockname()[1], processes


async def greeting(port: int) -> bytes:
    async with asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        said = await reader.read()
        writer.close()
    return said


async def test_connections_that_come_together_are_shared() -> None:
    async with on_one_port(2) as (port, processes):
        assert await asyncio.gather(*(greeting(port) for _ in range(CLIENTS))) == [b"hello"] * CLIENTS
        taken = [process.taken for process in processes]
        assert sum(taken) == CLIENTS
        assert min(taken) >= CLIENTS // 4, f"one process had nearly all of them: {taken}"


async def test_whoever_has_closed_leaves_the_rest_to_the_others() -> None:
    async with on_one_port(2) as (port, (leaving, staying)):
        leaving.turns.close()
        assert await asyncio.gather(*(greeting(port) for _ in range(CLIENTS))) == [b"hello"] * CLIENTS
        assert (leaving.taken, staying.taken) == (0, CLIENTS)


async def test_who_has_many_leaves_most_of_the_new_ones_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "PAUSE_SECONDS", 0.05)
    async with on_one_port(2) as (port, (busy, idle)):
        busy.state.connections.update(busy.connection() for _ in range(sharing.COUNTED_MAX))
        busy.taken = 0
        assert await asyncio.gather(*(greeting(port) for _ in range(CLIENTS))) == [b"hello"] * CLIENTS
        assert idle.taken > 2 * busy.taken, (idle.taken, busy.taken)


async def test_one_who_closes_while_it_rests_does_not_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "PAUSE_SECONDS", 0.2)
    async with on_one_port(1) as (port, (leaving,)):
        assert await greeting(port) == b"hello"
        leaving.turns.close()
        with socket.create_connection(("127.0.0.1", port)):
            await asyncio.sleep(0.4)
            assert leaving.taken == 1


async def test_without_a_free_descriptor_it_waits_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "AFTER_FAILURE_SECONDS", 0.05)
    with Exhausted(socket.AF_INET, socket.SOCK_STREAM) as sock, structlog.testing.capture_logs() as logged:
        sock.bind(("127.0.0.1", 0))
        process = Process(sock)
        try:
            assert await greeting(sock.getsockname()[1]) == b"hello"
        finally:
            process.turns.close()
    assert [entry["event"] for entry in logged] == ["accept_failed"]
