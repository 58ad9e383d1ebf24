"""Every ticket finds its lane, and a slow, full or paused lane delays no other."""

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from ipaddress import ip_address
from itertools import pairwise
from typing import Final
from uuid import UUID

import pytest

from posthouse.flows.deliver import lane_lookup, lane_queue, lane_table
from posthouse.flows.deliver.lane_lookup import DESTINATIONS_KNOWN_SECONDS, LOOKUPS_MAX, UNSORTED_MAX
from posthouse.flows.deliver.lane_queue import SMALL_SHARE, WAITING_MIN, Turn
from posthouse.flows.deliver.lane_routing import NO_ADDRESS_SECONDS
from posthouse.flows.deliver.lane_table import REPLACED_SECONDS
from posthouse.flows.deliver.lanes import POSTPONE_SECONDS_MAX, POSTPONE_SECONDS_MIN
from posthouse.flows.shared.tickets import Item
from posthouse.rules.ids import AccountId
from posthouse.rules.lane import MISS_PAUSE_SECONDS_MIN, DeliveryFeedback, LaneLimits, Limits
from posthouse.rules.route import Route, ranked
from posthouse.rules.ticket import DeliveryTicket, shard_of
from tests.flows.moving_leases import MovedLeases
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.lanes import (
    ONE,
    SHARDS,
    THREE,
    TWO,
    WIDE,
    WIDE_UNDIVIDED,
    Lanes,
    Message,
    names_of_lanes,
    ticket,
    tickets,
)
from tests.support.nameserver import SERVFAIL, SILENT, Nameserver


@pytest.fixture
async def names() -> AsyncIterator[Nameserver]:
    async with Nameserver() as names:
        names_of_lanes(names)
        yield names


@pytest.fixture
def lanes(names: Nameserver) -> Lanes:
    return Lanes(names, LaneLimits(WIDE))


def narrow(per_second: float = 1.0, burst: int = 1, connections: int = 20) -> LaneLimits:
    return LaneLimits(Limits(per_second, burst, connections, connections))


# Lanes


async def test_a_lane_is_a_providers_or_else_a_domains(names: Nameserver, lanes: Lanes) -> None:
    # A provider's server among others is no way into its lane.
    names.records["sly.example", "MX"] = ["5 nothing.google.com.", "10 tarpit.sly.example."]
    names.records["null.example", "MX"] = ["0 ."]
    names.script["broken.example"] = SERVFAIL
    own = ("one.example", "two.example", "sly.example", "null.example", "broken.example", "nowhere.example")
    await lanes.sort(*(ticket(domain) for domain in ("gmail.com", "customer.example", *own)))
    assert {(turn.bundle.destination, turn.queue.name) for turn in lanes.turns} == {
        ("gmail.com", "google"),
        ("customer.example", "google"),
        *((domain, domain) for domain in own),
    }


async def test_the_simulator_has_a_lane_without_a_look_up(names: Nameserver, lanes: Lanes) -> None:
    await lanes.sort(ticket("simulator.invalid"))
    assert [turn.queue.name for turn in lanes.turns] == ["simulator.invalid"]
    assert names.asked == []


async def test_lanes_take_turns_for_the_available_sessions(names: Nameserver) -> None:
    lanes = Lanes(names, LaneLimits(WIDE), sessions_max=2)
    await lanes.sort(tickets(20, "one.example"), tickets(20, "two.example"), ticket("three.example"))
    served = []
    for _ in range(6):
        served.append(lanes.turns[0].queue.name)
        await lanes.finish(lanes.turns[0])
    assert "three.example" in served


async def test_tickets_sorted_apart_take_turns_with_other_accounts(names: Nameserver) -> None:
    lanes = Lanes(names, narrow(per_second=1e6, burst=1_000, connections=1))
    first, *others = [ticket("one.example", message=7, position=position) for position in range(4)]
    await lanes.sort(first)
    await lanes.sort(tickets(2, "one.example", TWO))
    (turn,) = lanes.turns
    lanes.carry_out(lanes.flow.sort_apart(turn.queue, others))
    served = []
    while lanes.turns:
        (turn,) = lanes.turns
        served.append((turn.bundle.account_id, len(turn.bundle.items)))
        await lanes.finish(turn)
    assert served == [(ONE, 1), (TWO, 1), (ONE, 1), (TWO, 1), (ONE, 1), (ONE, 1)]
    assert lanes.lane("one.example").waiting == 0


