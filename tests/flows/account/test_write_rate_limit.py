"""Changes under /v1: a rate for each account, and nothing more to store while disk space is low."""

from uuid import UUID

import pytest

from posthouse.flows.account.write_rate_limit import WriteRateLimit
from posthouse.flows.shared.disk_space import DiskSpace
from posthouse.rules.ids import AccountId
from posthouse.rules.rate_limit import Rate
from posthouse.rules.refusal import Code, Refusal
from tests.support.clock import SettableClock

ACME, OTHER = AccountId(UUID(int=1)), AccountId(UUID(int=2))


def refusal_of(write_rate_limit: WriteRateLimit, account_id: AccountId, *, stores: bool = False) -> Refusal | None:
    try:
        write_rate_limit.require(account_id, stores=stores)
    except Refusal as refusal:
        return refusal
    return None


def test_above_its_rate_an_account_waits_and_no_other_does() -> None:
    clock = SettableClock()
    write_rate_limit = WriteRateLimit(clock=clock, rate=Rate(per_second=2, burst=3))
    assert [refusal_of(write_rate_limit, ACME) for _ in range(3)] == [None] * 3
    refused = refusal_of(write_rate_limit, ACME)
    assert refused is not None
    assert (refused.code, refused.retry_after_seconds) == (Code.RATE_LIMITED, 1)
    assert refused.headers["RateLimit-Limit"] == "3"
    assert refusal_of(write_rate_limit, OTHER) is None
    clock.advance(seconds=1)
    assert [refusal_of(write_rate_limit, ACME) for _ in range(2)] == [None] * 2
    assert refusal_of(write_rate_limit, ACME) is not None


@pytest.mark.parametrize("stores", [True, False])
def test_while_disk_space_is_low_only_what_stores_more_is_refused(stores: bool) -> None:
    disk_space = DiskSpace()
    disk_space.is_low = True
    refused = refusal_of(WriteRateLimit(clock=SettableClock(), disk_space=disk_space), ACME, stores=stores)
    assert (refused is not None) is stores
    assert refused is None or refused.code is Code.SERVICE_UNAVAILABLE
