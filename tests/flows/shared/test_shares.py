"""Shares: most for a single holder, equal parts for several, something for a newcomer; waits in turns; and rates."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as some

from posthouse.flows.shared.shares import RATE_SECONDS, UNLIMITED, WAITING_MIN, FairShare, Rates, WaitedShare, busy
from posthouse.rules.rate_limit import Rate, RateReading
from posthouse.rules.refusal import Code, Refusal
from tests.support.eventually import HANG_SECONDS

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def taken_alternately(capacity: int, holders: Sequence[str]) -> dict[str, int]:
    """How much each holder has after all took in turns until nothing was left."""
    share: FairShare[str] = FairShare(capacity)
    while [holder for holder in holders if share.take_units(holder)]:
        pass
    return {holder: share.held(holder) for holder in holders}


@pytest.mark.parametrize(
    ("capacity", "holders", "each"),
    [(500, 1, 400), (500, 2, 200), (500, 4, 100), (500, 100, 4), (5, 1, 4), (5, 2, 2), (2, 1, 1), (1, 1, 1)],
)
def test_holders_that_always_want_more_have_equal_parts(capacity: int, holders: int, each: int) -> None:
    assert set(taken_alternately(capacity, [f"h{number}" for number in range(holders)]).values()) == {each}


def test_what_a_single_holder_leaves_is_for_newcomers_until_it_is_below_its_share() -> None:
    share: FairShare[str] = FairShare(500)
    while share.take_units("first"):
        pass
    assert share.take_units("second")
    share.release_units("first", 200)
    assert not share.has_capacity("first")
    share.release_units("first")
    assert share.take_units("first")
    for number in range(90):
        assert share.take_units(f"newcomer {number}")
    assert not share.take_units("first")


def test_a_share_grows_again_when_the_others_are_done() -> None:
    share: FairShare[str] = FairShare(100)
    while share.take_units("first") | share.take_units("second"):
        pass
    assert not share.has_capacity("first")
    share.release_units("second", share.held("second"))
    assert share.has_capacity("first")


def test_a_large_first_request_fits_if_it_is_free() -> None:
    share: FairShare[str] = FairShare(100)
    assert share.take_units("large", 100)
    assert not share.take_units("late")


def test_more_than_was_taken_and_an_empty_whole_are_faults() -> None:
    share: FairShare[str] = FairShare(10)
    share.take_units("holder", 3)
    with pytest.raises(ValueError, match="more units were released"):
        share.release_units("holder", 4)
    with pytest.raises(ValueError, match="at least 1"):
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
            may = share.has_capacity(holder, units)
            assert share.take_units(holder, units) is may
            if may:
                model[holder] = model.get(holder, 0) + units
            elif not model.get(holder):
                assert units > capacity - sum(model.values())
        elif model.get(holder, 0) >= units:
            share.release_units(holder, units)
            model[holder] -= units
        assert share.taken == sum(model.values()) <= capacity
        assert all(share.held(name) == held for name, held in model.items())


def test_a_whole_that_is_taken_in_parts_fits_however_many_others_there_are() -> None:
    share: FairShare[str] = FairShare(1_000, least=10)
    for number in range(100):
        assert share.take_units(f"other {number}")
    assert all(share.take_units("first") for _ in range(10))
    assert not share.take_units("first")


@given(
    some.integers(1, 20),
    some.integers(0, 5),
    some.lists(some.tuples(some.sampled_from("abcd"), some.integers(1, 4)), max_size=20),
)
def test_the_maximum_is_what_a_holder_may_have_of_what_is_free(
    capacity: int, least: int, taken: list[tuple[str, int]]
) -> None:
    share: FairShare[str] = FairShare(capacity, least=least)
    for holder, units in taken:
        share.take_units(holder, units)
    for holder in "abcde":
        assert (share.held(holder) < share.most) is share.has_capacity(holder)


def test_a_bound_for_each_holder_does_not_depend_on_the_others() -> None:
    share: FairShare[str] = FairShare(5, holder_max=2)
    for holder, is_taken in zip("aaabbcd", (True, True, False, True, True, True, False), strict=True):
        assert share.has_capacity(holder) is is_taken
        assert share.take_units(holder) is is_taken


def test_units_are_taken_for_a_block_or_refused() -> None:
    share: FairShare[str] = FairShare(10)
    refusal = busy("Much is done")
    with share.taking("a", refusal, 8):
        with pytest.raises(Refusal, match="Much is done at this moment: try") as caught, share.taking("a", refusal):
            pass
        assert (caught.value.code, caught.value.retry_after_seconds) == (Code.TEMPORARY_FAILURE, 2)
        assert caught.value is not refusal
        with share.taking("b", refusal), share.taking("c", refusal):
            pass
    assert share.taken == 0


async def started(share: WaitedShare[str], *holders: str, units: int = 1) -> list["asyncio.Task[None]"]:
    tasks = [asyncio.create_task(share.acquire_units(holder, units)) for holder in holders]
    await asyncio.sleep(0)
    return tasks


async def stopped(tasks: list["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_holder_waits_until_something_is_given_back() -> None:
    share: WaitedShare[str] = WaitedShare(10)
    await share.acquire_units("first", 8)
    (waiting,) = await started(share, "first")
    assert not waiting.done()
    share.release_units("first", 4)
    await waiting
    assert share.taken == 5


async def test_a_newcomer_does_not_wait_behind_those_above_their_share() -> None:
    share: WaitedShare[str] = WaitedShare(10)
    await share.acquire_units("first", 8)
    (waiting,) = await started(share, "first")
    await asyncio.wait_for(share.acquire_units("second"), HANG_SECONDS)
    assert not waiting.done()
    waiting.cancel()


async def test_waiting_holders_take_turns() -> None:
    share: WaitedShare[str] = WaitedShare(2)
    await share.acquire_units("first")
    await share.acquire_units("second")
    order: list[str] = []

    async def take(holder: str) -> None:
        await share.acquire_units(holder)
        order.append(holder)
        share.release_units(holder)

    tasks = [asyncio.create_task(take(holder)) for holder in ("a", "a", "a", "b", "c")]
    await asyncio.sleep(0)
    share.release_units("first")
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "c", "a", "a"]


async def test_a_holder_that_waited_too_long_is_refused() -> None:
    share: WaitedShare[str] = WaitedShare(1, wait_seconds_max=0.01)
    await share.acquire_units("first")
    with pytest.raises(Refusal) as caught:
        await share.acquire_units("second")
    assert (caught.value.code, caught.value.retry_after_seconds) == (Code.TEMPORARY_FAILURE, 1)
    share.release_units("first")
    assert share.acquire_units_now("second")


async def test_a_cancelled_wait_takes_nothing() -> None:
    share: WaitedShare[str] = WaitedShare(1)
    await share.acquire_units("first")
    before, granted, after = await started(share, "second", "third", "fourth")
    before.cancel()
    await asyncio.sleep(0)
    share.release_units("first")
    granted.cancel()
    await asyncio.wait_for(after, HANG_SECONDS)
    assert share.taken == 1
    share.release_units("fourth")
    assert share.taken == 0


async def test_a_few_may_always_wait() -> None:
    share: WaitedShare[str] = WaitedShare(1, queue_seconds_max=0.0)
    await share.acquire_units("first")
    waiting = await started(share, *(f"{number}" for number in range(WAITING_MIN)))
    assert not any(task.done() for task in waiting)
    with pytest.raises(Refusal, match="More requests are waiting"):
        await share.acquire_units("another")
    with pytest.raises(Refusal, match="too much in progress"):
        await share.acquire_units("0")
    await stopped(waiting)
    share.check_wait()


async def test_what_would_wait_longer_than_it_may_is_refused_at_once() -> None:
    share: WaitedShare[str] = WaitedShare(10, queue_seconds_max=0.5)
    for number in range(10):
        await share.acquire_units(f"first{number}")
    # A hundred turns a second are expected: fifty in half a second.
    waiting = await started(share, *(f"{number}" for number in range(50)))
    with pytest.raises(Refusal, match="More requests are waiting"):
        share.check_wait()
    with pytest.raises(Refusal, match="More requests are waiting"):
        await share.acquire_units("another")
    share.release_units("first0")
    share.check_wait()
    with pytest.raises(Refusal, match="too much in progress"):
        await share.acquire_units("1")
    await stopped(waiting)


async def test_a_holder_with_much_waiting_does_not_keep_others_out() -> None:
    # However slow its turns are: even two would take longer than this.
    share: WaitedShare[str] = WaitedShare(10, queue_seconds_max=0.001)
    await share.acquire_units("much", 8)
    waiting = await started(share, *["much"] * WAITING_MIN)
    with pytest.raises(Refusal, match="too much in progress"):
        await share.acquire_units("much")
    share.check_wait()
    assert share.acquire_units_now("another")
    waiting += await started(share, "another")
    await stopped(waiting)


async def test_a_holder_that_is_refused_for_its_own_requests_is_told_so_after_the_time_others_may_wait() -> None:
    share: WaitedShare[str] = WaitedShare(1, queue_seconds_max=0.05)
    await share.acquire_units("much")
    waiting = await started(share, *["much"] * WAITING_MIN)
    began_at = asyncio.get_running_loop().time()
    with pytest.raises(Refusal, match="too much in progress"):
        await share.acquire_units("much")
    assert asyncio.get_running_loop().time() >= began_at + 0.05
    await stopped(waiting)


async def test_the_rate_of_turns_is_measured_while_others_wait() -> None:
    share: WaitedShare[str] = WaitedShare(1, queue_seconds_max=0.2)
    await share.acquire_units("first")
    names = [f"{number}" for number in range(20)]
    # A thousand turns a second are expected at first, and six of one holder are let in.
    share._rate = 1_000.0
    waiting = await started(share, *names, *[names[-1]] * 5)
    assert not any(task.done() for task in waiting)
    held = "first"
    for name in names[:3]:
        # As if this long had passed.
        share._granted_since -= 3 * RATE_SECONDS
        share.release_units(held)
        held = name
    with pytest.raises(Refusal, match="too much in progress"):
        await share.acquire_units(names[-1])
    await stopped(waiting)


async def test_a_turn_is_passed_on_when_its_block_ends() -> None:
    share: WaitedShare[str] = WaitedShare(1)
    order: list[str] = []
    release = asyncio.Event()

    async def work(holder: str) -> None:
        async with share.turn(holder):
            order.append(holder)
            await release.wait()

    tasks = [asyncio.create_task(work(holder)) for holder in ["a"] * 5 + ["b", "c"]]
    await asyncio.sleep(0)
    assert order == ["a"]
    release.set()
    await asyncio.gather(*tasks)
    assert order == ["a", "a", "b", "c", "a", "a", "a"]


async def test_one_holder_may_use_all_turns_that_are_not_divided() -> None:
    share: WaitedShare[str] = WaitedShare(2, holder_max=2)
    await share.acquire_units("a")
    await asyncio.wait_for(share.acquire_units("a"), HANG_SECONDS)
    waiting = await started(share, "a", "b")
    share.release_units("a")
    await asyncio.wait_for(waiting[0], HANG_SECONDS)
    assert not waiting[1].done()
    share.release_units("a")
    await asyncio.wait_for(waiting[1], HANG_SECONDS)


async def test_a_bound_for_each_holder_makes_no_one_wait_for_others() -> None:
    share: WaitedShare[str] = WaitedShare(UNLIMITED, holder_max=1)
    for holder in ("a", "b", "c"):
        await asyncio.wait_for(share.acquire_units(holder), HANG_SECONDS)
    of_a, of_b = await started(share, "a", "b")
    share.release_units("b")
    await asyncio.wait_for(of_b, HANG_SECONDS)
    assert not of_a.done()
    await stopped([of_a])


def test_a_rate_counts_each_key_for_itself() -> None:
    rates: Rates[str] = Rates()
    rate = Rate(1, 2)
    for key in ("a", "a", "b"):
        rates.require(key, rate, NOON, "Two at a time")
    with pytest.raises(Refusal, match=r"^.*Two at a time: try again in 1 s\.$") as caught:
        rates.require("a", rate, NOON, "Two at a time")
    assert (caught.value.code, caught.value.retry_after_seconds, caught.value.headers) == (Code.RATE_LIMITED, 1, {})
    with pytest.raises(Refusal, match="try again in 1 s, or later") as caught:
        rates.require("a", rate, NOON, "Two at a time", otherwise=", or later", has_headers=True)
    assert caught.value.headers == {"RateLimit-Limit": "2", "RateLimit-Remaining": "0", "RateLimit-Reset": "2"}
    rates.require("a", rate, NOON + timedelta(seconds=1), "Two at a time")


def test_keys_whose_burst_is_available_are_forgotten_first() -> None:
    rates: Rates[str] = Rates(keys_max=2)
    rate = Rate(1, 2)
    rates.charge("long", rate, NOON, 20)
    rates.take_request("short", rate, NOON)
    later = NOON + timedelta(seconds=10)
    rates.take_request("new", rate, later)
    assert rates.reading("long", rate, later) == RateReading(later + timedelta(seconds=10), 0, 10)
    rates.charge("another", rate, later, 1)
    assert rates.reading("long", rate, later) == RateReading(later, 2, 0)
