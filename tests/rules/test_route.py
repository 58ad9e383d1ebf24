"""Routes: the account's pool, its addresses, and the sender's order among them."""

from collections import Counter
from ipaddress import ip_address
from uuid import UUID

import pytest

from posthouse.rules.ids import AccountId
from posthouse.rules.route import (
    AddressState,
    Pool,
    Route,
    RouteTable,
    SendingAddress,
    choose,
    parse_ip,
    ranked,
    with_other_family,
)

ONE, TWO = (AccountId(UUID(int=number)) for number in (1, 2))
SENDERS = [f"sender{number}.example" for number in range(1_000)]


def route(ip: str) -> Route:
    return Route(ip_address(ip), f"host-{ip.replace('.', '-').replace(':', '-')}.example.com")


FOUR = tuple(route(f"192.0.2.{number}") for number in range(1, 5))
SIX = tuple(route(f"2001:db8::{number}") for number in range(1, 3))


def address(ip: str, pool: str = "default", state: AddressState = AddressState.ACTIVE) -> SendingAddress:
    return SendingAddress(route(ip), pool, state)


def table(*addresses: SendingAddress, pools: dict[str, str | None] | None = None) -> RouteTable:
    overflows = {"default": None} | (pools or {})
    return RouteTable(
        addresses, {name: Pool(name, overflow=overflow) for name, overflow in overflows.items()}, {TWO: "own"}
    )


def sources(found: tuple[Route, ...]) -> list[str]:
    return [str(each.source) for each in found]


def test_a_sender_keeps_its_address() -> None:
    assert {choose("a.example", FOUR) for _ in range(3)} == {choose("A.Example", FOUR[::-1])}


def test_senders_are_spread_over_the_addresses() -> None:
    shares = Counter(choose(sender, FOUR) for sender in SENDERS)
    assert set(shares) == set(FOUR)
    assert all(200 <= share <= 300 for share in shares.values())


def test_an_address_that_leaves_moves_only_its_own_senders() -> None:
    for sender in SENDERS:
        before, after = choose(sender, FOUR), choose(sender, FOUR[:3])
        assert after == before or before == FOUR[3]


def test_a_full_address_gives_way_to_the_senders_next() -> None:
    first, second, *_ = ranked("a.example", FOUR)
    assert choose("a.example", FOUR, has_room=lambda candidate: candidate != first) == second
    assert choose("a.example", FOUR, has_room=lambda _: False) is None


def test_a_retry_takes_the_address_before_if_that_has_room() -> None:
    first, _, third, _ = ranked("a.example", FOUR)
    assert choose("a.example", FOUR, before=str(third.source)) == third
    assert choose("a.example", FOUR, before=str(third.source), has_room=lambda each: each != third) == first
    assert choose("a.example", FOUR, before="192.0.2.99") == first


def test_ipv4_is_chosen_where_there_is_any() -> None:
    assert all(choose(sender, FOUR[:1] + SIX) == FOUR[0] for sender in SENDERS[:50])
    # Not even when IPv4 is full: most servers have no other address.
    assert choose("a.example", FOUR + SIX, has_room=lambda each: each in SIX) is None
    assert choose("a.example", SIX) in SIX
    assert choose("a.example", ()) is None


def test_the_other_family_comes_along() -> None:
    first, other = with_other_family(FOUR[0], FOUR + SIX, "a.example")
    assert (first, other in SIX) == (FOUR[0], True)
    assert with_other_family(FOUR[0], FOUR, "a.example") == (FOUR[0],)


def test_without_addresses_mail_leaves_as_the_machine_sends() -> None:
    assert RouteTable().pool_of(ONE) is None


def test_a_pool_without_an_address_sends_as_the_machine_does() -> None:
    mine = table(address("192.0.2.1", "own"))
    assert (mine.pool_of(ONE), mine.pool_of(TWO)) == (None, "own")
    others = table(address("192.0.2.1"))
    assert (others.pool_of(ONE), others.pool_of(TWO)) == ("default", None)


RESTING = AddressState.RESTING


@pytest.mark.parametrize(
    ("addresses", "pools", "expected"),
    [
        ([address("192.0.2.1"), address("192.0.2.2"), address("192.0.2.3", "own")], {}, ["192.0.2.1", "192.0.2.2"]),
        ([address("192.0.2.1", state=RESTING), address("192.0.2.2")], {}, ["192.0.2.2"]),
        ([address("192.0.2.1", state=RESTING)], {}, []),
        ([address("192.0.2.1", state=RESTING), address("192.0.2.2", "own")], {"own": None}, []),
        ([address("192.0.2.1", state=RESTING), address("192.0.2.2", "own")], {"default": "own"}, ["192.0.2.2"]),
        # One that another machine has is none here.
        ([address("192.0.2.200")], {}, []),
        ([address("192.0.2.200"), address("192.0.2.2", "own")], {"default": "own", "own": "default"}, ["192.0.2.2"]),
        # A circle of overflows ends.
        ([address("192.0.2.1", state=RESTING)], {"default": "own", "own": "default"}, []),
    ],
)
def test_a_pools_routes(addresses: list[SendingAddress], pools: dict[str, str | None], expected: list[str]) -> None:
    here = [each.source for each in FOUR]
    assert sources(table(*addresses, pools=pools).routes_of("default", here)) == expected


@pytest.mark.parametrize(
    ("given", "ip"),
    [
        ("192.0.2.1", "192.0.2.1"),
        (" 2001:DB8::1 ", "2001:db8::1"),
        ("192.0.2.0/24", None),
        ("192.0.2.256", None),
        ("fe80::1%eth0", None),
        ("example.com", None),
        ("", None),
    ],
)
def test_an_ip_is_read_strictly(given: str, ip: str | None) -> None:
    assert parse_ip(given) == (None if ip is None else ip_address(ip))
