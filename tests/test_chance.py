"""Randomness: fractions within their bounds, and repeatable seeds."""

from collections.abc import Callable

import pytest

from posthouse.chance import Chance, SeededChance, SystemChance


@pytest.mark.parametrize("make", [SystemChance, lambda: SeededChance(7)], ids=["system", "seeded"])
def test_a_fraction_is_in_its_bounds_and_seldom_repeats(make: Callable[[], Chance]) -> None:
    chance = make()
    drawn = [chance.fraction() for _ in range(1_000)]
    assert all(0 <= fraction < 1 for fraction in drawn)
    assert len(set(drawn)) > 990
    assert min(drawn) < 0.1 < 0.9 < max(drawn)


def test_the_same_seed_draws_the_same() -> None:
    def drawn(seed: int) -> list[object]:
        chance = SeededChance(seed)
        return [chance.fraction(), chance.bytes(10), chance.fraction()]

    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


def test_as_many_bytes_as_asked_for() -> None:
    for chance in (SystemChance(), SeededChance(7)):
        assert [len(chance.bytes(count)) for count in (0, 1, 16)] == [0, 1, 16]
