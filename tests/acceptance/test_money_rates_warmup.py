"""Credits, the rate limit, and the warm-up of new accounts."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.service import Service, StartService, basic


def recipients(count: int) -> list[str]:
    return [f"r{number}@example.org" for number in range(count)]


def seconds_to_midnight() -> float:
    now = datetime.now(UTC)
    midnight = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    return (midnight - now).total_seconds()


@pytest.fixture(autouse=True)
def _not_across_midnight() -> None:
    """A test that begins before midnight must not end after it, even if the machine stands still for a minute."""
    if (left := seconds_to_midnight()) < 90:
        time.sleep(left + 1)


@pytest.mark.rule("MONEY-01", "MONEY-04", "MONEY-06")
async def test_acceptance_reserves_one_credit_per_unique_recipient(service: Service) -> None:
    tenant = await service.account(credits=100)
    left = 100
    for count in (1, 2, 50, 7):
        sent = await tenant.accepts(tenant.mail(to=recipients(count), cc=recipients(1)))
        assert (sent["credits_reserved"], sent["billing_status"]) == (count, "reserved")
        left -= count
        assert await tenant.available() == left
        counts = await tenant.counts()
        assert counts["granted"] - counts["reserved"] == left
    ledger = await service.sql("SELECT kind, amount FROM ledger WHERE account_id = $1 ORDER BY message_id", tenant.id)
    assert [(row["kind"], row["amount"]) for row in ledger] == [("reserve", count) for count in (1, 2, 50, 7)]


@pytest.mark.rule("MONEY-02", "CODE-03")
async def test_exactly_enough_credits_suffice(service: Service) -> None:
    tenant = await service.account(credits=3)
    await tenant.refuses(tenant.mail(to=recipients(4)), 402, "insufficient_credits", "4", "3")
    await tenant.accepts(tenant.mail(to=recipients(3)))
    assert await tenant.available() == 0
    await tenant.refuses(tenant.mail(), 402, "insufficient_credits")
    await service.operator.grant_credits(tenant.id, 1)
    await tenant.accepts()


@pytest.mark.rule("RATE-01", "RATE-02", "RATE-03", "CODE-11")
async def test_responses_have_rate_headers(service: Service) -> None:
    tenant = await service.account(rate=(1, 3))
    for remaining in (2, 1, 0):
        answer = await tenant.send()
        assert answer.is_accepted()
        assert answer.headers["RateLimit-Limit"] == "3"
        # More on a machine that stands still for a second.
        assert remaining <= int(answer.headers["RateLimit-Remaining"]) <= 2
        assert 1 <= int(answer.headers["RateLimit-Reset"]) <= 3
    await tenant.use_up_rate()
    answer = await tenant.send()
    assert answer.is_refusal(429, "rate_limited")
    assert (answer.headers["RateLimit-Limit"], answer.headers["RateLimit-Remaining"]) == ("3", "0")
    assert int(answer.headers["RateLimit-Reset"]) >= 1
    assert int(answer.headers["Retry-After"]) >= 1
    usual = await (await service.account(rate=None)).send()
    assert usual.headers["RateLimit-Limit"] == "40"


@pytest.mark.rule("RATE-04")
async def test_the_rate_is_per_account(service: Service) -> None:
    tenant, other = await service.account(rate=(1, 2)), await service.account(rate=(1, 2))
    second = await tenant.credential()
    for_second = basic(second.username, second.password)
    authorizations = (tenant.basic, for_second, await tenant.key(), await tenant.jwt())
    for authorization in authorizations:
        full_at = datetime.now(UTC)
        await tenant.set(rate_full_at=full_at)
        await tenant.accepts(authorization=authorization)
        assert (await tenant.state())["rate_full_at"] > full_at
    await tenant.use_up_rate()
    for authorization in authorizations:
        await tenant.refuses(tenant.mail(), 429, "rate_limited", authorization=authorization)
    await other.accepts()


@pytest.mark.rule("RATE-01", "RATE-05")
async def test_an_operator_sets_the_rate_of_the_whole_service(service: Service, start_service: StartService) -> None:
    strict = await start_service(LIMITS__RATE_PER_SECOND="1", LIMITS__RATE_BURST="2")
    tenant = await service.account(rate=None)
    sent = await tenant.send(service=strict)
    assert (sent.headers["RateLimit-Limit"], sent.headers["RateLimit-Remaining"]) == ("2", "1")
    accepted_at = await service.value("SELECT created_at FROM messages WHERE account_id = $1", tenant.id)
    taken = (await tenant.state())["rate_full_at"] - accepted_at
    assert abs(taken - timedelta(seconds=1)) < timedelta(milliseconds=1)
    await tenant.use_up_rate()
    await tenant.refuses(tenant.mail(), 429, "rate_limited", service=strict)


@pytest.mark.rule("WARM-02", "CODE-12")
async def test_a_message_fits_whole_or_is_refused_until_midnight(service: Service) -> None:
    tenant = await service.account(warmup=(10, 20))
    await tenant.accepts(tenant.mail(to=recipients(8)))
    at_first = seconds_to_midnight()
    answer = await tenant.refuses(tenant.mail(to=recipients(3)), 429, "warmup_limited")
    assert seconds_to_midnight() <= int(answer.headers["Retry-After"]) <= at_first + 1
    await tenant.accepts(tenant.mail(to=recipients(2), cc=recipients(1)))
    await tenant.refuses(tenant.mail(), 429, "warmup_limited")
    assert (await tenant.state())["warmup_used"] == 10


@pytest.mark.rule("WARM-05")
async def test_an_operator_switches_warm_up_off_for_all(service: Service, start_service: StartService) -> None:
    cold = await start_service(LIMITS__WARMUP_ENABLED="false")
    tenant = await service.account(warmup=None)
    today = datetime.now(UTC).date()
    await tenant.set(warmup_started_on=today, warmup_day=today, warmup_used=200)
    assert (await tenant.send()).is_refusal(429, "warmup_limited")
    await tenant.accepts(service=cold)


@pytest.mark.rule("MONEY-04")
async def test_the_ledger_balances_for_every_account(service: Service) -> None:
    """Over all mail so far: the available credits are the grants less the unreleased reserves, in every account."""
    rows = await service.sql(
        """SELECT a.id, a.available,
                  coalesce((SELECT sum(amount) FROM credit_grants g WHERE g.account_id = a.id), 0)
                  - coalesce((SELECT sum(CASE kind WHEN 'reserve' THEN amount WHEN 'release' THEN -amount ELSE 0 END)
                              FROM ledger l WHERE l.account_id = a.id), 0)
                  - coalesce((SELECT sum(reserved - released) FROM ledger_days d WHERE d.account_id = a.id), 0)
                  AS expected
           FROM accounts a"""
    )
    assert rows
    assert [row["id"] for row in rows if row["available"] != row["expected"]] == []


@pytest.mark.rule("RATE-07")
async def test_changes_of_an_account_have_their_own_rate(start_service: StartService) -> None:
    service = await start_service(LIMITS__WRITES_PER_SECOND="1", LIMITS__WRITES_BURST="3")
    tenant, other = await service.account(), await service.account()
    await tenant.jwt()
    # More at once than the rate allows in a minute, for a machine that stands still.
    calls = await asyncio.gather(*[tenant.call("DELETE", "/v1/templates/unknown") for _ in range(70)])
    refused = [answer for answer in calls if answer.status != 404]
    assert 1 <= len(refused) <= 67
    for answer in refused:
        assert answer.is_refusal(429, "rate_limited", "changes a second")
    assert (await tenant.call("GET", "/v1/templates")).status == 200
    assert (await tenant.send()).status == 202
    assert (await other.call("DELETE", "/v1/templates/unknown")).status == 404
