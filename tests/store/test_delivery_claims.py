"""Claims: what is not to be tried any more, and bodies that are too large to come along."""

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Final
from uuid import uuid4

import pytest_asyncio

from posthouse.rules.ids import AccountId
from posthouse.rules.retry import DELIVERY, HOLD_MAX, Schedule
from posthouse.store import bodies, delivery_claims, delivery_schedule
from posthouse.store.delivery_claims import BODY_BYTES_MAX, Claimed
from posthouse.store.delivery_outcomes import DeliveryResult
from posthouse.store.delivery_schedule import DeliveryPostponement
from tests.support.books import faults_in_the_books
from tests.support.rounds import LEASE, LONGEST_ATTEMPT, WAIT, Rounds, beginning

MOMENT: Final = timedelta(milliseconds=1)
LIFETIME: Final = timedelta(hours=72)


@pytest_asyncio.fixture
async def rounds(new_database: Callable[[], str]) -> AsyncIterator[Rounds]:
    url = new_database()
    async with beginning(url) as begun:
        yield begun
        assert await faults_in_the_books(url) == {}


async def again(rounds: Rounds, retries: Schedule = DELIVERY) -> Claimed:
    """The only recipient that is due, claimed."""
    now = rounds.clock.now()
    async with rounds.database.transaction() as tx:
        tickets = await delivery_schedule.lease_due(tx, now, now + LEASE, 10)
        (claimed,) = await delivery_claims.claim(tx, rounds.worker_id, tickets, now, now + LONGEST_ATTEMPT, retries)
    return claimed


async def end(rounds: Rounds, claimed: Claimed) -> None:
    """It came to its end: nothing of it is left for the next part of the test."""
    await rounds.record(rounds.outcome(claimed, DeliveryResult.FAILED))


async def attempts(rounds: Rounds, claimed: Claimed) -> int:
    number: int = await rounds.value("SELECT count(*) FROM attempts WHERE message_id = $1", claimed.message_id)
    return number


async def hold(rounds: Rounds, wait: timedelta) -> None:
    now = rounds.clock.now()
    (ticket,) = await rounds.lease()
    held = DeliveryPostponement(
        ticket.account_id, ticket.message_id, ticket.position, ticket.fence, now + wait, is_held=True
    )
    async with rounds.database.transaction() as tx:
        assert await delivery_schedule.postpone(tx, [held], now) == 1
    rounds.clock.advance(wait)


async def test_what_was_tried_as_often_as_it_may_be_is_over_and_no_attempt_is_written(rounds: Rounds) -> None:
    retries = Schedule((WAIT, WAIT))
    await rounds.accept()
    for number in (1, 2, 3):
        claimed = await again(rounds, retries)
        assert (claimed.is_over, claimed.attempt_count) == (False, number)
        if number < 3:
            await rounds.record(rounds.outcome(claimed, DeliveryResult.DEFERRED))
            rounds.clock.advance(WAIT)
    # Nobody lived to report the third.
    rounds.clock.advance(LEASE)
    assert await rounds.reclaim() == 1
    over = await again(rounds, retries)
    assert (over.is_over, over.attempt_count, over.fence > claimed.fence) == (True, 3, True)
    assert (over.message.mime, over.message.mime_bytes) == (None, None), "nobody is to get it"
    assert await attempts(rounds, over) == 3
    await end(rounds, over)
    assert await rounds.fetch("SELECT status, attempt_count FROM recipients") == [("failed", 3)]


async def test_what_is_older_than_it_may_be_is_over_and_time_held_does_not_count(rounds: Rounds) -> None:
    await rounds.accept()
    await hold(rounds, timedelta(days=2))
    rounds.clock.advance(hours=1)
    # The hold went on until now: all of that time was not its own.
    claimed = await again(rounds)
    assert (claimed.is_over, claimed.held) == (False, timedelta(days=2, hours=1))
    await rounds.record(
        rounds.outcome(claimed, DeliveryResult.DEFERRED, next_at=rounds.clock.now() + LIFETIME - MOMENT)
    )
    rounds.clock.advance(LIFETIME - MOMENT)
    claimed = await again(rounds)
    assert not claimed.is_over
    await rounds.record(rounds.outcome(claimed, DeliveryResult.DEFERRED, next_at=rounds.clock.now()))
    rounds.clock.advance(2 * MOMENT)
    over = await again(rounds)
    assert (over.is_over, over.attempt_count) == (True, 2)
    await end(rounds, over)


async def test_what_was_held_for_seven_days_is_over(rounds: Rounds) -> None:
    await rounds.accept()
    await hold(rounds, HOLD_MAX)
    over = await again(rounds)
    assert (over.is_over, over.attempt_count, over.held) == (True, 0, HOLD_MAX)
    assert await attempts(rounds, over) == 0
    await end(rounds, over)


async def test_without_a_lifetime_nothing_is_too_old(rounds: Rounds) -> None:
    await rounds.accept()
    rounds.clock.advance(days=6)
    claimed = await again(rounds, Schedule((WAIT,)))
    assert not claimed.is_over
    await end(rounds, claimed)


async def test_in_one_claim_each_is_judged_for_itself(rounds: Rounds) -> None:
    await rounds.accept()
    rounds.clock.advance(LIFETIME + MOMENT)
    young = await rounds.accept(2)
    found = await rounds.claim(await rounds.lease())
    assert sorted((one.message_id == young, one.is_over, one.attempt_count) for one in found) == [
        (False, True, 0),
        (True, False, 1),
        (True, False, 1),
    ]
    assert [one.message.mime is not None for one in found] == [one.message_id == young for one in found]


async def test_a_body_comes_along_unless_it_is_large_and_a_large_one_can_be_fetched(rounds: Rounds) -> None:
    account_id = AccountId(rounds.sender.account_id)
    lengths = {}
    for text in ("a" * 60 + "\n", ("b" * 60 + "\n") * 2_000):
        accepted = await rounds.house.accept(rounds.sender, str(uuid4()), rounds.sender.draft(text=text))
        lengths[accepted.message_id] = len(text)
    found = {one.message_id: one.message for one in await rounds.claim(await rounds.lease())}
    small, large = (found[message_id] for message_id in lengths)
    assert small.mime is not None
    assert small.mime_bytes == len(small.mime) <= BODY_BYTES_MAX
    assert large.mime is None
    assert large.mime_bytes is not None
    async with rounds.database.connection() as connection:
        body = await bodies.whole(connection, account_id, large.id)
        assert body is not None
        assert len(body) == large.mime_bytes > BODY_BYTES_MAX
        assert body.count(b"b" * 60) == 2_000
        assert await bodies.whole(connection, account_id, small.id) == small.mime
        # Another account's id finds nothing.
        assert await bodies.whole(connection, AccountId(uuid4()), large.id) is None


async def test_a_body_that_is_gone_has_no_length(rounds: Rounds) -> None:
    await rounds.accept()
    kept = await rounds.fetch("SELECT account_id, message_id, mime FROM bodies")
    async with rounds.database.transaction() as tx:
        await tx.execute("DELETE FROM bodies WHERE message_id = $1", kept[0][1])
    (claimed,) = await rounds.claim(await rounds.lease())
    assert (claimed.is_over, claimed.message.mime_bytes, claimed.message.mime) == (False, None, None)
    async with rounds.database.transaction() as tx:
        await tx.execute("INSERT INTO bodies (account_id, message_id, mime) VALUES ($1, $2, $3)", *kept[0])
