"""Routes: which of our addresses a message leaves from, and the host name that we greet with there.

An account sends from a pool of addresses. A sender keeps its address: of the addresses that may be used, each From
domain prefers the same one (rendezvous hashing), and an address that is added or rests moves only the mail that it
gains or loses. For a pool without addresses, the system chooses the address.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum
from functools import lru_cache
from hashlib import blake2b
from ipaddress import ip_address
from math import ceil
from typing import Final

from posthouse.rules.ids import AccountId
from posthouse.rules.lane import Limits
from posthouse.rules.public_address import Address

# Names of pools and relays as operators type them.
is_name: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,39}").fullmatch
# The pool of accounts that have no other.
DEFAULT_POOL: Final = "default"
RANKINGS_CACHED_MAX: Final = 10_000

# A relay's lane: other lanes are named after a provider or a domain, and neither contains a colon.
_RELAY_LANE_PREFIX: Final = "relay:"
# TLS from the first byte; at any other port, STARTTLS (RFC 8314).
IMPLICIT_TLS_PORT: Final = 465


class AddressState(StrEnum):
    ACTIVE = "active"
    # Sends nothing until it is active again.
    RESTING = "resting"
    # Sends nothing any more; still stored because attempts name it.
    RETIRED = "retired"


class Tier(StrEnum):
    """What is known about an account's reputation: accounts without their own pool use the pool of their tier."""

    NEW = "new"
    GOOD = "good"
    # It was warned about, and has not been good for long enough since.
    WATCHED = "watched"


@dataclass(frozen=True, slots=True)
class Route:
    """The address that a connection comes from, and the name in its EHLO."""

    source: Address
    hostname: str


@dataclass(frozen=True, slots=True)
class SendingAddress:
    """`warms_up_since` is None for an address that needs no warm-up."""

    route: Route
    pool: str
    state: AddressState
    warms_up_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Pool:
    """`overflow` is the pool that is used while no address of this one may send, `relay` is used after that."""

    name: str
    tier: Tier | None = None
    overflow: str | None = None
    relay: str | None = None


@dataclass(frozen=True, slots=True)
class RouteTable:
    """All addresses and pools, and the pools of the accounts that have one, either their own or that of their tier."""

    addresses: tuple[SendingAddress, ...] = ()
    pools: Mapping[str, Pool] = field(default_factory=dict)
    account_pools: Mapping[AccountId, str] = field(default_factory=dict)

    def pool_of(self, account_id: AccountId) -> str | None:
        """The account's pool; None: the system chooses the address of its mail."""
        if not self.addresses and not self.pools:
            return None
        pool = self.account_pools.get(account_id, DEFAULT_POOL)
        known = self.pools.get(pool)
        is_used = (known is not None and known.relay) or any(address.pool == pool for address in self.addresses)
        return pool if is_used else None

    def routes_of(self, pool: str, usable: Collection[Address]) -> tuple[tuple[Route, ...], ...]:
        """The active addresses among those usable here: of the pool, of its overflow, and so on; none is empty."""
        levels = [
            tuple(
                address.route
                for address in self.addresses
                if address.pool == name and address.state is AddressState.ACTIVE and address.route.source in usable
            )
            for name in self._with_overflows(pool)
        ]
        return tuple(filter(None, levels))

    def relay_of(self, pool: str) -> str | None:
        """The pool's relay or, if it has none, its overflow's."""
        relays = (self.pools[name].relay for name in self._with_overflows(pool) if name in self.pools)
        return next(filter(None, relays), None)

    def _with_overflows(self, pool: str) -> list[str]:
        """The pool, its overflow, the overflow's, and so on."""
        chain: list[str] = []
        at: str | None = pool
        while at is not None and at not in chain:
            chain.append(at)
            known = self.pools.get(at)
            at = None if known is None else known.overflow
        return chain


class Capacity(IntEnum):
    """How much more mail a route can take now."""

    # Its quota for this hour is used up.
    SPENT = 0
    NONE = 1
    # A message would wait.
    SOME = 2
    FREE = 3


@dataclass(frozen=True, slots=True)
class Relay:
    """A mail service of a third party that takes mail for us where none of our addresses may send it.

    It has its own lane, for all destinations together, with the rate that the operator set. *Delivered* then means
    that the relay took the message. Our login is sent over verified TLS only.
    """

    name: str
    host: str
    port: int
    username: str
    password: str = field(repr=False)
    per_second: float
    per_day: int | None = None

    @property
    def lane(self) -> str:
        return lane_of_relay(self.name)

    @property
    def limits(self) -> Limits:
        return Limits(per_second=self.per_second, burst=ceil(self.per_second))

    @property
    def is_implicit_tls(self) -> bool:
        return self.port == IMPLICIT_TLS_PORT


def choose(
    sender: str, routes: tuple[Route, ...], capacity_of: Callable[[Route], Capacity], before: str | None = None
) -> Route | None:
    """The sender's route: that of the attempt `before`, or else the first in its order that is free or has capacity.

    If none has capacity, it is the first of all, and the message is postponed there; None without routes.
    """
    own = ranked(sender, routes)
    again = next((route for route in own if str(route.source) == before), None)
    if again is not None and capacity_of(again) > Capacity.NONE:
        return again
    # Among equals `max` keeps the sender's order.
    return max(own, key=capacity_of, default=None)


def with_other_family(first: Route, routes: Iterable[Route], sender: str) -> tuple[Route, ...]:
    """The route and, for servers that it can't reach, the sender's route of the other family, if there is one."""
    others = tuple([route for route in routes if route.source.version != first.source.version])
    return (first, *ranked(sender, others)[:1])


@lru_cache(RANKINGS_CACHED_MAX)
def ranked(sender: str, routes: tuple[Route, ...]) -> tuple[Route, ...]:
    """The IPv4 routes in the sender's order, or else the IPv6 routes, since most mail servers have no IPv6 address."""
    family = min((route.source.version for route in routes), default=4)
    candidates = [route for route in routes if route.source.version == family]
    return tuple(sorted(candidates, key=lambda route: _weight(sender, route.source)))


def parse_ip(given: str) -> Address | None:
    """The address; None if it is not one, or is link-local with a scope."""
    try:
        ip = ip_address(given.strip())
    except ValueError:
        return None
    return None if getattr(ip, "scope_id", None) else ip


def lane_of_relay(name: str) -> str:
    return _RELAY_LANE_PREFIX + name


def is_relay_lane(lane: str) -> bool:
    return lane.startswith(_RELAY_LANE_PREFIX)


def _weight(sender: str, source: Address) -> bytes:
    return blake2b(b"%b %b" % (sender.lower().encode(), source.packed), digest_size=8).digest()
