"""One request that sends all failed events of an account's webhook or endpoint again."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from posthouse.clock import Clock
from posthouse.flows.shared.memory_rates import MemoryRates
from posthouse.rules import ids
from posthouse.rules.ids import AccountId
from posthouse.rules.rate_limit import Rate, RateWait
from posthouse.rules.refusal import Code, Refusal
from posthouse.rules.search import time_bound
from posthouse.store import webhook_log
from posthouse.store.postgres import Connection, Database

# A client waits for the answer; the rest is done by its next request.
SWEEP_SECONDS_MAX: Final = 3.0
# Deliveries of one request, and how often an account may make it.
REPLAYED_MAX: Final = 10_000
REPLAY_SECONDS: Final = 5
REPLAY_RATE: Final = Rate(1 / REPLAY_SECONDS, 5)

# Enters replays of deliveries with ids between two: how many, and the id from which to go on; None at the end.
EnterReplays = Callable[[Connection, UUID, UUID], Awaitable[tuple[int, UUID | None]]]
NoteReplays = Callable[[Connection, int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Replayed:
    """How many deliveries were entered; `next_since` is from where to go on, None when nothing is left."""

    count: int
    next_since: datetime | None


class ReplaySweep:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._rates: MemoryRates[AccountId] = MemoryRates()

    async def run(self, account_id: AccountId, since: str, enter: EnterReplays, note: NoteReplays) -> Replayed:
        """A transaction for each step; the last one also notes the count, if there is one."""
        position = id_before(since)
        taken = self._rates.take(account_id, REPLAY_RATE, self._clock.now())
        if isinstance(taken, RateWait):
            raise Refusal(
                Code.RATE_LIMITED,
                f"An account may replay all once in {REPLAY_SECONDS} s: try again in {taken.seconds} s.",
                taken.seconds,
            )
        until = self._clock.monotonic() + SWEEP_SECONDS_MAX
        before = ids.lowest_id(self._clock.now())
        count = 0
        while True:
            async with self._database.transaction() as tx:
                if not await webhook_log.try_lock_replay(tx, account_id):
                    raise Refusal(
                        Code.CONFLICT, "Another request replays for this account at this moment: try again later."
                    )
                entered, reached = await enter(tx, position, before)
                count += entered
                is_over = reached is None or count >= REPLAYED_MAX or self._clock.monotonic() >= until
                if is_over and count:
                    await note(tx, count)
            if is_over or reached is None:
                return Replayed(count, None if reached is None else ids.time_of(reached))
            position = reached


def id_before(since: str) -> UUID:
    """The last id before all that were created since then."""
    return UUID(int=max(0, time_bound("since", since).int - 1))
