"""Processes that share a port take turns with its connections."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager

import pytest
import structlog
import uvicorn
from uvicorn.server import ServerState

from posthouse.entrypoints.http import sharing
from posthouse.entrypoints.http.sharing import SharedConnection, Turns
from tests.support.service import eventually

CLIENTS = 20
CROWD = 60
PATIENCE_SECONDS = 10.0
HELLO = b"hello"


class Process:
    """One of several on a port, which counts what it was given, and says hello."""

    def __init__(self, sock: socket.socket) -> None:
        self.taken = 0
        self.state = ServerState()
        self.socket = sock
        self.turns = Turns(asyncio.get_running_loop(), self.connection, self.socket, CROWD)

    def close(self) -> None:
        self.turns.close()
        self.socket.close()

    async def connection_count(self) -> int:
        return len(self.state.connections)

    def connection(self) -> SharedConnection:
        self.taken += 1
        return Hello(uvicorn.Config(Hello), self.state, {}, asyncio.get_running_loop())


class Hello(SharedConnection):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.write(HELLO)


class Exhausted(socket.socket):
    """Has no descriptor left as long as it is full."""

    is_full = False

    def accept(self) -> tuple[socket.socket, object]:
        if self.is_full:
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


@asynccontextmanager
async def greeted(port: int, times: int = 1) -> AsyncIterator[None]:
    """So many clients who came together, were all greeted, and stay."""
    async with asyncio.timeout(PATIENCE_SECONDS), AsyncExitStack() as opened:
        lines = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", port) for _ in range(times)))
        for _, writer in lines:
            opened.callback(writer.close)
        assert await asyncio.gather(*(reader.readexactly(len(HELLO)) for reader, _ in lines)) == [HELLO] * times
        yield


async def test_connections_that_come_together_are_shared() -> None:
    async with on_one_port(2) as (port, processes), greeted(port, CLIENTS):
        taken = [process.taken for process in processes]
        assert sum(taken) == CLIENTS
        assert min(taken) >= CLIENTS // 4, f"one process had nearly all of them: {taken}"


async def test_whoever_has_closed_leaves_the_rest_to_the_others() -> None:
    async with on_one_port(2) as (port, (leaving, staying)):
        leaving.turns.close()
        async with greeted(port, CLIENTS):
            assert (leaving.taken, staying.taken) == (0, CLIENTS)


async def test_who_has_many_leaves_most_of_the_new_ones_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "PAUSE_SECONDS", 0.2)
    async with on_one_port(2) as (port, (busy, idle)):
        busy.state.connections.update(busy.connection() for _ in range(sharing.COUNTED_MAX))
        busy.taken = 0
        async with greeted(port, 3):
            assert (busy.taken, idle.taken) == (1, 2)


async def test_when_one_is_over_the_next_is_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "PAUSE_SECONDS", PATIENCE_SECONDS)
    async with on_one_port(1) as (port, (only,)):
        for _ in range(CLIENTS):
            async with greeted(port):
                pass
        assert only.taken == CLIENTS


@pytest.mark.parametrize(("replaced_seconds_max", "taken_at_once"), [(PATIENCE_SECONDS, 2), (0.0, 1)])
async def test_one_that_ended_lets_one_more_in_and_is_forgotten_soon(
    monkeypatch: pytest.MonkeyPatch, replaced_seconds_max: float, taken_at_once: int
) -> None:
    monkeypatch.setattr(sharing, "PAUSE_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(sharing, "REPLACED_SECONDS_MAX", replaced_seconds_max)
    async with on_one_port(1) as (port, (only,)):
        async with greeted(port):
            pass
        await eventually(only.connection_count, lambda count: count == 0)
        with ExitStack() as opened:
            for _ in range(CLIENTS):
                opened.enter_context(socket.create_connection(("127.0.0.1", port)))
            await asyncio.sleep(0.2)
            assert only.taken == 1 + taken_at_once


async def test_a_crowd_is_let_in_by_ever_more_and_whoever_comes_later_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sharing, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(sharing, "SINGLE_TURNS", 2)
    async with on_one_port(1) as (port, (only,)), greeted(port, CROWD):
        await asyncio.sleep(0.05 * sharing.COUNTED_MAX * 2)  # until it has seen that nobody waits
        monkeypatch.setattr(sharing, "PAUSE_SECONDS", PATIENCE_SECONDS)
        with ExitStack() as opened:
            for _ in range(CLIENTS):
                opened.enter_context(socket.create_connection(("127.0.0.1", port)))
            await asyncio.sleep(0.2)
            assert only.taken == CROWD + 1


async def test_one_who_closes_while_it_rests_does_not_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "PAUSE_SECONDS", 0.2)
    async with on_one_port(1) as (port, (leaving,)):
        async with greeted(port):
            leaving.turns.close()
        with socket.create_connection(("127.0.0.1", port)):
            await asyncio.sleep(0.4)
            assert leaving.taken == 1


async def test_without_a_free_descriptor_it_waits_whoever_leaves_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "AFTER_FAILURE_SECONDS", 0.5)
    with Exhausted(socket.AF_INET, socket.SOCK_STREAM) as sock, structlog.testing.capture_logs() as logged:
        sock.bind(("127.0.0.1", 0))
        process = Process(sock)
        try:
            async with greeted(sock.getsockname()[1]):
                sock.is_full = True
                waiting = asyncio.create_task(_greet(sock.getsockname()[1]))
                await eventually(process.connection_count, lambda _: bool(logged))
            await eventually(process.connection_count, lambda count: count == 0)
            sock.is_full = False
            await waiting
        finally:
            process.turns.close()
    assert [entry["event"] for entry in logged] == ["accept_failed"]


async def _greet(port: int) -> None:
    async with greeted(port):
        pass
