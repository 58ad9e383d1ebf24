"""Learned limits: each sentence of what a lane learns."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as some

from posthouse.rules import learned_limits as rules
from posthouse.rules.learned_limits import (
    Change,
    LaneScope,
    LaneState,
    LearnedLimits,
    LimitChange,
    LimitChangeKind,
    Refused,
    blocked,
    grown,
    growth_seconds_of,
    pinned,
    recovered,
    relaxed,
    rest_seconds_of,
    restored,
    slowed,
    stored,
    stricter,
    undone,
    unpinned,
    with_fewer_connections,
    with_shorter_connections,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
TOO_FAST = Refused("421 4.7.28", "4.7.28 too much mail", "address")
GOOGLE = LaneScope("", "google")
OPEN = LearnedLimits(20.0)


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def slow(
    learned: LearnedLimits,
    *,
    lane: str = "google",
    seen: float = 0.0,
    now: datetime = NOW,
    random: float = 0.0,
    refused: Refused = TOO_FAST,
) -> LearnedLimits:
    return after(slowed(learned, lane, refused, seen_per_second=seen, now=now, random=random))


def after(change: Change | None) -> LearnedLimits:
    assert change is not None
    return change[1]


@pytest.mark.parametrize(
    ("lane", "rest"),
    [("google", 600), ("microsoft", 600), ("yahoo", 600), ("apple", 600), ("gmx", 60), ("example.com", 60)],
)
def test_the_large_providers_get_ten_minutes_of_rest_and_others_one(lane: str, rest: float) -> None:
    assert rest_seconds_of(lane) == rest
    assert slow(OPEN, lane=lane).paused_until == NOW + seconds(rest)


@pytest.mark.parametrize(
    ("rate", "seen", "ceiling"),
    [
        (20.0, 12.0, 12.0),
        # Much less was taken than the rate allowed: a quarter of it is assumed at least.
        (20.0, 1.0, 5.0),
        (20.0, 0.0, 5.0),
        # What was seen can't raise the rate.
        (20.0, 30.0, 20.0),
    ],
)
def test_the_ceiling_is_what_was_seen_between_a_quarter_and_all_of_the_rate(
    rate: float, seen: float, ceiling: float
) -> None:
    slowed = slow(LearnedLimits(rate), seen=seen)
    assert slowed.ceiling == ceiling
    assert slowed.per_second == ceiling / 2


@pytest.mark.parametrize(
    ("since_the_rest", "part"),
    [(None, 0.5), (seconds(1), 0.5), (seconds(4 * 600 - 1), 0.5), (seconds(4 * 600), 0.8), (10 * DAY, 0.8)],
)
def test_a_first_or_early_refusal_halves_the_rate_and_a_late_one_takes_a_fifth(
    since_the_rest: timedelta | None, part: float
) -> None:
    paused_until = None if since_the_rest is None else NOW - since_the_rest
    slowed = slow(replace(OPEN, paused_until=paused_until), seen=10.0)
    assert (slowed.ceiling, slowed.per_second) == (10.0, 10.0 * part)


@pytest.mark.parametrize(
    ("helped", "random", "asked", "rest"),
    [
        (0, 0.0, 0, 600),
        (0, 0.5, 0, 630),
        (0, 1.0, 0, 660),
        (600, 0.0, 0, 600),
        (1200, 0.0, 0, 960),
        (1200, 1.0, 0, 1056),
        (0, 0.0, 900, 900),
        (0, 0.0, 300, 600),
        (0, 0.0, 90_000, 3600),
    ],
)
def test_a_rest_is_the_shortest_or_most_of_what_helped_or_what_was_asked_and_a_bit_more(
    helped: float, random: float, asked: float, rest: float
) -> None:
    refused = replace(TOO_FAST, asked_seconds=asked)
    slowed = slow(replace(OPEN, rest_helped_seconds=helped), random=random, refused=refused)
    assert slowed.paused_until == NOW + seconds(rest)
    assert slowed.state is LaneState.RESTING


def test_the_first_message_refused_after_a_rest_doubles_it_up_to_four_hours_and_the_rate_stays() -> None:
    learned, now, rests = slow(OPEN, seen=10.0), NOW, []
    for _ in range(6):
        assert learned.paused_until is not None
        now = learned.paused_until
        change = slowed(learned, "google", TOO_FAST, seen_per_second=0.0, now=now, random=0.0)
        assert change is not None
        kind, learned = change
        assert kind is LimitChangeKind.STILL_SLOW
        assert (learned.per_second, learned.ceiling) == (5.0, 10.0)
        assert learned.paused_until is not None
        rests.append((learned.paused_until - now).total_seconds())
    assert rests == [1200, 2400, 4800, 9600, 14_400, 14_400]


def test_a_rest_that_was_shorter_than_one_that_helped_continues_for_as_long_as_that() -> None:
    resting = slow(replace(OPEN, rest_helped_seconds=4200.0), seen=10.0)
    assert resting.rest_seconds == 3360.0
    rests = []
    for _ in range(3):
        now = resting.paused_until
        assert now is not None
        resting = slow(resting, now=now)
        assert resting.paused_until is not None
        rests.append((resting.paused_until - now).total_seconds())
    # What was missing; then as if nothing was known.
    assert rests == [840, 4800, 9600]


def test_a_message_accepted_after_a_rest_opens_the_lane_and_remembers_that_the_rest_helped() -> None:
    resting = slow(slow(OPEN, seen=10.0), now=NOW + seconds(600))
    assert recovered(resting) == (
        LimitChangeKind.RECOVERED,
        replace(resting, state=LaneState.OPEN, rest_helped_seconds=1800.0),
    )
    assert recovered(OPEN) is None


@pytest.mark.parametrize(
    ("learned", "rate"),
    [
        (LearnedLimits(20.0), 22.0),
        (LearnedLimits(95.0), 100.0),
        (LearnedLimits(5.0, ceiling=10.0), 6.0),
        (LearnedLimits(8.9, ceiling=10.0), 9.9),
        (LearnedLimits(9.0, ceiling=10.0), 9.2),
        (LearnedLimits(15.0, ceiling=10.0), 15.2),
    ],
)
def test_a_clean_time_that_wanted_more_raises_the_rate(learned: LearnedLimits, rate: float) -> None:
    assert after(grown(learned, 100.0, NOW)).per_second == pytest.approx(rate)


@pytest.mark.parametrize(
    "learned",
    [
        LearnedLimits(100.0),
        LearnedLimits(150.0),
        LearnedLimits(20.0, state=LaneState.RESTING),
        LearnedLimits(20.0, state=LaneState.BLOCKED),
        LearnedLimits(20.0, is_pinned=True),
        LearnedLimits(20.0, ignored=((rules.GROWTH, NOW + DAY),)),
    ],
)
def test_a_lane_at_the_operators_limit_or_stopped_or_pinned_does_not_grow(learned: LearnedLimits) -> None:
    assert grown(learned, 100.0, NOW) is None


def test_growth_takes_a_minute_before_any_limit_change_and_a_rest_after_it() -> None:
    assert growth_seconds_of("google", OPEN) == 60
    assert growth_seconds_of("google", slow(OPEN)) == 600
    assert growth_seconds_of("example.com", slow(OPEN, lane="example.com")) == 60


@pytest.mark.parametrize(("since_the_rest", "is_forgotten"), [(DAY, True), (DAY - seconds(1), False)])
def test_a_ceiling_is_forgotten_after_24_clean_hours(since_the_rest: timedelta, is_forgotten: bool) -> None:
    learned = LearnedLimits(5.0, ceiling=10.0, paused_until=NOW - since_the_rest)
    change = relaxed(learned, NOW, connections_max=20, per_connection_max=100)
    expected = (LimitChangeKind.CEILING_FORGOTTEN, replace(learned, ceiling=None)) if is_forgotten else None
    assert change == expected


@pytest.mark.parametrize(("seen", "bound"), [(7, 7), (1, 1), (0, 1)])
def test_the_connections_and_the_messages_per_connection_are_bounded_by_what_was_seen(seen: int, bound: int) -> None:
    assert after(with_fewer_connections(OPEN, TOO_FAST, seen, NOW)).connections_max == bound
    assert after(with_shorter_connections(OPEN, TOO_FAST, seen, NOW)).per_connection_max == bound


def test_a_refusal_that_saw_more_than_the_bound_does_not_raise_it() -> None:
    learned = LearnedLimits(20.0, connections_max=3, per_connection_max=3)
    assert with_fewer_connections(learned, TOO_FAST, 4, NOW) is None
    assert with_shorter_connections(learned, TOO_FAST, 4, NOW) is None


def test_each_clean_day_adds_one_until_the_limit_without_the_bound() -> None:
    learned = after(with_fewer_connections(OPEN, TOO_FAST, 3, NOW))
    learned = after(with_shorter_connections(learned, TOO_FAST, 18, NOW))
    assert relaxed(learned, NOW + DAY - seconds(1), connections_max=5, per_connection_max=100) is None
    bounds = []
    for day in (1, 2, 3):
        change = relaxed(learned, NOW + day * DAY, connections_max=5, per_connection_max=100)
        assert change is not None
        kind, learned = change
        assert kind is LimitChangeKind.RELAXED
        bounds.append((learned.connections_max, learned.per_connection_max))
    assert bounds == [(4, 19), (None, 20), (None, 21)]


def test_a_blocked_lane_asks_after_1_2_4_up_to_24_hours() -> None:
    learned, now, hours = OPEN, NOW, []
    for _ in range(7):
        learned = after(blocked(learned, TOO_FAST, now))
        assert learned.state is LaneState.BLOCKED
        assert learned.paused_until is not None
        hours.append((learned.paused_until - now).total_seconds() / 3600)
        now = learned.paused_until
    assert hours == [1, 2, 4, 8, 16, 24, 24]
    opened = after(recovered(learned))
    assert (opened.state, opened.per_second, opened.rest_helped_seconds) == (LaneState.OPEN, 20.0, 0.0)
    assert after(blocked(opened, TOO_FAST, now)).paused_until == now + seconds(3600)


def test_a_blocked_lane_that_should_slow_down_rests_and_keeps_its_rate() -> None:
    slowed = slow(after(blocked(OPEN, TOO_FAST, NOW)), now=NOW + seconds(3600))
    assert (slowed.state, slowed.per_second) == (LaneState.RESTING, 20.0)
    assert slowed.paused_until == NOW + seconds(3600 + 600)


def limit_change_of(before: LearnedLimits, change: Change | None, refused: Refused = TOO_FAST) -> LimitChange:
    assert change is not None
    return LimitChange(NOW, GOOGLE, change[0], before, change[1], refused)


@pytest.mark.parametrize(
    "before",
    [OPEN, LearnedLimits(3.0, ceiling=4.0, paused_until=NOW - DAY, rest_seconds=600.0, rest_helped_seconds=600.0)],
)
def test_an_undone_limit_change_restores_the_learned_limits_and_its_cause_is_ignored_for_a_day(
    before: LearnedLimits,
) -> None:
    limit_changes = [
        limit_change_of(before, slowed(before, "google", TOO_FAST, seen_per_second=1.0, now=NOW, random=0.5)),
        limit_change_of(before, blocked(before, TOO_FAST, NOW)),
        limit_change_of(before, with_fewer_connections(before, TOO_FAST, 3, NOW)),
        limit_change_of(before, with_shorter_connections(before, TOO_FAST, 3, NOW)),
    ]
    for limit_change in limit_changes:
        kind, learned = undone(limit_change, NOW)
        assert kind is LimitChangeKind.UNDONE
        assert replace(learned, ignored=()) == before
        for change in (
            slowed(learned, "google", TOO_FAST, seen_per_second=1.0, now=NOW, random=0.5),
            blocked(learned, TOO_FAST, NOW),
            with_fewer_connections(learned, TOO_FAST, 3, NOW),
            with_shorter_connections(learned, TOO_FAST, 3, NOW),
        ):
            assert change is None
        other = replace(TOO_FAST, cause="421 4.7.0")
        assert blocked(learned, other, NOW) is not None
        assert blocked(learned, TOO_FAST, NOW + DAY) is not None


RESTING = LearnedLimits(5.0, 10.0, LaneState.RESTING, NOW, 600.0)
CLEAN = LearnedLimits(5.0, 10.0, paused_until=NOW - 2 * DAY, connections_max=3, connections_since=NOW - 2 * DAY)


@pytest.mark.parametrize(
    ("before", "change"),
    [
        (RESTING, slowed(RESTING, "google", TOO_FAST, seen_per_second=0, now=NOW, random=0.5)),
        (RESTING, recovered(RESTING)),
        (CLEAN, relaxed(CLEAN, NOW, connections_max=20, per_connection_max=100)),
        (OPEN, pinned(OPEN, 5.0)),
        (replace(OPEN, is_pinned=True), unpinned(replace(OPEN, is_pinned=True))),
    ],
)
def test_any_limit_change_can_be_undone(before: LearnedLimits, change: Change) -> None:
    assert change[1] != before
    _, learned = undone(limit_change_of(before, change), NOW)
    assert replace(learned, ignored=()) == before


def test_an_undone_growth_does_not_grow_for_a_day() -> None:
    _, learned = undone(limit_change_of(OPEN, grown(OPEN, 100.0, NOW), Refused()), NOW)
    assert learned.per_second == 20.0
    assert grown(learned, 100.0, NOW + DAY - seconds(1)) is None
    assert grown(learned, 100.0, NOW + DAY) is not None


def test_a_cause_undone_twice_is_ignored_once_and_old_ones_are_dropped() -> None:
    before = replace(OPEN, ignored=(("451", NOW - seconds(1)), (TOO_FAST.cause, NOW + seconds(1)), ("452", NOW + DAY)))
    _, learned = undone(limit_change_of(before, (LimitChangeKind.SLOW, OPEN)), NOW)
    assert learned.ignored == (("452", NOW + DAY), (TOO_FAST.cause, NOW + DAY))


def test_a_pinned_lane_keeps_its_rate_and_still_rests() -> None:
    kind, learned = pinned(slow(OPEN, seen=10.0), 5.0)
    assert (kind, learned.per_second, learned.ceiling) == (LimitChangeKind.PINNED, 5.0, None)
    learned = after(recovered(learned))
    slowed = slow(learned, seen=1.0, now=NOW + DAY)
    assert (slowed.per_second, slowed.ceiling, slowed.state) == (5.0, None, LaneState.RESTING)
    kind, learned = unpinned(after(recovered(slowed)))
    assert (kind, learned.per_second) == (LimitChangeKind.UNPINNED, 5.0)
    assert after(grown(learned, 100.0, NOW + DAY)).per_second == pytest.approx(5.5)


def test_a_limit_change_says_until_when_it_stops_the_lane() -> None:
    resting = slow(OPEN)
    assert LimitChange(NOW, GOOGLE, LimitChangeKind.SLOW, OPEN, resting).until == NOW + seconds(600)
    assert LimitChange(NOW + DAY, GOOGLE, LimitChangeKind.GREW, resting, resting).until is None


@pytest.mark.parametrize("turn", [1, -1])
def test_of_two_learned_limits_the_stricter_parts_count(turn: int) -> None:
    one = LearnedLimits(5.0, ceiling=10.0, paused_until=NOW, connections_max=3, ignored=(("451", NOW),))
    two = LearnedLimits(7.0, ceiling=8.0, state=LaneState.BLOCKED, paused_until=NOW + DAY, block_seconds=3600.0)
    both = stricter(*(one, two)[::turn])
    assert both == replace(two, per_second=5.0, connections_max=3, ignored=(("451", NOW),))
    assert stricter(*(OPEN, one)[::turn]) == one


times = some.datetimes(timezones=some.just(UTC))
rates = some.floats(0.01, 1e6)


@given(
    some.builds(
        LearnedLimits,
        per_second=rates,
        ceiling=some.none() | rates,
        state=some.sampled_from(LaneState),
        paused_until=some.none() | times,
        rest_seconds=rates,
        rest_helped_seconds=rates,
        block_seconds=rates,
        connections_max=some.none() | some.integers(1, 100),
        connections_since=some.none() | times,
        per_connection_max=some.none() | some.integers(1, 100),
        per_connection_since=some.none() | times,
        is_pinned=some.booleans(),
        ignored=some.lists(some.tuples(some.text(), times), max_size=3).map(tuple),
    )
)
def test_learned_limits_are_restored_as_they_were_stored(learned: LearnedLimits) -> None:
    assert restored(json.loads(json.dumps(stored(learned)))) == learned


def test_fields_of_another_version_are_left_out() -> None:
    assert restored({"per_second": 3.0, "mood": "good"}) == LearnedLimits(3.0)
