"""Usage: histograms add up, percentiles are accurate, windows never span two days, days are those asked for."""

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.rules import retry, usage
from posthouse.rules.refusal import Refusal
from posthouse.rules.usage import BOUNDS_SECONDS, COUNTS, delay_of

TODAY = date(2026, 11, 15)
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


def histogram(*seconds: float) -> list[int]:
    """As PostgreSQL's width_bucket counts."""
    counts = [0] * COUNTS
    for item in seconds:
        counts[sum(bound <= item for bound in BOUNDS_SECONDS)] += 1
    return counts


def test_the_bounds_cover_the_longest_hold() -> None:
    assert BOUNDS_SECONDS[0] == 0.05
    assert BOUNDS_SECONDS[-1] > (retry.HOLD_MAX + timedelta(hours=1)).total_seconds()


@given(st.lists(st.floats(0.05, 600_000), min_size=1, max_size=300))
def test_a_percentile_is_at_most_a_quarter_off(seconds: list[float]) -> None:
    read = usage.percentiles(histogram(*seconds))
    assert read is not None
    for percent, found in zip((50, 95, 99), read, strict=True):
        true = sorted(seconds)[-(-len(seconds) * percent // 100) - 1]
        assert true / 1.26 <= found <= true * 1.26


@given(st.lists(st.floats(0, 10_000), min_size=1), st.lists(st.floats(0, 10_000), min_size=1))
def test_histograms_of_two_days_add_up(item: list[float], other: list[float]) -> None:
    assert usage.sum_histograms([histogram(*item), histogram(*other)]) == histogram(*item, *other)


def test_an_empty_histogram_has_no_percentiles() -> None:
    assert usage.percentiles([0] * COUNTS) is None


def test_a_time_over_all_bounds_counts_as_the_last_bound() -> None:
    read = usage.percentiles(histogram(10**8))
    assert read is not None
    assert read.p50 == pytest.approx(BOUNDS_SECONDS[-1], rel=0.01)


@pytest.mark.parametrize(
    ("low", "bound", "high"),
    [
        (NOON, NOON, NOON),
        (NOON, NOON - timedelta(hours=1), NOON),
        (NOON, NOON + timedelta(seconds=30), NOON + timedelta(seconds=30)),
        (NOON, NOON + timedelta(hours=1), NOON + timedelta(minutes=1)),
        (
            NOON.replace(hour=23, minute=59, second=30),
            NOON + timedelta(days=1),
            NOON.replace(hour=0) + timedelta(days=1),
        ),
        (NOON + timedelta(minutes=59, seconds=30), NOON + timedelta(days=1), NOON + timedelta(hours=1)),
    ],
)
def test_a_range_ends_at_the_bound_a_minute_or_a_full_hour(low: datetime, bound: datetime, high: datetime) -> None:
    assert usage.count_until(low, bound, timedelta(minutes=1)) == high


@pytest.mark.parametrize(
    ("days", "first", "last", "since", "until"),
    [
        (None, None, None, "2026-11-09", "2026-11-15"),
        ("1", None, None, "2026-11-15", "2026-11-15"),
        ("30", None, None, "2026-10-17", "2026-11-15"),
        (None, "2026-11-01", None, "2026-11-01", "2026-11-15"),
        (None, None, "2026-11-01", "2026-10-26", "2026-11-01"),
        (None, "2026-01-01", "2026-01-30", "2026-01-01", "2026-01-30"),
        (None, "2026-01-01", "2026-01-01", "2026-01-01", "2026-01-01"),
    ],
)
def test_a_day_range_ends_today_or_is_given(
    days: str | None, first: str | None, last: str | None, since: str, until: str
) -> None:
    found = usage.day_range(days, first, last, TODAY)
    assert [item.isoformat() for item in found] == [since, until]


@pytest.mark.rule("USE-05")
@pytest.mark.parametrize(
    ("days", "first", "last", "named"),
    [
        ("0", None, None, "`days`"),
        ("31", None, None, "`days`"),
        ("-1", None, None, "`days`"),
        ("²", None, None, "`days`"),
        ("9" * 5_000, None, None, "`days`"),
        ("", None, None, "`days`"),
        ("7", "2026-11-01", None, "`days`"),
        (None, "2026-02-30", None, "`from`"),
        (None, "20261101", None, "`from`"),
        (None, "2026-W46-1", None, "`from`"),
        (None, None, "0001-01-01", "`to`"),
        (None, None, "9999-12-31", "`to`"),
        (None, "2026-11-02", "2026-11-01", "`from`"),
        (None, "2026-01-01", "2026-01-31", "at most 30"),
    ],
)
def test_invalid_days_are_refused_by_name(days: str | None, first: str | None, last: str | None, named: str) -> None:
    with pytest.raises(Refusal, match=named):
        usage.day_range(days, first, last, TODAY)


# Delayed providers


def taking(seconds: float, messages: int) -> list[int]:
    """A histogram in which all messages took about this long."""
    counts = [0] * usage.COUNTS
    counts[next(number for number, bound in enumerate(usage.BOUNDS_SECONDS) if bound >= seconds)] = messages
    return counts


@pytest.mark.parametrize(
    ("recent", "week", "was_delayed", "is_delayed"),
    [
        (taking(60, 100), taking(5, 1_000), False, True),
        (taking(60, 100), taking(20, 1_000), False, False),
        # Once it is delayed, it is over at twice the week's.
        (taking(60, 100), taking(20, 1_000), True, True),
        (taking(60, 100), taking(40, 1_000), True, False),
        # Too few to say.
        (taking(60, 99), taking(5, 1_000), False, False),
        (taking(60, 100), taking(5, 999), False, False),
        (taking(60, 100), [], True, False),
        ([], taking(5, 1_000), True, False),
        # Fast enough, however fast it was before.
        (taking(5, 100), taking(0.5, 1_000), False, False),
    ],
)
def test_a_provider_is_delayed_at_four_times_its_week(
    recent: list[int], week: list[int], was_delayed: bool, is_delayed: bool
) -> None:
    found = delay_of(recent, week, is_delayed=was_delayed)
    assert (found is not None) is is_delayed
    if found is not None:
        assert found.p95_seconds > usage.TIMES_OVER * found.week_p95_seconds


@pytest.mark.parametrize(
    ("since", "day"),
    [
        (NOON, date(2026, 11, 16)),
        (NOON - timedelta(hours=12), TODAY),
        (NOON - timedelta(hours=11, minutes=59), date(2026, 11, 16)),
    ],
)
def test_a_day_that_began_before_is_not_whole(since: datetime, day: date) -> None:
    assert usage.first_whole_day(since) == day
