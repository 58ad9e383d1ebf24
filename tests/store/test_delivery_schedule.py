"""The calendar: who gets what is due, what becomes of it when its worker dies, and how it is put off."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from posthouse.rules.retry import HOLD_MAX
from posthouse.rules.ticket import DeliveryTicket
from posthouse.store import delivery_claims, delivery_outcomes, delivery_schedule
from posthouse.store.delivery_claims import Claimed
from posthouse.store.delivery_outcomes import DeliveryResult
from posthouse.store.delivery_schedule import DeliveryPostponement
from posthouse.store.postgres import Database
from tests.support import plans
from tests.support.rounds import LEASE, LONGEST_ATTEMPT, WAIT, Rounds, beginning

MOMENT = timedelta(milliseconds=1)


@pytest_asyncio.fixture
async def rounds(database_url: str) -> AsyncIterator[Rounds]:
    async with beginning(database_url) as begun:
        yield begun


async def postpone(rounds: Rounds, *tickets: DeliveryTicket, wait: timedelta = WAIT, is_held: bool = False) -> int:
    now = rounds.clock.now()
    told = [
        DeliveryPostponement(one.account_id, one.message_id, one.position, one.fence, now + wait, is_held)
        for one in tickets
    ]
    async with rounds.database.transaction() as tx:
        return await delivery_schedule.postpone(tx, told, now)


async def test_what_is_accepted_is_due_and_a_lease_keeps_it_from_others(rounds: Rounds) -> None:
    message_id = await rounds.accept(["a@example.org", "b@example.net"])
    tickets = await rounds.lease()
    assert {(one.message_id, one.position, one.fence, one.destination) for one in tickets} == {
        (message_id, 0, 0, "example.org"),
        (message_id, 1, 0, "example.net"),
    }
    assert {one.account_id for one in tickets} == {rounds.sender.account_id}
    rounds.clock.advance(LEASE - MOMENT)
    assert await rounds.lease() == []
    rounds.clock.advance(MOMENT)
    assert sorted(await rounds.lease(), key=lambda one: one.position) == sorted(tickets, key=lambda one: one.position)


async def test_the_longest_due_goes_first_and_no_more_than_asked_for(rounds: Rounds) -> None:
    order = []
    for _ in range(5):
        order.append(await rounds.accept())
        rounds.clock.advance(seconds=1)
    assert {one.message_id for one in await rounds.lease(2)} == set(order[:2])
    assert {one.message_id for one in await rounds.lease(2)} == set(order[2:4])
    assert [one.message_id for one in await rounds.lease(2)] == order[4:]


async def test_what_is_not_yet_due_is_left_alone(rounds: Rounds) -> None:
    await rounds.accept()
    async with rounds.database.transaction() as tx:
        early = rounds.clock.now() - MOMENT
        assert await delivery_schedule.lease_due(tx, early, early + LEASE, 10) == []


async def test_dispatchers_at_work_together_never_lease_the_same_row(rounds: Rounds) -> None:
    for _ in range(6):
        await rounds.accept(50)
    leased: list[DeliveryTicket] = []

    async def dispatch() -> None:
        while tickets := await rounds.lease(7):
            leased.extend(tickets)

    await asyncio.gather(*(dispatch() for _ in range(5)))
    # Someone may have found the rest locked and gone home before the others had it.
    await dispatch()
    assert len(leased) == len({(one.message_id, one.position) for one in leased}) == 300


async def test_a_dispatcher_does_not_wait_for_what_another_is_leasing(rounds: Rounds) -> None:
    await rounds.accept(4)
    now = rounds.clock.now()
    async with rounds.database.transaction() as first, rounds.database.transaction() as second:
        ours = await delivery_schedule.lease_due(first, now, now + LEASE, 3)
        theirs = await asyncio.wait_for(delivery_schedule.lease_due(second, now, now + LEASE, 3), 2)
    assert (len(ours), len(theirs)) == (3, 1)
    assert not set(ours) & set(theirs)


async def test_a_claim_lasts_until_its_end_and_is_due_again_then(rounds: Rounds) -> None:
    (claimed,) = await rounds.claimed()
    rounds.clock.advance(LONGEST_ATTEMPT - MOMENT)
    assert await rounds.lease() == []
    rounds.clock.advance(MOMENT)
    (ticket,) = await rounds.lease()
    assert ticket.fence == claimed.fence
    assert await rounds.value("SELECT worker_id FROM schedule") is None


async def test_what_a_dead_worker_had_claimed_is_due_at_once(rounds: Rounds) -> None:
    dead = uuid4()
    await rounds.renew(dead)
    await rounds.accept(3)
    assert len(await rounds.claim(await rounds.lease(), dead)) == 3
    rounds.clock.advance(LEASE - MOMENT)
    await rounds.renew()
    assert await rounds.reclaim() == 0
    rounds.clock.advance(MOMENT)
    assert await rounds.reclaim() == 3
    assert await rounds.reclaim() == 0
    assert len(await rounds.lease()) == 3
    assert await rounds.fetch("SELECT id FROM workers") == [(rounds.worker_id,)]


async def test_what_a_living_worker_claimed_stays_its_own(rounds: Rounds) -> None:
    await rounds.claimed(2)
    for _ in range(5):
        rounds.clock.advance(LEASE - MOMENT)
        await rounds.renew()
        assert await rounds.reclaim() == 0
    assert await rounds.lease() == []


async def test_what_nobody_claimed_is_not_reclaimed(rounds: Rounds) -> None:
    await rounds.accept()
    await rounds.lease()
    rounds.clock.advance(LEASE * 2)
    assert await rounds.reclaim() == 0


async def test_a_worker_that_was_forgotten_does_not_keep_what_it_claims(rounds: Rounds) -> None:
    await rounds.accept()
    rounds.clock.advance(LEASE)
    assert await rounds.reclaim() == 0
    assert len(await rounds.claim(await rounds.lease())) == 1
    assert await rounds.reclaim() == 1
    await rounds.renew()
    assert len(await rounds.claim(await rounds.lease())) == 1
    assert await rounds.reclaim() == 0


async def test_reclaiming_takes_as_many_at_once_as_it_is_told(rounds: Rounds) -> None:
    await rounds.claimed(5)
    rounds.clock.advance(LEASE)
    for wanted in (2, 2, 1, 0):
        async with rounds.database.transaction() as tx:
            assert await delivery_schedule.reclaim_expired_workers(tx, rounds.clock.now(), 2) == wanted


async def test_reclaiming_does_not_wait_for_what_is_being_recorded(rounds: Rounds) -> None:
    first, _ = await rounds.claimed(2)
    rounds.clock.advance(LEASE)
    async with rounds.database.transaction() as tx:
        await delivery_outcomes.record(tx, [rounds.outcome(first, DeliveryResult.DELIVERED)], rounds.clock.now())
        assert await asyncio.wait_for(rounds.reclaim(), 2) == 1
    assert await rounds.value("SELECT count(*) FROM schedule") == 1


async def test_a_worker_that_retires_leaves_what_it_had_to_the_next_look(rounds: Rounds) -> None:
    await rounds.claimed(2)
    assert await rounds.reclaim() == 0
    async with rounds.database.transaction() as tx:
        await delivery_schedule.retire_worker(tx, rounds.worker_id)
        await delivery_schedule.retire_worker(tx, uuid4())
    assert await rounds.fetch("SELECT id FROM workers") == []
    assert await rounds.reclaim() == 2
    assert len(await rounds.lease()) == 2


async def let_go(rounds: Rounds, known: list[Claimed]) -> int:
    async with rounds.database.transaction() as tx:
        return await delivery_schedule.let_go(tx, rounds.worker_id, [one.key[:3] for one in known], rounds.clock.now())


async def test_what_a_worker_does_not_know_to_be_its_own_is_let_go(rounds: Rounds) -> None:
    other = uuid4()
    await rounds.renew(other)
    await rounds.accept()
    (theirs,) = await rounds.claim(await rounds.lease(), other)
    known, unheard = await rounds.claimed(2)
    await rounds.accept()
    (ticket,) = await rounds.lease()
    assert await let_go(rounds, [known]) == 1
    # It is due under the fence that its lost claim took; that attempt stays counted, as an orphan.
    (again,) = await rounds.lease()
    assert (again.message_id, again.position, again.fence) == (unheard.message_id, unheard.position, unheard.fence)
    (claimed,) = await rounds.claim([again])
    assert claimed.attempt_count == 2
    # Neither what is known, nor what is another's, nor what nobody claimed was touched.
    owners = await rounds.fetch("SELECT message_id, position FROM schedule WHERE worker_id = $1", other)
    assert owners == [(theirs.message_id, theirs.position)]
    assert len(await rounds.claim([ticket])) == 1
    assert (await rounds.record(rounds.outcome(known, DeliveryResult.DELIVERED))).late == ()


async def test_a_worker_that_knows_nothing_lets_all_go_and_one_that_knows_all_lets_nothing_go(rounds: Rounds) -> None:
    claimed = await rounds.claimed(3)
    assert await let_go(rounds, claimed) == 0
    assert await let_go(rounds, []) == 3
    assert await let_go(rounds, []) == 0


async def test_what_is_being_recorded_is_not_waited_for_when_things_are_let_go(rounds: Rounds) -> None:
    first, _ = await rounds.claimed(2)
    async with rounds.database.transaction() as tx:
        await delivery_outcomes.record(tx, [rounds.outcome(first, DeliveryResult.DELIVERED)], rounds.clock.now())
        assert await asyncio.wait_for(let_go(rounds, []), 2) == 1


async def test_a_lease_never_grows_shorter(rounds: Rounds) -> None:
    later = rounds.clock.now() + 2 * LEASE
    async with rounds.database.transaction() as tx:
        await delivery_schedule.renew_worker(tx, rounds.worker_id, later)
    await rounds.renew()
    assert await rounds.value("SELECT expires_at FROM workers") == later


async def test_a_postponement_counts_no_attempt_and_its_ticket_never_matches_again(rounds: Rounds) -> None:
    await rounds.accept()
    (old,) = await rounds.lease()
    assert await postpone(rounds, old) == 1
    assert await rounds.claim([old]) == []
    rounds.clock.advance(WAIT - MOMENT)
    assert await rounds.lease() == []
    rounds.clock.advance(MOMENT)
    (new,) = await rounds.lease()
    assert await rounds.claim([old]) == []
    assert await postpone(rounds, old) == 0
    (claimed,) = await rounds.claim([new])
    assert claimed.attempt_count == 1
    assert await rounds.value("SELECT count(*) FROM attempts") == 1
    assert await rounds.value("SELECT count(*) FROM events") == 0


async def test_a_ticket_that_came_twice_postpones_once(rounds: Rounds) -> None:
    await rounds.accept()
    (ticket,) = await rounds.lease()
    assert await postpone(rounds, ticket, ticket) == 1
    assert await rounds.value("SELECT fence FROM schedule") == 1


async def test_what_was_claimed_meanwhile_is_not_postponed(rounds: Rounds) -> None:
    await rounds.accept(2)
    tickets = await rounds.lease()
    await rounds.claim(tickets[:1])
    assert await postpone(rounds, *tickets) == 1
    assert await rounds.value("SELECT count(*) FROM schedule WHERE worker_id IS NOT NULL") == 1


async def test_time_that_a_recipient_was_held_is_told_at_its_claim(rounds: Rounds) -> None:
    await rounds.accept()
    day = timedelta(days=1)
    for _ in range(3):
        assert await postpone(rounds, *await rounds.lease(), wait=day, is_held=True) == 1
        rounds.clock.advance(day)
    (claimed,) = await rounds.claim(await rounds.lease())
    assert (claimed.held, claimed.attempt_count) == (3 * day, 1)
    await rounds.record(rounds.outcome(claimed, DeliveryResult.DEFERRED))
    rounds.clock.advance(day)
    assert await postpone(rounds, *await rounds.lease(), wait=day, is_held=True) == 1
    rounds.clock.advance(day)
    # Held no longer, yet the lane is full: waiting for a lane is the recipient's own time.
    assert await postpone(rounds, *await rounds.lease(), wait=day) == 1
    rounds.clock.advance(day)
    (again,) = await rounds.claim(await rounds.lease())
    assert (again.held, again.attempt_count) == (4 * day, 2)


async def test_what_was_held_for_seven_days_is_told_to_the_second_and_by_its_fence(rounds: Rounds) -> None:
    await rounds.accept(2)
    first, second = await rounds.lease()

    async def over(*tickets: DeliveryTicket) -> set[Any]:
        keys = [(one.account_id, one.message_id, one.position, one.fence) for one in tickets]
        async with rounds.database.connection() as connection:
            return await delivery_schedule.held_too_long(connection, keys, rounds.clock.now())

    assert await postpone(rounds, first, is_held=True) == 1
    assert await postpone(rounds, second) == 1
    rounds.clock.advance(HOLD_MAX - MOMENT)
    held, waiting = sorted(await rounds.lease(), key=lambda one: one.position != first.position)
    assert await over(held, waiting) == set()
    rounds.clock.advance(MOMENT)
    assert await over(held, waiting) == {(held.account_id, held.message_id, held.position, held.fence)}
    # A ticket from before knows nothing, and none is nothing.
    assert await over(first, second) == await over() == set()


async def test_a_hold_that_is_broken_off_by_a_full_lane_goes_on_where_it_was(rounds: Rounds) -> None:
    await rounds.accept()
    for is_held, time in ((True, HOLD_MAX / 2), (False, HOLD_MAX), (True, HOLD_MAX / 2 - MOMENT)):
        (ticket,) = await rounds.lease()
        assert await postpone(rounds, ticket, is_held=is_held) == 1
        rounds.clock.advance(time)
    (ticket,) = await rounds.lease()
    key = ticket.account_id, ticket.message_id, ticket.position, ticket.fence
    async with rounds.database.connection() as connection:
        assert await delivery_schedule.held_too_long(connection, [key], rounds.clock.now()) == set()
        rounds.clock.advance(MOMENT)
        assert await delivery_schedule.held_too_long(connection, [key], rounds.clock.now()) == {key}


async def test_nothing_to_do_is_nothing_done(database: Database) -> None:
    now = datetime.now(UTC)
    async with database.transaction() as tx:
        assert await delivery_schedule.postpone(tx, [], now) == 0
        assert await delivery_claims.claim(tx, uuid4(), [], now, now) == []
        assert await delivery_outcomes.record(tx, [], now) == ((), (), ())


STATEMENTS = plans.statements(delivery_schedule, delivery_claims, delivery_outcomes)


@pytest.mark.parametrize("name", STATEMENTS)
async def test_a_plan_made_on_empty_tables_finds_rows_by_their_keys(name: str, database: Database) -> None:
    """A day begins with empty partitions, and connections keep the plans that they made then."""
    for scan in await plans.scans(database, STATEMENTS[name]):
        if scan["Relation Name"] == "workers":
            continue
        condition = plans.condition(scan)
        if scan["Relation Name"] == "webhook_endpoints":
            assert "account_id = " in condition, scan
        # What is held of an account is asked for as a whole, and only when the account is resumed.
        elif "account_id" in condition and name != "delivery_schedule.RESUME":
            assert condition.count(" = ") >= 2, scan
        else:
            keys = ("ctid", "next_at", "worker_id", "accounts.id = ANY", "account_id")
            assert any(key in condition for key in keys), scan


async def test_an_address_is_looked_up_among_the_suppressed_by_itself_even_after_they_were_counted_as_none(
    database: Database,
) -> None:
    scans = await plans.scans(database, STATEMENTS["delivery_claims._CLAIM"], analysed="suppressions")
    (condition,) = [plans.condition(scan) for scan in scans if scan["Relation Name"] == "suppressions"]
    assert "email = " in condition
