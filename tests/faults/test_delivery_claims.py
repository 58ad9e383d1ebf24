"""Tickets that come twice or never, workers that die, leases that lapse, time that jumps: each mail arrives once.

Where a copy too many can't be excluded (a mail that was sent and nobody lived to say so), an attempt without
an outcome is on record.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from posthouse.clock import Clock
from posthouse.flows.deliver.delivery import STORAGE_AWAY_SECONDS, Delivery
from posthouse.flows.deliver.dispatch import Dispatch
from posthouse.flows.shared.tickets import LEASE, Tickets
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.lease import WORKER_LEASE
from posthouse.rules.retry import DELIVERY
from posthouse.rules.ticket import DeliveryTicket, unpack
from posthouse.store import delivery_schedule
from posthouse.store.postgres import Database
from posthouse.wire.carrier import Carrier, CarrierRequest, CarrierResult
from posthouse.wire.stream import StreamSettings, TicketKind
from posthouse.wire.stream.memory import MemoryStream
from tests.support.books import faults_in_the_books
from tests.support.relay import Relay
from tests.support.round_trip import SHARDS, RoundTrip, on_the_road
from tests.support.service import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECOND: Final = timedelta(seconds=1)
LOOKS_APART: Final = timedelta(seconds=2)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def town(new_database: Callable[[], str]) -> AsyncIterator[tuple[RoundTrip, int, str]]:
    """One road for all tests; the books are looked at in the end."""
    seed = random.randrange(2**32)
    url = new_database()
    async with on_the_road(url, seed=seed) as road:
        road.serve("example.org")
        yield road, seed, url
        assert await faults_in_the_books(url) == {}, f"{seed=}"


@pytest_asyncio.fixture(loop_scope="module")
async def road(town: tuple[RoundTrip, int, str]) -> AsyncIterator[RoundTrip]:
    road, seed, _ = town
    print(f"seed {seed}")
    for kept in (road.receiver.accepted, road.receiver.commands):
        kept.clear()
    await road.delivery.renew()
    yield replace(road)
    if await road.rounds.fetch("SELECT * FROM schedule"):
        # One that failed must not make the next ones fail.
        road.clock.advance(hours=73)
        await road.rounds.reclaim()
        await road.round()
    for one in await road.stream.fetch(TicketKind.DELIVER, frozenset(range(SHARDS)), 100, 0):
        await one.ack()


@pytest_asyncio.fixture(loop_scope="module")
async def relay(town: tuple[RoundTrip, int, str]) -> AsyncIterator[Relay]:
    async with Relay(town[2]) as relay:
        yield relay


@pytest_asyncio.fixture(loop_scope="module")
async def far(relay: Relay) -> AsyncIterator[Database]:
    """The database, at the other end of a way that can be cut."""
    database = await Database.open(relay.url)
    yield database
    await database.close()


@dataclass
class Lingering:
    """A carrier that waits where it is told to: before it sets out, or before it tells what happened.

    `at_the_dot` happens when all is sent but the final dot.
    """

    carrier: Carrier
    sets_out: bool = True
    comes_back: bool = True
    at_the_dot: Callable[[], None] = lambda: None
    claimed: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def carry(self, destination: str, parcel: CarrierRequest, before_dot: Callable[[], bool]) -> CarrierResult:
        self.claimed.set()
        if not self.sets_out:
            await self.goes_on.wait()

        def asked() -> bool:
            self.at_the_dot()
            return before_dot()

        carriage = await self.carrier.carry(destination, parcel, asked)
        self.arrived.set()
        if not self.comes_back:
            await self.goes_on.wait()
        return carriage


@dataclass
class JumpingClock:
    """A clock whose time of day jumps, as a database's does when someone sets it; seconds go on as they were."""

    clock: Clock
    offset: timedelta = timedelta(0)

    def now(self) -> datetime:
        return self.clock.now() + self.offset

    def monotonic(self) -> float:
        return self.clock.monotonic()


def new_dispatch(road: RoundTrip, clock: Clock | None = None, database: Database | None = None) -> Dispatch:
    return Dispatch(database=database or road.rounds.database, clock=clock or road.clock, tickets=road.tickets)


