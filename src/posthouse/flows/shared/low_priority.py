"""Threads for work that takes a core for a while: where cores are few, the event loop and PostgreSQL come first."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, ParamSpec, TypeVar

NICENESS: Final = 10
THREADS: Final = 4

Given = ParamSpec("Given")
Result = TypeVar("Result")


def _lower() -> None:
    """Of this thread, and of threads that it starts; elsewhere than on Linux it would be the whole process's."""
    if sys.platform == "linux":
        with suppress(OSError):  # a sandbox may forbid it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


_THREADS: Final = ThreadPoolExecutor(THREADS, "low-priority", initializer=_lower)


async def in_low_priority(work: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs) -> Result:
    """Like `asyncio.to_thread`; the work should let go of the interpreter, as hashing and the making of keys do."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, partial(work, *args, **kwargs))
