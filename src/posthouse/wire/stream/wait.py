"""Waits with a time limit."""

import asyncio
import contextlib


async def wait_for(event: asyncio.Event, seconds: float) -> None:
    """Return when the event is set, or after these seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(seconds, 0.0)):
            await event.wait()
