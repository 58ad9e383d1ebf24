"""The warm-up of an address: its quota day by day, and against providers whose limits it doesn't know."""

import json
from collections.abc import Callable, Sequence
from random import Random
from statistics import mean
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as some

from posthouse.rules.address_warm_up import (
    FIRST_DAY,
    FIRST_DAY_OF_PROVIDERS,
    WARM,
    AddressWarmUp,
    Change,
    Volumes,
    WarmUpDay,
    after_days,
    begin,
    next_day,
    restored,
    stored,
)
from tests.rules import warming_provider
from tests.rules.warming_provider import Plan, WarmingRun

Day = WarmUpDay
IDLE: Final = Day(0)
BLOCKED: Final = Day(0, was_blocked=True)


def after(days: Sequence[WarmUpDay], lane: str = "google", state: AddressWarmUp | None = None) -> AddressWarmUp:
    state = state or begin(lane)
    for day in days:
        state = next_day(state, day)
    return state


def used_up(days: int, state: AddressWarmUp | None = None) -> AddressWarmUp:
    """All of the quota was taken on each of the days."""
    state = state or begin("google")
    for _ in range(days):
        state = next_day(state, Day(state.quota))
    return state


def test_the_first_day_is_larger_at_providers() -> None:
    assert begin("google").quota == 200
    assert begin("example.org").quota == 50


@pytest.mark.parametrize(
    ("day", "quota", "change"),
    [
        (Day(200), 280, Change.GREW),
        (Day(140), 280, Change.GREW),
        (Day(139), 200, Change.NOT_USED),
        (IDLE, 200, Change.NOT_USED),
        # Up to 2 % of slow is good.
        (Day(196, slow=4), 280, Change.GREW),
        (Day(195, slow=5), 136, Change.SLOWED),
        (Day(200, slow=200), 140, Change.SLOWED),
        # Complaints from 0.1 % on are bad.
        (Day(200, complaints=1), 140, Change.COMPLAINTS),
        (Day(0, complaints=1), 200, Change.NOT_USED),
        (BLOCKED, 100, Change.BLOCKED),
        (Day(150, was_blocked=True), 100, Change.BLOCKED),
        # Never less than half of the first day.
        (Day(20, slow=20), 100, Change.SLOWED),
    ],
)
def test_the_second_day_follows_from_the_first(day: WarmUpDay, quota: int, change: Change) -> None:
    state = after([day])
    assert (state.day, state.quota, state.change) == (2, quota, change)


def test_complaints_below_a_thousandth_are_good() -> None:
    state = used_up(6)
    assert next_day(state, Day(state.quota, complaints=1)).change is Change.GREW


def test_what_is_not_used_grows_with_the_best_of_7_days() -> None:
    large = used_up(5)
    assert after([Day(int(large.quota * 0.6))], state=large).quota == large.quota
    needs_more = after([Day(int(large.quota * 0.72)), Day(10)], state=large)
    assert (needs_more.change, needs_more.quota) == (Change.NOT_USED, int(large.quota * 1.4))


def test_a_block_halves_once() -> None:
    state = used_up(5)
    blocked = after([BLOCKED] * 4, state=state)
    assert blocked.quota == state.quota // 2
    assert after([BLOCKED], state=used_up(1, blocked)).quota == int(blocked.quota * 1.15) // 2


def test_a_second_slow_day_running_leaves_a_half() -> None:
    bad = next_day(used_up(6), Day(1_000, slow=100))
    little = next_day(used_up(6), Day(1_490, slow=10))
    assert (bad.quota, little.change) == (700, Change.GREW)
    for state in (bad, little):
        assert after([Day(690, slow=10)], state=state).quota == 345
        assert after([Day(1_498, slow=2)], state=state).change is Change.GREW
        assert after([Day(2_100), Day(2_990, slow=10)], state=state).change is Change.GREW


def test_growth_is_careful_for_7_days_after_a_bad_one_and_smaller_for_good() -> None:
    state = next_day(used_up(6), Day(1_000, slow=100))
    rates = []
    for _ in range(9):
        grown = used_up(1, state)
        rates.append(round(grown.quota / state.quota, 2))
        state = grown
    assert rates == [1.15] * 7 + [1.3] * 2
    state = used_up(8, next_day(state, Day(state.quota, complaints=state.quota)))
    assert round(used_up(1, state).quota / state.quota, 2) == 1.25


def test_at_50_000_an_address_is_warm_and_has_no_quota() -> None:
    nearly, warm = used_up(16), used_up(17)
    assert (nearly.quota < WARM, nearly.is_warm) == (True, False)
    assert (warm.quota, warm.is_warm) == (WARM, True)
    assert warm.capacity(taken_today=10**6, taken_this_hour=10**6) is None


def test_an_address_with_four_times_what_it_needs_is_warm_after_30_days() -> None:
    assert not after([Day(50)] * 29).is_warm
    assert after([Day(50)] * 30).is_warm
    assert not after([Day(51)] * 30).is_warm


