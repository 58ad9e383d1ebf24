"""Work that repeats: a flow performs one step, this owns the looping, the pausing and the end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import structlog

from posthouse.rules.refusal import Refusal

log = structlog.get_logger(__name__)


async def repeat(step: Callable[[], Awaitable[object]], *, pause_seconds: float) -> None:
    """Perform the step again and again until cancelled; a step that fails is logged and tried again."""
    while True:
        try:
            await step()
        except Refusal as refusal:
            log.warning("step_refused", step=step.__qualname__, code=refusal.code.value, cause=repr(refusal.__cause__))
        except Exception:
            log.exception("step_failed", step=step.__qualname__)
        await asyncio.sleep(pause_seconds)


@asynccontextmanager
async def repeated(step: Callable[[], Awaitable[object]], *, pause_seconds: float) -> AsyncIterator[None]:
    """The step repeats beside whatever runs inside."""
    task = asyncio.create_task(repeat(step, pause_seconds=pause_seconds))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
