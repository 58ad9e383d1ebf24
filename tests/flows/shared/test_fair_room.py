"""A holder waits for its share until another gives back, takes turns with others, and is refused when it is late."""

import asyncio

import pytest

from posthouse.flows.shared.fair_room import RATE_SECONDS, WAITING_MIN, FairRoom
from posthouse.rules.refusal import Code, Refusal


async def started(room: FairRoom[str], *holders: str, units: int = 1) -> list["asyncio.Task[None]"]:
    tasks = [asyncio.create_task(room.take(holder, units)) for holder in holders]
    await asyncio.sleep(0)
    return tasks


async def stopped(tasks: list["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_holder_waits_until_something_is_given_back() -> None:
    room: FairRoom[str] = FairRoom(10)
    await room.take("first", 8)
    (waiting,) = await started(room, "first")
    assert not waiting.done()
    room.give_back("first", 4)
    await waiting
    assert room.taken == 5


async def test_a_newcomer_does_not_wait_behind_those_above_their_share() -> None:
    room: FairRoom[str] = FairRoom(10)
    await room.take("first", 8)
    (waiting,) = await started(room, "first")
    await asyncio.wait_for(room.take("second"), 0.1)
    assert not waiting.done()
    waiting.cancel()


async def test_waiting_holders_take_turns() -> None:
    room: FairRoom[str] = FairRoom(2)
    await room.take("first")
    await room.take("second")
    order: list[str] = []

    async def take(holder: str) -> None:
        await room.take(holder)
        order.append(holder)
        room.give_back(holder)

    tasks = [asyncio.create_task(take(holder)) for holder in ("a", "a", "a", "b", "c")]
    await asyncio.sleep(0)
    room.give_back("first")
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "c", "a", "a"]


async def test_a_holder_that_waited_too_long_is_refused() -> None:
    room: FairRoom[str] = FairRoom(1, wait_seconds_max=0.01)
    await room.take("first")
    with pytest.raises(Refusal) as caught:
        await room.take("second")
    assert (caught.value.code, caught.value.retry_after_seconds) == (Code.TEMPORARY_FAILURE, 1)
    room.give_back("first")
    assert room.take_now("second")


async def test_a_cancelled_wait_takes_nothing() -> None:
    room: FairRoom[str] = FairRoom(1)
    await room.take("first")
    before, granted, after = await started(room, "second", "third", "fourth")
    before.cancel()
    await asyncio.sleep(0)
    room.give_back("first")
    granted.cancel()
    await asyncio.wait_for(after, 0.1)
    assert room.taken == 1
    room.give_back("fourth")
    assert room.taken == 0


async def test_a_few_may_always_wait() -> None:
    room: FairRoom[str] = FairRoom(1, queue_seconds_max=0.0)
    await room.take("first")
    waiting = await started(room, *(f"{number}" for number in range(WAITING_MIN)))
    assert not any(task.done() for task in waiting)
    with pytest.raises(Refusal, match="More requests are waiting"):
        await room.take("another")
    with pytest.raises(Refusal, match="too much in progress"):
        await room.take("0")
    await stopped(waiting)
    room.check_wait()


async def test_what_would_wait_longer_than_it_may_is_refused_at_once() -> None:
    room: FairRoom[str] = FairRoom(10, queue_seconds_max=0.5)
    for number in range(10):
        await room.take(f"first{number}")
    # A hundred turns a second are expected: fifty in half a second.
    waiting = await started(room, *(f"{number}" for number in range(50)))
    with pytest.raises(Refusal, match="More requests are waiting"):
        room.check_wait()
    with pytest.raises(Refusal, match="More requests are waiting"):
        await room.take("another")
    with pytest.raises(Refusal, match="too much in progress"):
        await room.take("0")
    room.give_back("first0")
    room.check_wait()
    await stopped(waiting)


async def test_a_holder_with_much_waiting_does_not_keep_others_out() -> None:
    room: FairRoom[str] = FairRoom(10, queue_seconds_max=0.5)
    await room.take("much", 8)
    waiting = await started(room, *["much"] * 50)
    with pytest.raises(Refusal, match="too much in progress"):
        await room.take("much")
    room.check_wait()
    assert room.take_now("another")
    waiting += await started(room, "another")
    await stopped(waiting)


async def test_the_rate_of_turns_is_measured_while_others_wait() -> None:
    room: FairRoom[str] = FairRoom(1, queue_seconds_max=20.0)
    await room.take("first")
    names = [f"{number}" for number in range(20)]
    # Ten turns a second are expected at first, and six of one holder are let in.
    waiting = await started(room, *names, *[names[-1]] * 5)
    assert not any(task.done() for task in waiting)
    held = "first"
    for name in names[:3]:
        await asyncio.sleep(3 * RATE_SECONDS)
        room.give_back(held)
        held = name
    with pytest.raises(Refusal, match="too much in progress"):
        await room.take(names[-1])
    await stopped(waiting)
