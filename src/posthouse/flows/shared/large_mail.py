"""Parsing and writing of large mails, in a thread: one at a time, because each holds the interpreter.

Several threads would not be faster, and the event loop would wait for each of them in turn.
"""

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

Result = TypeVar("Result")

# The event loop waits this long for a thread that runs Python code; 5 ms unless it is set.
SWITCH_SECONDS: Final = 0.001

_THREAD: Final = ThreadPoolExecutor(1, "large-mail")


async def in_turn(work: Callable[[], Result]) -> Result:
    return await asyncio.get_running_loop().run_in_executor(_THREAD, work)


def prefer_event_loop() -> None:
    """For a process whose event loop must stay responsive beside the thread."""
    sys.setswitchinterval(SWITCH_SECONDS)
