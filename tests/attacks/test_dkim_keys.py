"""A tenant adds and removes domains without end: another tenant's domains are still added."""

import asyncio
from collections import Counter

from tests.support.service import Service

WORKERS = 12
DOMAINS = 8


async def test_a_flood_of_new_domains_stops_no_other_account_from_adding_its_own(service: Service) -> None:
    attacker, victim = await service.account(domain=None), await service.account(domain=None)
    await attacker.jwt()
    statuses: Counter[int] = Counter()
    is_over = False

    async def flood(worker: int) -> None:
        number = 0
        while not is_over:
            number += 1
            name = f"d{worker}-{number}.example.org"
            answer = await attacker.call("POST", "/v1/domains", {"name": name})
            statuses[answer.status] += 1
            if answer.status == 201:
                await attacker.call("DELETE", f"/v1/domains/{name}")

    attack = [asyncio.create_task(flood(worker)) for worker in range(WORKERS)]
    added = [
        (await victim.call("POST", "/v1/domains", {"name": f"v{number}.example.org"})).status
        for number in range(DOMAINS)
    ]
    is_over = True
    await asyncio.gather(*attack)
    print(f"the attacker's answers: {dict(statuses)}; the victim's: {Counter(added)}")
    assert added == [201] * DOMAINS
