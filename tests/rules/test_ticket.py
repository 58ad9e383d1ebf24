"""Tickets: read back as written, dropped when unreadable, and always in the same shard."""

from collections import Counter
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as some

from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.ticket import (
    FENCE_MAX,
    TOGETHER_MAX,
    DeliveryTicket,
    Ticket,
    WebhookTicket,
    account_shard_of,
    decode,
    encode,
    pack,
    shard_of,
    unpack,
)
from tests.support.bad_input import bad_input

ACCOUNT = AccountId(UUID(int=1))
MESSAGE = MessageId(UUID(int=2))

account_ids = some.uuids().map(AccountId)
fences = some.integers(0, FENCE_MAX)
destinations = some.text("abcdefghijklmnopqrstuvwxyz0123456789-.", min_size=1, max_size=253)
tickets: some.SearchStrategy[Ticket] = some.one_of(
    some.builds(DeliveryTicket, account_ids, some.uuids().map(MessageId), some.integers(0, 62), fences, destinations),
    some.builds(WebhookTicket, account_ids, some.uuids(), fences, some.uuids()),
)


@given(tickets)
def test_a_ticket_is_read_back_as_it_was_written(ticket: Ticket) -> None:
    assert decode(encode(ticket)) == ticket


def test_the_format_does_not_change() -> None:
    # Tickets outlive the process that wrote them: a new version must read those of the last.
    assert encode(DeliveryTicket(ACCOUNT, MESSAGE, 3, 4, "a.example")) == (
        b"\x01" + bytes(15) + b"\x01" + bytes(15) + b"\x02" + b"\x03" + b"\0\0\0\x04" + b"a.example"
    )
    webhook = WebhookTicket(ACCOUNT, UUID(int=2), 4, UUID(int=3))
    assert encode(webhook) == (
        b"\x82" + bytes(15) + b"\x01" + bytes(15) + b"\x02" + b"\0\0\0\x04" + bytes(15) + b"\x03"
    )
    read = decode(encode(webhook))
    assert isinstance(read, WebhookTicket)
    assert read.endpoint_id == UUID(int=3)


DELIVERY = encode(DeliveryTicket(ACCOUNT, MESSAGE, 3, 4, "a.example"))
NOTIFICATION = encode(WebhookTicket(ACCOUNT, UUID(int=2), 4, UUID(int=3)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        b"\x82",
        b"\x02" + DELIVERY[1:],
        b"\x81" + NOTIFICATION[1:],
        b"{}",
        DELIVERY[:37],
        DELIVERY[:38],  # no destination
        DELIVERY + b"a" * 245,
        DELIVERY[:38] + "é.example".encode(),
        DELIVERY[:34] + b"\xff\xff\xff\xff" + DELIVERY[38:],
        NOTIFICATION[:-1],
        NOTIFICATION + b"\0",
        NOTIFICATION[:33] + b"\xff\xff\xff\xff",
    ],
)
def test_bytes_that_are_not_a_ticket_of_this_version_are_dropped(data: bytes) -> None:
    assert decode(data) is None


@bad_input("Tickets", 500)
@given(some.binary(max_size=300) | some.binary(max_size=80).map(lambda rest: b"\x01" + rest))
def test_decoding_any_bytes_raises_nothing(data: bytes) -> None:
    ticket = decode(data)
    assert ticket is None or encode(ticket) == data


@given(some.lists(tickets, min_size=1, max_size=TOGETHER_MAX))
def test_tickets_of_one_message_are_unpacked_in_order(together: list[Ticket]) -> None:
    assert unpack(pack(together)) == together


def test_a_single_ticket_is_packed_as_itself() -> None:
    assert pack([DeliveryTicket(ACCOUNT, MESSAGE, 3, 4, "a.example")]) == DELIVERY
    assert unpack(DELIVERY) == [decode(DELIVERY)]


def test_an_unreadable_ticket_does_not_hide_the_others() -> None:
    known = DeliveryTicket(ACCOUNT, MESSAGE, 3, 4, "a.example")
    data = pack([known, known, known])
    later_form = bytearray(data)
    later_form[3 + len(DELIVERY) + 2] = 0x77
    assert unpack(bytes(later_form)) == [known, known]
    assert unpack(data[:-1]) == [known, known]


@pytest.mark.parametrize("count", [1, 2, TOGETHER_MAX])
def test_forwarded_tickets_carry_their_lane(count: int) -> None:
    together = [DeliveryTicket(ACCOUNT, MESSAGE, position, 4, "a.example") for position in range(count)]
    unpacked = unpack(pack(together, "google"))
    assert unpacked == together
    assert [ticket.lane for ticket in unpacked if isinstance(ticket, DeliveryTicket)] == ["google"] * count
    assert [ticket.lane for ticket in together] == [None] * count


def test_a_version_that_knows_no_lanes_reads_forwarded_tickets() -> None:
    # It skips what it can't read, and finds the same bytes as in any message of several tickets.
    known = DeliveryTicket(ACCOUNT, MESSAGE, 3, 4, "a.example")
    data = bytearray(pack([known], "google"))
    assert data[3] == 0x03
    data[3] = 0x77
    assert unpack(bytes(data)) == [known]
    assert bytes(data).endswith(len(DELIVERY).to_bytes(2, "big") + DELIVERY)


