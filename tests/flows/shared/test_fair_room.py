"""A holder waits for its share until another gives back, takes turns with others, and is refused when it is late."""

import asyncio

import pytest

from posthouse.flows.shared.fair_room import FairRoom
from posthouse.rules.refusal import Code, Refusal


async def started(room: FairRoom[str], *holders: str, units: int = 1) -> list["asyncio.Task[None]"]:
    tasks = [asyncio.create_task(room.take(holder, units)) for holder in holders]
    await asyncio.sleep(0)
    return tasks


def is_refused(room: FairRoom[str]) -> bool:
    try:
        room.check_wait()
    except Refusal as refusal:
        return refusal.code is Code.TEMPORARY_FAILURE
    return False


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


async def test_a_holder_whose_first_waits_too_long_is_refused_at_once() -> None:
    room: FairRoom[str] = FairRoom(1, queue_seconds_max=0.01)
    await room.take("first")
    waiting = await started(room, "second", "second")
    await asyncio.sleep(0.02)
    with pytest.raises(Refusal, match="too much in progress"):
        await room.take("second")
    others = await started(room, "third")
    room.give_back("first")
    await waiting[0]
    for task in (*waiting, *others):
        task.cancel()


async def test_while_turns_take_too_long_every_holder_is_refused_at_once() -> None:
    room: FairRoom[str] = FairRoom(1, queue_seconds_max=0.01)
    await room.take("0")
    waiting = await started(room, "1", "2")
    room.check_wait()
    turn = 0
    while not is_refused(room):
        assert turn < 100
        waiting += await started(room, str(turn + 2)) if turn else []
        await asyncio.sleep(0.015)
        room.give_back(str(turn))
        await waiting.pop(0)
        turn += 1
    with pytest.raises(Refusal, match="More requests are waiting"):
        await room.take("another")
    room.give_back(str(turn))
    await waiting.pop()
    room.check_wait()
    room.give_back(str(turn + 1))
    await room.take("another")
