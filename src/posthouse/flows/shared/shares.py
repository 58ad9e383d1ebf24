"""What accounts and networks use together: a share that is taken at once, one that is waited for, and a rate.

Decision record 0022 has the reasons, docs/internals/shares.md every bound. `FairShare` is the rule for what can't be
taken back once it was taken, such as sessions, bytes of memory and calls in progress. So a part stays free for those
who have nothing yet:

- a holder that has nothing, or whose total stays within `least`, may take, as long as anything is free;
- among several holders, each may have its share: `SHARED_PART` of the capacity, divided by the number of holders;
- a holder never has more than `FREE_FACTOR` times what is left. For a single holder, that is `SHARED_PART` of the
  capacity.

A holder above its share keeps what it has and gets no more until it has released enough. Shares depend only on the
number of holders, not on how many keys, addresses or connections each of them uses.
"""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Hashable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import Final, Generic, NamedTuple, TypeVar

from posthouse.rules import rate_limit
from posthouse.rules.rate_limit import Rate, RateReading, RateWait
from posthouse.rules.refusal import Code, Refusal, too_many_waiting

SHARED_PART: Final = 0.8
FREE_FACTOR: Final = SHARED_PART / (1 - SHARED_PART)
# The capacity of what only has a bound for each holder.
UNLIMITED: Final = sys.maxsize

WAIT_SECONDS_MAX: Final = 2.0
# For the turns of work that takes a core for a while, such as a password's hash or an RSA key.
TURN_SECONDS_MAX: Final = 10.0
# With `queue_seconds_max`, this many may always wait.
WAITING_MIN: Final = 16
# Until the rate is measured, taken units are expected to be returned after this time.
FIRST_SECONDS: Final = 0.1
# The time over which the rate is measured.
RATE_SECONDS: Final = 0.1

# How many keys a rate remembers.
KEYS_MAX: Final = 10_000

Holder = TypeVar("Holder", bound=Hashable)
Key = TypeVar("Key", bound=Hashable)


def busy(work: str) -> Refusal:
    """`work` says what there is too much of: "Many passwords are being checked"."""
    return Refusal(Code.TEMPORARY_FAILURE, f"{work} at this moment: try again.", 2)


_TOO_MUCH_OF_HOLDER: Final = Refusal(
    Code.TEMPORARY_FAILURE, "This account has too much in progress: send less at a time.", 1
)


class FairShare(Generic[Holder]):
    """A share that is taken at once, or not. Every operation takes constant time."""

    __slots__ = ("_divided", "_least", "capacity", "holdings", "taken")

    def __init__(self, capacity: int, *, least: int = 0, holder_max: int | None = None) -> None:
        """`least` is for items that are taken in parts: a share must not become too small for one complete item.

        With `holder_max`, the capacity is not divided: each holder may have this much, while any is free.
        """
        if capacity < 1:
            raise ValueError("the capacity must be at least 1")
        self.capacity = capacity
        self.taken = 0
        # How many units each holder has; the others have none.
        self.holdings: dict[Holder, int] = {}
        self._least = least if holder_max is None else holder_max
        self._divided = SHARED_PART * capacity if holder_max is None else 0.0

    @property
    def most(self) -> int:
        """How many units a holder may have once it has taken one more; 0 while none is free."""
        free_after = self.capacity - self.taken - 1
        if free_after < 0:
            return 0
        share = self._divided / (len(self.holdings) or 1)
        return max(1, self._least, int(min(FREE_FACTOR * free_after, share)))

    def held(self, holder: Holder) -> int:
        return self.holdings.get(holder, 0)

    def has_capacity(self, holder: Holder, units: int = 1) -> bool:
        """Whether the holder may take this many units now."""
        return self._fits(self.holdings.get(holder, 0), units)

    def _fits(self, held: int, units: int) -> bool:
        free_after = self.capacity - self.taken - units
        if free_after < 0:
            return False
        wanted = held + units
        if not held or wanted <= self._least:
            return True
        return wanted <= FREE_FACTOR * free_after and wanted <= self._divided / len(self.holdings)

    def take_units(self, holder: Holder, units: int = 1) -> bool:
        """Take the units, if the holder may; they must be released."""
        held = self.holdings.get(holder, 0)
        taken = self.taken + units
        if taken > self.capacity or (held and not self._fits(held, units)):
            return False
        self.holdings[holder] = held + units
        self.taken = taken
        return True

    def release_units(self, holder: Holder, units: int = 1) -> None:
        left = self.holdings.get(holder, 0) - units
        if left < 0:
            raise ValueError("more units were released than were taken")
        self.taken -= units
        if left:
            self.holdings[holder] = left
        else:
            self.holdings.pop(holder, None)

    @contextmanager
    def taking(self, holder: Holder, refusal: Refusal, units: int = 1) -> Iterator[None]:
        """The units, while the block runs; raises the refusal if the holder may not take them."""
        if not self.take_units(holder, units):
            raise refusal.copy()
        try:
            yield
        finally:
            self.release_units(holder, units)


