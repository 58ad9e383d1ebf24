"""An account holds all that it can of what requests share: other accounts' mail doesn't wait."""

import asyncio

from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.locks import lock_waits
from tests.support.server_process import ServerProcess
from tests.support.service import Service


async def test_bodies_that_never_come_take_no_memory_from_other_accounts(
    http_process: ServerProcess, service: Service
) -> None:
    noisy, victim = await service.account(), await service.account()
    head = f"POST /emails HTTP/1.1\r\nHost: x\r\nAuthorization: {noisy.basic}\r\nIdempotency-Key: k\r\n"
    head += "Content-Type: application/json\r\nContent-Length: 16000000\r\n\r\n"
    connections = []
    for _ in range(40):
        connections.append(await asyncio.open_connection("127.0.0.1", http_process.port))
        connections[-1][1].write(head.encode())
    try:
        # Those above the account's share are refused immediately; the others wait for their bodies.
        reads = [asyncio.create_task(reader.readline()) for reader, _ in connections]
        refused = await eventually(
            lambda: [read.result() for read in reads if read.done()], lambda answers: len(answers) >= 30
        )
        assert all(answer.startswith(b"HTTP/1.1 503 ") for answer in refused)
        await asyncio.gather(*(victim.accepts(victim.mail(text="x" * 1_000_000)) for _ in range(2)))
    finally:
        for _, writer in connections:
            writer.transport.abort()


async def test_slow_requests_under_v1_leave_connections_to_the_database_for_mail(
    http_process: ServerProcess, service: Service
) -> None:
    tenant = await service.account()
    authorization = await tenant.jwt()
    await tenant.accepts()
    async with service.pool.acquire() as connection, connection.transaction():
        await connection.execute("LOCK TABLE templates IN ACCESS EXCLUSIVE MODE")
        waiting = [asyncio.create_task(tenant.call("GET", "/v1/templates")) for _ in range(30)]
        await lock_waits(connection, 2)
        async with asyncio.timeout(HANG_SECONDS):
            for _ in range(10):
                await tenant.accepts()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    assert authorization
