"""When a failed attempt is repeated."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as some

from posthouse.rules import retry
from posthouse.rules.retry import DELIVERY, WEBHOOK, RetryAnswer, Schedule, is_held_too_long, next_at
from posthouse.rules.wait_reason import WaitExplanation, WaitReason

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
MICROSECOND = timedelta(microseconds=1)

randomness_sources = some.floats(0, 1, exclude_max=True)


def wait(schedule: Schedule, attempts: int, random: float = 0.5) -> timedelta | None:
    at = next_at(schedule, attempts=attempts, started_at=NOON, now=NOON, random=random)
    return None if at is None else at - NOON


def test_delivery_is_tried_ten_times() -> None:
    waits = [wait(DELIVERY, attempts) for attempts in range(1, 12)]
    minutes = [None if wait is None else wait / timedelta(minutes=1) for wait in waits]
    assert minutes == [1, 5, 15, 30, 60, 120, 240, 480, 960, None, None]
    assert DELIVERY.attempts_max == 10


def test_a_webhook_is_tried_seven_times_to_the_second() -> None:
    for random in (0.0, 0.5, 0.999):
        waits = [wait(WEBHOOK, attempts, random) for attempts in range(1, 8)]
        seconds = [None if wait is None else wait / timedelta(seconds=1) for wait in waits]
        assert seconds == [5, 300, 1_800, 7_200, 18_000, 36_000, None]
    assert WEBHOOK.attempts_max == 7


def test_randomness_spreads_over_the_whole_tenth() -> None:
    minutes = [54, 60, 66]
    assert [wait(DELIVERY, 5, random) for random in (0.0, 0.5, 1.0)] == [timedelta(minutes=each) for each in minutes]


@pytest.mark.parametrize(
    ("age", "held", "is_tried"),
    [
        (timedelta(hours=71), timedelta(0), True),
        (timedelta(hours=71) + MICROSECOND, timedelta(0), False),
        (timedelta(hours=80), timedelta(0), False),
        (timedelta(hours=80), timedelta(hours=8), False),
        (timedelta(hours=80), timedelta(hours=9), True),
    ],
)
def test_nothing_is_tried_after_72_hours_but_held_time_does_not_count(
    age: timedelta, held: timedelta, is_tried: bool
) -> None:
    at = next_at(DELIVERY, attempts=5, started_at=NOON - age, now=NOON, random=0.5, held=held)
    assert at == (NOON + HOUR if is_tried else None)


def test_a_webhook_has_no_last_hour() -> None:
    assert next_at(WEBHOOK, attempts=6, started_at=NOON - 1_000 * HOUR, now=NOON, random=0.5) == NOON + 10 * HOUR


@given(randomness_sources, some.lists(some.integers(0, 3_600), min_size=9, max_size=9))
def test_the_whole_schedule_fits_into_its_lifetime(random: float, attempt_seconds: list[int]) -> None:
    now = NOON
    for attempts, seconds in enumerate(attempt_seconds, start=1):
        at = next_at(DELIVERY, attempts=attempts, started_at=NOON, now=now + timedelta(seconds=seconds), random=random)
        assert at is not None
        now = at
    assert now <= NOON + timedelta(hours=72)


def test_a_retry_before_the_first_attempt_is_a_fault() -> None:
    with pytest.raises(ValueError, match="a retry follows an attempt"):
        wait(DELIVERY, 0)


@pytest.mark.parametrize(("waits", "spread"), [((-MICROSECOND,), 0.0), ((HOUR,), -0.1), ((HOUR,), 1.1)])
def test_a_schedule_with_a_negative_wait_or_spread_is_a_fault(waits: tuple[timedelta, ...], spread: float) -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        Schedule(waits, spread)


def test_held_mail_waits_a_week() -> None:
    week = timedelta(days=7)
    assert not is_held_too_long(NOON, NOON + week - MICROSECOND)
    assert is_held_too_long(NOON, NOON + week)


# A retry that was asked for


AT = datetime(2026, 5, 4, 9, 30, tzinfo=UTC)


@pytest.mark.parametrize("reason", list(WaitReason))
def test_what_was_deferred_is_moved_and_all_else_stays(reason: WaitReason) -> None:
    judged = retry.judge_request("deferred", WaitExplanation(reason, "why"), AT, attempts=1, attempts_max=10)
    is_movable = reason in (WaitReason.DEFERRED, WaitReason.GREYLISTED)
    assert judged.result == (RetryAnswer.NOW if is_movable else reason)
    assert (judged.text == "why") is not is_movable


def test_what_is_final_stays() -> None:
    judged = retry.judge_request("bounced", None, None, attempts=3, attempts_max=10)
    assert (judged.result, judged.text) == (RetryAnswer.FINAL, "it is final: bounced")


@pytest.mark.parametrize(("attempts", "result"), [(8, RetryAnswer.NOW), (9, RetryAnswer.LAST_ATTEMPT)])
def test_the_last_attempt_stays_at_its_time(attempts: int, result: RetryAnswer) -> None:
    wait = WaitExplanation(WaitReason.DEFERRED, "why")
    judged = retry.judge_request("deferred", wait, AT, attempts=attempts, attempts_max=10)
    assert judged.result is result
    assert ("2026-05-04 09:30:00 UTC" in judged.text) is (result is RetryAnswer.LAST_ATTEMPT)
