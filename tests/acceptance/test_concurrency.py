"""Concurrent requests: credits, keys and batches, in one process and in two."""

import asyncio
import json
from collections import Counter

import pytest

from tests.support.eventually import eventually
from tests.support.http_answer import Answer
from tests.support.locks import briefly_locked_account, lock_waits, locked_account
from tests.support.service import ABSENT, Service, StartService, Tenant

# Two servers and many clients need the machine to themselves.


def recipients(count: int) -> list[str]:
    return [f"r{number}@example.org" for number in range(count)]


async def answered(tenant: Tenant, key: str) -> Answer:
    """Accepted, once the first request with this key is over."""
    answer = await eventually(lambda: tenant.send(key=key), lambda answer: answer.code != "idempotency_in_progress")
    assert answer.is_accepted()
    return answer


@pytest.mark.rule("MONEY-03", "MONEY-04", "CODE-03")
@pytest.mark.parametrize("processes", [1, 2])
async def test_64_concurrent_sends_on_10_credits_are_10_acceptances(
    service: Service, another: Service, processes: int
) -> None:
    others = [service, another]
    tenant = await service.account(credits=10)
    answers = await asyncio.gather(*[tenant.send(service=others[n % processes]) for n in range(64)])
    assert Counter((answer.status, answer.code) for answer in answers if answer.status != 202) == {
        (402, "insufficient_credits"): 54
    }
    assert len({answer.body["id"] for answer in answers if answer.status == 202}) == 10
    assert await tenant.available() == 0
    counts = await tenant.counts()
    expected = {"messages": 10, "recipients": 10, "bodies": 10, "delivery_schedule": 10, "keys": 10, "reserved": 10}
    assert counts == expected | {"granted": 10}


@pytest.mark.rule("IDEM-13", "IDEM-06", "MONEY-01")
async def test_200_requests_with_one_key_over_two_processes_make_one_message(
    service: Service, another: Service, tenant: Tenant
) -> None:
    key = tenant.new_key()
    body = tenant.mail(to=recipients(3))
    answers = await asyncio.gather(
        *[tenant.send(body, key=key, service=(service, another)[number % 2]) for number in range(200)]
    )
    for answer in answers:
        if answer.status != 202:
            assert answer.is_refusal(409, "idempotency_in_progress")
            assert answer.headers["Retry-After"] == "1"
    accepted = [answer for answer in answers if answer.status == 202]
    assert len({answer.body["id"] for answer in accepted}) == 1
    assert sum("Idempotent-Replayed" not in answer.headers for answer in accepted) == 1
    counts = await tenant.counts()
    assert (counts["messages"], counts["recipients"], counts["keys"], counts["reserved"]) == (1, 3, 1, 3)
    assert await tenant.available() == 997
    again = await tenant.accepts(body, key=key, service=another)
    assert again["id"] == accepted[0].body["id"]


@pytest.mark.rule("MONEY-05", "ORDER-12", "IDEM-06")
async def test_a_mixed_batch_is_decided_item_by_item(service: Service, tenant: Tenant) -> None:
    poor = await service.account(credits=1)
    slow = await service.account(rate=(1, 1))
    await slow.use_up_rate()
    cold = await service.account(warmup=(1,))
    used, other_used = tenant.new_key(), tenant.new_key()
    replayed = await tenant.accepts(key=used)
    await tenant.accepts(key=other_used)
    free = await poor.key("test")
    repeated = tenant.new_key()
    async with briefly_locked_account(tenant):
        first = asyncio.ensure_future(tenant.send())
        await lock_waits(service.pool, unless=first)
        requests = {
            "plain": tenant.send(),
            "replay": tenant.send(key=used),
            "other body": tenant.send(tenant.mail(subject="Other"), key=other_used),
            "one key": tenant.send(key=repeated),
            "one key again": tenant.send(key=repeated),
            "other domain": tenant.send(tenant.mail(from_="news@unregistered.example")),
            "no template": tenant.send(tenant.mail(text=ABSENT, template="unknown")),
            "no address": tenant.send(tenant.mail(to="nobody")),
            "poor": poor.send(),
            "too poor": poor.send(poor.mail(to=recipients(2))),
            "free": poor.send(poor.mail(to=recipients(2)), authorization=free),
            "slow": slow.send(),
            "cold": cold.send(),
            "too cold": cold.send(cold.mail(to=recipients(2))),
        }
        tasks = {name: asyncio.ensure_future(request) for name, request in requests.items()}
    assert (await first).is_accepted()
    answers = {name: await task for name, task in tasks.items()}
    outcome = {name: answer.code or answer.status for name, answer in answers.items()}
    once = sorted(str(outcome.pop(name)) for name in ("one key", "one key again"))
    # The second may come when the first is over.
    assert once in (["202", "idempotency_in_progress"], ["202", "202"])
    assert outcome == {
        "plain": 202,
        "replay": 202,
        "other body": "idempotency_conflict",
        "other domain": "forbidden",
        "no template": "invalid_request",
        "no address": "invalid_request",
        "poor": 202,
        "too poor": "insufficient_credits",
        "free": 202,
        "slow": "rate_limited",
        "cold": 202,
        "too cold": "warmup_limited",
    }
    assert answers["replay"].body["id"] == replayed["id"]
    assert (await tenant.counts())["messages"] == 5
    assert await tenant.available() == 1_000 - 5
    assert ((await poor.counts())["messages"], await poor.available()) == (2, 0)
    assert ((await slow.counts())["messages"], (await cold.counts())["messages"]) == (0, 1)


@pytest.mark.rule("MONEY-04", "MONEY-05")
async def test_many_accounts_over_two_processes_keep_balanced_ledgers(service: Service, another: Service) -> None:
    tenants = [await service.account(credits=20) for _ in range(6)]
    requests = [
        tenant.send(tenant.mail(to=recipients(count)), service=(service, another)[(number + count) % 2])
        for number in range(6)
        for count in (1, 7, 2, 5, 3)
        for tenant in (tenants if number % 2 else reversed(tenants))
    ]
    answers = await asyncio.gather(*requests)
    assert {answer.status for answer in answers} <= {202, 402}
    for tenant in tenants:
        counts = await tenant.counts()
        assert counts["granted"] - counts["reserved"] == await tenant.available() >= 0
        assert counts["recipients"] == counts["delivery_schedule"] == counts["reserved"]
        assert counts["messages"] == counts["bodies"] == counts["keys"]
        assert await tenant.available() == 0, "the smallest that was refused would have fitted"


@pytest.mark.rule("IDEM-10", "IDEM-13")
async def test_an_expired_key_is_used_once_by_many(service: Service, another: Service, tenant: Tenant) -> None:
    key = tenant.new_key()
    old = await tenant.accepts(key=key)
    await service.sql("UPDATE idempotency SET expires_at = now() - interval '1 second' WHERE key = $1", key)
    body = tenant.mail(subject="Other")
    answers = await asyncio.gather(
        *[tenant.send(body, key=key, service=(service, another)[number % 2]) for number in range(40)]
    )
    accepted = {answer.body["id"] for answer in answers if answer.status == 202}
    assert len(accepted) == 1
    assert old["id"] not in accepted
    assert {answer.code for answer in answers if answer.status != 202} <= {"idempotency_in_progress"}
    counts = await tenant.counts()
    assert (counts["messages"], counts["keys"], counts["reserved"]) == (2, 1, 2)


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
        await answered(tenant, key)
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
    answer = await answered(tenant, key)
    assert "Idempotent-Replayed" not in answer.headers
    assert (await tenant.counts())["messages"] == 2
