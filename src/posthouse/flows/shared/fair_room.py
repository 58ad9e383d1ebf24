"""A fair share of a capacity that a holder waits for: until another gives back, or the time is over."""

import asyncio
from collections import deque
from collections.abc import Hashable
from typing import Final, Generic, NamedTuple, TypeVar

from posthouse.rules.fair_share import FairShare
from posthouse.rules.refusal import Code, Refusal

WAIT_SECONDS_MAX: Final = 2.0
# Of the last turn in the mean: several are granted at once, and only the first of them was waited for.
TURN_WEIGHT: Final = 1 / 16

Holder = TypeVar("Holder", bound=Hashable)


class _Waiter(NamedTuple):
    units: int
    since: float
    is_granted: "asyncio.Future[bool]"


class _Queue:
    """What a holder waits for; the first comes first. `turn_since` is since when it waits for its next turn."""

    __slots__ = ("turn_since", "waiters")

    def __init__(self, turn_since: float) -> None:
        self.turn_since = turn_since
        self.waiters: deque[_Waiter] = deque()


class FairRoom(Generic[Holder]):
    """Holders that wait take turns.

    With `queue_seconds_max`, what would wait longer than that, judged by those before it, is refused at once. So an
    overload has quick refusals, and what is let in doesn't wait long.
    """

    def __init__(
        self,
        capacity: int,
        *,
        least: int = 0,
        wait_seconds_max: float = WAIT_SECONDS_MAX,
        queue_seconds_max: float | None = None,
    ) -> None:
        self._share: FairShare[Holder] = FairShare(capacity, least=least)
        self._wait_seconds_max = wait_seconds_max
        self._queue_seconds_max = wait_seconds_max if queue_seconds_max is None else queue_seconds_max
        # In the order of turns.
        self._waiting: dict[Holder, _Queue] = {}
        # How long a turn is waited for, the mean of the last ones.
        self._turn_seconds = 0.0

    @property
    def taken(self) -> int:
        return self._share.taken

    def held(self, holder: Holder) -> int:
        return self._share.held(holder)

    def take_now(self, holder: Holder, units: int = 1) -> bool:
        """Take the units without waiting, unless there is no room or the holder has others waiting."""
        return (not self._waiting or holder not in self._waiting) and self._share.take(holder, units)

    async def take(self, holder: Holder, units: int = 1) -> None:
        """Take the units, which must be given back; raises when they were not to be had in time."""
        if self.take_now(holder, units):
            return
        loop = asyncio.get_running_loop()
        waiter = _Waiter(units, loop.time(), loop.create_future())
        self._queue(holder, waiter.since).waiters.append(waiter)
        deadline = loop.call_later(self._wait_seconds_max, _give_up, waiter)
        try:
            is_granted = await waiter.is_granted
        except asyncio.CancelledError:
            if waiter.is_granted.done() and not waiter.is_granted.cancelled() and waiter.is_granted.result():
                self.give_back(holder, units)
            raise
        finally:
            deadline.cancel()
            self._forget(holder, waiter)
        if not is_granted:
            raise _too_much_of_holder()

    def check_wait(self) -> None:
        """Raises while even one that has nothing would wait too long."""
        if self._waiting and self._turn_seconds >= self._queue_seconds_max:
            raise Refusal(Code.TEMPORARY_FAILURE, "More requests are waiting than the service takes: try again.", 1)

    def give_back(self, holder: Holder, units: int = 1) -> None:
        self._share.give_back(holder, units)
        if self._waiting:
            now = asyncio.get_running_loop().time()
            while self._grant(now):
                pass

    def _queue(self, holder: Holder, now: float) -> _Queue:
        """The holder's, unless the wait there would be too long."""
        self.check_wait()
        if not self._waiting:
            self._turn_seconds = 0.0
        queue = self._waiting.get(holder)
        if queue is None:
            queue = self._waiting[holder] = _Queue(now)
        elif (
            now - queue.waiters[0].since >= self._queue_seconds_max
            or (len(queue.waiters) + 1) * self._turn_seconds >= self._queue_seconds_max
        ):
            raise _too_much_of_holder()
        return queue

    def _grant(self, now: float) -> bool:
        """Grant the first of each waiting holder that has room; whether there was any."""
        has_granted = False
        for holder in list(self._waiting):
            if self._share.taken >= self._share.capacity:
                return False
            queue = self._waiting[holder]
            waiter = queue.waiters[0]
            is_over = waiter.is_granted.done()
            if is_over or self._share.take(holder, waiter.units):
                queue.waiters.popleft()
                del self._waiting[holder]
                if queue.waiters:
                    self._waiting[holder] = queue
                if not is_over:
                    self._turn_seconds += (now - queue.turn_since - self._turn_seconds) * TURN_WEIGHT
                    queue.turn_since = now
                    waiter.is_granted.set_result(True)
                has_granted = True
        return has_granted

    def _forget(self, holder: Holder, waiter: _Waiter) -> None:
        queue = self._waiting.get(holder)
        if queue is not None and waiter in queue.waiters:
            queue.waiters.remove(waiter)
            if not queue.waiters:
                del self._waiting[holder]


def _too_much_of_holder() -> Refusal:
    return Refusal(Code.TEMPORARY_FAILURE, "This account has too much in progress at once: send less at a time.", 1)


def _give_up(waiter: _Waiter) -> None:
    if not waiter.is_granted.done():
        waiter.is_granted.set_result(False)
