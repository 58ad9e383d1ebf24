"""An account's rate, its warm-up days, and the wait after failed logins."""

from datetime import UTC, date, datetime, timedelta, timezone
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as some

from posthouse.rules import limits
from posthouse.rules.rate_limit import (
    Rate,
    RateReading,
    RateWait,
    day_number,
    login_delay_seconds,
    login_wait_seconds,
    rate_headers,
    reading,
    seconds_to_midnight,
    take_from_rate,
    warmup_limit,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
LONG_AGO = datetime.min.replace(tzinfo=UTC)
USUAL = Rate(limits.RATE_PER_SECOND, limits.RATE_BURST)
MICROSECOND = timedelta(microseconds=1)


def taken(rate: Rate, full_at: datetime, now: datetime) -> RateReading:
    result = take_from_rate(rate, full_at, now)
    assert isinstance(result, RateReading)
    return result


def accepted_at(rate: Rate, moments: list[datetime]) -> list[datetime]:
    accepted, full_at = [], LONG_AGO
    for now in moments:
        result = take_from_rate(rate, full_at, now)
        if isinstance(result, RateReading):
            accepted.append(now)
            full_at = result.full_at
    return accepted


def test_an_account_that_never_sent_has_its_whole_burst() -> None:
    assert reading(USUAL, LONG_AGO, NOON) == RateReading(NOON, remaining=40, reset_seconds=0)


def test_the_first_request_takes_one_from_the_burst() -> None:
    assert taken(USUAL, LONG_AGO, NOON) == RateReading(NOON + timedelta(milliseconds=50), remaining=39, reset_seconds=1)


# Rates that divide a second, and rates that don't.
@pytest.mark.parametrize("rate", [USUAL, Rate(1, 1), Rate(3, 3), Rate(6, 6), Rate(7, 100), Rate(999_999, 5)])
def test_the_burst_is_exactly_as_large_as_it_says(rate: Rate) -> None:
    full_at = LONG_AGO
    for left in reversed(range(rate.burst)):
        result = taken(rate, full_at, NOON)
        assert result.remaining == left
        full_at = result.full_at
    assert isinstance(take_from_rate(rate, full_at, NOON), RateWait)


def test_after_the_burst_one_request_fits_every_interval() -> None:
    empty = NOON + timedelta(seconds=2)
    assert take_from_rate(USUAL, empty, NOON) == RateWait(1)
    assert take_from_rate(USUAL, empty, NOON + timedelta(milliseconds=50) - MICROSECOND) == RateWait(1)
    assert taken(USUAL, empty, NOON + timedelta(milliseconds=50)).remaining == 0


@pytest.mark.parametrize(("ahead_seconds", "wait_seconds"), [(2, 1), (2.95, 1), (2.950001, 2), (3.95, 2), (61.95, 60)])
def test_a_wait_is_rounded_up_to_whole_seconds(ahead_seconds: float, wait_seconds: int) -> None:
    assert take_from_rate(USUAL, NOON + timedelta(seconds=ahead_seconds), NOON) == RateWait(wait_seconds)


@pytest.mark.parametrize(
    ("ahead", "remaining", "reset_seconds"),
    [
        (timedelta(hours=-1), 40, 0),
        (timedelta(0), 40, 0),
        (MICROSECOND, 39, 1),
        (timedelta(seconds=1), 20, 1),
        (timedelta(seconds=1) + MICROSECOND, 19, 2),
        (timedelta(seconds=2), 0, 2),
        (timedelta(seconds=60), 0, 60),
    ],
)
def test_a_reading_rounds_against_the_client(ahead: timedelta, remaining: int, reset_seconds: int) -> None:
    result = reading(USUAL, NOON + ahead, NOON)
    assert (result.remaining, result.reset_seconds) == (remaining, reset_seconds)


rates = some.builds(Rate, some.integers(1, 1_500_000), some.integers(1, 50))
steps = some.lists(some.integers(0, 2_000_000), min_size=1, max_size=120)


@given(rates, steps)
def test_no_window_ever_holds_more_than_the_burst_and_its_rate(rate: Rate, gaps: list[int]) -> None:
    accepted = accepted_at(rate, [NOON + timedelta(microseconds=gap) for gap in accumulate(gaps)])
    for first, start in enumerate(accepted):
        for last, end in enumerate(accepted[first:], start=first):
            elapsed_microseconds = (end - start) // MICROSECOND
            allowed = rate.burst * 1_000_000 + rate.per_second * elapsed_microseconds
            assert (last - first + 1) * 1_000_000 <= allowed


@given(rates, some.integers(0, 10**9))
def test_a_client_that_waits_is_accepted(rate: Rate, ahead_microseconds: int) -> None:
    full_at = NOON + timedelta(microseconds=ahead_microseconds)
    result = take_from_rate(rate, full_at, NOON)
    if isinstance(result, RateWait):
        assert result.seconds >= 1
        assert isinstance(take_from_rate(rate, full_at, NOON + timedelta(seconds=result.seconds)), RateReading)


@given(rates, some.integers(-(10**9), 10**9))
def test_the_remaining_requests_are_really_there(rate: Rate, ahead_microseconds: int) -> None:
    full_at = NOON + timedelta(microseconds=ahead_microseconds)
    for _ in range(reading(rate, full_at, NOON).remaining):
        full_at = taken(rate, full_at, NOON).full_at
    assert isinstance(take_from_rate(rate, full_at, NOON), RateWait)


@pytest.mark.rule("WARM-03")
@pytest.mark.parametrize(
    ("today", "number"),
    [
        (date(2026, 3, 1), 1),
        (date(2026, 3, 2), 2),
        (date(2026, 3, 14), 14),
        (date(2027, 3, 1), 366),
        (date(2026, 2, 28), 1),  # seen by a process whose midnight comes a moment later
    ],
)
def test_the_day_of_the_first_message_is_day_one(today: date, number: int) -> None:
    assert day_number(date(2026, 3, 1), today) == number


@pytest.mark.rule("WARM-01")
@pytest.mark.parametrize(("day", "limit"), [(1, 200), (2, 300), (13, 25_000), (14, 50_000), (15, None), (400, None)])
def test_the_warm_up_grows_for_fourteen_days_and_is_then_off(day: int, limit: int | None) -> None:
    assert warmup_limit(day, limits.WARMUP_RECIPIENTS_BY_DAY) == limit
    assert warmup_limit(day, ()) is None


@pytest.mark.parametrize(
    ("now", "seconds"),
    [
        (datetime(2026, 3, 1, tzinfo=UTC), 86_400),
        (datetime(2026, 3, 1, 0, 0, 0, 1, tzinfo=UTC), 86_400),
        (datetime(2026, 3, 1, 23, 59, 59, tzinfo=UTC), 1),
        (datetime(2026, 3, 1, 23, 59, 59, 999_999, tzinfo=UTC), 1),
        (datetime(2026, 12, 31, 12, tzinfo=UTC), 43_200),
        (datetime(2026, 3, 2, 1, tzinfo=timezone(timedelta(hours=2))), 3_600),
    ],
)
def test_midnight_is_in_utc(now: datetime, seconds: int) -> None:
    assert seconds_to_midnight(now) == seconds


@pytest.mark.parametrize(
    ("failures", "seconds"),
    [(0, 0), (1, 0), (4, 0), (5, 1), (6, 2), (7, 4), (14, 512), (15, 900), (16, 900), (10**9, 900)],
)
def test_the_login_wait_doubles_up_to_fifteen_minutes(failures: int, seconds: int) -> None:
    assert login_wait_seconds(failures) == seconds


@pytest.mark.parametrize("ahead", [timedelta(hours=1), timedelta(days=4), timedelta(days=40)])
def test_a_time_written_by_a_clock_that_was_ahead_does_not_limit(ahead: timedelta) -> None:
    rate = Rate(per_second=20, burst=40)
    taken = take_from_rate(rate, NOON + ahead, NOON)
    assert isinstance(taken, RateReading)
    assert taken.remaining == 39
    assert reading(rate, NOON + ahead, NOON).remaining == 40


def test_a_login_is_delayed_by_a_bounded_time() -> None:
    delays = [login_delay_seconds(failures) for failures in (-3, 0, 1, 2, 3, 5, 6, 10**9)]
    assert delays == [0, 0, 0.1, 0.2, 0.4, 1.6, 2.0, 2.0]


def test_the_limit_in_the_headers_is_the_burst() -> None:
    assert rate_headers(Rate(20, 40), RateReading(NOON, remaining=7, reset_seconds=2)) == {
        "RateLimit-Limit": "40",
        "RateLimit-Remaining": "7",
        "RateLimit-Reset": "2",
    }
