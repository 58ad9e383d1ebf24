"""The sorting office: every ticket finds its lane, and no lane's trouble is another's."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final
from uuid import UUID

import pytest

from posthouse.flows.deliver.lane_queues import (
    DESTINATIONS_KNOWN_SECONDS,
    PUT_OFF_SECONDS_MAX,
    PUT_OFF_SECONDS_MIN,
    SMALL_SHARE,
    UNSORTED_MAX,
    WAITING_MIN,
    Bundle,
    LaneQueue,
    LaneQueues,
)
from posthouse.flows.shared.background_tasks import BackgroundTasks
from posthouse.flows.shared.tickets import Item
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.lane import MISS_PAUSE_SECONDS_MIN, LaneLimits, Limits, Served, Slot
from posthouse.rules.ticket import DeliveryTicket
from posthouse.wire.dns import Resolver
from tests.support.clock import SettableClock
from tests.support.nameserver import SERVFAIL, SILENT, Nameserver
from tests.support.service import eventually

ONE, TWO, THREE = (AccountId(UUID(int=number)) for number in (1, 2, 3))
WIDE: Final = Limits(per_second=1e6, burst=1_000_000, connections_start=20, connections_max=20)


@dataclass(frozen=True, slots=True)
class Held:
    """A ticket of the stream that nobody asks about."""

    payload: bytes = b""
    shard: int = 0

    async def ack(self) -> None: ...

    async def working(self) -> None: ...

    async def release(self, delay_seconds: float = 0.0) -> None: ...


@dataclass
class Turn:
    queue: LaneQueue
    slot: Slot
    bundle: Bundle


@dataclass
class Post:
    """An office, and what it did with what it was given: whoever has a turn keeps it until `finish`."""

    names: Nameserver
    limits: LaneLimits
    sessions_max: int = 500
    clock: SettableClock = field(default_factory=SettableClock)
    turns: list[Turn] = field(default_factory=list)
    put_off: list[tuple[Item[DeliveryTicket], float]] = field(default_factory=list)

    tasks: BackgroundTasks = field(default_factory=BackgroundTasks)

    def __post_init__(self) -> None:
        self.office = LaneQueues(
            clock=self.clock,
            resolver=Resolver([self.names.endpoint], lookup_seconds_max=1.0, monotonic=self.clock.monotonic),
            lane_limits=self.limits,
            sessions_max=self.sessions_max,
            own_lane="simulator.invalid",
            start=self._start,
            tasks=self.tasks,
            postpone=self.put_off.extend,
        )

    async def _start(self, queue: LaneQueue, slot: Slot, bundle: Bundle) -> None:
        self.turns.append(Turn(queue, slot, bundle))

    async def sort(self, *items: Item[DeliveryTicket] | list[Item[DeliveryTicket]]) -> None:
        """And wait until every look-up is done."""
        given: list[Item[DeliveryTicket]] = []
        for item in items:
            given += item if isinstance(item, list) else [item]
        self.office.sort(given)
        await self.settle()

    async def settle(self) -> None:
        await self.tasks.settle()

    async def finish(self, turn: Turn, served: Served = Served.WELL) -> None:
        self.turns.remove(turn)
        self.office.release_slot(turn.queue, turn.slot, served)
        self.office.end_session()
        await self.settle()

    async def turns_taken(self) -> int:
        return len(self.turns)

    def lane(self, name: str) -> LaneQueue:
        (queue,) = [queue for queue in self.office.queues if queue.name == name]
        return queue

    @property
    def waits(self) -> list[float]:
        """For how long each that was put off has to wait."""
        return [seconds for _, seconds in self.put_off]


_serial = iter(range(64, 1 << 40, 64))


def ticket(destination: str, account: AccountId = ONE, *, message: int = 0, position: int = 0) -> Item[DeliveryTicket]:
    """For a mail of its own, unless the mail is given."""
    message_id = MessageId(UUID(int=message or next(_serial)))
    return Item(DeliveryTicket(account, message_id, position, 0, destination), Held())


def tickets(count: int, destination: str, account: AccountId = ONE) -> list[Item[DeliveryTicket]]:
    return [ticket(destination, account) for _ in range(count)]


@pytest.fixture
async def names() -> AsyncIterator[Nameserver]:
    async with Nameserver() as names:
        for domain in ("one.example", "two.example", "three.example"):
            names.records[domain, "MX"] = [f"10 mx.{domain}."]
        for domain in ("gmail.com", "customer.example"):
            names.records[domain, "MX"] = ["20 alt1.aspmx.l.google.com.", "10 aspmx.l.google.com."]
        yield names


def narrow(per_second: float = 1.0, burst: int = 1, connections: int = 20) -> LaneLimits:
    return LaneLimits(Limits(per_second, burst, connections, connections))


# Lanes


async def test_a_lane_is_a_providers_or_else_a_domains(names: Nameserver) -> None:
    post = Post(names, LaneLimits(WIDE))
    await post.sort(*(ticket(domain) for domain in ("gmail.com", "customer.example", "one.example", "two.example")))
    assert {(turn.bundle.destination, turn.queue.name) for turn in post.turns} == {
        ("gmail.com", "google"),
        ("customer.example", "google"),
        ("one.example", "one.example"),
        ("two.example", "two.example"),
    }


async def test_a_providers_server_among_others_is_no_way_into_its_lane(names: Nameserver) -> None:
    names.records["sly.example", "MX"] = ["5 nothing.google.com.", "10 tarpit.sly.example."]
    post = Post(names, LaneLimits(WIDE))
    await post.sort(ticket("sly.example"))
    assert [turn.queue.name for turn in post.turns] == ["sly.example"]


async def test_lanes_take_turns_for_the_sessions_that_there_are(names: Nameserver) -> None:
    post = Post(names, LaneLimits(WIDE), sessions_max=2)
    await post.sort(tickets(20, "one.example"), tickets(20, "two.example"))
    await post.sort(ticket("three.example"))
    served = []
    for _ in range(6):
        served.append(post.turns[0].queue.name)
        await post.finish(post.turns[0])
    assert "three.example" in served


async def test_what_goes_apart_has_a_turn_for_each_and_others_have_theirs_in_between(names: Nameserver) -> None:
    post = Post(names, narrow(per_second=1e6, burst=1_000, connections=1))
    first, *others = [ticket("one.example", message=7, position=position) for position in range(4)]
    await post.sort(first)
    await post.sort(tickets(2, "one.example", TWO))
    (turn,) = post.turns
    post.office.sort_apart(turn.queue, others)
    served = []
    while post.turns:
        (turn,) = post.turns
        served.append((turn.bundle.account_id, len(turn.bundle.items)))
        await post.finish(turn)
    assert served == [(ONE, 1), (TWO, 1), (ONE, 1), (TWO, 1), (ONE, 1), (ONE, 1)]
    assert post.lane("one.example").waiting == 0


async def test_where_dns_leads_nowhere_the_carrier_finds_out_in_the_domains_own_lane(names: Nameserver) -> None:
    names.script["broken.example"] = SERVFAIL
    names.records["null.example", "MX"] = ["0 ."]
    post = Post(names, LaneLimits(WIDE))
    domains = {"broken.example", "null.example", "nowhere.example"}
    await post.sort(*(ticket(domain) for domain in domains))
    assert {turn.queue.name for turn in post.turns} == domains


async def test_the_simulator_has_a_lane_and_nobody_asks_for_its_servers(names: Nameserver) -> None:
    post = Post(names, LaneLimits(WIDE))
    await post.sort(ticket("simulator.invalid"))
    assert [turn.queue.name for turn in post.turns] == ["simulator.invalid"]
    assert names.asked == []


async def test_a_domain_that_moved_to_a_provider_changes_its_lane(names: Nameserver) -> None:
    post = Post(names, LaneLimits(WIDE))
    await post.sort(ticket("one.example"))
    names.records["one.example", "MX"] = ["10 aspmx.l.google.com."]
    post.clock.advance(seconds=DESTINATIONS_KNOWN_SECONDS)
    await post.sort(ticket("one.example"))
    post.clock.advance(seconds=1)
    # Nobody waits for the second look: who brings it about still goes the old way.
    await post.sort(ticket("one.example"))
    await post.sort(ticket("one.example"))
    assert [turn.queue.name for turn in post.turns] == ["one.example"] * 3 + ["google"]


@pytest.mark.parametrize("failure", [SILENT, SERVFAIL])
async def test_a_failed_second_look_up_keeps_a_domain_in_its_lane(names: Nameserver, failure: str) -> None:
    post = Post(names, LaneLimits(WIDE))
    await post.sort(ticket("customer.example"))
    names.script["customer.example"] = failure
    # The answer is no longer cached: the next ticket starts another look-up, and the tickets after that use its result.
    post.clock.advance(seconds=1_000_000)
    await post.sort(ticket("customer.example"))
    await post.sort(ticket("customer.example"))
    assert [turn.queue.name for turn in post.turns] == ["google"] * 3


async def test_a_providers_limits_are_divided_among_those_who_share_them_and_a_domains_are_not(
    names: Nameserver,
) -> None:
    post = Post(names, LaneLimits(Limits(100, 100, 16, 16)))
    await post.sort(ticket("gmail.com"), ticket("one.example"))
    post.office.share(4)
    assert (post.lane("google").lane.per_second, post.lane("google").lane.connections) == (25, 4)
    assert (post.lane("one.example").lane.per_second, post.lane("one.example").lane.connections) == (100, 16)
    # One that begins later has its part from the beginning.
    later = Post(names, LaneLimits(Limits(100, 100, 16, 16)))
    later.office.share(4)
    await later.sort(tickets(10, "gmail.com"))
    assert (len(later.turns), later.lane("google").waiting) == (4, 6)
    # The others have gone: all of it is there again, and connections grow as they do.
    later.office.share(1)
    assert later.lane("google").lane.per_second == 100
    await later.finish(later.turns[0])
    assert len(later.turns) == 4


# What goes, and in which order


async def test_recipients_of_one_mail_at_one_destination_go_together(names: Nameserver) -> None:
    post = Post(names, narrow(connections=1, per_second=1e6, burst=1_000))
    await post.sort(ticket("one.example"))
    await post.sort(
        ticket("one.example", message=7 * 64, position=0),
        ticket("two.example", message=7 * 64, position=1),
        ticket("one.example", message=8 * 64),
        ticket("one.example", message=7 * 64, position=2),
    )
    await post.finish(post.turns[0])
    bundles = {turn.bundle.destination: turn.bundle for turn in post.turns}
    assert [one.ticket.position for one in bundles["one.example"].items] == [0, 2]
    assert [one.ticket.position for one in bundles["two.example"].items] == [1]


async def test_accounts_take_turns(names: Nameserver) -> None:
    post = Post(names, narrow(connections=1, per_second=1e6, burst=1_000))
    await post.sort(tickets(1, "one.example"))
    await post.sort(tickets(20, "one.example", ONE), tickets(2, "one.example", TWO), tickets(1, "one.example", THREE))
    order = []
    for _ in range(7):
        await post.finish(post.turns[0])
        order.append(post.turns[0].bundle.account_id)
    assert order == [ONE, TWO, THREE, ONE, TWO, ONE, ONE]


async def test_no_more_conversations_than_the_process_may_have_and_lanes_that_wait_have_their_turn(
    names: Nameserver,
) -> None:
    post = Post(names, LaneLimits(WIDE), sessions_max=3)
    await post.sort(tickets(5, "one.example"))
    await post.sort(tickets(5, "two.example"), tickets(5, "three.example"))
    assert [turn.queue.name for turn in post.turns] == ["one.example"] * 3
    served = []
    while post.turns:
        assert len(post.turns) <= 3
        turn = post.turns[0]
        served.append(turn.queue.name)
        await post.finish(turn)
    assert sorted(served) == ["one.example"] * 5 + ["three.example"] * 5 + ["two.example"] * 5
    assert post.put_off == []


# Full lanes


async def test_a_full_lane_puts_off_each_further_behind_the_last_at_its_rate(names: Nameserver) -> None:
    post = Post(names, narrow(per_second=2.0))
    await post.sort(ticket("one.example"))
    await post.sort(tickets(WAITING_MIN, "one.example"))
    # A fifth of the room is for others.
    room = WAITING_MIN * 4 // 5
    assert (len(post.turns), post.lane("one.example").waiting) == (1, room)
    waits = post.waits
    assert len(waits) == WAITING_MIN - room
    # What waits takes its time at the lane's rate; who comes then has a place of its own after it.
    assert waits[0] == pytest.approx(room / 2.0 / 2)
    assert [later - wait for wait, later in pairwise(waits)] == pytest.approx([0.5] * 19)
    # As time goes by the places come nearer, and nobody gets one that another has.
    post.clock.advance(seconds=10)
    await post.sort(ticket("one.example"))
    assert post.waits[-1] == pytest.approx(waits[-1] + 0.5 - 10)


async def test_nobody_is_put_off_for_longer_than_an_hour_or_less_than_a_moment(names: Nameserver) -> None:
    post = Post(names, narrow(per_second=0.01))
    await post.sort(ticket("one.example"))
    await post.sort(tickets(1_000, "one.example"))
    assert max(post.waits) == PUT_OFF_SECONDS_MAX
    assert min(post.waits) >= PUT_OFF_SECONDS_MIN


async def test_who_has_little_finds_room_when_others_have_filled_the_lane(names: Nameserver) -> None:
    post = Post(names, narrow(per_second=1.0))
    await post.sort(ticket("one.example"))
    await post.sort(tickets(500, "one.example", ONE), tickets(500, "one.example", TWO))
    queue = post.lane("one.example")
    assert queue.waiting >= WAITING_MIN
    post.put_off.clear()
    await post.sort(tickets(SMALL_SHARE + 3, "one.example", THREE))
    assert len(post.put_off) == 3
    assert {item.ticket.account_id for item, _ in post.put_off} == {THREE}
    # And it isn't put off behind all that the others had put off.
    assert max(post.waits) < 120


async def test_a_fifth_of_a_lane_is_for_others_however_many_recipients_a_mail_has(names: Nameserver) -> None:
    post = Post(names, narrow(per_second=1.0))
    await post.sort(ticket("one.example"))
    for message in range(1, 11):
        await post.sort([ticket("one.example", message=message, position=position) for position in range(50)])
    assert post.lane("one.example").waiting == WAITING_MIN * 4 // 5
    # Recipients that have gone make room again.
    post.put_off.clear()
    post.clock.advance(seconds=1)
    await post.finish(post.turns[0])
    assert [len(turn.bundle.items) for turn in post.turns] == [50]
    await post.sort(tickets(100, "one.example"))
    assert (post.lane("one.example").waiting, len(post.put_off)) == (WAITING_MIN * 4 // 5, 50)


async def test_one_lane_that_is_full_is_no_other_lanes_trouble(names: Nameserver) -> None:
    post = Post(names, LaneLimits(WIDE, {"one.example": Limits(1.0, 1, 1, 1)}))
    await post.sort(ticket("one.example"), ticket("two.example"))
    await post.sort(tickets(500, "one.example"), tickets(19, "two.example"))
    assert sum(turn.queue.name == "two.example" for turn in post.turns) == 20
    assert {item.ticket.destination for item, _ in post.put_off} == {"one.example"}


async def test_a_lane_goes_on_when_its_rate_lets_it(names: Nameserver) -> None:
    post = Post(names, narrow(per_second=20.0))
    await post.sort(tickets(3, "one.example"))
    assert len(post.turns) == 1
    for number in (2, 3):
        post.clock.advance(seconds=0.05)
        await asyncio.sleep(0.06)
        await post.settle()
        assert len(post.turns) == number


# Paused lanes


async def unreachable_twice(post: Post, waiting: int) -> None:
    """Two connections found nobody, one after the other, while this many more were waiting."""
    await post.sort(tickets(2 + waiting, "one.example"))
    for _ in range(2):
        turn = next(turn for turn in post.turns if turn.queue.name == "one.example")
        await post.finish(turn, Served.UNREACHABLE)


async def test_a_lane_that_nobody_reached_twice_puts_off_what_waits_and_what_comes(names: Nameserver) -> None:
    post = Post(names, narrow(per_second=1e6, burst=1_000, connections=1))
    await post.sort(ticket("two.example"))
    await unreachable_twice(post, waiting=5)
    assert post.lane("one.example").waiting == 0
    assert len(post.put_off) == 5
    assert min(post.waits) == pytest.approx(MISS_PAUSE_SECONDS_MIN)
    await post.sort(tickets(2, "one.example", TWO))
    assert len(post.put_off) == 7
    assert post.waits[-1] >= MISS_PAUSE_SECONDS_MIN
    # Nobody else's lane is.
    await post.finish(post.turns[0])
    await post.sort(ticket("two.example"))
    assert [turn.queue.name for turn in post.turns] == ["two.example"]


async def test_after_the_pause_one_mail_finds_out_whether_the_destination_is_back(names: Nameserver) -> None:
    post = Post(names, LaneLimits(WIDE))
    await unreachable_twice(post, waiting=0)
    post.clock.advance(seconds=MISS_PAUSE_SECONDS_MIN)
    await post.sort(tickets(3, "one.example"))
    assert (len(post.turns), post.lane("one.example").waiting) == (1, 2)
    await post.finish(post.turns[0], Served.UNREACHABLE)
    assert (post.turns, len(post.put_off)) == ([], 2)
    assert min(post.waits) == pytest.approx(2 * MISS_PAUSE_SECONDS_MIN)
    post.clock.advance(seconds=2 * MISS_PAUSE_SECONDS_MIN)
    await post.sort(tickets(3, "one.example"))
    await post.finish(post.turns[0], Served.WELL)
    # It is, and the lane grows again.
    assert len(post.turns) == 2


async def test_a_short_pause_is_waited_for(names: Nameserver) -> None:
    post = Post(names, narrow(per_second=1e6, burst=1_000, connections=1))
    await post.sort(tickets(3, "one.example"))
    await post.finish(post.turns[0], Served.PUSHED_BACK)
    assert (post.turns, post.put_off, post.lane("one.example").waiting) == ([], [], 2)
    post.clock.advance(seconds=1)
    await asyncio.sleep(1.05)
    await post.settle()
    assert len(post.turns) == 1


# DNS


async def test_a_destination_whose_dns_hangs_delays_nobody_else(names: Nameserver) -> None:
    names.script["hanging.example"] = SILENT
    post = Post(names, LaneLimits(WIDE))
    post.office.sort([*tickets(50, "hanging.example"), *tickets(3, "one.example")])
    await eventually(post.turns_taken, lambda number: number == 3, within=0.8)
    post.office.sort([*tickets(5, "hanging.example"), *tickets(3, "two.example")])
    await eventually(post.turns_taken, lambda number: number == 6, within=0.8)
    assert {turn.queue.name for turn in post.turns} == {"one.example", "two.example"}
    await post.settle()
    assert sum(turn.queue.name == "hanging.example" for turn in post.turns) == 20
    assert post.lane("hanging.example").waiting == 35


async def test_what_waits_for_a_look_up_is_bounded_too(names: Nameserver) -> None:
    names.script["hanging.example"] = SILENT
    post = Post(names, LaneLimits(WIDE))
    post.office.sort(tickets(UNSORTED_MAX + 5, "hanging.example"))
    assert post.waits == [PUT_OFF_SECONDS_MIN] * 5
    assert len(post.office.close()) == UNSORTED_MAX
    await post.settle()


# The end


async def test_when_the_office_closes_all_that_waits_is_handed_back_and_nothing_starts(names: Nameserver) -> None:
    names.script["hanging.example"] = SILENT
    post = Post(names, narrow(per_second=1.0))
    await post.sort(tickets(10, "one.example"))
    post.office.sort(tickets(2, "hanging.example"))
    assert len(post.office.close()) == 9 + 2
    await post.finish(post.turns[0])
    assert post.turns == []
