"""The schedule: who gets what is due, what happens when its worker dies, and postponing."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import uuid4

import pytest

from posthouse.rules.retry import HOLD_MAX
from posthouse.rules.ticket import DeliveryTicket
from posthouse.store import delivery_claims, delivery_outcomes, delivery_schedule
from posthouse.store.delivery_claims import ClaimedRecipient
from posthouse.store.delivery_outcomes import DeliveryResult
from posthouse.store.delivery_schedule import DeliveryPostponement
from posthouse.store.postgres import Database
from tests.support import query_plans
from tests.support.delivery_steps import LEASE, LONGEST_ATTEMPT, WAIT, DeliverySteps
from tests.support.eventually import HANG_SECONDS

MOMENT = timedelta(milliseconds=1)


async def postpone(
    steps: DeliverySteps, *tickets: DeliveryTicket, wait: timedelta = WAIT, is_held: bool = False
) -> int:
    now = steps.clock.now()
    postponements = [
        DeliveryPostponement(ticket.account_id, ticket.message_id, ticket.position, ticket.fence, now + wait, is_held)
        for ticket in tickets
    ]
    async with steps.database.transaction() as tx:
        return await delivery_schedule.postpone(tx, postponements, now)


async def test_what_is_accepted_is_due_and_a_lease_keeps_it_from_others(steps: DeliverySteps) -> None:
    message_id = await steps.accept(["a@example.org", "b@example.net"])
    tickets = await steps.lease()
    assert {(ticket.message_id, ticket.position, ticket.fence, ticket.destination) for ticket in tickets} == {
        (message_id, 0, 0, "example.org"),
        (message_id, 1, 0, "example.net"),
    }
    assert {ticket.account_id for ticket in tickets} == {steps.sender.account_id}
    steps.clock.advance(LEASE - MOMENT)
    assert await steps.lease() == []
    steps.clock.advance(MOMENT)
    assert set(await steps.lease()) == set(tickets)


async def test_the_longest_due_goes_first_and_no_more_than_asked_for(steps: DeliverySteps) -> None:
    order = []
    for _ in range(5):
        order.append(await steps.accept())
        steps.clock.advance(seconds=1)
    assert {ticket.message_id for ticket in await steps.lease(2)} == set(order[:2])
    assert {ticket.message_id for ticket in await steps.lease(2)} == set(order[2:4])
    assert [ticket.message_id for ticket in await steps.lease(2)] == order[4:]


async def test_a_dispatcher_does_not_wait_for_what_another_is_leasing(steps: DeliverySteps) -> None:
    await steps.accept(4)
    now = steps.clock.now()
    async with steps.database.transaction() as first, steps.database.transaction() as second:
        ours = await delivery_schedule.lease_due(first, now, now + LEASE, 3)
        theirs = await asyncio.wait_for(delivery_schedule.lease_due(second, now, now + LEASE, 3), HANG_SECONDS)
    assert (len(ours), len(theirs)) == (3, 1)
    assert not set(ours) & set(theirs)


async def test_a_claim_lasts_until_its_end_and_is_due_again_then(steps: DeliverySteps) -> None:
    (claimed,) = await steps.claimed()
    steps.clock.advance(LONGEST_ATTEMPT - MOMENT)
    assert await steps.lease() == []
    steps.clock.advance(MOMENT)
    (ticket,) = await steps.lease()
    assert ticket.fence == claimed.fence
    assert await steps.value("SELECT worker_id FROM delivery_schedule") is None


async def test_what_a_dead_worker_had_claimed_is_due_immediately(steps: DeliverySteps) -> None:
    dead = uuid4()
    await steps.renew(dead)
    await steps.accept(3)
    assert len(await steps.claim(await steps.lease(), dead)) == 3
    steps.clock.advance(LEASE - MOMENT)
    await steps.renew()
    # What a living worker claimed stays its own.
    await steps.claimed(2)
    assert await steps.reclaim() == 0
    steps.clock.advance(MOMENT)
    assert await steps.reclaim() == 3
    assert await steps.reclaim() == 0
    assert len(await steps.lease()) == 3
    assert await steps.fetch("SELECT id FROM workers") == [(steps.worker_id,)]


async def test_what_was_not_claimed_is_not_reclaimed(steps: DeliverySteps) -> None:
    await steps.accept()
    await steps.lease()
    steps.clock.advance(LEASE * 2)
    assert await steps.reclaim() == 0


async def test_a_worker_that_was_forgotten_does_not_keep_what_it_claims(steps: DeliverySteps) -> None:
    await steps.accept()
    steps.clock.advance(LEASE)
    assert await steps.reclaim() == 0
    assert len(await steps.claim(await steps.lease())) == 1
    assert await steps.reclaim() == 1
    await steps.renew()
    assert len(await steps.claim(await steps.lease())) == 1
    assert await steps.reclaim() == 0


async def test_reclaiming_takes_no_more_than_its_limit(steps: DeliverySteps) -> None:
    await steps.claimed(5)
    steps.clock.advance(LEASE)
    for wanted in (2, 2, 1, 0):
        async with steps.database.transaction() as tx:
            assert await delivery_schedule.reclaim_expired_workers(tx, steps.clock.now(), 2) == wanted


@pytest.mark.parametrize("by_reclaiming", [True, False])
async def test_what_is_being_recorded_is_not_waited_for_when_claims_are_reclaimed_or_released(
    steps: DeliverySteps, by_reclaiming: bool
) -> None:
    first, _ = await steps.claimed(2)
    steps.clock.advance(LEASE)
    async with steps.database.transaction() as tx:
        await delivery_outcomes.record(tx, [steps.outcome(first, DeliveryResult.DELIVERED)], steps.clock.now())
        assert await asyncio.wait_for(steps.reclaim() if by_reclaiming else let_go(steps), HANG_SECONDS) == 1
    assert await steps.value("SELECT count(*) FROM delivery_schedule") == 1


async def test_a_worker_that_retires_leaves_what_it_had_to_the_next_check(steps: DeliverySteps) -> None:
    await steps.claimed(2)
    assert await steps.reclaim() == 0
    async with steps.database.transaction() as tx:
        await delivery_schedule.retire_worker(tx, steps.worker_id)
        await delivery_schedule.retire_worker(tx, uuid4())
    assert await steps.fetch("SELECT id FROM workers") == []
    assert await steps.reclaim() == 2
    assert len(await steps.lease()) == 2


async def let_go(steps: DeliverySteps, *known: ClaimedRecipient) -> int:
    keys = [claim.key[:3] for claim in known]
    async with steps.database.transaction() as tx:
        return await delivery_schedule.release_unknown(tx, steps.worker_id, keys, steps.clock.now())


async def test_claims_that_a_worker_does_not_know_are_released(steps: DeliverySteps) -> None:
    other = uuid4()
    await steps.renew(other)
    await steps.accept()
    (theirs,) = await steps.claim(await steps.lease(), other)
    known, unheard = await steps.claimed(2)
    await steps.accept()
    (ticket,) = await steps.lease()
    assert await let_go(steps, known) == 1
    # It is due under the fence that its lost claim took; that attempt stays counted, as an orphan.
    (again,) = await steps.lease()
    assert (again.message_id, again.position, again.fence) == (unheard.message_id, unheard.position, unheard.fence)
    (claimed,) = await steps.claim([again])
    assert claimed.attempt_count == 2
    # Neither what is known, nor what is another's, nor what was not claimed was touched.
    owners = await steps.fetch("SELECT message_id, position FROM delivery_schedule WHERE worker_id = $1", other)
    assert owners == [(theirs.message_id, theirs.position)]
    assert len(await steps.claim([ticket])) == 1
    assert (await steps.record(steps.outcome(known, DeliveryResult.DELIVERED))).late == ()


async def test_a_lease_never_grows_shorter(steps: DeliverySteps) -> None:
    later = steps.clock.now() + 2 * LEASE
    async with steps.database.transaction() as tx:
        await delivery_schedule.renew_worker(tx, steps.worker_id, later)
    await steps.renew()
    assert await steps.value("SELECT expires_at FROM workers") == later


async def test_a_postponement_counts_no_attempt_and_its_ticket_never_matches_again(steps: DeliverySteps) -> None:
    await steps.accept()
    (old,) = await steps.lease()
    assert await postpone(steps, old) == 1
    assert await steps.claim([old]) == []
    steps.clock.advance(WAIT - MOMENT)
    assert await steps.lease() == []
    steps.clock.advance(MOMENT)
    (new,) = await steps.lease()
    assert await steps.claim([old]) == []
    assert await postpone(steps, old) == 0
    (claimed,) = await steps.claim([new])
    assert claimed.attempt_count == 1
    assert await steps.value("SELECT count(*) FROM attempts") == 1
    assert await steps.value("SELECT count(*) FROM events") == 0


async def test_a_ticket_that_came_twice_postpones_once(steps: DeliverySteps) -> None:
    await steps.accept()
    (ticket,) = await steps.lease()
    assert await postpone(steps, ticket, ticket) == 1
    assert await steps.value("SELECT fence FROM delivery_schedule") == 1


async def test_what_was_claimed_meanwhile_is_not_postponed(steps: DeliverySteps) -> None:
    await steps.accept(2)
    tickets = await steps.lease()
    await steps.claim(tickets[:1])
    assert await postpone(steps, *tickets) == 1
    assert await steps.value("SELECT count(*) FROM delivery_schedule WHERE worker_id IS NOT NULL") == 1


async def test_a_claim_has_the_time_that_its_recipient_was_held(steps: DeliverySteps) -> None:
    await steps.accept()
    day = timedelta(days=1)
    await steps.suspend()
    for _ in range(3):
        assert await postpone(steps, *await steps.lease(), wait=day, is_held=True) == 1
        steps.clock.advance(day)
    (claimed,) = await steps.claim(await steps.lease())
    assert (claimed.held, claimed.attempt_count) == (3 * day, 1)
    await steps.resume()
    await steps.record(steps.outcome(claimed, DeliveryResult.DEFERRED))
    steps.clock.advance(day)
    await steps.suspend()
    assert await postpone(steps, *await steps.lease(), wait=day, is_held=True) == 1
    steps.clock.advance(day)
    await steps.resume()
    # Held no longer, yet the lane is full: waiting for a lane counts.
    assert await postpone(steps, *await steps.lease(), wait=day) == 1
    steps.clock.advance(day)
    (again,) = await steps.claim(await steps.lease())
    assert (again.held, again.attempt_count) == (4 * day, 2)


async def test_what_was_held_for_seven_days_is_found_to_the_second_by_its_fence(steps: DeliverySteps) -> None:
    first_id = await steps.accept()
    await steps.accept(sender=await steps.another_sender("free"))
    first, second = sorted(await steps.lease(), key=lambda ticket: ticket.message_id != first_id)
    await steps.suspend()

    async def over(*tickets: DeliveryTicket) -> set[Any]:
        keys = [(ticket.account_id, ticket.message_id, ticket.position, ticket.fence) for ticket in tickets]
        async with steps.database.connection() as connection:
            return await delivery_schedule.held_too_long(connection, keys, steps.clock.now())

    assert await postpone(steps, first, is_held=True) == 1
    assert await postpone(steps, second) == 1
    steps.clock.advance(HOLD_MAX - MOMENT)
    held, waiting = sorted(await steps.lease(), key=lambda ticket: ticket.message_id != first_id)
    assert await over(held, waiting) == set()
    steps.clock.advance(MOMENT)
    assert await over(held, waiting) == {(held.account_id, held.message_id, held.position, held.fence)}
    # A ticket from before finds nothing, and neither does no ticket.
    assert await over(first, second) == await over() == set()


async def test_a_hold_that_is_interrupted_by_a_full_lane_continues_where_it_was(steps: DeliverySteps) -> None:
    await steps.accept()
    for is_held, time in ((True, HOLD_MAX / 2), (False, HOLD_MAX), (True, HOLD_MAX / 2 - MOMENT)):
        await (steps.suspend() if is_held else steps.resume())
        (ticket,) = await steps.lease()
        assert await postpone(steps, ticket, is_held=is_held) == 1
        steps.clock.advance(time)
    (ticket,) = await steps.lease()
    key = ticket.account_id, ticket.message_id, ticket.position, ticket.fence
    async with steps.database.connection() as connection:
        assert await delivery_schedule.held_too_long(connection, [key], steps.clock.now()) == set()
        steps.clock.advance(MOMENT)
        assert await delivery_schedule.held_too_long(connection, [key], steps.clock.now()) == {key}


async def test_nothing_to_do_is_nothing_done(database: Database) -> None:
    now = datetime.now(UTC)
    async with database.transaction() as tx:
        assert await delivery_schedule.postpone(tx, [], now) == 0
        assert await delivery_claims.claim(tx, uuid4(), [], now, now) == []
        assert (await delivery_outcomes.record(tx, [], now))[:3] == ((), (), ())


async def test_a_batch_without_endpoints_is_recorded_by_three_statements(steps: DeliverySteps) -> None:
    await steps.accept(20)
    claims = await steps.claim(await steps.lease())
    outcomes = [steps.outcome(claim, DeliveryResult.DELIVERED) for claim in claims]
    made: list[str] = []
    async with steps.database.transaction() as tx:
        # With its first statements, a connection also asks for the types that they name.
        await delivery_outcomes.record(tx, outcomes[:1], steps.clock.now())
        with cast(Any, tx).query_logger(lambda query: made.append(query.query)):
            recorded = await delivery_outcomes.record(tx, outcomes[1:], steps.clock.now())
    assert (len(recorded.counted), len(made)) == (19, 3)


STATEMENTS = query_plans.statements(delivery_schedule, delivery_claims, delivery_outcomes)


@pytest.mark.parametrize("name", STATEMENTS)
async def test_a_plan_made_on_empty_tables_finds_rows_by_their_keys(name: str, database: Database) -> None:
    """A day begins with empty partitions, and connections keep the plans that they made then."""
    for scan in await query_plans.scans(database, STATEMENTS[name]):
        if scan["Relation Name"] in ("workers", "restore_state"):
            continue
        condition = query_plans.condition(scan)
        # One row of an account's erased addresses is looked for, before the hash is.
        if scan["Relation Name"] in ("endpoints", "suspensions", "erased_addresses"):
            assert "account_id = " in condition, scan
        # An account's held mail is read as a whole, and only when the account is resumed.
        elif "account_id" in condition and name != "delivery_schedule.RESUME":
            assert condition.count(" = ") >= 2, scan
        else:
            keys = ("ctid", "next_at", "worker_id", "accounts.id = ANY", "account_id")
            assert any(key in condition for key in keys), scan


async def test_a_suppressed_address_is_found_by_its_key_even_after_analyze_of_none(database: Database) -> None:
    scans = await query_plans.scans(database, STATEMENTS["delivery_claims._CLAIM"], analysed="suppressions")
    (condition,) = [query_plans.condition(scan) for scan in scans if scan["Relation Name"] == "suppressions"]
    assert "email = " in condition