@pytest.mark.parametrize("lane", [b"", b"a" * 254, "é".encode()])
def test_a_lane_that_is_no_name_is_ignored(lane: bytes) -> None:
    entries = [b"\x03" + lane, DELIVERY]
    data = b"\x02" + b"".join(len(entry).to_bytes(2, "big") + entry for entry in entries)
    (ticket,) = unpack(data)
    assert isinstance(ticket, DeliveryTicket)
    assert ticket.lane is None


def test_the_same_ticket_with_and_without_its_lane_is_one() -> None:
    plain = DeliveryTicket(ACCOUNT, MESSAGE, 3, 4, "a.example")
    (forwarded,) = unpack(pack([plain], "google"))
    assert len({plain, forwarded}) == 1


@pytest.mark.parametrize("count", [0, TOGETHER_MAX + 1])
def test_a_message_of_no_or_too_many_tickets_is_a_fault(count: int) -> None:
    with pytest.raises(ValueError, match="a stream message has"):
        pack([DeliveryTicket(ACCOUNT, MESSAGE, 3, 4, "a.example")] * count)


@bad_input("Tickets", 500)
@given(some.binary(max_size=300) | some.binary(max_size=300).map(lambda rest: b"\x02" + rest))
def test_unpacking_any_bytes_raises_nothing(data: bytes) -> None:
    assert len(unpack(data)) <= TOGETHER_MAX


@pytest.mark.parametrize(
    ("destination", "shards", "shard"), [("gmail.com", 1, 0), ("gmail.com", 16, 8), ("example.com", 16, 6)]
)
def test_a_destination_stays_in_its_shard(destination: str, shards: int, shard: int) -> None:
    # All processes and versions must agree; otherwise two of them would each use a lane's whole limits.
    assert shard_of(destination, shards) == shard
    assert shard_of(destination.upper(), shards) == shard


def test_destinations_and_accounts_spread_over_all_shards() -> None:
    destinations = Counter(shard_of(f"domain{number}.example", 16) for number in range(3_200))
    accounts = Counter(account_shard_of(AccountId(UUID(int=number)), 16) for number in range(3_200))
    for spread in (destinations, accounts):
        assert set(spread) == set(range(16))
        assert 140 < min(spread.values()) <= max(spread.values()) < 260


def test_senders_travel_with_their_tickets() -> None:
    def of(position: int, sender: str | None = None, source: str | None = None) -> DeliveryTicket:
        return DeliveryTicket(ACCOUNT, MESSAGE, position, 4, "a.example", sender, source)

    tickets = [
        of(0),
        of(1, "b.example"),
        of(2, "b.example"),
        of(3, "b.example", "192.0.2.1"),
        of(4, "c.example"),
        of(5),
    ]
    found = unpack(pack(tickets, "google"))
    assert [(each.sender, each.source_ip, each.lane) for each in found if isinstance(each, DeliveryTicket)] == [
        (None, None, "google"),
        ("b.example", None, "google"),
        ("b.example", None, "google"),
        ("b.example", "192.0.2.1", "google"),
        ("c.example", None, "google"),
        (None, None, "google"),
    ]
    assert found == tickets
    # Tickets of one sender name it once.
    assert pack(tickets[1:3]).count(b"b.example") == 1
    assert [each.sender for each in unpack(pack(tickets[1:2])) if isinstance(each, DeliveryTicket)] == ["b.example"]


@pytest.mark.parametrize(("sender", "source"), [("b.example", "192.0.2.1"), ("b.example", None), (None, None)])
def test_a_held_ticket_has_the_time_at_which_it_bounces_and_never_an_earlier_one(
    sender: str | None, source: str | None
) -> None:
    bounce_at = datetime(2026, 11, 17, 12, 0, 0, 1, tzinfo=UTC)
    held = DeliveryTicket(ACCOUNT, MESSAGE, 3, 4, "a.example", sender, source, bounce_at=bounce_at)
    free = DeliveryTicket(ACCOUNT, MESSAGE, 4, 4, "a.example", sender, source)
    first, second = unpack(pack([held, free], "google"))
    assert isinstance(first, DeliveryTicket)
    assert isinstance(second, DeliveryTicket)
    assert (first.sender, first.source_ip, first.lane) == (sender, source, "google")
    assert first.bounce_at == datetime(2026, 11, 17, 12, 0, 1, tzinfo=UTC)
    assert (second.sender, second.source_ip, second.bounce_at) == (sender, source, None)


def test_a_version_that_knows_no_senders_finds_the_tickets() -> None:
    packed = pack([DeliveryTicket(ACCOUNT, MESSAGE, 3, 4, "a.example", "b.example")])
    assert packed.endswith(len(DELIVERY).to_bytes(2, "big") + DELIVERY)


@pytest.mark.parametrize("source", [None, "192.0.2.1", "2001:db8::1"])
@pytest.mark.parametrize("is_list", [False, True])
def test_a_ticket_says_whether_it_is_of_a_list(source: str | None, is_list: bool) -> None:
    ticket = DeliveryTicket(ACCOUNT, MESSAGE, 3, 4, "a.example", "b.example", source, is_list)
    (found,) = unpack(pack([ticket]))
    assert isinstance(found, DeliveryTicket)
    assert (found.sender, found.source_ip, found.is_list) == ("b.example", source, is_list)


def test_each_ticket_of_a_message_has_its_own_origin() -> None:
    given = [DeliveryTicket(ACCOUNT, MESSAGE, 3, n, "a.example", "b.example", None, n % 2 == 1) for n in range(4)]
    found = unpack(pack(given))
    assert [isinstance(ticket, DeliveryTicket) and ticket.is_list for ticket in found] == [False, True, False, True]
