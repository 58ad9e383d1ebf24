"""Batches: the items that arrived while the last batch ran are the next, within bounds."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from posthouse.flows.shared.batching import TIMEOUTS_MAX, Batcher, together_or_apart
from posthouse.rules import limits
from posthouse.rules.linger import Linger
from posthouse.rules.refusal import Code, Refusal

MIB = limits.MIB
HOUR = 3600.0


@dataclass(slots=True)
class Works:
    """Answers each item with its square; batches wait while the gate is closed."""

    batches: list[list[int]] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    at_once: int = 0
    at_once_max: int = 0

    async def __call__(self, items: Sequence[int]) -> Sequence[int | BaseException]:
        self.batches.append(list(items))
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        await self.gate.wait()
        self.at_once -= 1
        if -1 in items:
            raise OSError("the whole batch fails")
        return [ValueError(f"{item} is unlucky") if item == 13 else item * item for item in items]


@pytest.fixture
def works() -> Works:
    return Works()


@pytest.fixture
def batcher(works: Works) -> "Batcher[int, int]":
    return Batcher(works)


def begun(
    batcher: "Batcher[int, int]", *items: int, account: str = "acme", recipients: int = 1, size: int = 1
) -> list["asyncio.Task[int]"]:
    return [asyncio.create_task(batcher.submit(item, account, recipients, size)) for item in items]


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_single_item_starts_at_once(works: Works, batcher: "Batcher[int, int]") -> None:
    works.gate.set()
    assert await asyncio.wait_for(batcher.submit(3), 1) == 9
    assert works.batches == [[3]]


async def test_items_that_wait_for_a_batch_are_the_next(works: Works, batcher: "Batcher[int, int]") -> None:
    first = begun(batcher, 1)
    await turns()
    later = [*begun(batcher, 2, 3)]
    await turns()
    later += begun(batcher, 4)
    await turns()
    works.gate.set()
    assert await asyncio.gather(*first, *later) == [1, 4, 9, 16]
    assert works.batches == [[1], [2, 3, 4]]
    assert works.at_once_max == 1


async def test_requests_of_one_turn_share_a_batch(works: Works, batcher: "Batcher[int, int]") -> None:
    works.gate.set()
    assert await asyncio.gather(*begun(batcher, *range(10))) == [number * number for number in range(10)]
    assert works.batches == [list(range(10))]


async def test_the_items_of_a_batch_are_bounded(works: Works, batcher: "Batcher[int, int]") -> None:
    works.gate.set()
    count = 2 * limits.BATCH_ITEMS_MAX + 1
    await asyncio.gather(*begun(batcher, *range(20, 20 + count)))
    assert [len(batch) for batch in works.batches] == [limits.BATCH_ITEMS_MAX, limits.BATCH_ITEMS_MAX, 1]


async def test_the_bytes_of_a_batch_are_bounded(works: Works, batcher: "Batcher[int, int]") -> None:
    works.gate.set()
    await asyncio.gather(*begun(batcher, 1, 2, 3, 4, 5, size=limits.BATCH_BYTES_MAX // 2))
    assert works.batches == [[1, 2], [3, 4], [5]]


async def test_the_recipients_of_a_batch_are_bounded(works: Works, batcher: "Batcher[int, int]") -> None:
    works.gate.set()
    await asyncio.gather(*begun(batcher, 1, 2, 3, 4, 5, recipients=limits.BATCH_RECIPIENTS_MAX // 2))
    assert works.batches == [[1, 2], [3, 4], [5]]


async def test_accounts_take_turns(works: Works, batcher: "Batcher[int, int]") -> None:
    tasks = begun(batcher, 1)
    await turns()
    tasks += begun(batcher, 2, 3, 4, recipients=limits.BATCH_RECIPIENTS_MAX // 2)
    tasks += begun(batcher, 5, 6, account="globex")
    await turns()
    works.gate.set()
    await asyncio.gather(*tasks)
    assert works.batches == [[1], [2, 5], [3, 6], [4]]


async def test_an_item_larger_than_a_batch_goes_alone(works: Works, batcher: "Batcher[int, int]") -> None:
    works.gate.set()
    await asyncio.gather(*begun(batcher, 1), *begun(batcher, 2, size=limits.BATCH_BYTES_MAX + 1), *begun(batcher, 3))
    assert works.batches == [[1], [2], [3]]


async def test_a_batch_that_lingers_takes_what_comes_until_it_is_hurried(works: Works) -> None:
    batcher = Batcher(works, linger=Linger(0.0, HOUR))
    works.gate.set()
    tasks = begun(batcher, 1)
    await turns()
    tasks += begun(batcher, 2, 3)
    await turns()
    assert works.batches == []

    batcher.hurry()

    assert await asyncio.gather(*tasks) == [1, 4, 9]
    assert works.batches == [[1, 2, 3]]


async def test_a_batch_that_is_full_lingers_no_longer(works: Works) -> None:
    batcher = Batcher(works, items_max=3, linger=Linger(0.0, HOUR))
    works.gate.set()
    tasks = begun(batcher, 1, 2)
    await turns()
    assert works.batches == []

    tasks += begun(batcher, 3)

    assert await asyncio.gather(*tasks) == [1, 4, 9]


async def test_a_batch_with_all_its_recipients_lingers_no_longer(works: Works) -> None:
    batcher = Batcher(works, linger=Linger(0.0, HOUR))
    works.gate.set()
    tasks = begun(batcher, 1, 2, recipients=limits.BATCH_RECIPIENTS_MAX // 2)
    assert await asyncio.gather(*tasks) == [1, 4]


async def test_an_item_that_fails_fails_alone(works: Works, batcher: "Batcher[int, int]") -> None:
    works.gate.set()
    answers = await asyncio.gather(*begun(batcher, 12, 13, 14), return_exceptions=True)
    assert (answers[0], answers[2]) == (144, 196)
    assert isinstance(answers[1], ValueError)
    assert works.batches == [[12, 13, 14]]


async def test_a_batch_that_fails_whole_fails_each_item_and_work_continues(
    works: Works, batcher: "Batcher[int, int]"
) -> None:
    works.gate.set()
    answers = await asyncio.gather(*begun(batcher, -1, 2, 3), return_exceptions=True)
    assert all(isinstance(answer, Exception) for answer in answers)
    assert len({id(answer) for answer in answers}) == 3, "one exception was raised in several tasks"
    assert await batcher.submit(4) == 16


async def test_drain_waits_until_nothing_waits(works: Works, batcher: "Batcher[int, int]") -> None:
    tasks = begun(batcher, 1)
    await turns()
    tasks += begun(batcher, 2)
    await turns()
    draining = asyncio.create_task(batcher.drain())
    await turns()
    assert not draining.done()
    works.gate.set()
    await asyncio.wait_for(draining, 1)
    assert works.batches == [[1], [2]]
    assert [task.result() for task in tasks if task.done()] == [1, 4]
    await asyncio.wait_for(batcher.drain(), 1)


async def test_a_drain_that_is_cancelled_cancels_no_batch(works: Works, batcher: "Batcher[int, int]") -> None:
    (task,) = begun(batcher, 5)
    await turns()
    draining = asyncio.create_task(batcher.drain())
    await turns()
    draining.cancel()
    await turns()
    works.gate.set()
    assert await asyncio.wait_for(task, 1) == 25


async def test_more_items_than_may_wait_are_refused(works: Works, batcher: "Batcher[int, int]") -> None:
    running = begun(batcher, 1)
    await turns()
    waiting = begun(batcher, *([2] * limits.WAITING_ITEMS_MAX))
    await turns()
    with pytest.raises(Refusal) as refused:
        await batcher.submit(3)
    assert refused.value.code is Code.TEMPORARY_FAILURE
    assert refused.value.retry_after_seconds == 1
    works.gate.set()
    assert len(await asyncio.gather(*running, *waiting)) == limits.WAITING_ITEMS_MAX + 1
    assert await batcher.submit(3) == 9


async def test_more_bytes_than_may_wait_are_refused(works: Works, batcher: "Batcher[int, int]") -> None:
    running = begun(batcher, 1)
    await turns()
    waiting = begun(batcher, *([2] * (limits.WAITING_BYTES_MAX // (8 * MIB))), size=8 * MIB)
    await turns()
    with pytest.raises(Refusal):
        await batcher.submit(3)
    works.gate.set()
    await asyncio.gather(*running, *waiting)
    assert await batcher.submit(3) == 9


async def test_a_cancelled_item_affects_no_other(works: Works, batcher: "Batcher[int, int]") -> None:
    running = begun(batcher, 1, 2)
    await turns()
    waiting = begun(batcher, 3, 4, 5)
    await turns()
    running[0].cancel()
    waiting[1].cancel()
    await turns()
    works.gate.set()
    answers = await asyncio.gather(*running, *waiting, return_exceptions=True)
    assert [isinstance(answer, asyncio.CancelledError) for answer in answers] == [True, False, False, True, False]
    assert (answers[1], answers[2], answers[4]) == (4, 9, 25)
    await asyncio.wait_for(batcher.drain(), 1)
    assert await batcher.submit(6) == 36


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


async def test_storage_away_refuses_the_whole_batch_at_once() -> None:
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
