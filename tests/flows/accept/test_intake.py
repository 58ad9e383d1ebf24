"""Accepting what had to wait: for an old id, or behind large messages."""

import asyncio

import pytest

from posthouse.flows.accept.accept_transaction import WAITED_MAX
from posthouse.rules.pepper import Pepper, Peppers
from posthouse.rules.refusal import Code, Refusal
from tests.support.accept_flow import new_intake, new_sender
from tests.support.context import PEPPERS
from tests.support.delivery_steps import DeliverySteps
from tests.support.locks import lock_waits
from tests.support.operator_client import Operator


async def test_a_message_that_waited_too_long_is_refused_and_may_be_sent_again(steps: DeliverySteps) -> None:
    accept_flow, sender = steps.accept_flow, steps.sender
    async with steps.database.transaction() as tx:
        await tx.execute("SELECT FROM accounts WHERE id = $1 FOR UPDATE", sender.account_id)
        waiting = asyncio.create_task(accept_flow.accept(sender, "key"))
        await lock_waits(tx)
        steps.clock.advance(WAITED_MAX * 2)
    with pytest.raises(Refusal) as refused:
        await waiting
    assert refused.value.code is Code.TEMPORARY_FAILURE
    assert await steps.value("SELECT count(*) FROM messages") == 0
    assert not (await accept_flow.accept(sender, "key")).is_replay


async def test_a_small_message_does_not_wait_for_a_batch_of_large_ones(
    steps: DeliverySteps, operator: Operator
) -> None:
    accept_flow, noisy = steps.accept_flow, steps.sender
    victim = await new_sender(operator, "victim")
    async with steps.database.transaction() as tx:
        await tx.execute("SELECT FROM accounts WHERE id = $1 FOR UPDATE", noisy.account_id)
        large = asyncio.create_task(accept_flow.accept(noisy, "large", noisy.draft(text="x" * 300_000)))
        await lock_waits(tx)
        await accept_flow.accept(victim, "small")
        assert not large.done()
    await large


async def test_a_retry_is_recognised_while_the_pepper_is_replaced(steps: DeliverySteps) -> None:
    flow, sender = steps.accept_flow, steps.sender
    first = await flow.accept(sender, "key")
    peppers = Peppers(Pepper("second", b"another key"), others=PEPPERS.all)
    flow.intake = new_intake(flow.database, flow.control_cache, flow.clock, peppers=peppers)
    again = await flow.accept(sender, "key")
    assert (again.message_id, again.is_replay) == (first.message_id, True)