async def test_a_domain_that_moved_to_a_provider_changes_its_lane(names: Nameserver, lanes: Lanes) -> None:
    await lanes.sort(ticket("one.example"))
    names.records["one.example", "MX"] = ["10 aspmx.l.google.com."]
    lanes.clock.advance(seconds=DESTINATIONS_KNOWN_SECONDS)
    await lanes.sort(ticket("one.example"))
    lanes.clock.advance(seconds=1)
    # The second look-up runs in the background: the ticket that starts it still takes the old lane.
    await lanes.sort(ticket("one.example"))
    await lanes.sort(ticket("one.example"))
    assert [turn.queue.name for turn in lanes.turns] == ["one.example"] * 3 + ["google"]


@pytest.mark.parametrize("failure", [SILENT, SERVFAIL])
async def test_a_failed_second_look_up_keeps_a_domain_in_its_lane(
    names: Nameserver, lanes: Lanes, failure: str
) -> None:
    await lanes.sort(ticket("customer.example"))
    names.script["customer.example"] = failure
    # The answer is no longer cached: the next ticket starts another look-up, and the tickets after that use its result.
    lanes.clock.advance(seconds=1_000_000)
    await lanes.sort(ticket("customer.example"))
    await lanes.sort(ticket("customer.example"))
    assert [turn.queue.name for turn in lanes.turns] == ["google"] * 3


# Shards


def leases_of(*shards: int) -> MovedLeases:
    return MovedLeases(frozenset(shards), SHARDS)


GOOGLE, ONE_EXAMPLE, CUSTOMER = (shard_of(lane, SHARDS) for lane in ("google", "one.example", "customer.example"))


def arrived(destination: str, shard: int, lane: str | None = None) -> Item[DeliveryTicket]:
    plain = ticket(destination)
    return Item(replace(plain.ticket, lane=lane), Message(shard=shard))


async def test_a_hosted_domains_ticket_is_forwarded_to_the_shard_of_its_lane(names: Nameserver) -> None:
    lanes = Lanes(names, LaneLimits(WIDE_UNDIVIDED), leases=leases_of(CUSTOMER, ONE_EXAMPLE))
    hosted, own = arrived("customer.example", CUSTOMER), arrived("one.example", ONE_EXAMPLE)
    await lanes.sort(hosted, own)
    assert lanes.forwarded == [(hosted, "google", GOOGLE)]
    assert [turn.bundle.items for turn in lanes.turns] == [[own]]
    assert (lanes.given_back, lanes.postponed) == ([], [])


async def test_a_hosted_domains_ticket_stays_if_its_lane_is_here(names: Nameserver) -> None:
    lanes = Lanes(names, LaneLimits(WIDE_UNDIVIDED), leases=leases_of(CUSTOMER, GOOGLE))
    await lanes.sort(arrived("customer.example", CUSTOMER), arrived("gmail.com", GOOGLE))
    assert lanes.forwarded == []
    assert [(turn.queue.name, turn.queue.shard) for turn in lanes.turns] == [("google", GOOGLE)] * 2
    assert len({id(turn.queue) for turn in lanes.turns}) == 1


async def test_a_forwarded_ticket_keeps_its_lane_and_is_not_forwarded_again(names: Nameserver) -> None:
    # Its domain has moved to its own servers meanwhile.
    lanes = Lanes(names, LaneLimits(WIDE_UNDIVIDED), leases=leases_of(GOOGLE))
    await lanes.sort(arrived("one.example", GOOGLE, "google"))
    assert [(turn.queue.name, turn.queue.shard) for turn in lanes.turns] == [("google", GOOGLE)]
    # A worker with other settings sent it here: it goes from here, over a single connection.
    other = (GOOGLE + 5) % SHARDS
    lanes = Lanes(names, LaneLimits(WIDE_UNDIVIDED), leases=leases_of(other))
    await lanes.sort(arrived("gmail.com", other, "google"), arrived("gmail.com", other, "google"))
    assert [(turn.queue.name, turn.queue.shard) for turn in lanes.turns] == [("google", other)]
    assert lanes.forwarded == []


