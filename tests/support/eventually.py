"""The one way to wait for something that gives no signal."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, Final, TypeVar, overload

# A change of credentials, domains, templates or suspension holds everywhere within this.
CHANGE_SECONDS_MAX: Final = 30.0
POLL_SECONDS: Final = 0.02
# A limit ends a hang and measures nothing: a machine that stands still for a while must not end a test.
TIMEOUT_FACTOR: Final = float(os.environ.get("TIMEOUT_FACTOR", "3"))

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
    within: float = CHANGE_SECONDS_MAX,
    every: float = POLL_SECONDS,
    or_say: Callable[[], object] = str,
) -> Any:
    """Read again until the value is as wanted; after `within` seconds fail with the last value and `or_say`.

    The seconds are of an idle machine: TIMEOUT_FACTOR multiplies them.
    """
    within *= TIMEOUT_FACTOR
    deadline = time.monotonic() + within
    while True:
        value = await _awaited(read())
        if is_true(value):
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"still {value!r} after {within} s\n{await _awaited(or_say())}")
        await asyncio.sleep(every)


async def _awaited(value: Any) -> Any:
    return await value if isawaitable(value) else value


async def seconds_until(is_true: Callable[[], bool], *, within: float = CHANGE_SECONDS_MAX) -> float:
    """How long it took."""
    started = time.monotonic()
    await eventually(is_true, within=within)
    return time.monotonic() - started
