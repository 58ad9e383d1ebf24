"""Changes of the queue by an operator: retry, hold, release and cancel, in steps that hold no lock for long.

A cancellation works like a delivery: it claims the recipients, so that no worker can claim them with the published
tickets, and records their result under the new fence. If it is interrupted in between, they are due as before.
"""

import asyncio
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from posthouse.flows.shared.context import Context, Flow
from posthouse.flows.shared.lane_by_servers import lane_by_servers
from posthouse.flows.shared.result_event import result_event
from posthouse.rules import ids, input_checks, outcome
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.lane import lane_by_name
from posthouse.rules.outcome import GivenUp
from posthouse.rules.queue_change import CANCELLED, QueueChange
from posthouse.rules.refusal import invalid
from posthouse.rules.retry import DELIVERY, Schedule
from posthouse.store import delivery_outcomes, queue_changes
from posthouse.store.delivery_outcomes import DeliveryOutcome, DeliveryResult
from posthouse.store.queue_changes import QueueCount as QueueCount
from posthouse.store.queue_changes import QueueSelection as QueueSelection
from posthouse.store.queue_changes import TakenRecipient
from posthouse.wire.dns import Resolver

STEP: Final = 1_000
# Longer than a step takes, so that claimed recipients aren't due before it ends.
TAKEN_FOR: Final = timedelta(minutes=2)
LOOKUPS_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class Chosen:
    """What an operator selects by; None is no condition. `older_than` counts from the acceptance."""

    message: str | None = None
    account_id: AccountId | None = None
    destination: str | None = None
    lane: str | None = None
    older_than: timedelta | None = None


class QueueChanges(Flow):
    def __init__(self, context: Context, *, resolver: Resolver, retries: Schedule = DELIVERY) -> None:
        super().__init__(context)
        self._resolver = resolver
        self._retries = retries

    async def select(self, chosen: Chosen, *, or_all: bool = False) -> QueueSelection:
        """The mail that is in the queue now, without what is accepted later.

        Refused if there is no condition, unless `or_all`.
        """
        if chosen == Chosen() and not or_all:
            raise invalid("Say which mail: by `message`, `account`, `destination`, `lane` or `older_than_seconds`.")
        message_id = None if chosen.message is None else ids.parse(ids.MESSAGE, chosen.message)
        if chosen.message is not None and message_id is None:
            raise invalid(
                f"`message`: {chosen.message!r} is not a message's id: an id is like em_01k… and has 29 characters."
            )
        # Ids of this millisecond are smaller than the first id of the next.
        before = self._clock.now() + timedelta(milliseconds=1) - (chosen.older_than or timedelta(0))
        selection = QueueSelection(
            MessageId(ids.lowest_id(before)),
            chosen.account_id,
            None if message_id is None else MessageId(message_id),
            None if chosen.destination is None else [input_checks.domain_name(chosen.destination, "destination")],
        )
        if chosen.lane is None:
            return selection
        return replace(selection, destinations=await self._destinations(selection, chosen.lane.strip().lower()))

    async def count(self, change: QueueChange, selection: QueueSelection) -> QueueCount:
        async with self._database.connection() as connection:
            return await queue_changes.count(
                connection, change, selection, self._clock.now(), self._retries.attempts_max
            )

    async def apply(self, change: QueueChange, selection: QueueSelection, described: str) -> int:
        """Change all recipients that no worker has at the moment; returns how many.

        `described` is the selection in words, for the operator's log.
        """
        total = 0
        began_at = self._clock.now()
        while True:
            if change is QueueChange.CANCEL:
                count = await self._cancel(selection, described)
            else:
                count = await self._change(change, selection, began_at, described)
            total += count
            if not count:
                return total

    async def _change(self, change: QueueChange, selection: QueueSelection, now: datetime, described: str) -> int:
        async with self._database.transaction() as tx:
            count = await queue_changes.change(tx, change, selection, now, self._retries.attempts_max, STEP)
            if count:
                await self._operator_log.add_entry(
                    tx, f"queue.{change}", described, self._clock.now(), {"recipients": count}
                )
        return count

    async def _cancel(self, selection: QueueSelection, described: str) -> int:
        async with self._database.transaction() as tx:
            now = self._clock.now()
            taken = await queue_changes.take_recipients(tx, selection, now, now + TAKEN_FOR, STEP)
        if not taken:
            return 0
        async with self._database.transaction() as tx:
            now = self._clock.now()
            # Without a ticket lease: dispatch finds the webhook deliveries.
            recorded = await delivery_outcomes.record(tx, [self._outcome(each, now) for each in taken], now)
            count = len(recorded.counted)
            if count:
                detail = {"recipients": count, "credits_returned": recorded.released}
                await self._operator_log.add_entry(tx, f"queue.{QueueChange.CANCEL}", described, now, detail)
        return count

    def _outcome(self, taken: TakenRecipient, now: datetime) -> DeliveryOutcome:
        verdict = outcome.judge(GivenUp(CANCELLED, is_released=True))
        _, message_id, position, _ = taken.key
        event = result_event(
            self._randomness,
            now,
            DeliveryResult.FAILED,
            verdict,
            message_id=message_id,
            position=position,
            to=taken.email,
            sender=taken.envelope_sender,
            subject=taken.subject,
        )
        return DeliveryOutcome(
            *taken.key,
            DeliveryResult.FAILED,
            event=event,
            is_released=verdict.is_released,
            code=verdict.code,
            response=verdict.text,
        )

    async def _destinations(self, selection: QueueSelection, lane: str) -> list[str]:
        """The destinations that belong to the lane, by name or by their mail servers, as workers decide it."""
        async with self._database.connection() as connection:
            found = await queue_changes.destinations(connection, selection)
        capacity = asyncio.Semaphore(LOOKUPS_MAX)

        async def lane_of(destination: str) -> str:
            if destination == lane:
                return lane
            async with capacity:
                known = lane_by_name(destination) or await lane_by_servers(self._resolver, destination)
            return known or destination

        lanes = await asyncio.gather(*map(lane_of, found))
        return [destination for destination, its in zip(found, lanes, strict=True) if its == lane]
