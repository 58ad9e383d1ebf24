"""Simulated processes: each has its own connections and tasks, and can die between any two steps.

A dead process has no further effect: its tasks are cancelled, its transactions rolled back, and its database, stream,
carrier and webhook client refuse it. What it committed, published or sent before stays.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

from posthouse.flows.deliver.delivery import Delivery
from posthouse.flows.webhooks.sender import WebhookSender
from posthouse.store.control_cache import ControlCache
from posthouse.store.postgres import Connection, Database
from tests.simulation.simulated_world import CURRENT, Killed, require_alive
from tests.support.eventually import HANG_SECONDS

Made = TypeVar("Made")


class ProcessDatabase(Database):
    """A database that gives dead processes no connection."""

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        require_alive()
        async with super().connection() as connection:
            yield connection


@dataclass(eq=False)
class Process:
    name: str
    kind: str
    database: Database
    control_cache: ControlCache
    is_alive: bool = True
    is_stalled: bool = False
    flow: Any = None
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    faults: list[BaseException] = field(default_factory=list)

    @property
    def worker_id(self) -> UUID | None:
        return self.flow.worker_id if isinstance(self.flow, Delivery | WebhookSender) else None

    def begin(self, work: Coroutine[Any, Any, Made]) -> "asyncio.Task[Made]":
        """Runs work in this process; tasks it starts belong to the process as well."""
        token = CURRENT.set(self)
        try:
            return asyncio.get_running_loop().create_task(work)
        finally:
            CURRENT.reset(token)

    async def do(self, work: Coroutine[Any, Any, Made]) -> Made | None:
        """Runs work to its end; returns None when the process dies meanwhile."""
        task = self.begin(work)
        await asyncio.wait([task])
        if task.cancelled() or isinstance(task.exception(), Killed):
            return None
        return task.result()

    def kill(self) -> None:
        self.is_alive = False
        current = asyncio.current_task()
        for task in self.tasks:
            if task is not current:
                task.cancel()

    async def close(self) -> None:
        """Its tasks end and its connections close, which PostgreSQL notices."""
        async with asyncio.timeout(HANG_SECONDS):
            while waiting := {task for task in self.tasks if not task.done()}:
                for task in waiting:
                    task.cancel()
                await asyncio.wait(waiting, timeout=0.1)
        await self.database.close()


def process_tasks(loop: asyncio.AbstractEventLoop, work: Any, **given: Any) -> "asyncio.Task[Any]":
    """A task belongs to the process that started it."""
    task = asyncio.Task(work, loop=loop, **given)
    process = CURRENT.get()
    if isinstance(process, Process):
        process.tasks.add(task)
        task.add_done_callback(lambda done: _ended(process, done))
    return task


def _ended(process: Process, task: "asyncio.Task[Any]") -> None:
    process.tasks.discard(task)
    if task.cancelled():
        return
    fault = task.exception()
    if fault is not None and process.is_alive and not isinstance(fault, Killed):
        process.faults.append(fault)


def die_here() -> None:
    """The current process dies here."""
    process = CURRENT.get()
    if isinstance(process, Process):
        process.kill()
        raise Killed(process.name)
