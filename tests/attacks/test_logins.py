"""Wrong logins without end from the address that all users share, behind a proxy that no setting names."""

import asyncio
from collections import Counter

import pytest

from tests.support.eventually import HANG_SECONDS
from tests.support.service import PASSWORD, Service

FORWARDED = {"X-Forwarded-For": "203.0.113.9"}
# Fewer than a network's share of the attempts in progress.
GUESSERS = 6
LOGINS = 8
# More than are available to a network.
FAILURES = 50


@pytest.mark.nightly
async def test_wrong_logins_from_a_shared_address_lock_no_user_out(service: Service) -> None:
    victim = await (await service.account()).user()
    statuses: Counter[int] = Counter()
    is_over = False
    has_failed = asyncio.Event()

    async def guess(name: str) -> None:
        number = 0
        while not is_over:
            number += 1
            body = {"email": f"{name}-{number}@example.com", "password": "a wrong password"}
            answer = await service.request("POST", "/v1/auth/login", json=body, headers=FORWARDED)
            statuses[answer.status] += 1
            if statuses[401] >= FAILURES:
                has_failed.set()

    attack = [asyncio.create_task(guess(f"g{number}")) for number in range(GUESSERS)]
    await asyncio.wait_for(has_failed.wait(), HANG_SECONDS)
    logins = [(await service.login(victim, PASSWORD)).status for _ in range(LOGINS)]
    is_over = True
    await asyncio.gather(*attack)
    print(f"the attacker's answers: {dict(statuses)}; the victim's: {Counter(logins)}")
    assert logins == [200] * LOGINS
    log = service.log.read_text()
    assert log.count("unnamed_proxy") == 1
    assert "http.trusted_proxies" in log
