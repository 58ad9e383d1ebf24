"""A worker's lease, as the worker sees it: never longer than granted, and lost after a gap."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from posthouse.rules.claim import ENOUGH_ITEMS, LEASE_MARGIN_PART, BatchDelay, Lease

SECONDS = 30.0
RELIED_ON = SECONDS * (1 - LEASE_MARGIN_PART)


def renew(lease: Lease, at: float) -> None:
    """Renewed with an immediate answer."""
    lease.renewed(at, at)


def begun(at: float = 100.0) -> Lease:
    lease = Lease(SECONDS)
    renew(lease, at)
    return lease


def test_a_lease_that_was_never_granted_is_invalid() -> None:
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
        renew(lease, 100.0 + 5 * number)
        assert lease.is_good(era, 100.0 + 5 * number + RELIED_ON - 0.001)
    assert lease.era == era


def test_what_was_claimed_before_a_gap_is_never_valid_again() -> None:
    lease = begun(100.0)
    before = lease.era
    renew(lease, 100.0 + RELIED_ON + 0.001)
    assert lease.era != before
    assert not lease.is_good(before, 130.0)
    assert lease.is_good(lease.era, 130.0)


def test_a_renewal_granted_too_late_begins_a_new_era() -> None:
    lease = begun(100.0)
    before = lease.era
    lease.renewed(100.0 + RELIED_ON - 1, heard_at=100.0 + RELIED_ON + 1)
    assert lease.era != before
    assert not lease.is_good(before, 100.0 + RELIED_ON + 2)


def test_answers_out_of_order_do_not_shorten_it() -> None:
    lease = begun(100.0)
    era = lease.era
    renew(lease, 110.0)
    renew(lease, 105.0)
    assert lease.is_good(era, 110.0 + RELIED_ON - 0.001)


@given(some.lists(some.floats(0, 60), max_size=50), some.floats(0, 60))
def test_it_never_outlives_what_was_granted(waits: list[float], later: float) -> None:
    lease, now, granted_until = Lease(SECONDS), 0.0, float("-inf")
    claims: list[tuple[int, float]] = []
    for wait in waits:
        now += wait
        if now >= granted_until:
            # Its claims may belong to another worker by now.
            claims.clear()
        renew(lease, now)
        granted_until = now + SECONDS
        claims.append((lease.era, now))
        assert lease.is_good(lease.era, now)
    now += later
    if now >= granted_until:
        assert not any(lease.is_good(era, now) for era, _ in claims)
    eras = {era for era, _ in claims}
    assert all(not lease.is_good(era, now) for era in range(lease.era) if era not in eras)


# How long a batch waits for more


MIN, MAX = 0.02, 0.15


def after_arrivals(per_second: float, seconds: float = 10.0) -> float:
    """How long a batch waits that begins with the last of these."""
    batch_delay = BatchDelay(MIN, MAX)
    arrivals = [number / per_second for number in range(round(seconds * per_second))]
    for at in arrivals:
        batch_delay.note_arrivals(1, at)
    return batch_delay.seconds(arrivals[-1])


@pytest.mark.parametrize(
    ("per_second", "seconds"),
    [
        # Hardly any come, and are not waited for.
        *[(number, MIN) for number in (0.1, 0.5, 1)],
        # Few come: as long as it may.
        *[(number, MAX) for number in (5, 10, 30, 120)],
        # Many come: until there are enough, and no less than it must.
        *[(number, ENOUGH_ITEMS / number) for number in (200, 500)],
        (10_000, MIN),
    ],
)
def test_a_batch_waits_for_what_comes_in_time(per_second: float, seconds: float) -> None:
    assert after_arrivals(per_second) == pytest.approx(seconds, rel=0.02)


def test_the_first_item_after_a_silence_does_not_wait_for_others() -> None:
    batch_delay = BatchDelay(MIN, MAX)
    for number in range(1_000):
        batch_delay.note_arrivals(1, number / 100)
    batch_delay.note_arrivals(1, 70.0)
    assert batch_delay.seconds(70.0) == MIN


def test_without_a_most_it_is_always_the_least() -> None:
    batch_delay = BatchDelay(MIN)
    for number in range(100):
        batch_delay.note_arrivals(1, number / 100)
        assert batch_delay.seconds(number / 100) == MIN
