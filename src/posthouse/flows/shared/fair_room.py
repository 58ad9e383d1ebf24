"""A fair share of a capacity that a holder waits for: until another gives back, or the time is over."""

import asyncio
from collections import deque
from collections.abc import Hashable
from typing import Final, Generic, NamedTuple, TypeVar

from posthouse.rules.fair_share import FairShare
from posthouse.rules.refusal import Code, Refusal

WAIT_SECONDS_MAX: Final = 2.0

Holder = TypeVar("Holder", bound=Hashable)


class _Waiter(NamedTuple):
    units: int
    is_granted: "asyncio.Future[bool]"


class FairRoom(Generic[Holder]):
    def __init__(self, capacity: int, *, least: int = 0, wait_seconds_max: float = WAIT_SECONDS_MAX) -> None:
        self._share: FairShare[Holder] = FairShare(capacity, least=least)
        self._wait_seconds_max = wait_seconds_max
        # Holders take turns; of a holder the first comes first.
        self._waiting: dict[Holder, deque[_Waiter]] = {}

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
        self._waiting.setdefault(holder, deque()).append(waiter)
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
            raise Refusal(
                Code.TEMPORARY_FAILURE, "This account has too much in progress at once: send less at a time.", 1
            )

    def give_back(self, holder: Holder, units: int = 1) -> None:
        self._share.give_back(holder, units)
        if self._waiting:
            while self._grant():
                pass

    def _grant(self) -> bool:
        """Grant the first of each waiting holder that has room; whether there was any."""
        has_granted = False
        for holder in list(self._waiting):
            waiters = self._waiting[holder]
            waiter = waiters[0]
            is_over = waiter.is_granted.done()
            if is_over or self._share.take(holder, waiter.units):
                waiters.popleft()
                del self._waiting[holder]
                if waiters:
                    self._waiting[holder] = waiters
                if not is_over:
                    waiter.is_granted.set_result(True)
                has_granted = True
        return has_granted

    def _forget(self, holder: Holder, waiter: _Waiter) -> None:
        waiters = self._waiting.get(holder)
        if waiters is not None and waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._waiting[holder]


def _give_up(waiter: _Waiter) -> None:
    if not waiter.is_granted.done():
        waiter.is_granted.set_result(False)