class _Waiter(NamedTuple):
    units: int
    is_granted: "asyncio.Future[bool]"


class WaitedShare(Generic[Holder]):
    """A fair share for which holders wait, in turns, until another returns some or the time is over.

    With `queue_seconds_max`, a request that would wait longer than that, estimated from the rate of turns, is refused:
    immediately if too many holders wait, and after that time if it would wait for its own holder's others. So an
    overload gets quick refusals, admitted requests don't wait long, and a holder that tries again at once takes no time
    from others.
    """

    def __init__(
        self,
        capacity: int,
        *,
        holder_max: int | None = None,
        wait_seconds_max: float = WAIT_SECONDS_MAX,
        queue_seconds_max: float | None = None,
        refusal: Refusal = _TOO_MUCH_OF_HOLDER,
    ) -> None:
        """`refusal` is for a holder whose turn doesn't come in time."""
        self._share: FairShare[Holder] = FairShare(capacity, holder_max=holder_max)
        self._wait_seconds_max = wait_seconds_max
        self._queue_seconds_max = queue_seconds_max
        self._refusal = refusal
        # In the order of turns; for each holder, the first comes first.
        self._waiting: dict[Holder, deque[_Waiter]] = {}
        self._waiting_count = 0
        # Turns per second while others wait, and turns since that was last computed.
        self._rate = capacity / FIRST_SECONDS
        self._granted = 0
        self._granted_since = 0.0

    @property
    def taken(self) -> int:
        return self._share.taken

    def held(self, holder: Holder) -> int:
        return self._share.held(holder)

    def acquire_units_now(self, holder: Holder, units: int = 1) -> bool:
        """Take the units without waiting, unless there is no capacity or others of the holder wait."""
        return (not self._waiting or holder not in self._waiting) and self._share.take_units(holder, units)

    async def acquire_units(self, holder: Holder, units: int = 1) -> None:
        """Take the units, which must be released; raises if they don't become available in time."""
        if self.acquire_units_now(holder, units):
            return
        await self._require_short_wait(holder)
        loop = asyncio.get_running_loop()
        waiter = _Waiter(units, loop.create_future())
        self._add(holder, waiter, loop.time())
        deadline = loop.call_later(self._wait_seconds_max, _give_up, waiter)
        try:
            is_granted = await waiter.is_granted
        except asyncio.CancelledError:
            if waiter.is_granted.done() and not waiter.is_granted.cancelled() and waiter.is_granted.result():
                self.release_units(holder, units)
            raise
        finally:
            deadline.cancel()
            self._forget(holder, waiter)
        if not is_granted:
            raise self._refusal.copy()

    @asynccontextmanager
    async def turn(self, holder: Holder) -> AsyncIterator[None]:
        """One unit, while the block runs; raises if it doesn't become available in time."""
        await self.acquire_units(holder)
        try:
            yield
        finally:
            self.release_units(holder)

    def check_wait(self) -> None:
        """Raises while even a holder that has nothing would wait, and too long."""
        if self._share.taken >= self._share.capacity and self._is_too_long(0):
            raise too_many_waiting()

    async def _require_short_wait(self, holder: Holder) -> None:
        own = len(self._waiting.get(holder, ()))
        if self._queue_seconds_max is None or not self._is_too_long(own):
            return
        if not own:
            raise too_many_waiting()
        await asyncio.sleep(self._queue_seconds_max)
        raise self._refusal.copy()

    def release_units(self, holder: Holder, units: int = 1) -> None:
        self._share.release_units(holder, units)
        if self._waiting:
            # Without a common capacity, the others can't have waited for these units.
            is_common = self._share.capacity < UNLIMITED
            while self._grant(list(self._waiting) if is_common else (holder,)):
                pass
            self._work_out_rate()

    def _is_too_long(self, own: int) -> bool:
        """Whether one more would wait too long, after this many of its holder: each waits a turn of every holder."""
        if self._queue_seconds_max is None or self._waiting_count < WAITING_MIN:
            return False
        holders = len(self._waiting) + (not own)
        return (own + 1) * holders > self._rate * self._queue_seconds_max

    def _add(self, holder: Holder, waiter: _Waiter, now: float) -> None:
        waiters = self._waiting.get(holder)
        if waiters is None:
            if not self._waiting:
                self._granted, self._granted_since = 0, now
            waiters = self._waiting[holder] = deque()
        waiters.append(waiter)
        self._waiting_count += 1

    def _work_out_rate(self) -> None:
        now = asyncio.get_running_loop().time()
        seconds = now - self._granted_since
        if seconds >= RATE_SECONDS:
            # The mean with the previous rate, because turns are granted in batches.
            self._rate = (self._rate + self._granted / seconds) / 2
            self._granted, self._granted_since = 0, now

    def _grant(self, holders: Iterable[Holder]) -> bool:
        """Grant the first of each of these holders that has capacity; returns whether there was any."""
        has_granted = False
        for holder in holders:
            if self._share.taken >= self._share.capacity:
                return False
            waiters = self._waiting.get(holder)
            if waiters is None:
                continue
            waiter = waiters[0]
            is_over = waiter.is_granted.done()
            if is_over or self._share.take_units(holder, waiter.units):
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


