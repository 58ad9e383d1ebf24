"""Faults that a client can meet: PostgreSQL unreachable, a lock that is not granted, a stopping process."""

import asyncio
import signal

import pytest

from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.http_answer import Answer
from tests.support.locks import lock_waits, locked_account
from tests.support.service import Service, StartService, Tenant
from tests.support.smtp_listeners import is_listening
from tests.support.tcp_proxy import DatabaseProxy


@pytest.mark.rule("CODE-14")
async def test_without_postgresql_the_service_is_unavailable_and_comes_back(
    service: Service, start_service: StartService, tenant: Tenant
) -> None:
    relay = DatabaseProxy(service.database_url)
    await relay.restore()
    another = await start_service(relay.url, _DIRECT_URL=service.database_url)
    token = await tenant.jwt()
    sent = await tenant.accepts(service=another)
    key = tenant.new_key()
    before = await tenant.state()
    await relay.cut()

    async def read() -> Answer:
        return await another.request("GET", f"/emails/{sent['id']}", headers={"Authorization": tenant.basic})

    async with asyncio.timeout(HANG_SECONDS):
        for answer in (
            await tenant.send(key=key, service=another),
            await tenant.send(key=key, service=another),
            await read(),
            await another.request("GET", "/v1/templates", headers={"Authorization": token}),
            await another.login("nobody@example.net", "a long password"),
        ):
            assert answer.is_refusal(503, "service_unavailable")
            assert int(answer.headers["Retry-After"]) >= 1
    await relay.restore()

    async def send() -> Answer:
        return await tenant.send(key=key, service=another)

    assert await tenant.state() == before
    answer = await eventually(send, lambda seen: seen.status == 202)
    assert "Idempotent-Replayed" not in answer.headers
    assert (await read()).status == 200
    assert (await tenant.counts())["messages"] == 2
    await another.stop()
    await relay.cut()


@pytest.mark.rule("CODE-15", "IDEM-07")
async def test_a_lock_that_is_not_granted_is_a_temporary_failure(tenant: Tenant, regular: Tenant) -> None:
    key = tenant.new_key()
    before = await tenant.state()
    async with locked_account(tenant):
        answer, neighbour = await asyncio.gather(tenant.send(key=key), regular.send())
    assert answer.is_refusal(503, "temporary_failure")
    assert int(answer.headers["Retry-After"]) >= 1
    assert neighbour.status in {202, 503}
    assert await tenant.state() == before
    await tenant.accepts(key=key)


@pytest.mark.rule("CODE-15", "MONEY-05")
async def test_another_account_is_served_while_an_account_is_locked(tenant: Tenant, regular: Tenant) -> None:
    async with locked_account(tenant) as connection:
        stuck = asyncio.ensure_future(tenant.send())
        await lock_waits(connection)
        async with asyncio.timeout(HANG_SECONDS):
            await regular.accepts()
        assert (await stuck).is_refusal(503, "temporary_failure")


@pytest.mark.rule("CODE-16")
async def test_a_stopping_process_answers_what_it_is_accepting(
    service: Service, start_service: StartService, tenant: Tenant
) -> None:
    another = await start_service()
    await tenant.accepts(service=another)
    async with locked_account(tenant) as connection:
        accepting = asyncio.ensure_future(tenant.send(service=another))
        await lock_waits(connection)
        another.process.send_signal(signal.SIGTERM)
        await eventually(lambda: is_listening(another.port), lambda is_open: not is_open)
    assert (await accepting).is_accepted()
    # A stopped server may exit with the signal's status.
    assert await another.ended() in {0, -signal.SIGTERM}
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", another.port)
    assert (await tenant.counts())["messages"] == 2
