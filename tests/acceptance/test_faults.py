"""Faults that a client can meet: PostgreSQL unreachable, a lock that is not granted, a process that stops or dies."""

import asyncio
import json
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


@pytest.mark.rule("CODE-15", "IDEM-07", "MONEY-05")
async def test_a_lock_that_is_not_granted_is_a_temporary_failure_of_that_account_only(
    tenant: Tenant, regular: Tenant
) -> None:
    key = tenant.new_key()
    before = await tenant.state()
    async with locked_account(tenant) as connection:
        stuck = asyncio.ensure_future(tenant.send(key=key))
        await lock_waits(connection)
        async with asyncio.timeout(HANG_SECONDS):
            await regular.accepts()
        answer = await stuck
    assert answer.is_refusal(503, "temporary_failure")
    assert int(answer.headers["Retry-After"]) >= 1
    assert await tenant.state() == before
    await tenant.accepts(key=key)


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


async def _answered(tenant: Tenant, key: str) -> Answer:
    """Accepted, once the first request with this key is over."""
    answer = await eventually(lambda: tenant.send(key=key), lambda answer: answer.code != "idempotency_in_progress")
    assert answer.is_accepted()
    return answer


@pytest.mark.rule("IDEM-03", "RESP-06")
async def test_a_client_that_disconnects_makes_at_most_one_message(service: Service, tenant: Tenant) -> None:
    keys = [tenant.new_key() for _ in range(20)]
    body = json.dumps(tenant.mail()).encode()
    for number, key in enumerate(keys):
        _, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(
            f"POST /emails HTTP/1.1\r\nHost: localhost\r\nAuthorization: {tenant.basic}\r\n"
            f"Idempotency-Key: {key}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await writer.drain()
        await asyncio.sleep(number * 0.0005)  # so that the server is at different points
        writer.transport.abort()
    for key in keys:
        await _answered(tenant, key)
    counts = await tenant.counts()
    assert (counts["messages"], counts["keys"], counts["reserved"]) == (20, 20, 20)


@pytest.mark.rule("IDEM-12")
async def test_a_crash_while_accepting_leaves_no_marker(
    service: Service, start_service: StartService, tenant: Tenant
) -> None:
    doomed = await start_service()
    key = tenant.new_key()
    await tenant.accepts(service=doomed)
    async with locked_account(tenant) as connection:
        first = asyncio.ensure_future(tenant.send(key=key, service=doomed))
        await lock_waits(connection)
        doomed.kill()
        (lost,) = await asyncio.gather(first, return_exceptions=True)
        assert isinstance(lost, Exception), "the killed process gave an answer"
    # PostgreSQL needs a moment to notice that the dead process's session has ended.
    answer = await _answered(tenant, key)
    assert "Idempotent-Replayed" not in answer.headers
    assert (await tenant.counts())["messages"] == 2
