"""Tickets that come twice or never, messengers that die, a database that is away: no event is lost, none sent early.

Where an event may have been sent and nobody lived to say so, the attempt counts and the same event is sent again.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from posthouse.clock import Clock
from posthouse.flows.deliver.dispatch import Dispatch
from posthouse.flows.shared.tickets import LEASE, Tickets
from posthouse.flows.webhooks.sender import ACCOUNT_CALLS_MAX, FAULT_OF_OURS, STOPPED, STORAGE_AWAY_SECONDS, UNREADY
from posthouse.rules.lease import WORKER_LEASE
from posthouse.rules.ticket import WebhookTicket
from posthouse.rules.webhook_url import WebhookTarget
from posthouse.store import webhooks
from posthouse.store.delivery_outcomes import DeliveryResult
from posthouse.store.postgres import Database
from posthouse.store.seal import Sealer
from posthouse.store.webhook_schedule import DISABLED
from posthouse.store.webhooks import secret_purpose
from posthouse.wire.stream import StreamSettings, TicketKind
from posthouse.wire.stream.memory import MemoryStream
from posthouse.wire.webhook_client import WebhookCallResult
from tests.support.notice import SECRET, SHARDS, Lingering, Notices, is_signed, noticing
from tests.support.relay import Relay
from tests.support.rounds import beginning
from tests.support.service import eventually

SECOND: Final = timedelta(seconds=1)
FIRST_WAIT: Final = timedelta(seconds=5)
SUCCEEDED: Final = ("succeeded", 1, 200, None)
OVER: Final = "It was sent 7 times, and not every time was an answer heard."


@pytest_asyncio.fixture
async def notices(database_url: str) -> AsyncIterator[Notices]:
    async with beginning(database_url) as rounds, noticing(rounds) as notices:
        await notices.subscribe()
        await notices.notification.renew()
        yield notices


@pytest_asyncio.fixture
async def relay(database_url: str) -> AsyncIterator[Relay]:
    async with Relay(database_url) as relay:
        yield relay


@pytest_asyncio.fixture
async def far(relay: Relay) -> AsyncIterator[Database]:
    """The database, at the other end of a way that can be cut."""
    database = await Database.open(relay.url)
    yield database
    await database.close()


@dataclass
class LeapingClock:
    """For whoever was stopped for a while: its seconds went on without it."""

    clock: Clock
    seconds: float = 0.0

    def now(self) -> datetime:
        return self.clock.now()

    def monotonic(self) -> float:
        return self.clock.monotonic() + self.seconds


async def claim_and_die(notices: Notices) -> None:
    """Someone claims all that is due, and is never heard of again."""
    claimed = await notices.store.claim(await notices.store.lease(), uuid4())
    assert claimed
    assert await notices.store.reclaim() == len(claimed)


async def worker_count(notices: Notices, worker_id: UUID) -> int:
    count: int = await notices.rounds.value("SELECT count(*) FROM workers WHERE id = $1", worker_id)
    return count


# Tickets


async def test_two_tickets_are_one_call(notices: Notices) -> None:
    told = await notices.tell_one()
    await notices.hand_out()
    notices.clock.advance(LEASE)
    await notices.hand_out()
    await notices.notification.renew()
    assert await notices.carry() == 2
    assert len(notices.hooks.requests) == 1
    assert await notices.told(told) == SUCCEEDED
    assert await notices.stream.backlog(TicketKind.NOTIFY) == 0


async def test_two_messengers_with_a_ticket_each_are_one_call(notices: Notices) -> None:
    other = replace(notices, notification=notices.another_worker())
    await notices.tell(*[DeliveryResult.DELIVERED] * 10)
    await notices.hand_out()
    notices.clock.advance(LEASE)
    await notices.hand_out()
    await asyncio.gather(notices.notification.renew(), other.notification.renew())
    mine, others = await notices.stream.fetch(TicketKind.NOTIFY, frozenset(range(SHARDS)), 100, 0)
    await asyncio.gather(notices.notification.offer([mine]), other.notification.offer([others]))
    await asyncio.gather(notices.notification.settle(), other.notification.settle())
    assert len(notices.hooks.requests) == len({request.body for request in notices.hooks.requests}) == 10


async def test_a_lost_ticket_is_written_again_when_its_lease_is_over(notices: Notices) -> None:
    told = await notices.tell_one()
    await notices.hand_out()
    stream = MemoryStream(StreamSettings(), monotonic=notices.clock.monotonic)
    notices.stream, notices.tickets = stream, Tickets(stream, SHARDS)
    notices.dispatch = Dispatch(database=notices.rounds.database, clock=notices.clock, tickets=notices.tickets)
    notices.clock.advance(LEASE - SECOND)
    assert await notices.round() == 0
    notices.clock.advance(SECOND)
    assert await notices.round() == 1
    assert await notices.told(told) == SUCCEEDED


async def test_tickets_of_what_is_over_or_unknown_or_unreadable_move_nothing(notices: Notices) -> None:
    told = await notices.tell_one()
    await notices.round()
    account_id = notices.account_id
    notices.tickets.publish([WebhookTicket(account_id, told, fence) for fence in (0, 1, 2)])
    notices.tickets.publish([WebhookTicket(account_id, uuid4(), 0)])
    notices.stream.publish(TicketKind.NOTIFY, 0, b"\x7fa form from another time")
    await notices.carry()
    assert len(notices.hooks.requests) == 1
    assert await notices.stream.backlog(TicketKind.NOTIFY) == 0
    assert await notices.told(told) == SUCCEEDED


# Messengers


async def test_an_attempt_that_nobody_lived_to_report_counts_and_the_same_event_is_sent_again(notices: Notices) -> None:
    lost = Lingering(notices.caller, comes_back=False)
    dying = notices.another_worker(caller=lost)
    await dying.renew()
    told = await notices.tell_one()
    await notices.hand_out()
    await replace(notices, notification=dying).offer()
    await lost.arrived.wait()
    # It was sent; the process ends here, and its lease with it.
    notices.clock.advance(WORKER_LEASE)
    await notices.notification.renew()
    assert await notices.store.reclaim() == 1
    assert await notices.round() == 1
    assert await notices.told(told) == ("succeeded", 2, 200, None)
    first, second = notices.hooks.requests
    assert first.body == second.body
    assert is_signed(second, SECRET, int(notices.clock.now().timestamp()))
    # Should it come back after all, it has nothing to say.
    before = await notices.log(told)
    lost.goes_on.set()
    await dying.settle()
    assert await notices.log(told) == before


async def test_orphans_end_at_the_limit_and_nothing_is_sent(notices: Notices) -> None:
    """An event that kills whoever sends it must not go round for ever."""
    told = await notices.tell_one()
    for _ in range(7):
        await claim_and_die(notices)
    assert await notices.calendar() == [(7, 7, 0.0)]
    assert await notices.round() == 1
    assert await notices.told(told) == ("failed", 7, None, OVER)
    assert notices.hooks.requests == []
    assert await notices.calendar() == []


async def test_an_orphan_takes_its_place_in_the_schedule(notices: Notices) -> None:
    await notices.subscribe("/status/500")
    told = await notices.tell_one()
    await claim_and_die(notices)
    await claim_and_die(notices)
    await notices.round()
    log = await notices.log(told)
    assert (log.status, log.attempt, log.next_attempt_at) == (
        "pending", 3, notices.clock.now() + timedelta(minutes=30),
    )  # fmt: skip


async def test_whose_lease_is_not_good_sends_nothing_and_it_is_no_attempt(notices: Notices) -> None:
    told = await notices.tell_one()
    never_renewed = replace(notices, notification=notices.another_worker())
    await notices.hand_out()
    assert await never_renewed.carry() == 1
    assert notices.hooks.connections == 0
    assert (await notices.told(told))[:2] == ("pending", 0)
    assert [row[0] for row in await notices.calendar()] == [0]
    assert await notices.round() == 1
    assert await notices.told(told) == SUCCEEDED


async def test_what_is_over_stays_over_whatever_the_lease(notices: Notices) -> None:
    """Nothing was counted for its last claim, so nothing may be uncounted: or there would be an eighth attempt."""
    told = await notices.tell_one()
    for _ in range(7):
        await claim_and_die(notices)
    never_renewed = replace(notices, notification=notices.another_worker())
    await notices.hand_out()
    await never_renewed.carry()
    assert await notices.told(told) == ("failed", 7, None, OVER)
    assert await notices.round() == 0


async def test_what_is_cancelled_keeps_its_count_whatever_the_lease(notices: Notices) -> None:
    await notices.subscribe("/status/500")
    told = await notices.tell_one()
    await notices.round()
    async with notices.rounds.database.transaction() as tx:
        await webhooks.disable(tx, notices.account_id, notices.clock.now())
    notices.clock.advance(FIRST_WAIT)
    never_renewed = replace(notices, notification=notices.another_worker())
    await notices.hand_out()
    await never_renewed.carry()
    assert await notices.told(told) == ("failed", 1, 500, DISABLED)


async def test_a_messenger_taken_for_dead_after_it_claimed_sends_nothing(notices: Notices) -> None:
    """Its claims were made under a lease that ended; a new lease is no leave for old claims."""
    clock = LeapingClock(notices.clock)
    late = notices.another_worker(clock=clock)
    await late.renew()
    told = await notices.tell_one()
    await notices.hand_out()
    await replace(notices, notification=late).offer()
    await asyncio.sleep(0)  # it asks for leave, and for its claim
    clock.seconds = WORKER_LEASE.total_seconds()
    await late.renew()
    await late.settle()
    assert notices.hooks.requests == []
    assert (await notices.told(told))[:2] == ("pending", 0)
    assert await notices.round() == 1
    assert await notices.told(told) == SUCCEEDED


# Faults of ours


async def test_a_secret_that_cannot_be_opened_costs_no_attempt(notices: Notices) -> None:
    await notices.subscribe()
    elsewhere = Sealer({"2": bytes(32)}, "2").seal(SECRET.encode(), secret_purpose(notices.account_id))
    async with notices.rounds.database.transaction() as tx:
        await webhooks.rotate_secret(tx, notices.account_id, elsewhere, notices.clock.now())
    told = await notices.tell_one()
    for _ in range(8):
        assert await notices.round() == 1
        assert (await notices.told(told))[:2] == ("pending", 0)
        notices.clock.advance(UNREADY - SECOND)
        assert await notices.round() == 0
        notices.clock.advance(SECOND)
    assert notices.hooks.connections == 0
    async with notices.rounds.database.transaction() as tx:
        await webhooks.rotate_secret(tx, notices.account_id, notices.sealed(), notices.clock.now())
    await notices.round()
    assert await notices.told(told) == SUCCEEDED


class Failing:
    """A caller with a fault in it."""

    async def call(self, target: WebhookTarget, body: bytes, headers: Mapping[str, str]) -> WebhookCallResult:
        raise LookupError(f"nobody thought of {target.url}, {len(body)} bytes, {sorted(headers)}")


async def test_a_fault_of_the_caller_is_an_attempt_and_has_its_wait(notices: Notices) -> None:
    told = await notices.tell_one()
    assert await replace(notices, notification=notices.another_worker(caller=Failing())).round() == 1
    log = await notices.log(told)
    assert (log.status, log.attempt, log.error) == ("pending", 1, FAULT_OF_OURS)
    assert log.next_attempt_at == notices.clock.now() + FIRST_WAIT
    notices.clock.advance(FIRST_WAIT)
    await notices.round()
    assert await notices.told(told) == ("succeeded", 2, 200, None)


async def test_an_event_that_is_no_longer_stored_has_failed(notices: Notices) -> None:
    told = await notices.tell_one()
    await notices.rounds.fetch("DELETE FROM events RETURNING 1")
    await notices.round()
    assert (await notices.told(told))[0::3] == ("failed", "The event is no longer stored.")
    assert notices.hooks.connections == 0


# A database that is away


async def test_what_could_not_be_claimed_comes_again_and_so_does_a_claim_that_nobody_heard_of(
    notices: Notices, far: Database, relay: Relay
) -> None:
    cut_off = replace(notices, notification=notices.another_worker(database=far))
    await cut_off.notification.renew()
    # Its commit went through, and the messenger never learnt of it.
    unheard = await notices.tell_one()
    await notices.store.claim(await notices.store.lease(), cut_off.notification.worker_id)
    told = await notices.tell_one()
    await notices.hand_out()
    await relay.cut()
    assert await cut_off.carry() == 1
    assert notices.hooks.connections == 0
    await relay.mend()
    assert await cut_off.carry() == 0
    notices.clock.advance(seconds=STORAGE_AWAY_SECONDS)
    assert await cut_off.carry() == 1
    assert await notices.told(told) == SUCCEEDED
    assert await cut_off.round() == 1
    assert await notices.told(unheard) == ("succeeded", 2, 200, None)


async def test_what_was_answered_is_recorded_when_the_database_is_back(
    notices: Notices, far: Database, relay: Relay
) -> None:
    caller = Lingering(notices.caller, comes_back=False)
    cut_off = replace(notices, notification=notices.another_worker(database=far, caller=caller))
    told = await notices.tell_one()
    round_of_it = asyncio.create_task(cut_off.round())
    await caller.arrived.wait()
    await relay.cut()
    caller.goes_on.set()
    await asyncio.sleep(0.2)
    assert not round_of_it.done()
    assert (await notices.told(told))[:2] == ("pending", 0)
    await relay.mend()
    await round_of_it
    assert await notices.told(told) == SUCCEEDED
    assert len(notices.hooks.requests) == 1


async def test_what_could_not_be_put_off_comes_again(notices: Notices, far: Database, relay: Relay) -> None:
    slow = Lingering(notices.caller, sets_out=False)
    worker = notices.another_worker(database=far, caller=slow, waiting_max=0)
    cut_off = replace(notices, notification=worker)
    await worker.renew()
    await notices.tell(*[DeliveryResult.DELIVERED] * ACCOUNT_CALLS_MAX)
    await notices.hand_out()
    await cut_off.offer()
    await slow.claimed.wait()
    await notices.tell(*[DeliveryResult.DELIVERED] * 3)
    await notices.hand_out()
    await relay.cut()
    # One may wait, the others find no place, and nobody can write that down.
    assert await cut_off.offer() == 3
    await asyncio.sleep(0.1)
    await relay.mend()
    slow.goes_on.set()
    await worker.settle()
    notices.clock.advance(seconds=STORAGE_AWAY_SECONDS)
    await worker.renew()
    await cut_off.carry()
    await notices.round()
    assert len(notices.hooks.requests) == ACCOUNT_CALLS_MAX + 3
    statuses = await notices.rounds.fetch("SELECT status, attempt FROM webhook_deliveries")
    assert statuses == [("succeeded", 1)] * (ACCOUNT_CALLS_MAX + 3)


# The end of a messenger


async def test_a_messenger_that_ends_waits_for_answers_and_gives_back_what_has_not_begun(notices: Notices) -> None:
    slow = Lingering(notices.caller, comes_back=False)
    leaving = replace(notices, notification=notices.another_worker(caller=slow))
    await leaving.notification.renew()
    await notices.tell(*[DeliveryResult.DELIVERED] * (ACCOUNT_CALLS_MAX + 5))
    await notices.hand_out()
    await leaving.offer()

    async def came() -> int:
        return len(notices.hooks.requests)

    await eventually(came, lambda number: number == ACCOUNT_CALLS_MAX)
    await slow.arrived.wait()
    draining = asyncio.create_task(leaving.notification.drain(6))
    await asyncio.sleep(0.1)
    assert leaving.notification.room == 0
    assert not draining.done()
    slow.goes_on.set()
    await draining
    log = "SELECT status, attempt, count(*) FROM webhook_deliveries GROUP BY 1, 2 ORDER BY 1"
    assert await notices.rounds.fetch(log) == [("pending", 0, 5), ("succeeded", 1, ACCOUNT_CALLS_MAX)]
    assert await notices.rounds.value("SELECT count(*) FROM calls WHERE worker_id IS NOT NULL") == 0
    assert await worker_count(notices, leaving.notification.worker_id) == 0
    # The others were given back, and another messenger has them at once.
    await notices.carry()
    assert await notices.rounds.fetch(log) == [("succeeded", 1, ACCOUNT_CALLS_MAX + 5)]
    assert len(notices.hooks.requests) == ACCOUNT_CALLS_MAX + 5


async def test_an_answer_that_is_not_waited_for_is_an_attempt_on_record(notices: Notices) -> None:
    endless = Lingering(notices.caller, comes_back=False)
    leaving = replace(notices, notification=notices.another_worker(caller=endless))
    await leaving.notification.renew()
    told = await notices.tell_one()
    await notices.hand_out()
    await leaving.offer()
    await endless.arrived.wait()
    await leaving.notification.drain(1.5)
    log = await notices.log(told)
    assert (log.status, log.attempt, log.http_status, log.error) == ("pending", 1, None, STOPPED)
    assert log.next_attempt_at == notices.clock.now() + FIRST_WAIT
    assert await notices.calendar() == [(1, 2, 5.0)]
    notices.clock.advance(FIRST_WAIT)
    await notices.round()
    assert await notices.told(told) == ("succeeded", 2, 200, None)
    assert len({request.body for request in notices.hooks.requests}) == 1


async def test_a_messenger_that_ends_while_the_database_is_away_still_tells_what_was_answered(
    notices: Notices, far: Database, relay: Relay
) -> None:
    """The answer came: when the time for waiting is over, the time for recording is not."""
    caller = Lingering(notices.caller, comes_back=False)
    leaving = replace(notices, notification=notices.another_worker(database=far, caller=caller))
    await leaving.notification.renew()
    told = await notices.tell_one()
    await notices.hand_out()
    await leaving.offer()
    await caller.arrived.wait()
    await relay.cut()
    caller.goes_on.set()
    draining = asyncio.create_task(leaving.notification.drain(9))
    await asyncio.sleep(6.2)  # beyond the time for waiting, which is two thirds
    await relay.mend()
    await draining
    assert await notices.told(told) == SUCCEEDED
    assert await notices.calendar() == []
    assert len(notices.hooks.requests) == 1


async def test_what_is_claimed_when_a_messenger_is_told_to_end_is_not_sent_and_was_no_attempt(
    notices: Notices,
) -> None:
    leaving = replace(notices, notification=notices.another_worker())
    await leaving.notification.renew()
    told = await notices.tell_one()
    await notices.hand_out()
    await leaving.offer()
    await leaving.notification.drain(3)
    assert notices.hooks.connections == 0
    assert (await notices.told(told))[:2] == ("pending", 0)
    assert await notices.round() == 1
    assert await notices.told(told) == SUCCEEDED


async def test_a_messenger_that_ends_while_the_database_is_away_ends_in_time(
    notices: Notices, far: Database, relay: Relay
) -> None:
    caller = Lingering(notices.caller, comes_back=False)
    leaving = replace(notices, notification=notices.another_worker(database=far, caller=caller))
    await leaving.notification.renew()
    told = await notices.tell_one()
    await notices.hand_out()
    await leaving.offer()
    await caller.arrived.wait()
    await relay.cut()
    caller.goes_on.set()
    async with asyncio.timeout(5):
        await leaving.notification.drain(0.6)
    assert (await notices.told(told))[:2] == ("pending", 0)
    # Nobody knows what came of it: when its lease is over it counts, and is sent again.
    notices.clock.advance(WORKER_LEASE)
    assert await notices.store.reclaim() == 1
    await notices.round()
    assert await notices.told(told) == ("succeeded", 2, 200, None)
    assert len({request.body for request in notices.hooks.requests}) == 1
    # A process would have ended by now. What is left of it here has nothing to say any more.
    await relay.mend()
    await leaving.notification.settle()
    assert await notices.told(told) == ("succeeded", 2, 200, None)


@pytest.mark.parametrize("number", [1, 20])
async def test_what_is_in_hand_is_told_to_the_stream_again_and_again(notices: Notices, number: int) -> None:
    """However long the queue of an endpoint that hangs, nobody else is given its tickets meanwhile."""
    slow = Lingering(notices.caller, sets_out=False)
    holding = replace(notices, notification=notices.another_worker(caller=slow))
    await holding.notification.renew()
    await notices.tell(*[DeliveryResult.DELIVERED] * number)
    await notices.hand_out()
    await holding.offer()
    await slow.claimed.wait()
    wait = timedelta(seconds=notices.stream.settings.ack_wait_seconds)
    notices.clock.advance(wait - SECOND)
    await holding.notification.heartbeat()
    notices.clock.advance(wait - SECOND)
    assert await notices.stream.fetch(TicketKind.NOTIFY, frozenset(range(SHARDS)), 100, 0) == []
    slow.goes_on.set()
    await holding.notification.settle()
