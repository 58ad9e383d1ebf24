"""Which lane a destination belongs to: known by name, or learnt from its mail servers in DNS.

Tickets of a destination that is not known yet wait here for its first look-up. Later look-ups run in the background.
An account that sends to many names without an answer has its share of both, and delays no other account's.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from posthouse.clock import Clock
from posthouse.flows.shared import tickets
from posthouse.flows.shared.background_tasks import BackgroundTasks
from posthouse.flows.shared.fair_room import FairRoom
from posthouse.flows.shared.lane_by_servers import lane_by_servers
from posthouse.rules.fair_share import FairShare
from posthouse.rules.ids import AccountId
from posthouse.rules.lane import lane_by_name
from posthouse.rules.refusal import Refusal
from posthouse.rules.ticket import DeliveryTicket
from posthouse.wire.dns import Resolver

log = structlog.get_logger(__name__)

Item = tickets.Item[DeliveryTicket]

LOOKUPS_MAX: Final = 100
# A destination whose first look-up takes longer has a lane of its own; the carrier repeats the look-up anyway.
LOOKUP_SECONDS_MAX: Final = 1.0
# Tickets that wait for a first look-up.
UNSORTED_MAX: Final = 2_000
DESTINATIONS_KNOWN_SECONDS: Final = 60.0
DESTINATIONS_MAX: Final = 100_000


class LaneLookup:
    """`resolved` gets the tickets that waited for a look-up, once their lane is known."""

    def __init__(
        self,
        *,
        clock: Clock,
        resolver: Resolver,
        own_lane: str,
        tasks: BackgroundTasks,
        resolved: Callable[[list[Item]], None],
    ) -> None:
        self._clock = clock
        self._resolver = resolver
        self._own_lane = own_lane
        self._tasks = tasks
        self._resolved = resolved
        # With the time until which it is current.
        self._lanes: dict[str, tuple[float, str]] = {}
        self._unsorted: dict[str, list[Item]] = {}
        self._unsorted_shares: FairShare[AccountId] = FairShare(UNSORTED_MAX)
        self._lookups: FairRoom[AccountId] = FairRoom(LOOKUPS_MAX, wait_seconds_max=LOOKUP_SECONDS_MAX)

    def lane_of(self, ticket: DeliveryTicket) -> str | None:
        """The lane known by name, or the last learnt, if any. If that was long ago, another look-up starts."""
        destination = ticket.destination
        lane_known = lane_by_name(destination)
        if lane_known is not None:
            return lane_known
        known = self._lanes.get(destination)
        if known is None:
            return None
        known_until, lane = known
        now = self._clock.monotonic()
        if known_until < now:
            self._lanes[destination] = now + DESTINATIONS_KNOWN_SECONDS, lane
            self._tasks.spawn(self._learn(destination, ticket.account_id))
        return lane

    def wait(self, item: Item) -> bool:
        """Keep the ticket until its destination's lane is known; False when its account has its share of these."""
        destination, account_id = item.ticket.destination, item.ticket.account_id
        if not self._unsorted_shares.take(account_id):
            return False
        if destination not in self._unsorted:
            self._unsorted[destination] = []
            self._tasks.spawn(self._learn(destination, account_id))
        self._unsorted[destination].append(item)
        return True

    def close(self) -> list[Item]:
        """The tickets that still wait."""
        return [item for destination in list(self._unsorted) for item in self._taken_out(destination)]

    def _taken_out(self, destination: str) -> list[Item]:
        items = self._unsorted.pop(destination, [])
        for item in items:
            self._unsorted_shares.give_back(item.ticket.account_id)
        return items

    async def _learn(self, destination: str, account_id: AccountId) -> None:
        try:
            learnt = await self._lane_by_servers(destination, account_id)
        except Exception:
            log.exception("lane_not_found", destination=destination)
            learnt = None
        # A failed look-up says nothing: another lane would escape the limits of the provider known so far.
        last_learnt = self._lanes.get(destination)
        lane = learnt or (destination if last_learnt is None else last_learnt[1])
        now = self._clock.monotonic()
        if len(self._lanes) > DESTINATIONS_MAX:
            self._lanes = {name: known for name, known in self._lanes.items() if known[0] > now}
        self._lanes[destination] = now + DESTINATIONS_KNOWN_SECONDS, lane
        self._resolved(self._taken_out(destination))

    async def _lane_by_servers(self, destination: str, account_id: AccountId) -> str | None:
        """None when DNS gave no answer in time; `account_id` is whose share of the look-ups it takes."""
        if destination == self._own_lane:
            return destination
        try:
            async with asyncio.timeout(LOOKUP_SECONDS_MAX):
                await self._lookups.take(account_id)
                try:
                    return await lane_by_servers(self._resolver, destination)
                finally:
                    self._lookups.give_back(account_id)
        except (TimeoutError, Refusal):
            return None
