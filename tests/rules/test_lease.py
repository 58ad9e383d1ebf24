"""A worker's lease, as the worker sees it: never longer than it is, and lost when it was broken once."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as some

from posthouse.rules.lease import MARGIN_PART, WORKER_LEASE, Lease

SECONDS = 30.0
RELIED_ON = SECONDS * (1 - MARGIN_PART)


def begun(at: float = 100.0) -> Lease:
    lease = Lease(SECONDS)
    lease.renewed(at)
    return lease


def test_a_lease_that_was_never_granted_is_good_for_nothing() -> None:
    assert not Lease(SECONDS).is_good(0, 0.0)


def test_a_lease_is_relied_on_for_all_but_its_last_part() -> None:
    lease = begun(100.0)
    assert lease.is_good(lease.era, 100.0)
    assert lease.is_good(lease.era, 100.0 + RELIED_ON - 0.001)
    assert not lease.is_good(lease.era, 100.0 + RELIED_ON)


def test_a_renewal_in_time_continues_it() -> None:
    lease = begun(100.0)
    era = lease.era
    for number in range(1, 50):
        lease.renewed(100.0 + 5 * number)
        assert lease.is_good(era, 100.0 + 5 * number + RELIED_ON - 0.001)
    assert lease.era == era


def test_what_was_claimed_before_a_gap_is_never_good_again() -> None:
    lease = begun(100.0)
    before = lease.era
    lease.renewed(100.0 + RELIED_ON + 0.001)
    assert lease.era != before
    assert not lease.is_good(before, 130.0)
    assert lease.is_good(lease.era, 130.0)


def test_answers_that_overtake_each_other_don_t_make_it_shorter() -> None:
    lease = begun(100.0)
    era = lease.era
    lease.renewed(110.0)
    lease.renewed(105.0)
    assert lease.is_good(era, 110.0 + RELIED_ON - 0.001)


@given(some.lists(some.floats(0, 60), max_size=50), some.floats(0, 60))
def test_it_never_outlives_what_was_granted_whatever_the_renewals(waits: list[float], later: float) -> None:
    lease, now, granted_until = Lease(SECONDS), 0.0, float("-inf")
    claims: list[tuple[int, float]] = []
    for wait in waits:
        now += wait
        if now >= granted_until:
            # Whatever was claimed may be another's by now.
            claims.clear()
        lease.renewed(now)
        granted_until = now + SECONDS
        claims.append((lease.era, now))
        assert lease.is_good(lease.era, now)
    now += later
    if now >= granted_until:
        assert not any(lease.is_good(era, now) for era, _ in claims)
    eras = {era for era, _ in claims}
    assert all(not lease.is_good(era, now) for era in range(lease.era) if era not in eras)


def test_the_services_own_lease_outlasts_a_few_lost_renewals() -> None:
    assert timedelta(seconds=3 * 5) <= WORKER_LEASE * (1 - MARGIN_PART)
