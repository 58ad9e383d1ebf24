"""Behind nginx and Caddy the service sees its clients' addresses, and limits and time-outs are the same as without."""

import asyncio
import base64
import io
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.deploy.proxies import CADDY, NGINX, Proxy, running
from tests.support import server_process
from tests.support.eventually import HANG_SECONDS
from tests.support.service import Service, Tenant, basic

pytestmark = [pytest.mark.nightly, pytest.mark.asyncio(loop_scope="module")]

MIB = 1024 * 1024
ALLOWED, FORBIDDEN = "127.0.0.7", "127.0.0.8"
# How long a request may wait for a message.
WAIT_SECONDS = 25.0


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.raw)
        return parsed


@dataclass(frozen=True, slots=True)
class Front:
    proxy: Proxy
    tenant: Tenant

    async def send(self, body: bytes, *, authorization: str = "", address: str = ALLOWED, **headers: str) -> Answer:
        given = {
            "Authorization": authorization or self.tenant.basic,
            "Idempotency-Key": self.tenant.new_key(),
            "Content-Type": "application/json",
            **headers,
        }
        connector = aiohttp.TCPConnector(local_addr=(address, 0), ssl=self.proxy.trusting)
        async with (
            aiohttp.ClientSession(connector=connector) as client,
            client.post(f"{self.proxy.url}/emails", data=io.BytesIO(body), headers=given) as response,
        ):
            return Answer(response.status, await response.read())

    def mail(self, **changes: object) -> bytes:
        return json.dumps(self.tenant.mail(**changes)).encode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    log = tmp_path_factory.mktemp("service") / "server.log"
    running_service = await server_process.start_service(
        await asyncio.to_thread(new_database), log, HTTP__TRUSTED_PROXIES="127.0.0.1"
    )
    try:
        yield running_service
    finally:
        await running_service.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[NGINX, CADDY])
async def front(
    request: pytest.FixtureRequest, service: Service, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Front]:
    name: str = request.param
    directory: Path = tmp_path_factory.mktemp(name)
    async with running(name, service.port, directory) as proxy:
        yield Front(proxy, await service.account())


async def test_an_allow_list_uses_the_clients_address(front: Front) -> None:
    made = await front.tenant.credential([f"{ALLOWED}/32"])
    authorization = basic(made.username, made.password)
    accepted = await front.send(front.mail(), authorization=authorization)
    refused = await front.send(front.mail(), authorization=authorization, address=FORBIDDEN)
    assert (accepted.status, refused.status) == (202, 403), (accepted.raw, refused.raw)


@pytest.mark.parametrize("field", ["X-Forwarded-For", "X-Real-IP", "Forwarded", "X-Client-IP"])
async def test_a_client_cannot_choose_its_address(front: Front, field: str) -> None:
    made = await front.tenant.credential([f"{ALLOWED}/32"])
    for claimed in (ALLOWED, f"{ALLOWED}, 127.0.0.1", f"for={ALLOWED}"):
        refused = await front.send(
            front.mail(), authorization=basic(made.username, made.password), address=FORBIDDEN, **{field: claimed}
        )
        assert refused.status == 403, (claimed, refused.raw)


async def test_the_largest_message_passes(front: Front) -> None:
    content = base64.b64encode(os.urandom(7 * MIB)).decode()
    body = front.mail(attachments=[{"filename": "large.bin", "content": content}])
    assert len(body) > 9 * MIB
    accepted = await front.send(body)
    assert accepted.status == 202, accepted.raw


async def test_a_body_over_the_limit_gets_the_services_own_answer(front: Front) -> None:
    refused = await front.send(front.mail(text="x" * 17 * MIB))
    assert refused.status == 413
    assert refused.body["code"] == "payload_too_large"


async def test_a_wrong_credential_with_a_large_body_gets_its_answer(front: Front) -> None:
    refused = await front.send(front.mail(text="x" * 8 * MIB), authorization="Bearer ph_live_wrong")
    assert refused.status == 401
    assert refused.body["code"] == "unauthorized"


async def test_slow_clients_are_cut_off_while_others_are_served(front: Front) -> None:
    started = time.monotonic()
    head = f"POST /emails HTTP/1.1\r\nHost: localhost\r\nAuthorization: {front.tenant.basic}\r\n"
    length = "Content-Type: application/json\r\nIdempotency-Key: slow\r\nContent-Length: 1000\r\n\r\n{"
    connections = [await _connected(front.proxy) for _ in range(2)]
    connections[0][1].write(head.encode())
    connections[1][1].write((head + length).encode())
    assert (await front.send(front.mail())).status == 202
    for reader, writer in connections:
        answer = await asyncio.wait_for(reader.read(), HANG_SECONDS)
        writer.close()
        assert not answer or int(answer.split()[1]) in (400, 408, 503), answer
    assert time.monotonic() - started > 15


async def test_a_request_may_wait_25_seconds_for_a_message(front: Front) -> None:
    started = time.monotonic()
    headers = {"Authorization": await front.tenant.key(mode="test", may_read=True)}
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=front.proxy.trusting)) as client,
        client.get(f"{front.proxy.url}/v1/messages/next?recipient=a@example.org", headers=headers) as response,
    ):
        answer = Answer(response.status, await response.read())
    assert (answer.status, answer.body["code"]) == (404, "not_found")
    assert time.monotonic() - started >= WAIT_SECONDS


async def _connected(proxy: Proxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("localhost", proxy.port, ssl=proxy.trusting)
