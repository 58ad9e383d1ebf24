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


DAY = timedelta(days=1)
OF_YESTERDAY = replace(WARMING, warmup_started_on=TODAY - DAY, warmup_day=TODAY - DAY)
# Half of the warm-up is used.
HALF = replace(WARMING, warmup_used=100)


@pytest.mark.parametrize(
    ("account", "per_day", "found"),
    [
        # A warm-up is as near as its share that is used today, also beyond a limit that was lowered.
        (WARMING, 0, warmup(0.75)),
        (replace(WARMING, warmup_started_on=TODAY - DAY), 0, warmup(0.5)),
        (replace(WARMING, warmup_limits=(100,)), 0, warmup(1)),
        # That of yesterday counts no more, and mail for today does.
        (OF_YESTERDAY, 0, None),
        (replace(OF_YESTERDAY, warmup_ahead={TODAY: 75}), 0, warmup(0.25)),
        (replace(WARMING, warmup_started_on=TODAY - 2 * DAY), 0, None),
        # Credits that last for a week are far, and so are those of an account that sends nothing.
        (replace(EXEMPT, available=700), 100, None),
        (replace(EXEMPT, available=0), 0, None),
        # The nearer one is shown, and of two as near the credits.
        (replace(HALF, available=400), 100, warmup(0.5)),
        (replace(HALF, available=300), 100, NearestLimit(LimitKind.CREDITS, 1 - 3 / 7, 3)),
        (replace(WARMING, available=0, warmup_used=200), 100, NearestLimit(LimitKind.CREDITS, 1, 0)),
        (replace(WARMING, suspended=True, available=0), 100, None),
    ],
)
def test_the_nearer_of_warm_up_and_credits_is_shown_if_it_is_near(
    account: Account, per_day: float, found: NearestLimit | None
) -> None:
    assert nearest_limit(account, per_day, NOON) == found


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