async def test_a_large_lane_has_parts_with_their_own_share_of_its_limits(names: Nameserver) -> None:
    limits = LaneLimits(Limits(), {"google": Limits(450, 450, 20, 20)})
    lanes = Lanes(names, limits, leases=leases_of(*range(SHARDS)))
    await lanes.sort([arrived("gmail.com", 0) for _ in range(200)])
    parts = {queue.shard: queue.lane for queue in lanes.flow.queues}
    assert set(parts) == {(GOOGLE + part) % SHARDS for part in range(3)}
    assert sum(lane.connections for lane in parts.values()) == 20
    assert {lane.per_second for lane in parts.values()} == {150}
    assert {lane.in_use for lane in parts.values()} == {6, 7}


async def test_recipients_of_one_message_go_together_in_a_large_lane(names: Nameserver) -> None:
    limits = LaneLimits(Limits(2_000, 2_000, 20, 20))
    lanes = Lanes(names, limits, leases=leases_of(*range(SHARDS)))
    await lanes.sort([ticket("one.example", message=7 * 64, position=position) for position in range(5)])
    assert [len(turn.bundle.items) for turn in lanes.turns] == [5]


async def test_mail_waiting_in_a_lost_shard_is_given_back_immediately_and_the_rest_is_not(names: Nameserver) -> None:
    leases = leases_of(GOOGLE, ONE_EXAMPLE)
    lanes = Lanes(names, LaneLimits(Limits(1.0, 1, 20, 20)), leases=leases)
    google = [arrived("gmail.com", GOOGLE) for _ in range(5)]
    await lanes.sort(google, [arrived("one.example", ONE_EXAMPLE) for _ in range(5)])
    assert [turn.queue.name for turn in lanes.turns] == ["google", "one.example"]
    leases.shards = frozenset({ONE_EXAMPLE})
    lanes.carry_out(lanes.flow.note_shards())
    assert lanes.given_back == google[1:]
    assert lanes.postponed == []
    assert lanes.lane("one.example").waiting == 4
    # The running session ends, and nothing follows it.
    lanes.clock.advance(seconds=60)
    await lanes.finish(lanes.turns[0])
    assert [queue.name for queue in lanes.flow.queues] == ["one.example"]
    assert "google" not in [turn.queue.name for turn in lanes.turns]


async def test_a_lost_shard_is_noticed_before_anything_starts(names: Nameserver) -> None:
    leases = leases_of(ONE_EXAMPLE)
    lanes = Lanes(names, LaneLimits(Limits(1.0, 1, 20, 20)), leases=leases)
    items = [arrived("one.example", ONE_EXAMPLE) for _ in range(3)]
    await lanes.sort(items)
    leases.shards = frozenset()
    lanes.clock.advance(seconds=60)
    await lanes.finish(lanes.turns[0])
    assert (lanes.turns, lanes.given_back) == ([], items[1:])


async def test_a_ticket_whose_shard_is_lost_during_its_look_up_is_given_back(names: Nameserver) -> None:
    leases = leases_of(ONE_EXAMPLE)
    lanes = Lanes(names, LaneLimits(WIDE_UNDIVIDED), leases=leases)
    item = arrived("one.example", ONE_EXAMPLE)
    lanes.sort_now([item])
    leases.shards = frozenset()
    await lanes.settle()
    assert (lanes.turns, lanes.given_back) == ([], [item])


async def test_a_lane_taken_over_has_its_rate_but_not_its_burst(names: Nameserver) -> None:
    leases = leases_of()
    lanes = Lanes(names, LaneLimits(Limits(10.0, 10, 20, 20)), leases=leases)
    leases.shards, leases.since = frozenset({ONE_EXAMPLE}), lanes.clock.monotonic()
    lanes.clock.advance(seconds=0.35)
    await lanes.sort([arrived("one.example", ONE_EXAMPLE) for _ in range(20)])
    assert len(lanes.turns) == 3


