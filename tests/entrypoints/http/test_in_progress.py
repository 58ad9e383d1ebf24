"""What an account has in progress is counted before its body is read, and given back at the end."""

import asyncio
from uuid import UUID

import pytest

from posthouse.entrypoints.http.request_body import BodyReader
from posthouse.entrypoints.http.request_limits import (
    BODY_BYTES_MAX,
    COUNTED_BYTES_MIN,
    LARGE_WORK,
    UNKNOWN_BYTES,
    WEIGHT,
    WORK_BYTES,
    WORK_RECIPIENTS,
    InProgress,
    RequestInProgress,
)
from posthouse.rules import limits
from posthouse.rules.ids import AccountId
from tests.support.eventually import HANG_SECONDS

FIRST, SECOND = AccountId(UUID(int=1)), AccountId(UUID(int=2))
LARGEST = limits.HTTP_BODY_BYTES_MAX


def sized(body_bytes: int) -> dict[bytes, bytes]:
    return {b"content-length": b"%d" % body_bytes}


async def entered(in_progress: InProgress, account_id: AccountId, headers: dict[bytes, bytes]) -> RequestInProgress:
    async with asyncio.timeout(HANG_SECONDS):
        return await in_progress.request(account_id, headers).__aenter__()


async def test_the_memory_of_a_body_is_counted_from_its_announced_size() -> None:
    in_progress = InProgress()
    async with in_progress.request(FIRST, sized(100_000)) as request:
        assert in_progress.body_bytes.taken == WEIGHT * 100_000
        await request.begin_work(bytes(100_000))
        assert in_progress.work.taken == 1 + 100_000 // WORK_BYTES
    assert (in_progress.body_bytes.taken, in_progress.work.taken) == (0, 0)


async def test_a_small_body_counts_only_as_work() -> None:
    in_progress = InProgress()
    async with in_progress.request(FIRST, sized(COUNTED_BYTES_MIN)) as request:
        await request.begin_work(bytes(10))
        assert (in_progress.body_bytes.taken, in_progress.work.taken) == (0, 1)
    assert in_progress.work.taken == 0


async def test_recipients_count_as_work_whatever_the_size_of_the_body() -> None:
    in_progress = InProgress()
    async with in_progress.request(FIRST, sized(COUNTED_BYTES_MIN)) as request:
        await request.begin_work(b'{"to": [' + b'"a@example.org", ' * 50)
        assert in_progress.work.taken == 1 + 50 // WORK_RECIPIENTS
    async with in_progress.request(FIRST, sized(COUNTED_BYTES_MIN)) as request:
        await request.begin_work(b"@" * limits.THREAD_BODY_BYTES_MIN)
        assert in_progress.work.taken == LARGE_WORK
    assert in_progress.work.taken == 0


async def test_work_that_is_already_fair_counts_as_little() -> None:
    in_progress = InProgress()
    async with in_progress.request(FIRST, sized(10)) as request:
        await request.begin_work(bytes(10), LARGE_WORK)
        assert in_progress.work.taken == LARGE_WORK
        request.reduce_work()
        assert in_progress.work.taken == 1
    assert in_progress.work.taken == 0


async def test_a_body_of_unknown_size_counts_as_the_largest_once_it_is_large() -> None:
    in_progress = InProgress()
    pieces = [bytes(UNKNOWN_BYTES), b"a", b""]
    seen = []

    async def receive() -> dict[str, object]:
        seen.append(in_progress.body_bytes.taken)
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async with in_progress.request(FIRST, {}) as request:
        body = await BodyReader().read(receive, request=request)
        await request.begin_work(body)
        assert seen == [WEIGHT * UNKNOWN_BYTES, WEIGHT * UNKNOWN_BYTES, WEIGHT * LARGEST]
        assert in_progress.body_bytes.taken == WEIGHT * (UNKNOWN_BYTES + 1)
    assert in_progress.body_bytes.taken == 0


async def test_an_account_leaves_memory_for_others() -> None:
    in_progress = InProgress()
    for _ in range(int(0.8 * BODY_BYTES_MAX / (WEIGHT * LARGEST))):
        await entered(in_progress, FIRST, sized(LARGEST))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(entered(in_progress, FIRST, sized(LARGEST)), 0.2)
    assert await entered(in_progress, SECOND, sized(LARGEST))


async def test_large_bodies_of_an_account_leave_another_account_its_turn() -> None:
    in_progress = InProgress()
    large = bytes(limits.THREAD_BODY_BYTES_MIN + 1)
    requests = [await entered(in_progress, FIRST, sized(len(large))) for _ in range(4)]
    for request in requests[:3]:
        await asyncio.wait_for(request.begin_work(large), HANG_SECONDS)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(requests[3].begin_work(large), 0.2)
    other = await entered(in_progress, SECOND, sized(len(large)))
    await asyncio.wait_for(other.begin_work(large), HANG_SECONDS)
