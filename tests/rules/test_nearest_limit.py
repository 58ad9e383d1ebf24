"""The nearer of two limits: today's warm-up and credits."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as some

from posthouse.rules.alert import SCALES, AlertKind
from posthouse.rules.ids import AccountId
from posthouse.rules.rate_limit import Rate
from posthouse.rules.send_quota import CREDIT_DAYS_FAR, Account, LimitKind, NearestLimit, nearest_limit

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
TODAY = NOON.date()
WARMING = Account(
    id=AccountId(UUID(int=1)),
    suspended=False,
    available=1_000,
    rate=Rate(20, 40),
    full_at=NOON,
    warmup_limits=(200, 300),
    warmup_started_on=TODAY,
    warmup_day=TODAY,
    warmup_used=150,
)
EXEMPT = replace(WARMING, warmup_limits=None)


def warmup(share: float) -> NearestLimit:
    return NearestLimit(LimitKind.WARMUP, share)


def test_a_warm_up_is_as_near_as_its_share_that_is_used_today() -> None:
    assert nearest_limit(WARMING, 0, NOON) == warmup(0.75)
    assert nearest_limit(replace(WARMING, warmup_started_on=TODAY - timedelta(days=1)), 0, NOON) == warmup(0.5)


def test_a_warm_up_beyond_a_limit_that_was_lowered_is_at_its_limit() -> None:
    assert nearest_limit(replace(WARMING, warmup_limits=(100,)), 0, NOON) == warmup(1)


def test_the_warm_up_of_yesterday_counts_no_more_and_mail_for_today_does() -> None:
    yesterday = replace(WARMING, warmup_started_on=TODAY - timedelta(days=1), warmup_day=TODAY - timedelta(days=1))
    assert nearest_limit(yesterday, 0, NOON) is None
    assert nearest_limit(replace(yesterday, warmup_ahead={TODAY: 75}), 0, NOON) == warmup(0.25)


@pytest.mark.parametrize(
    ("available", "days_left", "share"), [(0, 0, 1), (50, 0.5, 1 - 0.5 / 7), (200, 2, 5 / 7), (699, 6.99, 0.01 / 7)]
)
def test_credits_are_as_near_as_the_days_of_a_week_that_they_do_not_last(
    available: int, days_left: float, share: float
) -> None:
    found = nearest_limit(replace(EXEMPT, available=available), 100, NOON)
    assert found is not None
    assert (found.kind, found.days_left) == (LimitKind.CREDITS, days_left)
    assert found.share == pytest.approx(share)


def test_credits_are_near_when_the_alert_about_them_is_raised_by_default() -> None:
    assert SCALES[AlertKind.DAYS_LEFT].default == CREDIT_DAYS_FAR


def test_an_account_that_is_far_from_both_or_sends_nothing_has_no_limit() -> None:
    assert nearest_limit(replace(EXEMPT, available=700), 100, NOON) is None
    assert nearest_limit(replace(EXEMPT, available=0), 0, NOON) is None
    over = replace(WARMING, warmup_started_on=TODAY - timedelta(days=2))
    assert nearest_limit(over, 0, NOON) is None


def test_the_nearer_one_is_shown_and_of_two_as_near_the_credits() -> None:
    # Half of the warm-up is used.
    half = replace(WARMING, warmup_used=100)
    assert nearest_limit(replace(half, available=400), 100, NOON) == warmup(0.5)
    assert nearest_limit(replace(half, available=300), 100, NOON) == NearestLimit(LimitKind.CREDITS, 1 - 3 / 7, 3)
    both = nearest_limit(replace(WARMING, available=0, warmup_used=200), 100, NOON)
    assert both == NearestLimit(LimitKind.CREDITS, 1, 0)


def test_a_suspended_account_has_no_limit() -> None:
    assert nearest_limit(replace(WARMING, suspended=True, available=0), 100, NOON) is None


@given(
    available=some.integers(0, 10**12),
    per_day=some.floats(0, 1e12),
    used=some.integers(0, 10**9),
    limit=some.none() | some.integers(1, 10**9),
)
def test_a_share_is_between_0_and_1(available: int, per_day: float, used: int, limit: int | None) -> None:
    limits = None if limit is None else (limit,)
    account = replace(WARMING, available=available, warmup_used=used, warmup_limits=limits)
    found = nearest_limit(account, per_day, NOON)
    assert found is None or 0 <= found.share <= 1
