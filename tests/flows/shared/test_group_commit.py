"""Batches: the items that arrived while the last batch ran are the next, within bounds."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pytest

from posthouse.flows.shared.group_commit import TIMEOUTS_MAX, GroupCommit, together_or_apart
from posthouse.rules import limits
from posthouse.rules.claim import BatchDelay
from posthouse.rules.refusal import Code, Refusal
from tests.support.eventually import HANG_SECONDS

Squares: TypeAlias = "GroupCommit[int, int]"

MIB = limits.MIB
HOUR = 3600.0


@dataclass(slots=True)
class Works:
    """Answers each item with its square; batches wait while the gate is closed."""

    batches: list[list[int]] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    concurrent: int = 0
    concurrency_max: int = 0

    async def end_batches(self, number: int) -> None:
        """Lets this many batches end; the next is then running."""
        for _ in range(number):
            self.gate.set()
            self.gate.clear()
            await turns()

    async def __call__(self, items: Sequence[int]) -> Sequence[int | BaseException]:
        self.batches.append(list(items))
        self.concurrent += 1
        self.concurrency_max = max(self.concurrency_max, self.concurrent)
        await self.gate.wait()
        self.concurrent -= 1
        if -1 in items:
            raise OSError("the whole batch fails")
        return [ValueError(f"{item} is unlucky") if item == 13 else item * item for item in items]


@pytest.fixture
def works() -> Works:
    return Works()


@pytest.fixture
def group_commit(works: Works) -> Squares:
    return GroupCommit(works)


def begun(
    group_commit: Squares, *items: int, account: str = "acme", recipients: int = 1, size: int = 1
) -> list["asyncio.Task[int]"]:
    return [asyncio.create_task(group_commit.submit(item, account, recipients, size)) for item in items]


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def waiting(group_commit: Squares, *items: int, **given: Any) -> list["asyncio.Task[int]"]:
    """These items run in a batch, or wait for the next."""
    tasks = begun(group_commit, *items, **given)
    await turns()
    return tasks


async def test_a_single_item_starts_at_once(works: Works, group_commit: Squares) -> None:
    works.gate.set()
    assert await asyncio.wait_for(group_commit.submit(3), HANG_SECONDS) == 9
    assert works.batches == [[3]]


async def test_items_that_wait_for_a_batch_are_the_next(works: Works, group_commit: Squares) -> None:
    first = await waiting(group_commit, 1)
    later = await waiting(group_commit, 2, 3)
    later += await waiting(group_commit, 4)
    works.gate.set()
    assert await asyncio.gather(*first, *later) == [1, 4, 9, 16]
    assert works.batches == [[1], [2, 3, 4]]
    assert works.concurrency_max == 1


async def test_requests_of_one_turn_share_a_batch(works: Works, group_commit: Squares) -> None:
    works.gate.set()
    assert await asyncio.gather(*begun(group_commit, *range(10))) == [number * number for number in range(10)]
    assert works.batches == [list(range(10))]


async def test_the_items_of_a_batch_are_bounded(works: Works, group_commit: Squares) -> None:
    works.gate.set()
    count = 2 * limits.GROUP_COMMIT_ITEMS_MAX + 1
    await asyncio.gather(*begun(group_commit, *range(20, 20 + count)))
    assert [len(batch) for batch in works.batches] == [limits.GROUP_COMMIT_ITEMS_MAX, limits.GROUP_COMMIT_ITEMS_MAX, 1]


async def test_the_bytes_of_a_batch_are_bounded(works: Works, group_commit: Squares) -> None:
    works.gate.set()
    await asyncio.gather(*begun(group_commit, 1, 2, 3, 4, 5, size=limits.GROUP_COMMIT_BYTES_MAX // 2))
    assert works.batches == [[1, 2], [3, 4], [5]]


async def test_the_recipients_of_a_batch_are_bounded(works: Works, group_commit: Squares) -> None:
    works.gate.set()
    await asyncio.gather(*begun(group_commit, 1, 2, 3, 4, 5, recipients=limits.GROUP_COMMIT_RECIPIENTS_MAX // 2))
    assert works.batches == [[1, 2], [3, 4], [5]]


async def test_the_recipients_of_a_batch_that_accounts_share_are_fewer(works: Works, group_commit: Squares) -> None:
    half = limits.GROUP_COMMIT_RECIPIENTS_SHARED_MAX // 2
    works.gate.set()
    tasks = [
        *begun(group_commit, 1, 2, 3, recipients=half),
        *begun(group_commit, 4, 5, account="globex", recipients=half),
    ]
    await asyncio.gather(*tasks)
    assert works.batches == [[1, 4], [2, 5], [3]]


async def test_accounts_take_turns_by_recipients(works: Works, group_commit: Squares) -> None:
    tasks = await waiting(group_commit, 1)
    for number in range(10):
        large = range(100 * number + 2, 100 * number + 5)
        tasks += begun(group_commit, *large, account=f"large {number}", recipients=limits.RECIPIENTS_MAX)
    tasks += await waiting(group_commit, *range(2_000, 2_040), account="globex")
    works.gate.set()
    await asyncio.gather(*tasks)
    assert set(works.batches[1]) >= set(range(2_000, 2_040))


async def test_an_account_that_comes_later_is_not_behind(works: Works, group_commit: Squares) -> None:
    tasks = await waiting(group_commit, 1)
    for number in range(10):
        large = range(100 * number + 2, 100 * number + 5)
        tasks += begun(group_commit, *large, account=f"large {number}", recipients=limits.RECIPIENTS_MAX)
    await turns()
    await works.end_batches(3)
    small = range(2_000, 2_005)
    tasks += await waiting(group_commit, *small, account="globex")
    works.gate.set()
    await asyncio.gather(*tasks)
    assert len(works.batches[3]) == 2
    assert set(works.batches[4]) >= set(small)


async def test_small_items_of_many_accounts_overtake_a_large_one_for_a_while(
    works: Works, group_commit: Squares
) -> None:
    tasks = await waiting(group_commit, 1)
    tasks += begun(group_commit, 7, recipients=limits.RECIPIENTS_MAX)
    tasks += begun(group_commit, *range(2_000, 2_200), account="globex")
    tasks += await waiting(group_commit, *range(3_000, 3_200), account="initech")
    works.gate.set()
    await asyncio.gather(*tasks)
    order = [item for batch in works.batches for item in batch]
    assert order.index(7) <= 2 * limits.RECIPIENTS_MAX


async def test_an_item_larger_than_a_batch_has_its_own_batch(works: Works, group_commit: Squares) -> None:
    works.gate.set()
    await asyncio.gather(
        *begun(group_commit, 1),
        *begun(group_commit, 2, size=limits.GROUP_COMMIT_BYTES_MAX + 1),
        *begun(group_commit, 3),
    )
    assert works.batches == [[1], [2], [3]]


async def test_a_delayed_batch_takes_what_comes_until_it_is_hurried(works: Works) -> None:
    group_commit = GroupCommit(works, batch_delay=BatchDelay(0.0, HOUR))
    works.gate.set()
    tasks = await waiting(group_commit, 1)
    tasks += await waiting(group_commit, 2, 3)
    assert works.batches == []

    group_commit.hurry()

    assert await asyncio.gather(*tasks) == [1, 4, 9]
    assert works.batches == [[1, 2, 3]]


async def test_a_full_batch_is_delayed_no_longer(works: Works) -> None:
    group_commit = GroupCommit(works, items_max=3, batch_delay=BatchDelay(0.0, HOUR))
    works.gate.set()
    tasks = await waiting(group_commit, 1, 2)
    assert works.batches == []

    tasks += begun(group_commit, 3)

    assert await asyncio.gather(*tasks) == [1, 4, 9]


async def test_a_batch_with_all_its_recipients_is_delayed_no_longer(works: Works) -> None:
    group_commit = GroupCommit(works, batch_delay=BatchDelay(0.0, HOUR))
    works.gate.set()
    tasks = begun(group_commit, 1, 2, recipients=limits.GROUP_COMMIT_RECIPIENTS_MAX // 2)
    assert await asyncio.gather(*tasks) == [1, 4]


async def test_an_item_that_fails_fails_without_the_others(works: Works, group_commit: Squares) -> None:
    works.gate.set()
    answers = await asyncio.gather(*begun(group_commit, 12, 13, 14), return_exceptions=True)
    assert (answers[0], answers[2]) == (144, 196)
    assert isinstance(answers[1], ValueError)
    assert works.batches == [[12, 13, 14]]


async def test_a_batch_that_fails_whole_fails_each_item_and_work_continues(works: Works, group_commit: Squares) -> None:
    works.gate.set()
    answers = await asyncio.gather(*begun(group_commit, -1, 2, 3), return_exceptions=True)
    assert all(isinstance(answer, Exception) for answer in answers)
    assert len({id(answer) for answer in answers}) == 3, "one exception was raised in several tasks"
    assert await group_commit.submit(4) == 16


async def test_drain_waits_until_nothing_waits(works: Works, group_commit: Squares) -> None:
    tasks = await waiting(group_commit, 1)
    tasks += await waiting(group_commit, 2)
    draining = asyncio.create_task(group_commit.drain())
    await turns()
    assert not draining.done()
    works.gate.set()
    await asyncio.wait_for(draining, HANG_SECONDS)
    assert works.batches == [[1], [2]]
    assert [task.result() for task in tasks if task.done()] == [1, 4]
    await asyncio.wait_for(group_commit.drain(), HANG_SECONDS)


async def test_a_drain_that_is_cancelled_cancels_no_batch(works: Works, group_commit: Squares) -> None:
    (task,) = await waiting(group_commit, 5)
    draining = asyncio.create_task(group_commit.drain())
    await turns()
    draining.cancel()
    await turns()
    works.gate.set()
    assert await asyncio.wait_for(task, HANG_SECONDS) == 25


async def test_more_items_than_may_wait_are_refused(works: Works, group_commit: Squares) -> None:
    running = await waiting(group_commit, 1)
    later = await waiting(group_commit, *([2] * limits.WAITING_ITEMS_MAX))
    with pytest.raises(Refusal) as refused:
        await group_commit.submit(3)
    assert refused.value.code is Code.TEMPORARY_FAILURE
    assert refused.value.retry_after_seconds == 1
    works.gate.set()
    assert len(await asyncio.gather(*running, *later)) == limits.WAITING_ITEMS_MAX + 1
    assert await group_commit.submit(3) == 9


async def test_more_bytes_than_may_wait_are_refused(works: Works, group_commit: Squares) -> None:
    running = await waiting(group_commit, 1)
    later = await waiting(group_commit, *([2] * (limits.WAITING_BYTES_MAX // (8 * MIB))), size=8 * MIB)
    with pytest.raises(Refusal):
        await group_commit.submit(3)
    works.gate.set()
    await asyncio.gather(*running, *later)
    assert await group_commit.submit(3) == 9


async def test_a_cancelled_item_affects_no_other(works: Works, group_commit: Squares) -> None:
    running = await waiting(group_commit, 1, 2)
    later = await waiting(group_commit, 3, 4, 5)
    running[0].cancel()
    later[1].cancel()
    await turns()
    works.gate.set()
    answers = await asyncio.gather(*running, *later, return_exceptions=True)
    assert [isinstance(answer, asyncio.CancelledError) for answer in answers] == [True, False, False, True, False]
    assert (answers[1], answers[2], answers[4]) == (4, 9, 25)
    await asyncio.wait_for(group_commit.drain(), HANG_SECONDS)
    assert await group_commit.submit(6) == 36


# Together or apart


@dataclass(slots=True)
class Fails:
    """Work that fails for a batch with certain items, and records the batches."""

    faults: dict[int, Exception]
    batches: list[list[int]] = field(default_factory=list)

    async def __call__(self, batch: Sequence[int]) -> list[int | BaseException]:
        self.batches.append(list(batch))
        for item in batch:
            if item in self.faults:
                raise self.faults[item]
        return [item * item for item in batch]


def timed_out() -> Refusal:
    return Refusal(Code.TEMPORARY_FAILURE, "The service was busy for a moment: try again.", 1)


def away() -> Refusal:
    return Refusal(Code.SERVICE_UNAVAILABLE, "The service can't reach its storage right now: try again soon.", 2)


async def test_a_time_out_fails_only_the_item_that_timed_out() -> None:
    work = Fails({2: timed_out()})
    assert await together_or_apart([1, 2, 3], work) == [1, timed_out(), 9]
    assert work.batches == [[1, 2, 3], [1], [2], [3]]


async def test_a_time_out_of_a_single_item_is_its_own_and_is_not_raised() -> None:
    work = Fails({2: timed_out()})
    assert await together_or_apart([2], work) == [timed_out()]
    assert work.batches == [[2]]


async def test_storage_away_refuses_the_whole_batch_immediately() -> None:
    work = Fails({2: away()})
    with pytest.raises(Refusal) as refused:
        await together_or_apart([1, 2, 3], work)
    assert refused.value.code is Code.SERVICE_UNAVAILABLE
    assert work.batches == [[1, 2, 3]]


async def test_storage_that_goes_away_between_items_refuses_the_rest() -> None:
    work = Fails({2: ValueError("unlucky"), 3: away()})
    results = await together_or_apart([1, 2, 3, 4, 5], work)
    assert results[0] == 1
    assert isinstance(results[1], ValueError)
    assert results[2:] == [away()] * 3
    assert len({id(result) for result in results}) == 5, "one exception was raised in several tasks"
    assert work.batches == [[1, 2, 3, 4, 5], [1], [2], [3]]


async def test_after_a_few_time_outs_the_rest_is_refused_untried() -> None:
    late = range(2, 2 + TIMEOUTS_MAX)
    work = Fails({item: timed_out() for item in late})
    assert await together_or_apart([*range(1, 20)], work) == [1] + [timed_out()] * 18
    assert work.batches[1:] == [[item] for item in (1, *late)]
