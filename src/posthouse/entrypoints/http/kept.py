"""What many open pages ask for again and again, read once for all of them."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Kept(Generic[Value]):
    """The last value of a read, of this process; those who ask meanwhile wait for the same read."""

    def __init__(self, keep_for: timedelta, is_kept: Callable[[Value], bool] = lambda _: True) -> None:
        """What was little to read need not be kept."""
        self._keep_for = keep_for
        self._is_kept = is_kept
        self._lock = asyncio.Lock()
        self._last: tuple[datetime, Value] | None = None

    async def get(self, now: Callable[[], datetime], read: Callable[[], Awaitable[Value]]) -> Value:
        async with self._lock:
            if self._last is not None and timedelta() <= now() - self._last[0] <= self._keep_for:
                return self._last[1]
            value = await read()
            self._last = (now(), value) if self._is_kept(value) else None
            return value

    def forget(self) -> None:
        """After a change of what it shows; other processes show it when its time is over."""
        self._last = None
