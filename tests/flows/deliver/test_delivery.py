"""Delivery from end to end in one process: what is due goes out, and what comes of it is on record."""

from collections.abc import AsyncIterator

import pytest

from posthouse.flows.shared.tickets import InHand
from posthouse.rules.ticket import DeliveryTicket, pack
from posthouse.wire.stream import TicketKind
from tests.support.nameserver import SILENT
from tests.support.round_trip import RoundTrip, on_the_road
from tests.support.service import eventually


@pytest.fixture
async def road(database_url: str) -> AsyncIterator[RoundTrip]:
    async with on_the_road(database_url) as road:
        road.serve("example.org", "example.net")
        yield road


async def test_a_mail_to_two_domains_arrives_once_at_each_recipient(road: RoundTrip) -> None:
    message = await road.rounds.accept(["ada@example.org", "bob@example.org", "cy@example.net"])
    assert await road.round() == 3
    assert await road.statuses(message) == ["delivered"] * 3
    assert await road.message(message) == ("delivered", "settled")
    accepted = sorted((one.recipient, one.transaction) for one in road.receiver.accepted)
    assert [recipient for recipient, _ in accepted] == ["ada@example.org", "bob@example.org", "cy@example.net"]
    # Two recipients of one domain share a transaction.
    assert accepted[0][1] == accepted[1][1]
    assert await road.round() == 0


async def test_tickets_that_travelled_together_are_answered_when_the_last_of_them_is(road: RoundTrip) -> None:
    """One of the two hangs for a while; until it is through, the stream keeps the message for both."""
    road.names.script["slow.example.org"] = SILENT
    await road.rounds.accept(["ada@example.org"])
    await road.rounds.accept(["bob@slow.example.org"])
    one, two = await road.rounds.lease()
    road.stream.publish(TicketKind.DELIVER, 0, pack([one, two]))
    await road.delivery.renew()
    (message,) = await road.stream.fetch(TicketKind.DELIVER, frozenset({0}), 10, 0)
    await road.delivery.offer([message])

    async def accepted() -> int:
        return len(road.receiver.accepted)

    await eventually(accepted, bool)
    assert await road.stream.backlog(TicketKind.DELIVER) == 1
    await road.delivery.settle()
    assert await road.stream.backlog(TicketKind.DELIVER) == 0
    statuses = await road.rounds.fetch("SELECT status FROM recipients ORDER BY email")
    assert statuses == [("delivered",), ("deferred",)]


async def test_what_is_given_back_brings_the_whole_message_again_and_what_was_done_is_not_done_twice(
    road: RoundTrip,
) -> None:
    await road.rounds.accept(["ada@example.org"])
    await road.rounds.accept(["bob@example.net"])
    one, two = await road.rounds.lease()
    road.stream.publish(TicketKind.DELIVER, 0, pack([one, two]))
    (message,) = await road.stream.fetch(TicketKind.DELIVER, frozenset({0}), 10, 0)
    hands = InHand(DeliveryTicket, road.clock.monotonic)
    first, second = await hands.take([message])
    await hands.give_back([second])
    await hands.done_with([first])
    await road.delivery.renew()
    assert await road.carry() == 2
    assert await road.carry() == 0
    assert len(road.receiver.accepted) == 2
