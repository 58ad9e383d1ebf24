"""Rerouting of mail that was refused because of our address: which of it is held, until when, and for which route."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from posthouse import crash
from posthouse.flows.deliver.lane_queue import LaneQueue
from posthouse.flows.deliver.lanes import Lanes
from posthouse.flows.deliver.outcomes import Attempt
from posthouse.flows.deliver.outgoing_mail import domain_of
from posthouse.flows.deliver.routes import Routes
from posthouse.flows.shared.context import Context
from posthouse.rules import reroute
from posthouse.rules.lane import DeliveryFeedback
from posthouse.rules.refusal import Refusal
from posthouse.rules.reroute import Hold, Rerouted, RerouteMode
from posthouse.rules.route import Relay
from posthouse.store import reroutes
from posthouse.store.reroutes import NewReroute

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RerouteSettings:
    mode: RerouteMode = RerouteMode.WAIT
    hours: float = reroute.HOLD_HOURS


class Reroute:
    def __init__(self, settings: RerouteSettings, context: Context, *, lanes: Lanes, routes: Routes) -> None:
        self._settings = settings
        self._database = context.database
        self._clock = context.clock
        self._randomness = context.randomness
        self._lanes = lanes
        self._routes = routes
        self._turn = asyncio.Lock()

    async def holds(self, queue: LaneQueue, served: DeliveryFeedback, attempts: Sequence[Attempt]) -> list[Hold | None]:
        """For each attempt, how its recipient is held; None for one that ends or is deferred as its reply says.

        Only a reply that counts for the lane is a block, not one of a server that doesn't speak for the lane.
        """
        if self._settings.mode is RerouteMode.OFF or served is not DeliveryFeedback.BLOCKED:
            return [None] * len(attempts)
        refused = [attempt for attempt in attempts if _is_held(attempt)]
        second: dict[int, str] = {}
        if refused and self._settings.mode is not RerouteMode.WAIT:
            second = await self._second_ways(queue, refused)
        return [self._hold(queue, attempt, second) if _is_held(attempt) else None for attempt in attempts]

    def _hold(self, queue: LaneQueue, attempt: Attempt, second: dict[int, str]) -> Hold:
        claimed = attempt.claimed
        now, random, hours = self._clock.now(), self._randomness.fraction(), self._settings.hours
        if claimed.position in second:
            source = second[claimed.position]
            return reroute.second_try(now=now, random=random, hours=hours, bounce_at=claimed.bounce_at, source=source)
        return reroute.hold(
            now=now,
            random=random,
            hours=hours,
            pause_seconds=queue.lane.pause_left(self._clock.monotonic()),
            bounce_at=claimed.bounce_at,
            source=None if queue.route is None else str(queue.route.source),
        )

    async def _second_ways(self, queue: LaneQueue, refused: Sequence[Attempt]) -> dict[int, str]:
        """For recipients of the message, by position: the address or relay by which they may leave. The others wait."""
        claimed = refused[0].claimed
        sender, others = domain_of(claimed.message.sender), list[LaneQueue]()
        if self._settings.mode is RerouteMode.POOL:
            others = self._lanes.others_with_capacity(queue, claimed.account_id, sender)
        relay = self._routes.relay_of(claimed.account_id)
        if queue.route is None or not (others or relay):
            return {}
        try:
            return await self._admitted(queue, str(queue.route.source), others, relay, refused)
        except Refusal as refusal:
            # PostgreSQL is unavailable: they wait.
            log.debug("reroute_not_admitted", cause=repr(refusal.__cause__))
            return {}

    async def _admitted(
        self,
        queue: LaneQueue,
        first: str,
        others: Sequence[LaneQueue],
        relay: Relay | None,
        refused: Sequence[Attempt],
    ) -> dict[int, str]:
        """Write the reroute before any of it is sent, so that the bounds hold for all workers and after a crash."""
        now, seconds = self._clock.now(), self._clock.monotonic()
        taken = [(str(other.route.source), other.counts.hour.total(seconds)) for other in others if other.route]
        key = refused[0].claimed
        admitted: list[NewReroute] = []
        # One at a time in this process, so that only other processes wait in PostgreSQL, and not for long.
        async with self._turn, self._database.transaction() as tx:
            await reroutes.lock(tx)
            ended_until = reroute.ended_until(await reroutes.blocks(tx, queue.name, now))
            if ended_until is not None and now < ended_until:
                return {}
            if not await reroutes.has_good_reputation(tx, key.account_id):
                return {}
            minute, hour = await reroutes.recent(tx, queue.name, now)
            tries = await reroutes.tries(tx, key.account_id, key.message_id)
            for attempt in refused:
                claimed = attempt.claimed
                rerouted = Rerouted(minute + len(admitted), hour, tries.get(claimed.position, 0))
                way = reroute.second_address(first, taken, rerouted)
                if way is None and relay is not None and reroute.is_within_bounds(rerouted):
                    way = relay.lane
                if way is not None:
                    admitted.append(NewReroute(*claimed.key[:3], first, way))
                    hour = {**hour, way: hour.get(way, 0) + 1}
            await reroutes.add(tx, queue.name, admitted, now)
            crash.point("reroute.before_commit")
        crash.point("reroute.after_commit")
        return {each.position: each.to_ip for each in admitted}


def _is_held(attempt: Attempt) -> bool:
    result = attempt.result
    return result is not None and reroute.is_block(result, attempt.reply_signal) and reroute.would_bounce(result)
