"""A tenant stores template versions as fast as it can: neither the disk nor its neighbours notice."""

import asyncio
import random
import string
from collections import Counter

import pytest

from tests.support.service import Service

SECONDS = 2.0
# Far below what the machine can do, however busy it is.
PER_SECOND, BURST = 2, 12


@pytest.fixture
def http_process_settings() -> dict[str, str]:
    return {"LIMITS__WRITES_PER_SECOND": str(PER_SECOND), "LIMITS__WRITES_BURST": str(BURST)}


async def test_a_flood_of_template_versions_stays_within_the_accounts_limits(service: Service) -> None:
    attacker, victim = await service.account(), await service.account()
    text = "".join(random.Random(7).choices(string.ascii_letters + string.digits, k=260_000))
    await attacker.template("flood", text=text, html=text)
    statuses: Counter[int] = Counter()
    loop = asyncio.get_running_loop()
    until = loop.time() + SECONDS

    async def flood() -> None:
        while loop.time() < until:
            answer = await attacker.call("POST", "/v1/templates/flood/versions", {"text": text, "html": text})
            statuses[answer.status] += 1

    attack = [asyncio.create_task(flood()) for _ in range(4)]
    for number in range(10):
        await victim.template(f"t{number}", text="Good morning.")
    await asyncio.gather(*attack)
    print(f"the attacker's answers in {SECONDS:.0f} s: {dict(statuses)}")
    assert statuses[429] > 0
    assert statuses[201] <= BURST + PER_SECOND * (SECONDS + 1)