def _give_up(waiter: _Waiter) -> None:
    if not waiter.is_granted.done():
        waiter.is_granted.set_result(False)


class Rates(Generic[Key]):
    """A rate limit per key in the memory of this process, for requests that leave nothing in the database.

    Each process keeps its own count: this bounds how much work a client can cause in a process, and doesn't meter
    usage.
    """

    def __init__(self, *, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._full_at: dict[Key, datetime] = {}

    def take_request(self, key: Key, rate: Rate, now: datetime) -> RateWait | None:
        """Take one request from the key's rate; with a RateWait, nothing was taken."""
        taken = rate_limit.take_from_rate(rate, self._full_at.get(key, now), now)
        if isinstance(taken, RateWait):
            return taken
        self._note(key, taken.full_at, now)
        return None

    def require(
        self, key: Key, rate: Rate, now: datetime, allowed: str, *, otherwise: str = "", has_headers: bool = False
    ) -> None:
        """Take one request from the key's rate; raises, with `allowed` in the text, if it has to wait."""
        wait = self.take_request(key, rate, now)
        if wait is not None:
            refusal = wait.refusal(allowed, otherwise)
            if has_headers:
                refusal.headers = rate_limit.rate_headers(rate, self.reading(key, rate, now))
            raise refusal

    def charge(self, key: Key, rate: Rate, now: datetime, count: int) -> None:
        """Take what was already used: later requests wait for it."""
        self._note(key, rate_limit.charge(rate, self._full_at.get(key, now), now, count), now)

    def reading(self, key: Key, rate: Rate, now: datetime) -> RateReading:
        return rate_limit.reading(rate, self._full_at.get(key, now), now)

    def _note(self, key: Key, full_at: datetime, now: datetime) -> None:
        if len(self._full_at) >= self._keys_max:
            self._forget_keys(now)
        self._full_at[key] = full_at

    def _forget_keys(self, now: datetime) -> None:
        """Forget keys whose whole burst is available again; if there is none, forget all."""
        self._full_at = {key: full_at for key, full_at in self._full_at.items() if full_at > now}
        if len(self._full_at) >= self._keys_max:
            self._full_at.clear()
