"""Routes: the account's pool, its addresses, and the sender's order among them."""

from collections import Counter
from collections.abc import Callable
from ipaddress import ip_address
from uuid import UUID

import pytest

from posthouse.rules.ids import AccountId
from posthouse.rules.route import (
    AddressState,
    Capacity,
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


def free(_: Route) -> Capacity:
    return Capacity.FREE


def capacity_by(capacities: dict[Route, Capacity]) -> Callable[[Route], Capacity]:
    return lambda route: capacities.get(route, Capacity.NONE)


def sources(found: tuple[Route, ...]) -> list[str]:
    return [str(each.source) for each in found]


def test_a_sender_keeps_its_address() -> None:
    assert {choose("a.example", FOUR, free) for _ in range(3)} == {choose("A.Example", FOUR[::-1], free)}


def test_senders_are_spread_over_the_addresses() -> None:
    shares = Counter(choose(sender, FOUR, free) for sender in SENDERS)
    assert set(shares) == set(FOUR)
    assert all(200 <= share <= 300 for share in shares.values())


def test_an_address_that_leaves_moves_only_its_own_senders() -> None:
    for sender in SENDERS:
        before, after = choose(sender, FOUR, free), choose(sender, FOUR[:3], free)
        assert after == before or before == FOUR[3]


FIRST, SECOND, THIRD, _ = ranked("a.example", FOUR)


@pytest.mark.parametrize(
    ("capacities", "before", "chosen"),
    [
        ({FIRST: Capacity.FREE, SECOND: Capacity.FREE}, None, FIRST),
        ({FIRST: Capacity.SOME, SECOND: Capacity.FREE, THIRD: Capacity.FREE}, None, SECOND),
        ({FIRST: Capacity.NONE, SECOND: Capacity.SOME, THIRD: Capacity.SOME}, None, SECOND),
        ({FIRST: Capacity.SOME, SECOND: Capacity.SOME}, None, FIRST),
        ({}, None, FIRST),
        # A retry goes back to the address before, even if it waits there.
        ({FIRST: Capacity.FREE, THIRD: Capacity.FREE}, THIRD, THIRD),
        ({FIRST: Capacity.FREE, THIRD: Capacity.SOME}, THIRD, THIRD),
        ({FIRST: Capacity.FREE, THIRD: Capacity.NONE}, THIRD, FIRST),
        ({FIRST: Capacity.FREE}, route("192.0.2.99"), FIRST),
    ],
)
def test_a_full_address_gives_way_to_the_senders_next(
    capacities: dict[Route, Capacity], before: Route | None, chosen: Route
) -> None:
    assert choose("a.example", FOUR, capacity_by(capacities), None if before is None else str(before.source)) == chosen


def test_ipv4_is_chosen_where_there_is_any() -> None:
    assert all(choose(sender, FOUR[:1] + SIX, free) == FOUR[0] for sender in SENDERS[:50])
    # Even when it is full: most servers have no other address.
    assert choose("a.example", FOUR[:1] + SIX, capacity_by(dict.fromkeys(SIX, Capacity.FREE))) == FOUR[0]
    assert choose("a.example", SIX, free) in SIX
    assert choose("a.example", (), free) is None


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
        # One that another machine has does not count here.
        ([address("192.0.2.200")], {}, []),
        ([address("192.0.2.200"), address("192.0.2.2", "own")], {"default": "own", "own": "default"}, ["192.0.2.2"]),
        # A cycle of overflows ends.
        ([address("192.0.2.1", state=RESTING)], {"default": "own", "own": "default"}, []),
    ],
)
def test_a_pools_routes(addresses: list[SendingAddress], pools: dict[str, str | None], expected: list[str]) -> None:
    here = [each.source for each in FOUR]
    levels = table(*addresses, pools=pools).routes_of("default", here)
    assert (sources(levels[0]) if levels else []) == expected


def test_an_overflows_routes_come_after_the_pools() -> None:
    known = table(address("192.0.2.2", "own"), address("192.0.2.1"), pools={"default": "own", "own": "default"})
    levels = known.routes_of("default", [each.source for each in FOUR])
    assert [sources(level) for level in levels] == [["192.0.2.1"], ["192.0.2.2"]]


def test_what_is_spent_comes_last_and_is_not_returned_to() -> None:
    capacities = {FIRST: Capacity.SPENT, SECOND: Capacity.SPENT, THIRD: Capacity.NONE}
    assert choose("a.example", FOUR, lambda route: capacities.get(route, Capacity.SPENT), str(FIRST.source)) == THIRD


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
