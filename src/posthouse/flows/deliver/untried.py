"""Recipients that get no attempt now: those that end without one, and those that wait elsewhere than in a lane."""

from collections.abc import Sequence, Set
from datetime import datetime, timedelta
from typing import Final

from posthouse import crash
from posthouse.flows.deliver.claim_store import DeliveryClaims
from posthouse.flows.deliver.lane_queue import Item
from posthouse.flows.deliver.outcomes import Outcomes
from posthouse.flows.deliver.telemetry import DeliveryMetrics
from posthouse.flows.shared.claims import Postponement
from posthouse.flows.shared.context import Context
from posthouse.rules.lane import DeliveryFeedback, lane_by_name
from posthouse.store import delivery_claims, delivery_schedule
from posthouse.store.delivery_schedule import RecipientKey

# How often to check whether held mail may be sent.
HOLD_CHECK: Final = timedelta(minutes=15)


class Untried:
    def __init__(
        self, context: Context, *, claims: DeliveryClaims, outcomes: Outcomes, metrics: DeliveryMetrics
    ) -> None:
        self._context = context
        self._database = context.database
        self._clock = context.clock
        self._claims = claims
        self._outcomes = outcomes
        self._metrics = metrics

    def without_blocked_too_long(self, items: list[Item]) -> list[Item]:
        """The items that don't bounce now. The others don't wait for their lane, which may pause for longer."""
        now = self._clock.now()
        rest = []
        for item in items:
            bounce_at = item.ticket.bounce_at
            if bounce_at is not None and bounce_at <= now:
                self._claims.tasks.spawn(self._end(item))
            else:
                rest.append(item)
        return rest

    async def without_suppressed(self, items: Sequence[Item]) -> list[Item]:
        """The items whose address is not suppressed; none if that can't be found out now."""
        try:
            ended = await self._ended(items)
        except Exception as fault:
            await self._claims.give_up(items, fault)
            return []
        return [item for item in items if item.ticket.key not in ended]

    async def postpone(self, late: Sequence[tuple[Item, float]]) -> None:
        """Postpone each ticket by its seconds, except those whose address is suppressed."""
        items = [item for item, _ in late]
        try:
            ended = await self._ended(items)
        except Exception as fault:
            await self._claims.give_up(items, fault)
            return
        await self._claims.postpone_items([each for each in late if each[0].ticket.key not in ended])

    async def hold(self, items: Sequence[Item], lane: str | None = None) -> None:
        """Postpone mail of a paused lane, or mail that was accepted before mail was captured, as long as that lasts."""
        try:
            await self._claims.postpone(
                [Postponement(item.ticket, self._hold_until(), is_held=True, held_by=lane) for item in items]
            )
        except Exception as fault:
            await self._claims.give_up(items, fault)
            return
        await self._claims.acknowledge(items)

    async def hold_suspended(self, items: Sequence[Item]) -> list[Item]:
        """Postpone mail of suspended accounts before it is claimed; returns what was held too long, and so is final."""
        try:
            over = await self.held_too_long(items)
        except Exception as fault:
            await self._claims.give_up(items, fault)
            return []
        over_keys = {item.ticket.key for item in over}
        await self._claims.acknowledge([item for item in items if item.ticket.key not in over_keys])
        return over

    async def held_too_long(self, items: Sequence[Item]) -> list[Item]:
        """The suspended accounts' mail that was held too long, and so is final; the rest is postponed."""
        now = self._clock.now()
        tickets = [item.ticket for item in items]
        async with self._database.connection() as connection:
            over = await delivery_schedule.held_too_long(connection, [ticket.key for ticket in tickets], now)
        later = self._hold_until()
        held = [Postponement(ticket, later, is_held=True) for ticket in tickets if ticket.key not in over]
        if held:
            await self._claims.postpone(held)
        return [item for item in items if item.ticket.key in over]

    async def _ended(self, items: Sequence[Item]) -> Set[RecipientKey]:
        """The items whose address is suppressed. They reach their final state, whatever their lanes do."""
        async with self._database.connection() as connection:
            found = await delivery_claims.suppressed(
                connection, [item.ticket for item in items], self._clock.now(), self._context.keys.erasure
            )
        for item in items:
            if item.ticket.key in found:
                self._claims.tasks.spawn(self._end(item))
        return found

    async def _end(self, item: Item) -> None:
        try:
            claimed = await self._claims.claim([item.ticket])
        except Exception as fault:
            await self._claims.give_up([item], fault)
            return
        try:
            # The address may have been removed from the suppression list in the meantime.
            attempts, others = self._outcomes.split(claimed)
            attempts += self._outcomes.postponed(others, timedelta(0))
            outcomes = [self._outcomes.outcome_of(attempt) for attempt in attempts]
            crash.point("reroute.before_bounce")
            await self._claims.record(outcomes)
            lane_name = item.ticket.lane or lane_by_name(item.ticket.destination) or item.ticket.destination
            self._metrics.recorded(lane_name, DeliveryFeedback.NOT_SENT, outcomes, self._clock.now(), 0.0)
        finally:
            await self._claims.acknowledge([item])

    def _hold_until(self) -> datetime:
        return self._clock.now() + HOLD_CHECK * (0.5 + self._context.randomness.fraction())
