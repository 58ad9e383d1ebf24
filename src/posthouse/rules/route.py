"""Routes: which of our addresses a mail leaves from, and the name that it greets with there.

An account sends from a pool of addresses. A sender keeps its address: of the addresses that may be used, each From
domain prefers the same one (rendezvous hashing), and an address that is added or rests moves only the mail that it
gains or loses. A pool that has no address sends as the machine does by itself.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum
from functools import lru_cache
from hashlib import blake2b
from ipaddress import ip_address
from typing import Final

from posthouse.rules.ids import AccountId
from posthouse.rules.public_address import Address

# Names of pools and relays, as operators type them.
is_name: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,39}").fullmatch
# The pool of accounts that have no other.
DEFAULT_POOL: Final = "default"
RANKINGS_KEPT_MAX: Final = 10_000


class AddressState(StrEnum):
    ACTIVE = "active"
    # Sends nothing until it is active again.
    RESTING = "resting"
    # Sends nothing any more; known because attempts name it.
    RETIRED = "retired"


class Tier(StrEnum):
    """What is known of an account's conduct: accounts without a pool of their own use that of their tier."""

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
    """`warms_up_since` is None of an address that needs no warm-up."""

    route: Route
    pool: str
    state: AddressState
    warms_up_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Pool:
    """`overflow` is the pool that is used while no address of this one may send, `relay` what comes after it."""

    name: str
    tier: Tier | None = None
    overflow: str | None = None
    relay: str | None = None


@dataclass(frozen=True, slots=True)
class RouteTable:
    """All addresses and pools, and the pools of the accounts that have one, of their own or by their tier."""

    addresses: tuple[SendingAddress, ...] = ()
    pools: Mapping[str, Pool] = field(default_factory=dict)
    account_pools: Mapping[AccountId, str] = field(default_factory=dict)

    def pool_of(self, account_id: AccountId) -> str | None:
        """The account's pool; None: its mail leaves as the machine sends by itself."""
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


class Room(IntEnum):
    """How much more mail a route can take now."""

    # By its allowance, for this hour.
    SPENT = 0
    NONE = 1
    # It would wait.
    SOME = 2
    FREE = 3


def choose(
    sender: str, routes: tuple[Route, ...], room_of: Callable[[Route], Room], before: str | None = None
) -> Route | None:
    """The sender's route: that of the attempt `before`, or else the first in its order that is free, or has room.

    Without room anywhere it is the first of all, and the mail is postponed there; None without routes.
    """
    own = ranked(sender, routes)
    again = next((route for route in own if str(route.source) == before), None)
    if again is not None and room_of(again) > Room.NONE:
        return again
    # Among equals `max` keeps the sender's order.
    return max(own, key=room_of, default=None)


def with_other_family(first: Route, routes: Iterable[Route], sender: str) -> tuple[Route, ...]:
    """The route and, for servers that it can't reach, the sender's route of the other family, if there is one."""
    others = tuple([route for route in routes if route.source.version != first.source.version])
    return (first, *ranked(sender, others)[:1])


@lru_cache(RANKINGS_KEPT_MAX)
def ranked(sender: str, routes: tuple[Route, ...]) -> tuple[Route, ...]:
    """In the sender's order: those of IPv4, or else those of IPv6, since most mail servers have no IPv6 address."""
    family = min((route.source.version for route in routes), default=4)
    candidates = [route for route in routes if route.source.version == family]
    return tuple(sorted(candidates, key=lambda route: _weight(sender, route.source)))


def _weight(sender: str, source: Address) -> bytes:
    return blake2b(b"%b %b" % (sender.lower().encode(), source.packed), digest_size=8).digest()


def parse_ip(given: str) -> Address | None:
    """None for what is no address, or one of a single link."""
    try:
        ip = ip_address(given.strip())
    except ValueError:
        return None
    return None if getattr(ip, "scope_id", None) else ip
