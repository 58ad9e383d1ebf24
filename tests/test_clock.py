"""The clock carries service time between samples of the database's clock."""

from datetime import UTC, datetime, timedelta

from posthouse.clock import DatabaseClock

HOUR = timedelta(hours=1)


def test_the_clock_takes_the_databases_time() -> None:
    clock = DatabaseClock()
    database_time = datetime.now(UTC) - timedelta(seconds=30)
    clock.learn(database_time, clock.asked())
    assert database_time <= clock.now() < database_time + timedelta(seconds=10)
    assert clock.step is None


def test_between_samples_time_passes_evenly() -> None:
    steady = 100.0
    clock = DatabaseClock(steady=lambda: steady)
    first = clock.now()
    steady += 60
    assert clock.now() - first == timedelta(seconds=60)


def test_half_of_the_round_trip_had_passed_when_the_database_answered() -> None:
    steady = 100.0
    there = datetime.now(UTC)
    clock = DatabaseClock(steady=lambda: steady, host=lambda: there)
    asked_at = clock.asked()
    steady += 2
    clock.learn(there, asked_at)
    assert clock.now() == there + timedelta(seconds=1)


def test_a_step_is_shown_and_not_followed() -> None:
    clock = DatabaseClock()
    clock.learn(datetime.now(UTC), clock.asked())
    clock.learn(datetime.now(UTC) + HOUR, clock.asked())
    assert clock.step is not None
    assert abs(clock.step - HOUR) < timedelta(seconds=1)
    assert clock.now() < datetime.now(UTC) + timedelta(minutes=1)
