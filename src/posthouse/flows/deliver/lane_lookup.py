"""Which lane a destination belongs to: known by name, or found from its mail servers in DNS.

Tickets of a destination that is not known yet wait here for its first look-up. Later look-ups run in the background.
An account that sends to many names without an answer gets only its share of the space and of the look-ups, and
delays no other account.
"""

import asyncio
from collections import OrderedDict
from typing import Final

import structlog

from posthouse.clock import Clock
from posthouse.flows.deliver.lane_queue import Item, LookUp
from posthouse.flows.shared.lane_by_servers import lane_by_servers
from posthouse.flows.shared.shares import FairShare, WaitedShare
from posthouse.rules.ids import AccountId
from posthouse.rules.lane import lane_by_name
from posthouse.rules.refusal import Refusal
from posthouse.rules.ticket import DeliveryTicket
from posthouse.wire.dns import Resolver

log = structlog.get_logger(__name__)

LOOKUPS_MAX: Final = 100
# A destination whose first look-up takes longer gets its own lane; the carrier repeats the look-up anyway.
LOOKUP_SECONDS_MAX: Final = 1.0
# How many tickets may wait for a first look-up.
UNSORTED_MAX: Final = 2_000
DESTINATIONS_KNOWN_SECONDS: Final = 60.0
DESTINATIONS_MAX: Final = 100_000


class LaneLookup:
    """`wanted` are look-ups that are to begin now: the caller takes them from here."""

    def __init__(self, *, clock: Clock, resolver: Resolver, simulator_domain: str) -> None:
        self._clock = clock
        self._resolver = resolver
        self._simulator_domain = simulator_domain
        self.wanted: list[LookUp] = []
        # With the time until which it is current; the oldest first.
        self._lanes: OrderedDict[str, tuple[float, str]] = OrderedDict()
        self._unsorted: dict[str, list[Item]] = {}
        self._unsorted_shares: FairShare[AccountId] = FairShare(UNSORTED_MAX)
        self._lookups: WaitedShare[AccountId] = WaitedShare(LOOKUPS_MAX, wait_seconds_max=LOOKUP_SECONDS_MAX)

    def lane_of(self, ticket: DeliveryTicket) -> str | None:
        """The lane known by name, or the last one found, if any. If that was long ago, another look-up is wanted."""
        destination = ticket.destination
        lane_known = lane_by_name(destination)
        if lane_known is not None:
            return lane_known
        known = self._lanes.get(destination)
        if known is None:
            return None
        known_until, lane = known
        if known_until < self._clock.monotonic():
            self._remember(destination, lane)
            self.wanted.append(LookUp(destination, ticket.account_id))
        return lane

    def wait(self, item: Item) -> bool:
        """Keep the ticket until its destination's lane is known; False if its account already uses its share."""
        destination, account_id = item.ticket.destination, item.ticket.account_id
        if not self._unsorted_shares.take_units(account_id):
            return False
        if destination not in self._unsorted:
            self._unsorted[destination] = []
            self.wanted.append(LookUp(destination, account_id))
        self._unsorted[destination].append(item)
        return True

    def close(self) -> list[Item]:
        """The tickets that are still waiting."""
        return [item for destination in list(self._unsorted) for item in self._taken_out(destination)]

    def _taken_out(self, destination: str) -> list[Item]:
        items = self._unsorted.pop(destination, [])
        for item in items:
            self._unsorted_shares.release_units(item.ticket.account_id)
        return items

    async def look_up(self, destination: str, account_id: AccountId) -> list[Item]:
        """Find the destination's lane; returns the tickets that waited for it."""
        try:
            learnt = await self._lane_by_servers(destination, account_id)
        except Exception:
            log.exception("lane_not_found", destination=destination)
            learnt = None
        # A failed look-up proves nothing, and with another lane the mail would escape the limits of the known provider.
        last_learnt = self._lanes.get(destination)
        lane = learnt or (destination if last_learnt is None else last_learnt[1])
        self._remember(destination, lane)
        return self._taken_out(destination)

    def _remember(self, destination: str, lane: str) -> None:
        self._lanes[destination] = self._clock.monotonic() + DESTINATIONS_KNOWN_SECONDS, lane
        self._lanes.move_to_end(destination)
        if len(self._lanes) > DESTINATIONS_MAX:
            self._lanes.popitem(last=False)

    async def _lane_by_servers(self, destination: str, account_id: AccountId) -> str | None:
        """None if DNS gave no answer in time. The look-up counts against the share of `account_id`."""
        if destination == self._simulator_domain:
            return destination
        try:
            async with asyncio.timeout(LOOKUP_SECONDS_MAX):
                async with self._lookups.turn(account_id):
                    return await lane_by_servers(self._resolver, destination)
        except (TimeoutError, Refusal):
            return None
