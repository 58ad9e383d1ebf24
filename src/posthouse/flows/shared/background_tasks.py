"""The tasks that a worker has started: how it waits for them, and which it may cancel when it stops."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager

import structlog

log = structlog.get_logger(__name__)


class BackgroundTasks:
    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()
        self._stoppable: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Meanwhile the current task may be cancelled by `finish`."""
        task = asyncio.current_task()
        if task is not None:
            self._stoppable.add(task)
        try:
            yield
        finally:
            self._stoppable.discard(task)

    async def settle(self) -> None:
        """Return when no task is running."""
        while self._running:
            await asyncio.wait(self._running)

    async def finish(self, seconds: float) -> None:
        """Let tasks finish; cancel those that do not in time and may be cancelled.

        A task that only records an outcome is not cancelled.
        """
        if not self._running:
            return
        _, unfinished = await asyncio.wait(self._running, timeout=seconds * 2 / 3)
        for task in unfinished & self._stoppable:
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished, timeout=seconds / 3)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("task_failed", exc_info=fault)
