"""An account floods intake with bodies of 200 KB or holds all it can: other accounts' mail and pages don't wait."""

import asyncio
import json

import pytest

from tests.attacks.neighbours import attack, measure, require_undisturbed
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.locks import lock_waits
from tests.support.server_process import ServerProcess
from tests.support.service import Service, Tenant

CONNECTIONS = 64
ORDINARY_RATE = (20, 40)

# Every connection sends its request again as soon as it has an answer.
FLOOD = """
import asyncio, sys, uuid
port, connections, head, body = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
body = body.replace("TEXT", "y" * int(sys.argv[5])).encode()
async def send_on():
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while True:
        key = f"Idempotency-Key: {uuid.uuid4().hex}\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n"
        writer.write(head.replace("|", "\\r\\n").encode() + key.encode() + body)
        size = 0
        while (line := await reader.readline()) not in (b"\\r\\n", b""):
            if line.lower().startswith(b"content-length:"):
                size = int(line.split(b":")[1])
        await reader.readexactly(size)
async def main():
    print("begun", flush=True)
    await asyncio.gather(*(send_on() for _ in range(connections)))
asyncio.run(main())
"""


def flood_of(http_process: ServerProcess, tenant: Tenant, text_bytes: int) -> list[str]:
    head = f"POST /emails HTTP/1.1|Host: x|Authorization: {tenant.basic}|Content-Type: application/json|"
    body = json.dumps(tenant.mail(text="TEXT", to="delivered@simulator.invalid"))
    return [FLOOD, str(http_process.port), str(CONNECTIONS), head, body, str(text_bytes)]


@pytest.mark.nightly
@pytest.mark.parametrize("text_bytes", [1_000, 200 * 1024])
async def test_a_flood_of_one_account_does_not_delay_the_mail_of_another(
    http_process: ServerProcess, service: Service, text_bytes: int
) -> None:
    noisy, victim = await service.account(credits=10**6, rate=ORDINARY_RATE), await service.account()
    await measure(victim.accepts, 10)
    alone = await measure(victim.accepts, 40)
    async with attack(*flood_of(http_process, noisy, text_bytes)):
        await measure(victim.accepts, 5)
        during = await measure(victim.accepts, 60)
    require_undisturbed(alone, during)


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
