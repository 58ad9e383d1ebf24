"""A fair share: most of it for a holder alone, an equal part beside others, always something for a newcomer."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as some

from posthouse.rules.fair_share import FairShare


def taken_in_turns(capacity: int, holders: Sequence[str]) -> dict[str, int]:
    """How much each holder has after all took in turns until none had room."""
    share: FairShare[str] = FairShare(capacity)
    while [holder for holder in holders if share.take(holder)]:
        pass
    return {holder: share.held(holder) for holder in holders}


@pytest.mark.parametrize(
    ("capacity", "holders", "each"),
    [(500, 1, 400), (500, 2, 200), (500, 4, 100), (500, 100, 4), (5, 1, 4), (5, 2, 2), (2, 1, 1), (1, 1, 1)],
)
def test_holders_that_always_want_more_have_equal_parts(capacity: int, holders: int, each: int) -> None:
    assert set(taken_in_turns(capacity, [f"h{number}" for number in range(holders)]).values()) == {each}


def test_what_a_holder_alone_leaves_is_for_newcomers() -> None:
    share: FairShare[str] = FairShare(500)
    while share.take("first"):
        pass
    for number in range(90):
        assert share.take(f"newcomer {number}")
    assert not share.take("first")


def test_a_holder_above_its_share_gets_no_more_until_it_is_below() -> None:
    share: FairShare[str] = FairShare(500)
    while share.take("first"):
        pass
    assert share.take("second")
    share.give_back("first", 200)
    assert not share.has_room("first")
    share.give_back("first")
    assert share.take("first")


def test_a_share_grows_again_when_the_others_are_done() -> None:
    share: FairShare[str] = FairShare(100)
    while share.take("first") | share.take("second"):
        pass
    assert not share.has_room("first")
    share.give_back("second", share.held("second"))
    assert share.has_room("first")


def test_a_large_first_request_fits_if_it_is_free() -> None:
    share: FairShare[str] = FairShare(100)
    assert share.take("large", 100)
    assert not share.take("late")


def test_more_than_was_taken_is_not_given_back() -> None:
    share: FairShare[str] = FairShare(10)
    share.take("holder", 3)
    with pytest.raises(ValueError, match="more was given back"):
        share.give_back("holder", 4)


def test_nothing_can_not_be_shared() -> None:
    with pytest.raises(ValueError, match="something to share"):
        FairShare[str](0)


@given(
    capacity=some.integers(1, 60),
    steps=some.lists(some.tuples(some.sampled_from("abcdef"), some.integers(1, 8), some.booleans()), max_size=120),
)
def test_taken_is_the_sum_of_what_is_held(capacity: int, steps: list[tuple[str, int, bool]]) -> None:
    share: FairShare[str] = FairShare(capacity)
    model: dict[str, int] = {}
    for holder, units, is_taking in steps:
        if is_taking:
            may = share.has_room(holder, units)
            assert share.take(holder, units) is may
            if may:
                model[holder] = model.get(holder, 0) + units
            elif not model.get(holder):
                assert units > capacity - sum(model.values())
        elif model.get(holder, 0) >= units:
            share.give_back(holder, units)
            model[holder] -= units
        assert share.taken == sum(model.values()) <= capacity
        assert all(share.held(name) == held for name, held in model.items())


def test_a_whole_that_is_taken_in_parts_fits_however_many_others_there_are() -> None:
    share: FairShare[str] = FairShare(1_000, least=10)
    for number in range(100):
        assert share.take(f"other {number}")
    assert all(share.take("first") for _ in range(10))
    assert not share.take("first")


@given(
    some.integers(1, 20),
    some.integers(0, 5),
    some.lists(some.tuples(some.sampled_from("abcd"), some.integers(1, 4)), max_size=20),
)
def test_the_most_is_what_a_holder_with_room_may_have(capacity: int, least: int, taken: list[tuple[str, int]]) -> None:
    share: FairShare[str] = FairShare(capacity, least=least)
    for holder, units in taken:
        share.take(holder, units)
    for holder in "abcde":
        assert (share.held(holder) < share.most) is share.has_room(holder)
