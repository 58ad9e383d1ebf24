"""The database's time, whatever the host believes."""

from datetime import UTC, datetime, timedelta

from posthouse.clock import DatabaseClock

HOUR = timedelta(hours=1)


def test_a_host_that_is_ahead_does_not_hold_the_service_in_its_future() -> None:
    clock = DatabaseClock()
    database_time = clock.now() - 40 * 24 * HOUR
    clock.anchor(database_time, clock.monotonic())
    assert database_time <= clock.now() < database_time + HOUR


def test_a_host_that_is_behind_catches_up_at_once() -> None:
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
