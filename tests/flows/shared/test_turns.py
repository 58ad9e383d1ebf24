"""Turns for costly work: little at once, holders in turn, and a share of the places for each holder."""

import asyncio
from contextlib import ExitStack

import pytest

from posthouse.flows.shared.turns import Turns
from posthouse.rules.refusal import Code, Refusal


def turns_of(at_once_max: int = 1, in_progress_max: int = 64) -> Turns[str]:
    return Turns(at_once_max=at_once_max, in_progress_max=in_progress_max, work="Much is done")


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_holders_take_turns() -> None:
    turns = turns_of(at_once_max=1)
    order: list[str] = []
    release = asyncio.Event()

    async def check(holder: str) -> None:
        async with turns.turn(holder):
            order.append(holder)
            await release.wait()

    tasks = [asyncio.create_task(check(holder)) for holder in ["a"] * 5 + ["b", "c"]]
    await settle()
    assert order == ["a"]
    release.set()
    await asyncio.gather(*tasks)
    assert order == ["a", "a", "b", "c", "a", "a", "a"]


async def test_a_cancelled_attempt_passes_its_turn_on() -> None:
    turns = turns_of(at_once_max=1)
    done: list[str] = []

    async def check(name: str, release: asyncio.Event) -> None:
        async with turns.turn(name):
            await release.wait()
            done.append(name)

    first, later = asyncio.Event(), asyncio.Event()
    later.set()
    tasks = {name: asyncio.create_task(check(name, first if name == "a" else later)) for name in "abc"}
    await settle()
    tasks["b"].cancel()
    first.set()
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    assert done == ["a", "c"]
    await asyncio.wait_for(check("d", later), 1)


async def test_a_turn_that_is_given_and_cancelled_at_once_is_not_lost() -> None:
    turns = turns_of(at_once_max=1)

    async def check() -> None:
        async with turns.turn("b"):
            pass

    async with turns.turn("a"):
        waiting = asyncio.create_task(check())
        await settle()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.wait_for(check(), 1)


def test_a_holder_can_not_fill_all_places() -> None:
    turns = turns_of(in_progress_max=10)
    with ExitStack() as held:
        for _ in range(8):
            held.enter_context(turns.place("a"))
        with pytest.raises(Refusal) as caught, turns.place("a"):
            pass
        assert (caught.value.code, caught.value.retry_after_seconds) == (Code.TEMPORARY_FAILURE, 2)
        with turns.place("b"), turns.place("c"):
            pass
    with turns.place("a"):
        pass
