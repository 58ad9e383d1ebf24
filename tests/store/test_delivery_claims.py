"""Claims: what is not to be tried any more, and bodies that are too large to come along."""

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Final
from uuid import uuid4

import pytest_asyncio

from posthouse.rules.ids import AccountId
from posthouse.rules.retry import DELIVERY, HOLD_MAX, Schedule
from posthouse.store import delivery_claims, delivery_schedule, messages
from posthouse.store.delivery_claims import BODY_BYTES_MAX, ClaimedRecipient
from posthouse.store.delivery_outcomes import DeliveryResult
from posthouse.store.delivery_schedule import DeliveryPostponement
from tests.support.database_checks import database_faults
from tests.support.delivery_steps import LEASE, LONGEST_ATTEMPT, WAIT, DeliverySteps, open_delivery_steps

MOMENT: Final = timedelta(milliseconds=1)
LIFETIME: Final = timedelta(hours=72)


@pytest_asyncio.fixture
async def steps(new_database: Callable[[], str]) -> AsyncIterator[DeliverySteps]:
    url = new_database()
    async with open_delivery_steps(url) as begun:
        yield begun
        assert await database_faults(url) == {}


async def again(steps: DeliverySteps, retries: Schedule = DELIVERY) -> ClaimedRecipient:
    """The only recipient that is due, claimed."""
    now = steps.clock.now()
    async with steps.database.transaction() as tx:
        tickets = await delivery_schedule.lease_due(tx, now, now + LEASE, 10)
        (claimed,) = await delivery_claims.claim(tx, steps.worker_id, tickets, now, now + LONGEST_ATTEMPT, retries)
    return claimed


async def end(steps: DeliverySteps, claimed: ClaimedRecipient) -> None:
    """It became final: none of it remains for the next part of the test."""
    await steps.record(steps.outcome(claimed, DeliveryResult.FAILED))


async def attempts(steps: DeliverySteps, claimed: ClaimedRecipient) -> int:
    number: int = await steps.value("SELECT count(*) FROM attempts WHERE message_id = $1", claimed.message_id)
    return number


async def hold(steps: DeliverySteps, wait: timedelta) -> None:
    await steps.suspend()
    now = steps.clock.now()
    (ticket,) = await steps.lease()
    held = DeliveryPostponement(
        ticket.account_id, ticket.message_id, ticket.position, ticket.fence, now + wait, is_held=True
    )
    async with steps.database.transaction() as tx:
        assert await delivery_schedule.postpone(tx, [held], now) == 1
    steps.clock.advance(wait)


async def test_what_was_tried_as_often_as_it_may_be_is_over_and_no_attempt_is_written(steps: DeliverySteps) -> None:
    retries = Schedule((WAIT, WAIT))
    await steps.accept()
    for number in (1, 2, 3):
        claimed = await again(steps, retries)
        assert (claimed.is_over, claimed.attempt_count) == (False, number)
        if number < 3:
            await steps.record(steps.outcome(claimed, DeliveryResult.DEFERRED))
            steps.clock.advance(WAIT)
    # The third has no outcome: its worker is gone.
    steps.clock.advance(LEASE)
    assert await steps.reclaim() == 1
    over = await again(steps, retries)
    assert (over.is_over, over.attempt_count, over.fence > claimed.fence) == (True, 3, True)
    assert (over.message.mime, over.message.mime_bytes) == (None, None), "no recipient needs it"
    assert await attempts(steps, over) == 3
    await end(steps, over)
    assert await steps.fetch("SELECT status, attempt_count FROM recipients") == [("failed", 3)]


async def test_what_is_older_than_it_may_be_is_over_and_time_held_does_not_count(steps: DeliverySteps) -> None:
    await steps.accept()
    await hold(steps, timedelta(days=2))
    steps.clock.advance(hours=1)
    # The hold lasted until now: none of that time counts.
    claimed = await again(steps)
    assert (claimed.is_over, claimed.held) == (False, timedelta(days=2, hours=1))
    await steps.resume()
    await steps.record(steps.outcome(claimed, DeliveryResult.DEFERRED, next_at=steps.clock.now() + LIFETIME - MOMENT))
    steps.clock.advance(LIFETIME - MOMENT)
    claimed = await again(steps)
    assert not claimed.is_over
    await steps.record(steps.outcome(claimed, DeliveryResult.DEFERRED, next_at=steps.clock.now()))
    steps.clock.advance(2 * MOMENT)
    over = await again(steps)
    assert (over.is_over, over.attempt_count) == (True, 2)
    await end(steps, over)


async def test_what_was_held_for_seven_days_is_over(steps: DeliverySteps) -> None:
    await steps.accept()
    await hold(steps, HOLD_MAX)
    over = await again(steps)
    assert (over.is_over, over.attempt_count, over.held) == (True, 0, HOLD_MAX)
    assert await attempts(steps, over) == 0
    await end(steps, over)


async def test_without_a_lifetime_nothing_is_too_old(steps: DeliverySteps) -> None:
    await steps.accept()
    steps.clock.advance(days=6)
    claimed = await again(steps, Schedule((WAIT,)))
    assert not claimed.is_over
    await end(steps, claimed)


async def test_in_one_claim_each_is_judged_separately(steps: DeliverySteps) -> None:
    await steps.accept()
    steps.clock.advance(LIFETIME + MOMENT)
    young = await steps.accept(2)
    found = await steps.claim(await steps.lease())
    judged = sorted((claim.message_id == young, claim.is_over, claim.attempt_count) for claim in found)
    assert judged == [(False, True, 0), (True, False, 1), (True, False, 1)]
    assert [claim.message.mime is not None for claim in found] == [claim.message_id == young for claim in found]


async def test_a_body_comes_along_unless_it_is_large_and_a_large_one_can_be_fetched(steps: DeliverySteps) -> None:
    account_id = AccountId(steps.sender.account_id)
    lengths = {}
    for text in ("a" * 60 + "\n", ("b" * 60 + "\n") * 2_000):
        accepted = await steps.accept_flow.accept(steps.sender, str(uuid4()), steps.sender.draft(text=text))
        lengths[accepted.message_id] = len(text)
    found = {claim.message_id: claim.message for claim in await steps.claim(await steps.lease())}
    small, large = (found[message_id] for message_id in lengths)
    assert small.mime is not None
    assert small.mime_bytes == len(small.mime) <= BODY_BYTES_MAX
    assert large.mime is None
    assert large.mime_bytes is not None
    async with steps.database.connection() as connection:
        body = await messages.whole_body(connection, account_id, large.id)
        assert body is not None
        assert len(body) == large.mime_bytes > BODY_BYTES_MAX
        assert body.count(b"b" * 60) == 2_000
        assert await messages.whole_body(connection, account_id, small.id) == small.mime
        # Another account's id finds nothing.
        assert await messages.whole_body(connection, AccountId(uuid4()), large.id) is None


async def test_a_body_that_is_gone_has_no_length(steps: DeliverySteps) -> None:
    await steps.accept()
    kept = await steps.fetch("SELECT account_id, message_id, mime FROM bodies")
    async with steps.database.transaction() as tx:
        await tx.execute("DELETE FROM bodies WHERE message_id = $1", kept[0][1])
    (claimed,) = await steps.claim(await steps.lease())
    assert (claimed.is_over, claimed.message.mime_bytes, claimed.message.mime) == (False, None, None)
    async with steps.database.transaction() as tx:
        await tx.execute("INSERT INTO bodies (account_id, message_id, mime) VALUES ($1, $2, $3)", *kept[0])
