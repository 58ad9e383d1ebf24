"""Which lane a destination belongs to: known by name, or learnt from its mail servers in DNS.

Tickets of a destination that is not known yet wait here for its first look-up. Later look-ups run in the background.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from posthouse.clock import Clock
from posthouse.flows.shared import tickets
from posthouse.flows.shared.background_tasks import BackgroundTasks
from posthouse.flows.shared.lane_by_servers import lane_by_servers
from posthouse.rules.lane import lane_by_name
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
        self._unsorted_count = 0
        self._lookups = asyncio.Semaphore(LOOKUPS_MAX)

    def lane_of(self, destination: str) -> str | None:
        """The lane known by name, or the last learnt, if any. If that was long ago, another look-up starts."""
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
            self._tasks.spawn(self._learn(destination))
        return lane

    def wait(self, item: Item) -> bool:
        """Keep the ticket until its destination's lane is known; False when there is no room."""
        if self._unsorted_count >= UNSORTED_MAX:
            return False
        destination = item.ticket.destination
        if destination not in self._unsorted:
            self._unsorted[destination] = []
            self._tasks.spawn(self._learn(destination))
        self._unsorted[destination].append(item)
        self._unsorted_count += 1
        return True

    def close(self) -> list[Item]:
        """The tickets that still wait."""
        items = [item for waiting in self._unsorted.values() for item in waiting]
        self._unsorted.clear()
        self._unsorted_count = 0
        return items

    async def _learn(self, destination: str) -> None:
        try:
            learnt = await self._lane_by_servers(destination)
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
        waiting = self._unsorted.pop(destination, [])
        self._unsorted_count -= len(waiting)
        self._resolved(waiting)

    async def _lane_by_servers(self, destination: str) -> str | None:
        """None when DNS gave no answer."""
        if destination == self._own_lane:
            return destination
        try:
            async with asyncio.timeout(LOOKUP_SECONDS_MAX), self._lookups:
                return await lane_by_servers(self._resolver, destination)
        except TimeoutError:
            return None
