"""The tasks that a worker has started: how it waits for them, and which it may cancel when it stops."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, ParamSpec, TypeVar

import structlog

log = structlog.get_logger(__name__)


class BackgroundTasks:
    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()
        # Those that `finish` may cancel.
        self.stoppable: set[asyncio.Task[None] | None] = set()

    def __len__(self) -> int:
        return len(self._running)

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)

    async def settle(self) -> None:
        """Return when no task is running."""
        while self._running:
            await asyncio.wait(self._running)

    async def finish(self, seconds: float) -> None:
        """Let tasks finish; cancel those that don't finish in time and are `stoppable`.

        A task that only records an outcome is not cancelled.
        """
        if not self._running:
            return
        _, unfinished = await asyncio.wait(self._running, timeout=seconds * 2 / 3)
        for task in unfinished & self.stoppable:
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished, timeout=seconds / 3)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("task_failed", exc_info=fault)


# Threads for work that takes a core for a while: if there are few cores, the event loop and PostgreSQL come first.


NICENESS: Final = 10
THREADS: Final = 4

Given = ParamSpec("Given")
Result = TypeVar("Result")


def _lower() -> None:
    """Lower the priority of this thread and of threads that it starts; only on Linux, elsewhere it is per process."""
    if sys.platform == "linux":
        with suppress(OSError):  # a sandbox may forbid it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


_THREADS: Final = ThreadPoolExecutor(THREADS, "low-priority", initializer=_lower)


async def in_low_priority(work: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs) -> Result:
    """Like `asyncio.to_thread`; the work should release the interpreter lock, as hashing and key generation do."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, partial(work, *args, **kwargs))
