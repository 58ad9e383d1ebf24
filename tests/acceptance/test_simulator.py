"""A simulated message never replaces a real message."""

import pytest

from tests.support.service import Tenant


@pytest.mark.rule("IDEM-14")
@pytest.mark.parametrize(("first", "second"), [("test", "live"), ("live", "test")])
async def test_a_key_used_by_a_test_key_is_a_conflict_for_a_live_key(tenant: Tenant, first: str, second: str) -> None:
    keys = {mode: await tenant.key(mode) for mode in ("test", "live")}
    sent = await tenant.accepts(key="order-1", authorization=keys[first])
    await tenant.refuses(tenant.mail(), 409, "idempotency_conflict", key="order-1", authorization=keys[second])
    assert (await tenant.accepts(key="order-1", authorization=keys[first]))["id"] == sent["id"]
