"""A tenant with much to send at once: what costs the service work is counted in recipients, and limited to a share."""

import asyncio
import time
from collections import Counter

import pytest

from posthouse.rules import limits
from tests.support.http_answer import Answer
from tests.support.service import Service, Tenant

# A tenth of the limit for test mail.
STORED_BYTES = 100 * limits.MIB


@pytest.fixture
def http_process_settings() -> dict[str, str]:
    return {
        "LIMITS__STORED_BYTES_PER_DAY": str(STORED_BYTES),
        "LIMITS__RATE_PER_SECOND": "20",
        "LIMITS__RATE_BURST": "40",
    }


async def send_batch(tenant: Tenant, authorization: str, emails: int, *, is_all: bool = False) -> Answer:
    """To 50 recipients each."""
    to = [f"r{number}@example.org" for number in range(limits.RECIPIENTS_MAX)]
    return await tenant.service.request(
        "POST",
        "/emails/batch",
        headers={"Authorization": authorization, "Idempotency-Key": tenant.new_key()},
        json={"emails": [tenant.mail(to=to) for _ in range(emails)], "all": is_all},
    )


async def transaction_sizes(tenant: Tenant) -> list[int]:
    """How many of the tenant's recipients each transaction wrote."""
    rows = await tenant.service.sql(
        "SELECT count(*) FROM recipients WHERE account_id = $1 GROUP BY xmin::text", tenant.id
    )
    return sorted(row["count"] for row in rows)


@pytest.mark.rule("RATE-08")
async def test_batches_of_test_mail_are_paced_by_their_recipients(service: Service) -> None:
    attacker, victim = await service.account(credits=0, rate=None), await service.account(rate=None)
    key = await attacker.key("test")
    codes: Counter[str] = Counter()
    began = time.monotonic()
    for _ in range(5):
        answer = await send_batch(attacker, key, 20)
        if answer.status == 200:
            codes.update(result.get("code", "accepted") for result in answer.body["results"])
        else:
            codes[str(answer.code)] += 20
            assert int(answer.headers["Retry-After"]) >= 1
        await victim.accepts(victim.mail(to=[f"v{number}@example.org" for number in range(50)]))
    seconds = time.monotonic() - began
    per_second = limits.RATE_PER_SECOND * limits.RECIPIENTS_PER_REQUEST / limits.TEST_RECIPIENT_WEIGHT
    assert set(codes) <= {"accepted", "rate_limited"}
    assert 20 <= codes["accepted"] <= 20 + (per_second * seconds) // limits.RECIPIENTS_MAX + 1


@pytest.mark.rule("BAT-08")
async def test_a_batch_is_written_in_pieces_unless_it_is_all_or_none(service: Service) -> None:
    in_pieces, whole = await service.account(credits=1_000), await service.account(credits=1_000)
    assert (await send_batch(in_pieces, in_pieces.basic, 20)).status == 200
    assert (await send_batch(whole, whole.basic, 20, is_all=True)).status == 200
    assert await transaction_sizes(whole) == [1_000]
    sizes = await transaction_sizes(in_pieces)
    assert sum(sizes) == 1_000
    assert max(sizes) <= limits.GROUP_COMMIT_RECIPIENTS_MAX


async def test_messages_to_many_recipients_fill_a_group_commit_sooner(service: Service) -> None:
    tenant = await service.account(credits=2_000)
    to = [f"r{number}@example.org" for number in range(limits.RECIPIENTS_MAX)]
    await asyncio.gather(*(tenant.accepts(tenant.mail(to=to)) for _ in range(40)))
    assert max(await transaction_sizes(tenant)) <= limits.GROUP_COMMIT_RECIPIENTS_MAX


@pytest.mark.rule("RATE-09")
async def test_an_account_stores_a_bounded_number_of_bytes_a_day(service: Service) -> None:
    attacker, other = await service.account(credits=100, rate=None), await service.account(rate=None)
    test_key = await attacker.key("test")
    mail = attacker.mail(text="x" * 4 * limits.MIB)
    for _ in range(2):
        await attacker.accepts(mail, authorization=test_key)
    refused = await attacker.refuses(mail, 429, "rate_limited", "10 MiB of test email", authorization=test_key)
    assert 1 <= int(refused.headers["Retry-After"]) <= 24 * 3600
    # Neither its own live mail is stopped by that, nor another account's.
    await attacker.accepts(mail)
    await other.accepts(mail | {"from": f"news@{other.domain}"})
    await attacker.set(stored_bytes=STORED_BYTES - limits.MIB)
    await attacker.refuses(mail, 429, "rate_limited", "100 MiB of email")
    await attacker.accepts()
