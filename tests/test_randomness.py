"""Randomness: fractions within their bounds, and repeatable seeds."""

from collections.abc import Callable

import pytest

from posthouse.randomness import Randomness, SeededRandomness, SystemRandomness


@pytest.mark.parametrize("make", [SystemRandomness, lambda: SeededRandomness(7)], ids=["system", "seeded"])
def test_a_fraction_is_in_its_bounds_and_seldom_repeats(make: Callable[[], Randomness]) -> None:
    randomness = make()
    drawn = [randomness.fraction() for _ in range(1_000)]
    assert all(0 <= fraction < 1 for fraction in drawn)
    assert len(set(drawn)) > 990
    assert min(drawn) < 0.1 < 0.9 < max(drawn)


def test_the_same_seed_draws_the_same() -> None:
    def drawn(seed: int) -> list[object]:
        randomness = SeededRandomness(seed)
        return [randomness.fraction(), randomness.bytes(10), randomness.fraction()]

    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


def test_the_number_of_bytes_is_as_requested() -> None:
    for randomness in (SystemRandomness(), SeededRandomness(7)):
        assert [len(randomness.bytes(count)) for count in (0, 1, 16)] == [0, 1, 16]
