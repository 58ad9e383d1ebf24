"""Waiting for a message: one query for all who wait, the oldest first, places that are released."""

import asyncio

import pytest

from posthouse.flows.account.live import NextMessage
from posthouse.rules.credential import Mode
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.refusal import Code, Refusal
from tests.support.context import context
from tests.support.delivery_steps import DeliverySteps
from tests.support.eventually import eventually


def flow(steps: DeliverySteps, **options: int) -> NextMessage:
    return NextMessage(context(steps.database, steps.clock), captures=True, **options)


def waits(steps: DeliverySteps, waiting: NextMessage, email: str, mode: Mode) -> "asyncio.Task[MessageId]":
    account_id = AccountId(steps.sender.account_id)
    return asyncio.create_task(waiting.message_id(account_id, mode, email, None, None))


async def test_one_query_answers_all_who_wait(steps: DeliverySteps) -> None:
    waiting = flow(steps)
    live = [waits(steps, waiting, "ada@example.org", Mode.LIVE) for _ in range(3)]
    test = waits(steps, waiting, "ada@example.org", Mode.TEST)
    other = waits(steps, waiting, "never@example.org", Mode.LIVE)
    await eventually(lambda: len(waiting._waiters) == 5)
    sent = [await steps.accept(["Ada@example.org"]) for _ in range(2)]
    tested = await steps.accept(["ada@example.org"], mode=Mode.TEST)
    await waiting.look()
    # All ids are of the same millisecond.
    assert [await task for task in live] == [min(*sent, tested)] * 3
    assert await test == tested
    assert not other.done()
    waiting.close()
    with pytest.raises(Refusal) as caught:
        await other
    assert caught.value.code is Code.SERVICE_UNAVAILABLE


async def test_a_place_is_given_back_however_the_waiting_ends(steps: DeliverySteps) -> None:
    waiting = flow(steps, waiting_max=1)
    first = waits(steps, waiting, "ada@example.org", Mode.LIVE)
    await eventually(lambda: len(waiting._waiters) == 1)
    with pytest.raises(Refusal) as caught:
        await waits(steps, waiting, "ada@example.org", Mode.LIVE)
    assert caught.value.code is Code.RATE_LIMITED
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert not waiting._waiters
    sent = await steps.accept(["ada@example.org"])
    assert await waits(steps, waiting, "ada@example.org", Mode.LIVE) == sent