async def test_a_shard_that_comes_back_counts_the_sessions_that_still_run(names: Nameserver) -> None:
    leases = leases_of(ONE_EXAMPLE)
    lanes = Lanes(names, LaneLimits(Limits(10.0, 10, 4, 4)), leases=leases)
    await lanes.sort([arrived("one.example", ONE_EXAMPLE) for _ in range(4)])
    leases.shards = frozenset()
    lanes.carry_out(lanes.flow.note_shards())
    leases.shards, leases.since = frozenset({ONE_EXAMPLE}), lanes.clock.monotonic() + 5
    lanes.clock.advance(seconds=60)
    await lanes.sort([arrived("one.example", ONE_EXAMPLE) for _ in range(4)])
    assert (len(lanes.turns), lanes.lane("one.example").waiting) == (4, 4)
    await lanes.finish(lanes.turns[0])
    assert len(lanes.turns) == 4


async def test_with_another_number_of_shards_lanes_move_and_rest_for_a_moment(names: Nameserver) -> None:
    leases = leases_of(*range(2 * SHARDS))
    lanes = Lanes(names, LaneLimits(Limits(10.0, 10, 4, 4)), leases=leases)
    lane = "two.example"
    assert shard_of(lane, SHARDS) != shard_of(lane, 2 * SHARDS)
    items = [arrived(lane, shard_of(lane, SHARDS)) for _ in range(6)]
    await lanes.sort(items)
    assert {turn.queue.shard for turn in lanes.turns} == {shard_of(lane, SHARDS)}
    leases.places = 2 * SHARDS
    lanes.carry_out(lanes.flow.note_shards())
    assert lanes.given_back == items[4:]
    await lanes.sort(lanes.given_back)
    assert len(lanes.turns) == 4
    lanes.clock.advance(seconds=REPLACED_SECONDS + 0.25)
    await lanes.sort(arrived(lane, shard_of(lane, SHARDS)))
    assert [turn.queue.shard for turn in lanes.turns[4:]] == [shard_of(lane, 2 * SHARDS)] * 2


# Order


async def test_recipients_of_one_message_at_one_destination_go_together(names: Nameserver) -> None:
    lanes = Lanes(names, narrow(connections=1, per_second=1e6, burst=1_000))
    await lanes.sort(ticket("one.example"))
    await lanes.sort(
        ticket("one.example", message=7 * 64, position=0),
        ticket("two.example", message=7 * 64, position=1),
        ticket("one.example", message=8 * 64),
        ticket("one.example", message=7 * 64, position=2),
    )
    await lanes.finish(lanes.turns[0])
    bundles = {turn.bundle.destination: turn.bundle for turn in lanes.turns}
    assert [item.ticket.position for item in bundles["one.example"].items] == [0, 2]
    assert [item.ticket.position for item in bundles["two.example"].items] == [1]


async def finished(lanes: Lanes, *, turns_max: int) -> list[Turn]:
    """Finish turns until none is left, with no more than `turns_max` at a time."""
    served = []
    while lanes.turns:
        assert len(lanes.turns) <= turns_max
        served.append(lanes.turns[0])
        await lanes.finish(lanes.turns[0])
    return served


async def test_many_accounts_share_few_sessions(names: Nameserver) -> None:
    lanes = Lanes(names, LaneLimits(WIDE), sessions_max=4)
    accounts = [AccountId(UUID(int=number)) for number in range(1, 21)]
    for account in accounts:
        await lanes.sort(tickets(3, f"{account.int}.example", account))
    served = Counter(turn.bundle.account_id for turn in await finished(lanes, turns_max=4))
    assert served == dict.fromkeys(accounts, 3)
    assert list(served) == accounts


async def test_silent_domains_of_an_account_leave_sessions_for_others(lanes: Lanes) -> None:
    await lanes.sort([ticket(f"{number}.silent.example", ONE) for number in range(600)])
    # Four fifths of the half for lanes that have not answered yet.
    assert len(lanes.turns) == 200
    # Another account's mail goes at once, to a new destination and to one that answers.
    await lanes.sort(ticket("one.example", ONE), ticket("one.example", TWO))
    assert lanes.turns[-1].bundle.account_id == TWO
    assert lanes.lane("one.example").waiting == 1
    await lanes.finish(lanes.turns[-1])
    await lanes.sort(tickets(19, "one.example", TWO))
    assert Counter(turn.bundle.account_id for turn in lanes.turns[200:]) == {ONE: 1, TWO: 19}
    # The account above its share continues as its sessions end.
    assert len(await finished(lanes, turns_max=220)) == 620


