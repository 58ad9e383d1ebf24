"""Senders that send until they are stopped, side by side."""

import asyncio
import random
from collections.abc import Awaitable, Callable

# Sends until it finds that it is to stop: its own chance, and its number.
Send = Callable[[random.Random, int], Awaitable[None]]


async def run_senders(send: Send, seed: int, senders: int) -> None:
    """Returns when every sender has stopped."""

    async def run(number: int) -> None:
        await send(random.Random(f"{seed} {number}"), number)

    async with asyncio.TaskGroup() as group:
        for number in range(senders):
            group.create_task(run(number))
