"""A victim's requests next to an attacker: how long they take without and during the attack.

The attacker is a separate process, so that its work doesn't slow the victim's client.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from tests.support.eventually import HANG_SECONDS

ROOT: Final = Path(__file__).resolve().parents[2]
TIMES_MAX: Final = 3.0
# On a machine that is busy with other work; every attack shown here took more than a second without its bound.
FLOOR_SECONDS: Final = 0.5
START_SECONDS_MAX: Final = 30.0


def percentile(seconds: Sequence[float], part: float) -> float:
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


async def measure(call: Callable[[], Awaitable[object]], count: int, pause_seconds: float = 0.05) -> list[float]:
    """The seconds that each call took; a call that is refused must raise."""
    seconds = []
    for _ in range(count):
        started = time.monotonic()
        await call()
        seconds.append(time.monotonic() - started)
        await asyncio.sleep(pause_seconds)
    return seconds


def require_undisturbed(alone: Sequence[float], during: Sequence[float]) -> None:
    """The p99 during the attack is at most three times the p99 without it."""
    before, during_p99 = percentile(alone, 0.99), percentile(during, 0.99)
    print(f"p50 {percentile(alone, 0.5) * 1e3:.0f} -> {percentile(during, 0.5) * 1e3:.0f} ms", end="; ")
    print(f"p99 {before * 1e3:.0f} -> {during_p99 * 1e3:.0f} ms")
    assert during_p99 <= max(TIMES_MAX * before, FLOOR_SECONDS), (
        f"p99 {before:.3f} s without, {during_p99:.3f} s during it"
    )


def attack(script: str, *arguments: str) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    """Python code in its own process."""
    return run_attacker("-c", script, *arguments)


@asynccontextmanager
async def run_attacker(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Python with these arguments; it prints a line when the attack has begun, and is killed at the end."""
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(HANG_SECONDS):
            assert await process.stdout.readline(), "the attacker ended before it began"
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
