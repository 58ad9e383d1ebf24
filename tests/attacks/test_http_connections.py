"""Connections that send nothing: an address has only its share of them, and clients at other addresses are served."""

import asyncio

import pytest

from tests.support.eventually import eventually
from tests.support.server_process import ServerProcess
from tests.support.service import Service

CONNECTIONS_MAX = 200
NOISY = "127.0.0.9"


@pytest.fixture
def http_process_settings() -> dict[str, str]:
    return {"HTTP__CONNECTIONS_MAX": str(CONNECTIONS_MAX)}


async def status_for_noisy(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(NOISY, 0))
    try:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        return (await reader.readline()).split(b" ")[1]
    finally:
        writer.transport.abort()


async def test_idle_connections_of_an_address_leave_some_for_others(
    http_process: ServerProcess, service: Service
) -> None:
    tenant = await service.account()
    await tenant.accepts()
    idle = [
        await asyncio.open_connection("127.0.0.1", http_process.port, local_addr=(NOISY, 0))
        for _ in range(CONNECTIONS_MAX)
    ]
    try:
        reads = [asyncio.create_task(reader.read()) for reader, _ in idle]
        done = await eventually(
            lambda: [read for read in reads if read.done()], lambda done: len(done) >= CONNECTIONS_MAX * 0.2
        )
        refused = [read.result() for read in done]
        assert len(refused) < CONNECTIONS_MAX
        assert all(answer.startswith(b"HTTP/1.1 503 ") and b"Retry-After" in answer for answer in refused)
        await asyncio.gather(*(tenant.accepts() for _ in range(10)))
    finally:
        for _, writer in idle:
            writer.transport.abort()
    # What the address had is free again once its connections are gone.
    await eventually(lambda: status_for_noisy(http_process.port), lambda status: status == b"200")
