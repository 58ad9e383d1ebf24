"""The one way to wait for something that gives no signal."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, Final, TypeVar, overload

POLL_SECONDS: Final = 0.02
# After a long wait a look need not come soon, and looking takes processor time from what is awaited.
POLL_SECONDS_MAX: Final = 0.25
TIMEOUT_FACTOR: Final = float(os.environ.get("TIMEOUT_FACTOR", "1"))
# A limit ends a hang and measures nothing: a machine that stands still for a minute must not end a test.
HANG_SECONDS: Final = 180.0 * TIMEOUT_FACTOR

Read = TypeVar("Read")


@overload
async def eventually(
    read: Callable[[], Awaitable[Read]],
    is_true: Callable[[Read], bool] = ...,
    *,
    within: float = ...,
    every: float = ...,
    or_say: Callable[[], object] = ...,
) -> Read: ...


@overload
async def eventually(
    read: Callable[[], Read],
    is_true: Callable[[Read], bool] = ...,
    *,
    within: float = ...,
    every: float = ...,
    or_say: Callable[[], object] = ...,
) -> Read: ...


async def eventually(
    read: Callable[[], Any],
    is_true: Callable[[Any], bool] = bool,
    *,
    within: float = HANG_SECONDS,
    every: float = POLL_SECONDS,
    or_say: Callable[[], object] = str,
) -> Any:
    """Read again until the value is as wanted; after `within` seconds fail with the last value and `or_say`."""
    began_at = time.monotonic()
    while True:
        value = await _awaited(read())
        if is_true(value):
            return value
        waited = time.monotonic() - began_at
        if waited > within:
            raise AssertionError(f"still {value!r} after {within} s\n{await _awaited(or_say())}")
        await asyncio.sleep(max(every, min(waited / 10, POLL_SECONDS_MAX)))


async def used_in_time(use: Callable[[float], Awaitable[Read | None]], seconds: float = 0.5) -> Read:
    """The result of `use`, which makes something that expires after so many seconds, and uses it before that.

    A slow machine may use it too late, which `use` reports as None: then it gets longer.
    """
    while seconds < HANG_SECONDS:
        if (result := await use(seconds)) is not None:
            return result
        seconds *= 2
    raise AssertionError("what expires could not be used in time")


async def _awaited(value: Any) -> Any:
    return await value if isawaitable(value) else value
