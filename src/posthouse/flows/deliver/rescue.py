"""Rescue of mail that was refused because of our address: which of it is held, until when, and for which way out."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from posthouse import crash
from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.deliver.lane_queues import LaneQueue
from posthouse.flows.deliver.outcomes import Attempt
from posthouse.flows.deliver.outgoing_mail import domain_of
from posthouse.rules import rescue
from posthouse.rules.ids import AccountId
from posthouse.rules.lane import Served
from posthouse.rules.refusal import Refusal
from posthouse.rules.relay import Relay
from posthouse.rules.rescue import Hold, Rescued, RescueMode
from posthouse.store import rescues
from posthouse.store.postgres import Database
from posthouse.store.rescues import NewRescue

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RescueSettings:
    mode: RescueMode = RescueMode.WAIT
    hours: float = rescue.HOLD_HOURS


class Rescue:
    """`others` are the queues of the account's other routes in the same lane that have room, in the sender's order.

    `relay_of` is the relay of the account's pool.
    """

    def __init__(
        self,
        settings: RescueSettings,
        *,
        database: Database,
        clock: Clock,
        chance: Chance,
        others: Callable[[LaneQueue, Attempt], Sequence[LaneQueue]],
        relay_of: Callable[[AccountId], Relay | None],
    ) -> None:
        self._settings = settings
        self._database = database
        self._clock = clock
        self._chance = chance
        self._others = others
        self._relay_of = relay_of
        self._turn = asyncio.Lock()

    async def holds(self, queue: LaneQueue, served: Served, attempts: Sequence[Attempt]) -> list[Hold | None]:
        """For each attempt how its recipient is held; None for what ends or is deferred as its reply says.

        Only what the lane heeds is a block: not the words of a server that doesn't speak for it.
        """
        if self._settings.mode is RescueMode.OFF or served is not Served.BLOCKED:
            return [None] * len(attempts)
        refused = [attempt for attempt in attempts if _is_held(attempt)]
        second: dict[int, str] = {}
        if refused and self._settings.mode is not RescueMode.WAIT:
            second = await self._second_ways(queue, refused)
        return [self._hold(queue, attempt, second) if _is_held(attempt) else None for attempt in attempts]

    def _hold(self, queue: LaneQueue, attempt: Attempt, second: dict[int, str]) -> Hold:
        claimed = attempt.claimed
        now, random, hours = self._clock.now(), self._chance.fraction(), self._settings.hours
        if claimed.position in second:
            source = second[claimed.position]
            return rescue.second_try(now=now, random=random, hours=hours, bounce_at=claimed.bounce_at, source=source)
        return rescue.hold(
            now=now,
            random=random,
            hours=hours,
            pause_seconds=queue.lane.pause_left(self._clock.monotonic()),
            bounce_at=claimed.bounce_at,
            source=None if queue.route is None else str(queue.route.source),
        )

    async def _second_ways(self, queue: LaneQueue, refused: Sequence[Attempt]) -> dict[int, str]:
        """By position, over which address or relay a recipient of the message may leave; the others wait."""
        others = self._others(queue, refused[0]) if self._settings.mode is RescueMode.POOL else ()
        relay = self._relay_of(refused[0].claimed.account_id)
        if queue.route is None or not (others or relay):
            return {}
        try:
            return await self._admitted(queue, str(queue.route.source), others, relay, refused)
        except Refusal as refusal:
            # PostgreSQL is away: they wait.
            log.debug("rescue_not_admitted", cause=repr(refusal.__cause__))
            return {}

    async def _admitted(
        self,
        queue: LaneQueue,
        first: str,
        others: Sequence[LaneQueue],
        relay: Relay | None,
        refused: Sequence[Attempt],
    ) -> dict[int, str]:
        """On record before any of it is sent, so that the bounds hold for all workers, and through a crash."""
        now, seconds = self._clock.now(), self._clock.monotonic()
        taken = [(str(other.route.source), other.counts.hour.total(seconds)) for other in others if other.route]
        key = refused[0].claimed
        admitted: list[NewRescue] = []
        # In turn here, so that only other processes are waited for in PostgreSQL, and not for long.
        async with self._turn, self._database.transaction() as tx:
            await rescues.lock(tx)
            ended_until = rescue.ended_until(await rescues.blocks(tx, queue.name, now))
            if ended_until is not None and now < ended_until:
                return {}
            if not await rescues.has_good_conduct(tx, key.account_id):
                return {}
            minute, hour = await rescues.recent(tx, queue.name, now)
            tries = await rescues.tries(tx, key.account_id, key.message_id)
            for attempt in refused:
                claimed = attempt.claimed
                rescued = Rescued(minute + len(admitted), hour, tries.get(claimed.position, 0))
                way = rescue.second_address(first, taken, rescued)
                if way is None and relay is not None and rescue.is_within_bounds(rescued):
                    way = relay.lane
                if way is not None:
                    admitted.append(NewRescue(*claimed.key[:3], first, way))
                    hour = {**hour, way: hour.get(way, 0) + 1}
            await rescues.add(tx, queue.name, admitted, now)
            crash.point("rescue.before_commit")
        crash.point("rescue.after_commit")
        return {each.position: each.to_ip for each in admitted}


def _is_held(attempt: Attempt) -> bool:
    result = attempt.result
    return result is not None and rescue.is_block(result, attempt.remark) and rescue.would_bounce(result)


def sender_of(attempt: Attempt) -> str:
    return domain_of(attempt.claimed.message.sender)