async def watch(road: RoundTrip, dispatch: Dispatch, time: timedelta, *living: Delivery) -> int:
    """Look for dead workers every two seconds for so long; the living ones renew all the while. How many claims
    were taken back."""
    reclaimed = await dispatch.reclaim()
    for _ in range(time // LOOKS_APART):
        road.clock.advance(LOOKS_APART)
        for one in living:
            await one.renew()
        reclaimed += await dispatch.reclaim()
    return reclaimed


async def claim_and_die(road: RoundTrip) -> UUID:
    """A worker claims all that is due, and is never heard of again."""
    worker_id = uuid4()
    async with road.rounds.database.transaction() as tx:
        await delivery_schedule.renew_worker(tx, worker_id, road.clock.now() + WORKER_LEASE)
    await road.rounds.claim(await road.rounds.lease(), worker_id)
    return worker_id


def lines(road: RoundTrip) -> dict[str, int]:
    """How often each address got something."""
    return dict(Counter(one.recipient for one in road.receiver.accepted))


async def state(road: RoundTrip, message_id: MessageId) -> tuple[str, int, list[str | None]]:
    """Its only recipient's status, its counted attempts, and what came of each that was begun."""
    (row,) = await road.recipients(message_id)
    outcomes = await road.rounds.fetch("SELECT outcome FROM attempts WHERE message_id = $1 ORDER BY fence", message_id)
    return row[1], row[3], [outcome for (outcome,) in outcomes]


# Tickets


async def test_two_tickets_for_one_recipient_are_one_send(road: RoundTrip) -> None:
    message_id = await road.rounds.accept(["ada@example.org"])
    assert await road.dispatch.step() == 1
    road.clock.advance(LEASE)
    # The dispatcher died between publishing and whatever came next; another one publishes again.
    assert await new_dispatch(road).step() == 1
    await road.delivery.renew()
    assert await road.carry() == 2
    assert lines(road) == {"ada@example.org": 1}
    assert await state(road, message_id) == ("delivered", 1, ["delivered"])


async def test_two_workers_with_a_ticket_each_are_one_send(road: RoundTrip) -> None:
    other = road.another_worker()
    await other.renew()
    message_id = await road.rounds.accept([f"r{number}@example.org" for number in range(10)])
    await road.dispatch.step()
    road.clock.advance(LEASE)
    await road.dispatch.step()
    await asyncio.gather(road.delivery.renew(), other.renew())
    mine, others = await road.stream.fetch(TicketKind.DELIVER, frozenset(range(SHARDS)), 100, 0)
    assert (len(unpack(mine.payload)), len(unpack(others.payload))) == (10, 10)
    await asyncio.gather(road.delivery.offer([mine]), other.offer([others]))
    await asyncio.gather(road.delivery.settle(), other.settle())
    assert lines(road) == {f"r{number}@example.org": 1 for number in range(10)}
    assert await road.statuses(message_id) == ["delivered"] * 10


async def test_a_ticket_from_before_a_deferral_is_worth_nothing_beside_the_new_one(road: RoundTrip) -> None:
    message_id = await road.rounds.accept(["greylist@example.org"])
    await road.dispatch.step()
    road.clock.advance(LEASE)
    await road.dispatch.step()
    old, older = await road.stream.fetch(TicketKind.DELIVER, frozenset(range(SHARDS)), 100, 0)
    await road.delivery.renew()
    await road.delivery.offer([old])
    await road.delivery.settle()
    road.clock.advance(seconds=66)
    await road.delivery.renew()
    await road.dispatch.step()
    (new,) = await road.stream.fetch(TicketKind.DELIVER, frozenset(range(SHARDS)), 100, 0)
    road.receiver.commands.clear()
    await road.delivery.offer([older, new])
    await road.delivery.settle()
    assert [one for one in road.receiver.commands if one.startswith("RCPT")] == ["RCPT TO:<greylist@example.org>"]
    assert await state(road, message_id) == ("deferred", 2, ["deferred", "deferred"])
    road.clock.advance(minutes=5.5)
    await road.round()
    assert await state(road, message_id) == ("delivered", 3, ["deferred", "deferred", "delivered"])
    assert lines(road) == {"greylist@example.org": 1}


async def test_a_lost_ticket_is_written_again_when_its_lease_is_over(road: RoundTrip) -> None:
    message_id = await road.rounds.accept(["ada@example.org"])
    assert await road.dispatch.step() == 1
    road.stream = MemoryStream(StreamSettings(), monotonic=road.clock.monotonic)
    road.tickets = Tickets(road.stream, SHARDS)
    road.dispatch = new_dispatch(road)
    road.clock.advance(LEASE - SECOND)
    assert await road.round() == 0
    road.clock.advance(SECOND)
    assert await road.round() == 1
    assert await state(road, message_id) == ("delivered", 1, ["delivered"])


async def test_a_ticket_that_nobody_can_read_is_dropped(road: RoundTrip) -> None:
    road.stream.publish(TicketKind.DELIVER, 0, b"\x7fa form from another time")
    assert await road.stream.backlog(TicketKind.DELIVER) == 1
    await road.carry()
    assert await road.stream.backlog(TicketKind.DELIVER) == 0


async def test_a_ticket_of_a_mail_that_is_final_or_unknown_moves_nothing(road: RoundTrip) -> None:
    message_id = await road.rounds.accept(["ada@example.org"])
    await road.round()
    account_id = AccountId(road.rounds.sender.account_id)
    unknown = MessageId(UUID(int=message_id.int + 64))
    road.tickets.publish(
        [
            DeliveryTicket(account_id, message_id, 0, 0, "example.org"),
            DeliveryTicket(account_id, message_id, 0, 1, "example.org"),
            DeliveryTicket(account_id, message_id, 7, 0, "example.org"),
            DeliveryTicket(account_id, unknown, 0, 0, "example.org"),
        ]
    )
    assert await road.carry() == 4
    assert lines(road) == {"ada@example.org": 1}
    assert await road.stream.backlog(TicketKind.DELIVER) == 0


# Workers


async def test_a_dead_workers_claim_is_tried_by_another_and_its_orphan_counts(road: RoundTrip) -> None:
    dispatch = new_dispatch(road)
    message_id = await road.rounds.accept(["ada@example.org"])
    dead = await claim_and_die(road)
    assert await watch(road, dispatch, WORKER_LEASE - LOOKS_APART, road.delivery) == 0
    assert await road.round() == 0
    road.clock.advance(LOOKS_APART)
    assert await dispatch.reclaim() == 1
    assert await road.round() == 1
    assert await state(road, message_id) == ("delivered", 2, [None, "delivered"])
    orphans = await road.rounds.fetch(
        "SELECT worker_id FROM attempts WHERE finished_at IS NULL AND worker_id = $1", dead
    )
    assert len(orphans) == 1
    assert lines(road) == {"ada@example.org": 1}


async def test_attempts_that_nobody_lived_to_report_end_at_the_limit_and_nothing_is_sent(road: RoundTrip) -> None:
    """A mail that kills whoever carries it must not go round for ever."""
    message_id = await road.rounds.accept(["poison@example.org"])
    for number in range(DELIVERY.attempts_max):
        await claim_and_die(road)
        assert (await state(road, message_id))[2] == [None] * (number + 1)
        road.clock.advance(WORKER_LEASE)
        assert await road.rounds.reclaim() == 1
    assert await road.round() == 1
    assert await state(road, message_id) == ("failed", 10, [None] * 10)
    assert lines(road) == {}
    ((kind,),) = await road.rounds.fetch("SELECT type FROM events WHERE message_id = $1", message_id)
    assert kind == "email.failed"
    assert (await road.recipients(message_id))[0][5] == "it was tried 10 times, and not every time brought an answer"
    assert await road.message(message_id) == ("failed", "settled")


async def test_an_outcome_that_comes_late_fills_its_own_attempt_and_nothing_else(road: RoundTrip) -> None:
    carrier = Lingering(road.carrier, comes_back=False)
    late = road.another_worker(carrier=carrier)
    dispatch = new_dispatch(road)
    message_id = await road.rounds.accept(["550-rcpt@example.org", "ada@example.org"])
    first = asyncio.create_task(replace(road, delivery=late).round())
    await carrier.arrived.wait()
    # It is not heard of for a whole lease; what it claimed is tried by another.
    assert await watch(road, dispatch, WORKER_LEASE, road.delivery) == 2
    assert await road.round() == 2
    before = await road.recipients(message_id)
    assert [row[1:4] for row in before] == [("bounced", "released", 2), ("delivered", "settled", 2)]
    carrier.goes_on.set()
    await first
    assert await road.recipients(message_id) == before
    told = "SELECT position, outcome FROM attempts WHERE message_id = $1 ORDER BY position, fence"
    outcomes = [(0, "bounced"), (0, "bounced"), (1, "delivered"), (1, "delivered")]
    assert await road.rounds.fetch(told, message_id) == outcomes
    assert await road.rounds.value("SELECT count(*) FROM events WHERE message_id = $1", message_id) == 2
    # The copy too many is one for which there was an attempt without an outcome.
    assert lines(road) == {"ada@example.org": 2}


# Leases


async def test_a_lease_that_lapses_before_the_dot_sends_no_dot_and_the_mail_arrives_once(road: RoundTrip) -> None:
    # Not over yet to those who look, and yet too near the end to rely on it.
    slow = Lingering(road.carrier, at_the_dot=lambda: road.clock.advance(WORKER_LEASE * 0.8))
    message_id = await road.rounds.accept(["ada@example.org"])
    assert await replace(road, delivery=road.another_worker(carrier=slow)).round() == 1
    assert lines(road) == {}
    assert (await state(road, message_id))[2] == ["postponed"]
    assert await road.rounds.fetch("SELECT attempt_count FROM schedule") == [(0,)]
    assert await road.round() == 1
    assert await state(road, message_id) == ("delivered", 1, ["postponed", "delivered"])
    assert lines(road) == {"ada@example.org": 1}


@pytest.mark.parametrize("renews", [True, False], ids=["renewed too late", "never renewed"])
async def test_a_worker_that_was_taken_for_dead_sends_nothing_that_it_had_claimed(
    road: RoundTrip, renews: bool
) -> None:
    carrier = Lingering(road.carrier, sets_out=False)
    stuck = road.another_worker(carrier=carrier)
    dispatch = new_dispatch(road)
    message_id = await road.rounds.accept(["ada@example.org"])
    carrying = asyncio.create_task(replace(road, delivery=stuck).round())
    await carrier.claimed.wait()
    assert await watch(road, dispatch, WORKER_LEASE, road.delivery) == 1
    assert await road.round() == 1
    if renews:
        await stuck.renew()
    carrier.goes_on.set()
    await carrying
    assert lines(road) == {"ada@example.org": 1}
    assert await state(road, message_id) == ("delivered", 2, ["postponed", "delivered"])


async def test_a_lease_whose_renewal_took_too_long_is_no_lease_any_more(road: RoundTrip) -> None:
    """Asked for in time, written down too late: in between the worker was taken for dead."""
    carrier = Lingering(road.carrier, sets_out=False)
    stuck = road.another_worker(carrier=carrier)
    dispatch = new_dispatch(road)
    message_id = await road.rounds.accept(["ada@example.org"])
    carrying = asyncio.create_task(replace(road, delivery=stuck).round())
    await carrier.claimed.wait()
    assert await watch(road, dispatch, WORKER_LEASE * 0.7, road.delivery) == 0
    async with road.rounds.database.transaction() as tx:
        await tx.execute("SELECT FROM workers WHERE id = $1 FOR UPDATE", stuck.worker_id)
        renewing = asyncio.create_task(stuck.renew())
        await asyncio.sleep(0.05)
        for _ in range(5):
            road.clock.advance(LOOKS_APART)
            await road.delivery.renew()
        assert await dispatch.reclaim() == 1
    await renewing
    assert await road.round() == 1
    carrier.goes_on.set()
    await carrying
    assert lines(road) == {"ada@example.org": 1}
    assert await state(road, message_id) == ("delivered", 2, ["postponed", "delivered"])


async def test_a_worker_that_renews_keeps_its_claims_however_long_they_take(road: RoundTrip) -> None:
    carrier = Lingering(road.carrier, sets_out=False)
    long = road.another_worker(carrier=carrier)
    dispatch = new_dispatch(road)
    message_id = await road.rounds.accept(["ada@example.org"])
    carrying = asyncio.create_task(replace(road, delivery=long).round())
    await carrier.claimed.wait()
    assert await watch(road, dispatch, 5 * WORKER_LEASE, long) == 0
    carrier.goes_on.set()
    await carrying
    assert await state(road, message_id) == ("delivered", 1, ["delivered"])


# Time


@pytest.mark.parametrize("hours", [1, -1, 24, -24])
async def test_no_claim_is_taken_back_early_because_time_jumped(road: RoundTrip, hours: int) -> None:
    carrier = Lingering(road.carrier, sets_out=False)
    clock = JumpingClock(road.clock)
    living = road.another_worker(carrier=carrier, clock=clock)
    dispatch = new_dispatch(road, clock)
    message_id = await road.rounds.accept(["ada@example.org"])
    carrying = asyncio.create_task(replace(road, delivery=living).round())
    await carrier.claimed.wait()
    assert await watch(road, dispatch, 2 * WORKER_LEASE, living) == 0
    clock.offset += timedelta(hours=hours)
    # Its lease is over by the new time, and it has not come to renewing it yet.
    assert await dispatch.reclaim() == 0
    road.clock.advance(LOOKS_APART)
    assert await dispatch.reclaim() == 0
    assert await watch(road, dispatch, 2 * WORKER_LEASE, living) == 0
    carrier.goes_on.set()
    await carrying
    assert await state(road, message_id) == ("delivered", 1, ["delivered"])
    assert lines(road) == {"ada@example.org": 1}


# The database


async def test_nothing_is_taken_back_before_the_database_was_there_for_a_whole_lease(
    road: RoundTrip, far: Database, relay: Relay
) -> None:
    carrier = Lingering(road.carrier, sets_out=False)
    cut_off = road.another_worker(carrier=carrier, database=far)
    dispatch = new_dispatch(road, database=far)
    message_id = await road.rounds.accept(["ada@example.org"])
    carrying = asyncio.create_task(replace(road, delivery=cut_off).round())
    await carrier.claimed.wait()
    assert await watch(road, dispatch, WORKER_LEASE, cut_off) == 0
    await relay.cut()
    for _ in range(20):
        road.clock.advance(LOOKS_APART)
        with pytest.raises(Exception, match="storage"):
            await dispatch.reclaim()
    await relay.mend()
    # The worker's lease is over; and it is about to renew it.
    assert await dispatch.reclaim() == 0
    assert await watch(road, dispatch, WORKER_LEASE - LOOKS_APART) == 0
    await cut_off.renew()
    assert await watch(road, dispatch, WORKER_LEASE, cut_off) == 0
    carrier.goes_on.set()
    await carrying
    # It could not know that nobody had taken its claim: it sent nothing, and comes again.
    assert await state(road, message_id) == ("queued", 0, ["postponed"])
    assert await road.round() == 1
    assert await state(road, message_id) == ("delivered", 1, ["postponed", "delivered"])
    assert lines(road) == {"ada@example.org": 1}


async def test_what_a_server_took_is_recorded_when_the_database_is_back(
    road: RoundTrip, far: Database, relay: Relay
) -> None:
    carrier = Lingering(road.carrier, comes_back=False)
    cut_off = road.another_worker(carrier=carrier, database=far)
    message_id = await road.rounds.accept(["ada@example.org"])
    carrying = asyncio.create_task(replace(road, delivery=cut_off).round())
    await carrier.arrived.wait()
    await relay.cut()
    carrier.goes_on.set()
    await asyncio.sleep(0.2)
    assert not carrying.done()
    assert await state(road, message_id) == ("queued", 0, [None])
    await relay.mend()
    await carrying
    assert await state(road, message_id) == ("delivered", 1, ["delivered"])
    assert lines(road) == {"ada@example.org": 1}


async def test_what_could_not_be_claimed_comes_again_and_so_does_a_claim_that_nobody_heard_of(
    road: RoundTrip, far: Database, relay: Relay
) -> None:
    cut_off = road.another_worker(database=far)
    await cut_off.renew()
    # Its commit went through, and the worker never learnt of it.
    unheard = await road.rounds.accept(["unheard@example.org"])
    await road.rounds.claim(await road.rounds.lease(), cut_off.worker_id)
    message_id = await road.rounds.accept(["ada@example.org"])
    await road.dispatch.step()
    with_cut = replace(road, delivery=cut_off)
    await relay.cut()
    assert await with_cut.carry() == 1
    assert lines(road) == {}
    await relay.mend()
    assert await with_cut.carry() == 0
    road.clock.advance(seconds=STORAGE_AWAY_SECONDS)
    assert await with_cut.carry() == 1
    assert await state(road, message_id) == ("delivered", 1, ["delivered"])
    assert await with_cut.round() == 1
    assert await state(road, unheard) == ("delivered", 2, [None, "delivered"])


# The end of a worker


async def test_a_worker_that_ends_withdraws_what_is_not_sent_and_says_what_may_be(road: RoundTrip) -> None:
    is_sent = asyncio.Event()
    carrier = Lingering(road.carrier, at_the_dot=is_sent.set)
    leaving = road.another_worker(carrier=carrier)
    await leaving.renew()
    before = await road.rounds.accept(["hang-data@example.org"])
    after = await road.rounds.accept(["hang-dot@example.org"])
    await road.dispatch.step()
    await leaving.offer(await road.stream.fetch(TicketKind.DELIVER, frozenset(range(SHARDS)), 10, 0))

    async def asked() -> int:
        return road.receiver.commands.count("DATA")

    await eventually(asked, lambda number: number == 2)
    await is_sent.wait()
    await leaving.drain(0.3)
    assert await state(road, before) == ("queued", 0, ["postponed"])
    assert await state(road, after) == ("deferred", 1, ["deferred"])
    said = "SELECT is_ambiguous, response FROM attempts WHERE message_id = $1"
    ((is_ambiguous, response),) = await road.rounds.fetch(said, after)
    assert is_ambiguous
    assert "it may have arrived" in response
    assert await road.rounds.fetch("SELECT * FROM workers WHERE id = $1", leaving.worker_id) == []
    assert leaving.room == 0
    # Both addresses hang for ever: time ends them.
    for _ in range(2):
        road.clock.advance(hours=73)
        await road.round()
    assert (await state(road, before))[0] == (await state(road, after))[0] == "failed"


async def test_a_worker_that_ends_while_the_database_is_away_still_tells_what_it_sent(
    road: RoundTrip, far: Database, relay: Relay
) -> None:
    """The mail was taken: when the time for withdrawing is over, the time for recording is not."""
    carrier = Lingering(road.carrier, comes_back=False)
    leaving = road.another_worker(carrier=carrier, database=far)
    message_id = await road.rounds.accept(["ada@example.org"])
    carrying = asyncio.create_task(replace(road, delivery=leaving).round())
    await carrier.arrived.wait()
    await relay.cut()
    carrier.goes_on.set()
    draining = asyncio.create_task(leaving.drain(9.0))
    await asyncio.sleep(6.5)
    await relay.mend()
    await asyncio.gather(draining, carrying)
    assert await state(road, message_id) == ("delivered", 1, ["delivered"])
    assert lines(road) == {"ada@example.org": 1}


async def test_a_large_mail_for_which_there_is_no_room_waits_without_an_attempt(road: RoundTrip) -> None:
    draft = road.rounds.sender.draft(["ada@example.org"], text="Good morning, and so on.\n" * 10_000)
    accepted = await road.rounds.house.accept(road.rounds.sender, "a large one", draft)
    crowded = road.another_worker(large_bytes_max=100_000)
    assert await replace(road, delivery=crowded).round() == 1
    assert await state(road, accepted.message_id) == ("queued", 0, ["postponed"])
    road.clock.advance(seconds=5)
    assert await road.round() == 1
    assert await state(road, accepted.message_id) == ("delivered", 1, ["postponed", "delivered"])
