"""A tenant with hundreds of thousands of revoked keys creates more: its neighbour's mail is not delayed."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.service import Service, Tenant

REVOKED = 300_000
# The limit for a neighbour's POST: this many times what it takes when the same tenant has no revoked keys, or a time
# that no customer notices.
SLOWER_MAX = 2
UNNOTICED_SECONDS = 0.05

_REVOKED_KEYS = """
INSERT INTO api_keys (account_id, id, credential_id, secret_hash, hint, name, mode, created_at, revoked_at)
SELECT $1, gen_random_uuid(), $2, 'revoked'::bytea || n::text::bytea, 'ph_live_…', 'x', 'live', now(), now()
FROM generate_series(1, $3) n
"""


async def median_seconds(tenant: Tenant, count: int) -> float:
    taken = []
    for _ in range(count):
        started = time.monotonic()
        await tenant.accepts(tenant.mail(to="delivered@simulator.invalid"))
        taken.append(time.monotonic() - started)
    return statistics.median(taken)


@asynccontextmanager
async def busy(attacker: Tenant) -> AsyncIterator[None]:
    """Meanwhile the tenant creates keys and sends mail as fast as it can."""
    is_over = False

    async def create_keys() -> None:
        while not is_over:
            await attacker.call("POST", "/v1/keys", {"name": "x"})

    async def send() -> None:
        while not is_over:
            await attacker.send(attacker.mail(to="delivered@simulator.invalid"))

    attack = [asyncio.create_task(work()) for work in (create_keys, create_keys, create_keys, send)]
    try:
        yield
    finally:
        is_over = True
        await asyncio.gather(*attack)


@pytest.mark.nightly
async def test_revoked_keys_delay_no_neighbour(service: Service) -> None:
    victim, attacker = await service.account(), await service.account(credits=100_000)
    await attacker.jwt()
    async with busy(attacker):
        before = await median_seconds(victim, 60)
    await service.sql(_REVOKED_KEYS, attacker.id, attacker.credential_id, REVOKED)
    await service.sql("ANALYZE api_keys")
    async with busy(attacker):
        after = await median_seconds(victim, 60)
    print(f"a neighbour's POST: {before * 1000:.0f} ms, {after * 1000:.0f} ms with {REVOKED} revoked keys")
    assert after < max(SLOWER_MAX * before, UNNOTICED_SECONDS)