async def test_an_account_with_many_lanes_leaves_places_to_wait(
    names: Nameserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (lane_queue, lane_table):
        monkeypatch.setattr(module, "ALL_WAITING_MAX", 1_500)
    lanes = Lanes(names, narrow(connections=1))
    for number in range(16):
        names.records[f"{number}.example", "MX"] = [f"10 mx.{number}.example."]
        await lanes.sort(tickets(99, f"{number}.example", ONE))
    assert lanes.postponed
    count = len(lanes.postponed)
    await lanes.sort(tickets(9, "one.example", TWO))
    assert len(lanes.postponed) == count


# Full lanes


async def test_a_full_lane_postpones_each_ticket_behind_the_last_at_its_rate(names: Nameserver) -> None:
    lanes = Lanes(names, narrow(per_second=2.0))
    await lanes.sort(ticket("one.example"))
    await lanes.sort(tickets(WAITING_MIN, "one.example"))
    # A fifth of the capacity is for others.
    capacity = WAITING_MIN * 4 // 5
    assert (len(lanes.turns), lanes.lane("one.example").waiting) == (1, capacity)
    waits = lanes.waits
    assert len(waits) == WAITING_MIN - capacity
    # The waiting tickets go at the lane's rate; each postponed ticket has its own place after them.
    assert waits[0] == pytest.approx(capacity / 2.0 / 2)
    assert [later - wait for wait, later in pairwise(waits)] == pytest.approx([0.5] * 19)
    # As time passes the places come closer, and no place is given twice.
    lanes.clock.advance(seconds=10)
    await lanes.sort(ticket("one.example"))
    assert lanes.waits[-1] == pytest.approx(waits[-1] + 0.5 - 10)


async def test_a_postponement_lasts_between_a_second_and_an_hour(names: Nameserver) -> None:
    lanes = Lanes(names, narrow(per_second=0.01))
    await lanes.sort(ticket("one.example"))
    await lanes.sort(tickets(1_000, "one.example"))
    assert max(lanes.waits) == POSTPONE_SECONDS_MAX
    assert min(lanes.waits) >= POSTPONE_SECONDS_MIN


async def test_a_small_account_finds_a_place_in_a_full_lane(names: Nameserver) -> None:
    lanes = Lanes(names, narrow(per_second=1.0))
    await lanes.sort(ticket("one.example"))
    await lanes.sort(tickets(500, "one.example", ONE), tickets(500, "one.example", TWO))
    queue = lanes.lane("one.example")
    assert queue.waiting >= WAITING_MIN
    lanes.postponed.clear()
    await lanes.sort(tickets(SMALL_SHARE + 3, "one.example", THREE))
    assert len(lanes.postponed) == 3
    assert {item.ticket.account_id for item, _ in lanes.postponed} == {THREE}
    # And it is not postponed behind everything that the others had postponed.
    assert max(lanes.waits) < 120


async def test_a_fifth_of_a_lane_is_for_others_whatever_the_recipients_per_message(names: Nameserver) -> None:
    lanes = Lanes(names, narrow(per_second=1.0))
    await lanes.sort(ticket("one.example"))
    for message in range(1, 11):
        await lanes.sort([ticket("one.example", message=message, position=position) for position in range(50)])
    assert lanes.lane("one.example").waiting == WAITING_MIN * 4 // 5
    # Recipients that are done make space again.
    lanes.postponed.clear()
    lanes.clock.advance(seconds=1)
    await lanes.finish(lanes.turns[0])
    assert [len(turn.bundle.items) for turn in lanes.turns] == [50]
    await lanes.sort(tickets(100, "one.example"))
    assert (lanes.lane("one.example").waiting, len(lanes.postponed)) == (WAITING_MIN * 4 // 5, 50)


async def test_a_full_lane_postpones_nothing_of_another_lane(names: Nameserver) -> None:
    lanes = Lanes(names, LaneLimits(WIDE, {"one.example": Limits(1.0, 1, 1, 1)}))
    await lanes.sort(ticket("one.example"), ticket("two.example"))
    await lanes.sort(tickets(500, "one.example"), tickets(19, "two.example"))
    assert sum(turn.queue.name == "two.example" for turn in lanes.turns) == 20
    assert {item.ticket.destination for item, _ in lanes.postponed} == {"one.example"}


async def test_a_lane_resumes_when_its_rate_allows(names: Nameserver) -> None:
    lanes = Lanes(names, narrow(per_second=20.0))
    await lanes.sort(tickets(3, "one.example"))
    assert len(lanes.turns) == 1
    for number in (2, 3):
        lanes.clock.advance(seconds=0.05)
        await eventually(lambda: len(lanes.turns), number.__le__)
        await lanes.settle()
        assert len(lanes.turns) == number


# Paused lanes


async def unreachable_twice(lanes: Lanes, waiting: int) -> None:
    """Two connections fail, one after the other, while this many more tickets wait."""
    await lanes.sort(tickets(2 + waiting, "one.example"))
    for _ in range(2):
        turn = next(turn for turn in lanes.turns if turn.queue.name == "one.example")
        await lanes.finish(turn, DeliveryFeedback.UNREACHABLE)


async def test_a_lane_unreachable_twice_postpones_all_its_tickets(names: Nameserver) -> None:
    lanes = Lanes(names, narrow(per_second=1e6, burst=1_000, connections=1))
    await lanes.sort(ticket("two.example"))
    await unreachable_twice(lanes, waiting=5)
    assert lanes.lane("one.example").waiting == 0
    assert len(lanes.postponed) == 5
    assert min(lanes.waits) == pytest.approx(MISS_PAUSE_SECONDS_MIN)
    await lanes.sort(tickets(2, "one.example", TWO))
    assert len(lanes.postponed) == 7
    assert lanes.waits[-1] >= MISS_PAUSE_SECONDS_MIN
    # No other lane is paused.
    await lanes.finish(lanes.turns[0])
    await lanes.sort(ticket("two.example"))
    assert [turn.queue.name for turn in lanes.turns] == ["two.example"]


async def test_tickets_wait_through_a_short_pause(names: Nameserver) -> None:
    lanes = Lanes(names, narrow(per_second=1e6, burst=1_000, connections=1))
    await lanes.sort(tickets(3, "one.example"))
    await lanes.finish(lanes.turns[0], DeliveryFeedback.PUSHED_BACK)
    (branch,) = lanes.lane("one.example").branches.values()
    assert (lanes.turns, lanes.postponed, branch.waiting) == ([], [], 2)
    lanes.clock.advance(seconds=1)
    await eventually(lambda: lanes.turns)
    await lanes.settle()
    assert len(lanes.turns) == 1


# DNS


async def test_a_destination_whose_dns_hangs_delays_no_other(names: Nameserver, lanes: Lanes) -> None:
    names.script["hanging.example"] = SILENT
    lanes.sort_now([*tickets(50, "hanging.example"), *tickets(3, "one.example")])
    await eventually(lambda: len(lanes.turns) == 3)
    lanes.sort_now([*tickets(5, "hanging.example"), *tickets(3, "two.example")])
    await eventually(lambda: len(lanes.turns) == 6)
    assert {turn.queue.name for turn in lanes.turns} == {"one.example", "two.example"}
    await lanes.settle()
    assert sum(turn.queue.name == "hanging.example" for turn in lanes.turns) == 20
    assert lanes.lane("hanging.example").waiting == 35


async def test_tickets_waiting_for_a_look_up_are_bounded_by_account(names: Nameserver, lanes: Lanes) -> None:
    names.script["hanging.example"] = SILENT
    share = UNSORTED_MAX * 4 // 5
    lanes.sort_now(tickets(UNSORTED_MAX + 5, "hanging.example"))
    assert lanes.waits == [POSTPONE_SECONDS_MIN] * (UNSORTED_MAX + 5 - share)
    lanes.postponed.clear()
    lanes.sort_now(tickets(50, "hanging.example", TWO))
    assert not lanes.waits
    assert len(lanes.flow.close()) == share + 50
    await lanes.settle()


async def test_names_without_an_answer_delay_no_look_up_of_another_account(
    names: Nameserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Longer than any machine takes for an answer that comes.
    monkeypatch.setattr(lane_lookup, "LOOKUP_SECONDS_MAX", HANG_SECONDS)
    lanes = Lanes(names, LaneLimits(WIDE), lookup_seconds_max=HANG_SECONDS)
    dead = [f"d{number}.example" for number in range(2 * LOOKUPS_MAX)]
    names.script |= dict.fromkeys(dead, SILENT)
    lanes.sort_now([ticket(name) for name in dead])
    lanes.sort_now([ticket("customer.example", TWO)])
    # Its look-up ends while those of the dead names still run: without an answer it would have its own lane.
    (turn,) = await eventually(lambda: [turn for turn in lanes.turns if turn.bundle.account_id == TWO])
    assert turn.queue.name == "google"
    names.script.clear()
    await lanes.settle()


# The end


async def test_closing_returns_all_waiting_tickets_and_starts_nothing(names: Nameserver) -> None:
    names.script["hanging.example"] = SILENT
    lanes = Lanes(names, narrow(per_second=1.0))
    await lanes.sort(tickets(10, "one.example"))
    lanes.sort_now(tickets(2, "hanging.example"))
    assert len(lanes.flow.close()) == 9 + 2
    await lanes.finish(lanes.turns[0])
    assert lanes.turns == []


ROUTES: Final = tuple(Route(ip_address(f"192.0.2.{number}"), f"mta{number}.example.com") for number in range(1, 4))


def sent_by(sender: str, source: str | None = None) -> Item[DeliveryTicket]:
    item = ticket("one.example")
    return item._replace(ticket=replace(item.ticket, sender=sender, source_ip=source))


def sources(lanes: Lanes) -> list[str]:
    return [str(turn.queue.route.source) for turn in lanes.turns if turn.queue.route is not None]


async def test_each_address_has_its_own_lane(names: Nameserver) -> None:
    lanes = Lanes(names, LaneLimits(Limits(connections_start=2, connections_max=2)), routes=ROUTES)
    await lanes.sort([sent_by(f"sender{number}.example") for number in range(20)])
    # Two connections from each.
    assert sorted(sources(lanes)) == ["192.0.2.1"] * 2 + ["192.0.2.2"] * 2 + ["192.0.2.3"] * 2


async def test_a_sender_takes_its_next_address_while_its_own_is_paused(names: Nameserver) -> None:
    lanes = Lanes(names, LaneLimits(WIDE), routes=ROUTES)
    own, other, third = [str(route.source) for route in ranked("b.example", ROUTES)]
    for _ in range(2):
        await lanes.sort(sent_by("b.example"))
        await lanes.finish(lanes.turns[0], DeliveryFeedback.UNREACHABLE)
    await lanes.sort(sent_by("b.example"))
    assert sources(lanes) == [other]
    lanes.clock.advance(seconds=MISS_PAUSE_SECONDS_MIN)
    await lanes.sort(sent_by("b.example"))
    # A retry waits for the same address.
    await lanes.sort(sent_by("b.example", third))
    assert sources(lanes) == [other, own, third]


async def test_a_sender_with_more_than_its_address_can_send_takes_others_too(names: Nameserver) -> None:
    lanes = Lanes(names, LaneLimits(Limits(per_second=10, burst=1)), routes=ROUTES)
    await lanes.sort([sent_by("b.example") for _ in range(30)])
    first, second, third = [
        next(queue.waiting for queue in lanes.flow.queues if queue.route == route)
        for route in ranked("b.example", ROUTES)
    ]
    assert first >= second > 0
    assert third > 0
    assert first + second + third + len(lanes.turns) == 30


async def test_mail_without_an_address_that_may_send_is_postponed(lanes: Lanes) -> None:
    lanes.routes = None
    await lanes.sort(sent_by("b.example"))
    assert (len(lanes.turns), len(lanes.waits)) == (0, 1)
    assert NO_ADDRESS_SECONDS <= lanes.waits[0] <= 2 * NO_ADDRESS_SECONDS
    await lanes.sort(ticket("simulator.invalid"))
    assert len(lanes.turns) == 1


async def test_an_address_with_another_name_greets_with_it_from_now_on(lanes: Lanes) -> None:
    lanes.routes = ROUTES[:1]
    await lanes.sort(sent_by("b.example"))
    lanes.routes = (replace(ROUTES[0], hostname="new.example.com"),)
    await lanes.sort(sent_by("b.example"))
    assert [turn.queue.route for turn in lanes.turns] == [*lanes.routes] * 2
