"""The order of refusals: which of several errors is returned."""

import asyncio

import pytest

from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.http_answer import Answer
from tests.support.service import ABSENT, Service, Tenant, basic

MIB = 1024 * 1024


async def suspended(tenant: Tenant) -> None:
    """Returns when the account is suspended in the service."""
    await tenant.service.operator.suspend(tenant.id)

    async def probe() -> Answer:
        return await tenant.send(authorization=await tenant.key("test"))

    await eventually(probe, lambda answer: answer.code == "account_suspended")


@pytest.mark.rule("ORDER-01")
async def test_the_credential_is_checked_before_the_body_is_sent(service: Service, regular: Tenant) -> None:
    wrong = basic(regular.username, "wrong")
    for length in (1_000, 17 * MIB):
        answer = await service.raw(
            f"POST /emails HTTP/1.1\r\nHost: localhost\r\nAuthorization: {wrong}\r\nIdempotency-Key: x\r\n"
            f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n".encode()
        )
        assert answer.is_refusal(401, "unauthorized")


@pytest.mark.rule("ORDER-01", "SIZE-01")
@pytest.mark.parametrize(
    ("is_known", "length", "status"), [(False, 100, b"401"), (True, 17 * MIB, b"413"), (True, 100, b"100")]
)
async def test_100_continue_is_sent_only_for_a_wanted_body(
    service: Service, regular: Tenant, is_known: bool, length: int, status: bytes
) -> None:
    """A client that expects `100 Continue` gets the refusal instead."""
    authorization = regular.basic if is_known else basic(regular.username, "wrong")
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    writer.write(
        f"POST /emails HTTP/1.1\r\nHost: localhost\r\nAuthorization: {authorization}\r\nIdempotency-Key: x\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\nExpect: 100-continue\r\n\r\n".encode()
    )
    assert (await asyncio.wait_for(reader.readline(), HANG_SECONDS)).split()[1] == status
    writer.close()


@pytest.mark.rule("ORDER-01")
@pytest.mark.parametrize(
    "sending", [{"data": b"{"}, {"key": ABSENT}, {"headers": {"Content-Type": "text/plain"}}, {"body": {"to": []}}]
)
async def test_the_credential_comes_before_everything_else(regular: Tenant, sending: dict[str, object]) -> None:
    wrong = basic(regular.username, "wrong")
    answer = await regular.send(authorization=wrong, **sending)  # type: ignore[arg-type]
    assert answer.is_refusal(401, "unauthorized")


@pytest.mark.rule("ORDER-03")
async def test_json_and_shape_come_before_the_key(regular: Tenant) -> None:
    key = regular.new_key()
    await regular.accepts(key=key)
    await regular.refuses(ABSENT, 400, "invalid_request", data=b"{", key=key)
    await regular.refuses(regular.mail(to=[]), 400, "invalid_request", key=key)
    await regular.refuses(regular.mail(unknown=1), 400, "invalid_request", key=key)


@pytest.mark.rule("ORDER-04", "ORDER-05", "IDEM-11")
async def test_a_replay_ignores_everything_that_came_after_it(service: Service) -> None:
    tenant = await service.account(credits=1, rate=(1, 1), warmup=(1,))
    await tenant.template("welcome", subject="Hello", text="Good morning.")
    key, body = tenant.new_key(), tenant.mail(text=ABSENT, template="welcome")
    first = await tenant.accepts(body, key=key)
    await tenant.call("DELETE", "/v1/templates/welcome")
    await service.sql("UPDATE domains SET verified_at = NULL WHERE account_id = $1", tenant.id)
    await suspended(tenant)
    before = await tenant.state()
    assert (before["available"], before["warmup_used"]) == (0, 1)
    for _ in range(3):
        again = await tenant.send(body, key=key)
        assert again.is_accepted()
        assert again.body["id"] == first["id"]
        other = await tenant.send(tenant.mail(subject="Other"), key=key)
        assert other.is_refusal(409, "idempotency_conflict")
    assert await tenant.state() == before
    await tenant.refuses(body, 403, "account_suspended")


@pytest.mark.rule("ORDER-06", "CODE-05")
async def test_suspension_comes_before_the_sender_domain(tenant: Tenant) -> None:
    await tenant.refuses(tenant.mail(from_="news@example.net"), 403, "forbidden")
    await suspended(tenant)
    await tenant.refuses(tenant.mail(from_="news@example.net"), 403, "account_suspended")


@pytest.mark.rule("CODE-05", "GET-06")
async def test_a_suspended_account_reads_and_can_be_resumed(tenant: Tenant) -> None:
    sent = await tenant.accepts()
    await suspended(tenant)
    await tenant.refuses(tenant.mail(), 403, "account_suspended")
    for authorization in (tenant.basic, await tenant.jwt(), await tenant.key(may_read=True)):
        assert (await tenant.get(sent["id"], authorization=authorization)).status == 200
    assert (await tenant.counts())["delivery_schedule"] == 1, "mail already queued is held, not dropped"
    await tenant.service.operator.resume(tenant.id)
    await eventually(tenant.send, lambda answer: answer.status == 202)


@pytest.mark.rule("ORDER-07")
async def test_the_sender_domain_comes_before_template_and_mime(tenant: Tenant) -> None:
    await tenant.template("huge", subject="x", text="{{ v }}" * 1_000)
    for alias in ("unknown", "huge"):
        body = tenant.mail(text=ABSENT, template=alias, variables={"v": "v" * 12_000})
        from_elsewhere = body | {"from": "news@example.net"}
        await tenant.refuses(from_elsewhere, 403, "forbidden", "example.net")
    await tenant.refuses(body, 413, "payload_too_large")


@pytest.mark.rule("ORDER-08")
async def test_template_and_mime_come_before_the_rate(service: Service) -> None:
    tenant = await service.account(rate=(1, 1))
    await tenant.use_up_rate()
    await tenant.refuses(tenant.mail(text=ABSENT, template="unknown"), 400, "invalid_request", "unknown")
    await tenant.refuses(tenant.mail(text="x" * (10 * MIB + 1)), 413, "payload_too_large")
    await tenant.refuses(tenant.mail(), 429, "rate_limited")


@pytest.mark.rule("ORDER-11")
async def test_a_failed_authentication_uses_up_no_rate(service: Service) -> None:
    tenant = await service.account(rate=(1, 2))
    for _ in range(5):
        answer = await tenant.send(authorization=basic(tenant.username, "wrong"))
        assert answer.is_refusal(401, "unauthorized")
    await tenant.accepts()
    await tenant.accepts()


@pytest.mark.rule("ORDER-12", "RATE-02", "IDEM-07")
async def test_a_refused_request_stores_nothing(service: Service) -> None:
    tenant = await service.account(credits=1, rate=(1, 2), warmup=(5,))
    many = [f"r{number}@example.org" for number in range(6)]
    key = tenant.new_key()
    refusals = [
        (tenant.mail(to=many), 429, "warmup_limited"),
        (tenant.mail(to=many[:2]), 402, "insufficient_credits"),
        (tenant.mail(from_="news@example.net"), 403, "forbidden"),
        (tenant.mail(text=ABSENT, template="unknown"), 400, "invalid_request"),
        (tenant.mail(to=[]), 400, "invalid_request"),
        (tenant.mail(text="x" * (10 * MIB + 1)), 413, "payload_too_large"),
    ]
    for body, status, code in refusals:
        await tenant.refuses(body, status, code, key=key)
    # The burst of two, the single credit and the key are all unused.
    await tenant.accepts(key=key)
    assert await tenant.available() == 0
    await tenant.refuses(tenant.mail(), 402, "insufficient_credits")
