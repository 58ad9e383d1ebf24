"""Several HTTP processes on one port: each gets connections, a dead process is replaced, a port in use is refused."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from starlette.types import Receive, Scope, Send

from tests.support.eventually import HANG_SECONDS, eventually
from tools.private_postgres import free_port

# The tests share the processes.
pytestmark = pytest.mark.asyncio(loop_scope="module")

PROCESSES = 2
# All of them reach the same process once in 2**39 times.
CONNECTIONS = 40
COMMAND = """
import sys
from posthouse.entrypoints.http.server import ServerOptions, serve
serve("tests.entrypoints.http.test_server:application", ServerOptions("127.0.0.1", int(sys.argv[1]), "", "info"), 2)
"""


def application() -> object:
    """Responds with the id of its process."""

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": f"{message['type']}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        body = str(os.getpid()).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    return respond


def start(port: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", COMMAND, str(port)], stderr=subprocess.DEVNULL)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def serving_port() -> AsyncIterator[int]:
    port = free_port()
    server = start(port)
    try:
        await eventually(lambda: responders(port), lambda pids: len(pids) == PROCESSES)
        yield port
    finally:
        server.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(server.wait, HANG_SECONDS) == 0


async def responder(port: int) -> int | None:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        response = await reader.read()
        writer.close()
    except ConnectionError:
        return None
    return int(response.partition(b"\r\n\r\n")[2]) if response else None


async def responders(port: int) -> set[int]:
    found = await asyncio.gather(*(responder(port) for _ in range(CONNECTIONS)))
    return {pid for pid in found if pid is not None}


async def test_connections_are_spread_over_the_processes(serving_port: int) -> None:
    assert len(await responders(serving_port)) == PROCESSES


async def test_a_dead_process_is_replaced_and_the_other_continues(serving_port: int) -> None:
    killed, other = await responders(serving_port)
    os.kill(killed, signal.SIGKILL)

    async def living() -> set[int]:
        return await responders(serving_port)

    replaced = await eventually(living, lambda pids: len(pids) == PROCESSES and killed not in pids)
    assert other in replaced


async def test_a_second_server_on_the_same_port_is_refused(serving_port: int) -> None:
    assert await asyncio.to_thread(start(serving_port).wait, HANG_SECONDS) != 0
