"""Accepting what had to wait: nothing is written under an id that others have passed by already."""

import asyncio

import pytest

from posthouse.flows.accept.intake import WAITED_MAX
from posthouse.rules.refusal import Code, Refusal
from tests.support.delivery_steps import open_delivery_steps
from tests.support.locks import lock_waits


async def test_a_message_that_waited_too_long_is_refused_and_may_come_again(database_url: str) -> None:
    async with open_delivery_steps(database_url) as steps:
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
