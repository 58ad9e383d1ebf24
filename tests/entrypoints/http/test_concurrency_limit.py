"""Few requests of an account at a time: the others wait, in their order, and no other account does."""

import asyncio
from typing import Any

import pytest

from posthouse.entrypoints.http.request_limits import ConcurrencyLimit
from posthouse.rules.refusal import Code, Refusal
from tests.support.eventually import HANG_SECONDS


def request(path: str = "/v1/domains") -> dict[str, Any]:
    return {"path": path}


async def started(task: "asyncio.Task[None]") -> bool:
    for _ in range(5):
        await asyncio.sleep(0)
    return task.done()


async def test_the_next_request_of_an_account_waits_until_one_ends() -> None:
    limit = ConcurrencyLimit(2)
    first, second, third, fourth = request(), request(), request(), request()
    await limit.begin(first, "noisy")
    await limit.begin(second, "noisy")
    waiting = [asyncio.create_task(limit.begin(one, "noisy")) for one in (third, fourth)]
    await limit.begin(request(), "another")
    assert not await started(waiting[0])
    limit.end(first)
    assert await started(waiting[0])
    assert not waiting[1].done()
    limit.end(first)
    assert not await started(waiting[1])
    limit.end(third)
    assert await started(waiting[1])
    for one in (second, fourth):
        limit.end(one)
    for _ in range(2):
        await asyncio.wait_for(limit.begin(request(), "noisy"), HANG_SECONDS)


async def test_a_request_that_waits_for_an_event_takes_no_place() -> None:
    limit = ConcurrencyLimit(1)
    for _ in range(3):
        await asyncio.wait_for(limit.begin(request("/v1/live"), "account"), HANG_SECONDS)
    await asyncio.wait_for(limit.begin(request(), "account"), HANG_SECONDS)


async def test_a_client_that_leaves_while_it_waits_takes_no_place() -> None:
    limit = ConcurrencyLimit(1)
    first = request()
    await limit.begin(first, "account")
    leaving, staying = (asyncio.create_task(limit.begin(request(), "account")) for _ in range(2))
    await started(leaving)
    leaving.cancel()
    limit.end(first)
    assert await started(staying)


async def test_a_place_given_to_a_client_that_leaves_goes_to_the_next() -> None:
    limit = ConcurrencyLimit(1)
    first = request()
    await limit.begin(first, "account")
    leaving, staying = (asyncio.create_task(limit.begin(request(), "account")) for _ in range(2))
    await started(leaving)
    limit.end(first)
    leaving.cancel()
    assert await started(staying)
    assert not staying.cancelled()


async def test_a_request_that_waited_too_long_is_refused() -> None:
    limit = ConcurrencyLimit(1, wait_seconds_max=0.01)
    await limit.begin(request(), "account")
    with pytest.raises(Refusal) as refused:
        await limit.begin(request(), "account")
    assert refused.value.code is Code.TEMPORARY_FAILURE
