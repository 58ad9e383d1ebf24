"""Randomness: fractions within their bounds, and repeatable seeds."""

import os
from collections.abc import Callable

import pytest

from posthouse.randomness import Randomness, SeededRandomness, SystemRandomness
from posthouse.rules.ids import RANDOM_BYTES


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


def test_the_bytes_of_an_id_are_drawn_once() -> None:
    randomness = SystemRandomness()
    drawn = [randomness.id_bytes() for _ in range(2_000)]
    assert {len(each) for each in drawn} == {RANDOM_BYTES}
    assert len(set(drawn)) == len(drawn)


def test_a_forked_process_makes_other_ids() -> None:
    SystemRandomness().id_bytes()
    process, mine = os.pipe(), [SystemRandomness().id_bytes() for _ in range(100)]
    if (pid := os.fork()) == 0:
        os.write(process[1], b"".join(SystemRandomness().id_bytes() for _ in range(100)))
        os._exit(0)
    os.waitpid(pid, 0)
    theirs = os.read(process[0], 100 * RANDOM_BYTES)
    mine += [SystemRandomness().id_bytes() for _ in range(100)]
    for end in process:
        os.close(end)
    assert not {theirs[at : at + RANDOM_BYTES] for at in range(0, len(theirs), RANDOM_BYTES)} & set(mine)
    assert len(theirs) == 100 * RANDOM_BYTES
