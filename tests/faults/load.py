"""Senders that send until they are stopped, side by side; and what is asked of a PostgreSQL that was away."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import asyncpg

from tests.support.eventually import eventually

Answer = TypeVar("Answer")

# Sends until it finds that it is to stop: its own chance, and its number.
Send = Callable[[random.Random, int], Awaitable[None]]


async def run_senders(send: Send, seed: int, senders: int) -> None:
    """Returns when every sender has stopped."""

    async def run(number: int) -> None:
        await send(random.Random(f"{seed} {number}"), number)

    async with asyncio.TaskGroup() as group:
        for number in range(senders):
            group.create_task(run(number))


async def when_back(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """The answer, as soon as our own connections have noticed as well."""

    async def attempt() -> Answer | None:
        try:
            return await ask()
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            return None

    answer: Answer | None = await eventually(attempt, lambda answer: answer is not None)
    assert answer is not None
    return answer
