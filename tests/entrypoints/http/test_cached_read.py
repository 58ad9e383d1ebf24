"""Reads that many pages share: one for all simultaneous callers, and for a while after if it read much."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from posthouse.entrypoints.http.cached_read import CachedRead

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


class Reader:
    """Counts its reads; each gives the next number."""

    def __init__(self) -> None:
        self.now = NOON
        self.reads = 0

    async def read(self) -> int:
        self.reads += 1
        number = self.reads
        await asyncio.sleep(0)
        return number

    async def get(self, cached: CachedRead[int]) -> int:
        return await cached.get(lambda: self.now, self.read)


async def test_all_simultaneous_callers_share_a_read() -> None:
    reader, cached = Reader(), CachedRead[int](5 * SECOND)
    assert await asyncio.gather(*(reader.get(cached) for _ in range(20))) == [1] * 20


async def test_a_value_is_read_again_after_its_time() -> None:
    reader, cached = Reader(), CachedRead[int](5 * SECOND)
    found = []
    for seconds in (0, 5, 6, 11, 12):
        reader.now = NOON + seconds * SECOND
        found.append(await reader.get(cached))
    assert found == [1, 1, 2, 2, 3]


async def test_a_value_from_the_future_is_read_again() -> None:
    reader, cached = Reader(), CachedRead[int](5 * SECOND)
    await reader.get(cached)
    reader.now = NOON - SECOND
    assert await reader.get(cached) == 2


async def test_a_cheap_read_is_repeated_each_time() -> None:
    reader, cached = Reader(), CachedRead[int](5 * SECOND, lambda number: number >= 3)
    assert [await reader.get(cached) for _ in range(5)] == [1, 2, 3, 3, 3]


async def test_after_a_change_it_is_read_again() -> None:
    reader, cached = Reader(), CachedRead[int](5 * SECOND)
    await reader.get(cached)
    cached.forget()
    assert await reader.get(cached) == 2


async def test_a_failed_read_is_tried_again_by_the_next() -> None:
    reader, cached = Reader(), CachedRead[int](5 * SECOND)

    async def fail() -> int:
        raise OSError("no database")

    with pytest.raises(OSError, match="no database"):
        await cached.get(lambda: NOON, fail)
    assert await reader.get(cached) == 1


async def test_a_caller_who_leaves_during_the_read_leaves_it_to_the_next() -> None:
    reader, cached = Reader(), CachedRead[int](5 * SECOND)
    began = asyncio.Event()

    async def stand_still() -> int:
        began.set()
        await asyncio.Event().wait()
        return 0

    first = asyncio.create_task(cached.get(lambda: NOON, stand_still))
    await began.wait()
    first.cancel()
    assert await reader.get(cached) == 1
