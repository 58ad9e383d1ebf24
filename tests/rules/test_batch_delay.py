"""Batch delay: a batch waits for more items while that pays off, and otherwise no longer than it must."""

import pytest

from posthouse.rules.claim import ENOUGH_ITEMS, BatchDelay

MIN, MAX = 0.02, 0.15


def after_arrivals(per_second: float, seconds: float = 10.0) -> float:
    """How long a batch waits that begins with the last of these."""
    batch_delay = BatchDelay(MIN, MAX)
    interval = 1 / per_second
    count = round(seconds * per_second)
    for number in range(count):
        batch_delay.note_arrival(number * interval)
    return batch_delay.seconds((count - 1) * interval)


@pytest.mark.parametrize("per_second", [5, 10, 30, 120])
def test_while_few_come_a_batch_waits_as_long_as_it_may(per_second: float) -> None:
    assert after_arrivals(per_second) == MAX


@pytest.mark.parametrize("per_second", [0.1, 0.5, 1])
def test_while_hardly_any_come_it_does_not_wait_for_them(per_second: float) -> None:
    assert after_arrivals(per_second) == MIN


@pytest.mark.parametrize("per_second", [200, 500])
def test_while_many_come_it_waits_for_enough(per_second: float) -> None:
    assert after_arrivals(per_second) == pytest.approx(ENOUGH_ITEMS / per_second, rel=0.02)


def test_it_waits_no_less_than_it_must() -> None:
    assert after_arrivals(10_000) == MIN


def test_the_first_item_after_a_silence_does_not_wait_for_others() -> None:
    batch_delay = BatchDelay(MIN, MAX)
    for number in range(1_000):
        batch_delay.note_arrival(number / 100)
    batch_delay.note_arrival(70.0)
    assert batch_delay.seconds(70.0) == MIN


def test_without_a_most_it_is_always_the_least() -> None:
    batch_delay = BatchDelay(MIN)
    for number in range(100):
        batch_delay.note_arrival(number / 100)
        assert batch_delay.seconds(number / 100) == MIN
