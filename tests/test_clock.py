"""The clock follows the database's time, whatever the host's clock shows."""

from datetime import UTC, datetime, timedelta

from posthouse.clock import DatabaseClock

HOUR = timedelta(hours=1)


def test_a_host_clock_that_is_ahead_is_set_back() -> None:
    clock = DatabaseClock()
    database_time = clock.now() - 40 * 24 * HOUR
    clock.anchor(database_time, clock.monotonic())
    assert database_time <= clock.now() < database_time + HOUR


def test_a_host_clock_that_is_behind_catches_up_at_once() -> None:
    clock = DatabaseClock()
    database_time = datetime.now(UTC) + 24 * HOUR
    clock.anchor(database_time, clock.monotonic())
    assert database_time <= clock.now() < database_time + HOUR


def test_once_anchored_time_never_goes_back() -> None:
    clock = DatabaseClock()
    clock.anchor(datetime.now(UTC), clock.monotonic())
    before = clock.now()
    clock.anchor(before - HOUR, clock.monotonic())
    assert clock.now() >= before


def test_a_slow_sample_does_not_replace_a_better_sample() -> None:
    clock = DatabaseClock()
    clock.anchor(datetime.now(UTC), clock.monotonic())
    before = clock.now()
    # Asked two seconds ago, read by the database at the very end: half of the round trip would put us a second ahead.
    clock.anchor(before, clock.monotonic() - 2)
    assert clock.now() < before + timedelta(seconds=0.5)


def test_a_sample_beyond_all_doubt_replaces_any() -> None:
    clock = DatabaseClock()
    clock.anchor(datetime.now(UTC), clock.monotonic())
    clock.anchor(datetime.now(UTC) + HOUR, clock.monotonic() - 2)
    assert clock.now() > datetime.now(UTC) + HOUR - timedelta(minutes=1)
