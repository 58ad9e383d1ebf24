"""A fair share of a capacity that a holder waits for: until another gives back, or the time is over."""

import asyncio
from collections import deque
from collections.abc import Hashable
from typing import Final, Generic, NamedTuple, TypeVar

from posthouse.rules.fair_share import FairShare
from posthouse.rules.refusal import Code, Refusal, too_many_waiting

WAIT_SECONDS_MAX: Final = 2.0
# With `queue_seconds_max`: so many may always wait.
WAITING_MIN: Final = 16
# What is taken is expected to be given back after this time, until the rate is measured.
FIRST_SECONDS: Final = 0.1
# The time over which the rate is measured.
RATE_SECONDS: Final = 0.1

Holder = TypeVar("Holder", bound=Hashable)


class _Waiter(NamedTuple):
    units: int
    is_granted: "asyncio.Future[bool]"


class FairRoom(Generic[Holder]):
    """Holders that wait take turns.

    With `queue_seconds_max`, what would wait longer than that, by the rate at which turns are granted, is refused at
    once. So an overload has quick refusals, and what is let in doesn't wait long.
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
        self._queue_seconds_max = queue_seconds_max
        # In the order of turns; of a holder the first comes first.
        self._waiting: dict[Holder, deque[_Waiter]] = {}
        self._waiting_count = 0
        # Turns a second while others wait, and those since it was last worked out.
        self._rate = capacity / FIRST_SECONDS
        self._granted = 0
        self._granted_since = 0.0

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
        waiter = _Waiter(units, loop.create_future())
        self._add(holder, waiter, loop.time())
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
        """Raises while even a holder with nothing waiting would wait too long."""
        if self._is_too_long(0):
            raise too_many_waiting()

    def give_back(self, holder: Holder, units: int = 1) -> None:
        self._share.give_back(holder, units)
        if self._waiting:
            while self._grant():
                pass
            self._work_out_rate()

    def _is_too_long(self, own: int) -> bool:
        """Whether one more would wait too long, behind so many of its holder: each waits for a turn of every holder."""
        if self._queue_seconds_max is None or self._waiting_count < WAITING_MIN:
            return False
        holders = len(self._waiting) + (not own)
        return (own + 1) * holders > self._rate * self._queue_seconds_max

    def _add(self, holder: Holder, waiter: _Waiter, now: float) -> None:
        waiters = self._waiting.get(holder)
        if waiters is None:
            self.check_wait()
            if not self._waiting:
                self._granted, self._granted_since = 0, now
            waiters = self._waiting[holder] = deque()
        elif self._is_too_long(len(waiters)):
            raise _too_much_of_holder()
        waiters.append(waiter)
        self._waiting_count += 1

    def _work_out_rate(self) -> None:
        now = asyncio.get_running_loop().time()
        seconds = now - self._granted_since
        if seconds >= RATE_SECONDS:
            # The mean with what it was: turns are granted in batches.
            self._rate = (self._rate + self._granted / seconds) / 2
            self._granted, self._granted_since = 0, now

    def _grant(self) -> bool:
        """Grant the first of each waiting holder that has room; whether there was any."""
        has_granted = False
        for holder in list(self._waiting):
            if self._share.taken >= self._share.capacity:
                return False
            waiters = self._waiting[holder]
            waiter = waiters[0]
            is_over = waiter.is_granted.done()
            if is_over or self._share.take(holder, waiter.units):
                waiters.popleft()
                self._waiting_count -= 1
                del self._waiting[holder]
                if waiters:
                    self._waiting[holder] = waiters
                if not is_over:
                    self._granted += 1
                    waiter.is_granted.set_result(True)
                has_granted = True
        return has_granted

    def _forget(self, holder: Holder, waiter: _Waiter) -> None:
        waiters = self._waiting.get(holder)
        if waiters is not None and waiter in waiters:
            waiters.remove(waiter)
            self._waiting_count -= 1
            if not waiters:
                del self._waiting[holder]


def _too_much_of_holder() -> Refusal:
    return Refusal(Code.TEMPORARY_FAILURE, "This account has too much in progress at once: send less at a time.", 1)


def _give_up(waiter: _Waiter) -> None:
    if not waiter.is_granted.done():
        waiter.is_granted.set_result(False)