@pytest.mark.parametrize(
    ("warm", "day", "quota"),
    [(after([Day(50)] * 30), Day(5_000), 7_000), (used_up(17), Day(20_000, slow=2_000), 14_000)],
)
def test_a_warm_address_that_sends_more_or_is_slowed_has_a_quota_again(
    warm: AddressWarmUp, day: WarmUpDay, quota: int
) -> None:
    state = next_day(warm, day)
    assert (warm.is_warm, state.is_warm, state.quota) == (True, False, quota)


def test_30_idle_days_leave_a_quarter_and_end_being_warm() -> None:
    warm = used_up(17)
    assert after([IDLE] * 29, state=warm).is_warm
    idle = after([IDLE] * 30, state=warm)
    assert (idle.quota, idle.change, idle.is_warm) == (WARM // 4, Change.IDLE, False)
    assert not after([Day(100)], state=idle).is_warm
    assert after([IDLE] * 30, state=idle).quota == WARM // 16
    assert after([IDLE] * 300, state=idle).quota == FIRST_DAY_OF_PROVIDERS
    assert after([IDLE] * 60, lane="example.org").quota == FIRST_DAY


@given(
    some.lists(
        some.builds(Day, some.integers(0, 10**6), some.integers(0, 10**6), some.integers(0, 10**6), some.booleans()),
        max_size=100,
    ),
    some.sampled_from(["google", "example.org"]),
)
def test_a_quota_stays_within_its_bounds(days: list[WarmUpDay], lane: str) -> None:
    state = begin(lane)
    first = state.quota
    for day in days:
        state = next_day(state, day)
        assert first // 2 <= state.quota <= WARM
        assert len(state.taken) <= 30


# Against 400 providers, compared with fixed schedules.
PROVIDERS: Final = 400
DAYS: Final = 60
MESSAGES_A_DAY: Final = 20_000


def runs(plan: Callable[[], Plan]) -> list[WarmingRun]:
    return [
        warming_provider.run(warming_provider.drawn(Random(seed)), plan(), messages_a_day=MESSAGES_A_DAY, days=DAYS)
        for seed in range(PROVIDERS)
    ]


def test_400_providers_are_warm_sooner_and_with_a_hundredth_of_the_refusals_of_fixed_schedules() -> None:
    adaptive = runs(warming_provider.autopilot)
    fixed = [runs(lambda: warming_provider.sendgrid), runs(lambda: warming_provider.ses)]
    assert mean(run.full_on for run in adaptive) <= 20
    assert max(run.blocked_days for run in adaptive) == 0
    for others in fixed:
        assert mean(run.full_on for run in others) > mean(run.full_on for run in adaptive)
        assert sum(run.refused for run in adaptive) * 100 <= sum(run.refused for run in others)


@pytest.mark.parametrize(
    ("used", "used_this_hour", "is_list", "capacity"),
    [
        # An hour has a twelfth of the day.
        (0, 0, False, 17),
        (100, 17, False, 0),
        (195, 0, False, 5),
        (201, 18, False, 0),
        (0, 0, True, 12),
        (11, 11, True, 1),
        (12, 12, True, 0),
        (12, 12, False, 5),
        (139, 0, True, 1),
        (140, 0, True, 0),
        (140, 0, False, 17),
        (199, 0, False, 1),
        (200, 0, False, 0),
    ],
)
def test_the_capacity_of_an_hour_and_the_share_of_list_mail(
    used: int, used_this_hour: int, is_list: bool, capacity: int
) -> None:
    first = begin("google")
    assert first.capacity(taken_today=used, taken_this_hour=used_this_hour, is_list=is_list) == capacity


def test_a_settled_address_is_warm_for_single_domains_that_it_did_not_know() -> None:
    assert not begin("example.org", age_days=29).is_warm
    assert begin("example.org", age_days=30).is_warm
    assert not begin("google", age_days=300).is_warm


def test_days_without_mail_count_one_by_one() -> None:
    assert after_days(begin("google"), Day(200), 41) == after([Day(200)] + [IDLE] * 40)
    assert after_days(begin("google"), Day(200), 10_000).quota == FIRST_DAY_OF_PROVIDERS


def test_what_is_stored_is_restored() -> None:
    state = after_days(begin("google"), WarmUpDay(100, slow=9, was_blocked=True), 2)
    assert restored("google", json.loads(json.dumps(stored(state)))) == state


def test_volumes_can_be_smaller() -> None:
    small = Volumes(first_of_providers=3, first=1, warm=8)
    assert [begin(lane, small).quota for lane in ("google", "example.org")] == [3, 1]
    assert after_days(begin("google", small), Day(3), 1).quota == 4
    grown = used_up(5, begin("google", small))
    assert (grown.quota, grown.is_warm) == (8, True)
