"""A value that many open pages request repeatedly, read once for all of them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

from posthouse.flows.operate.accounts import FirstAccounts
from posthouse.flows.operate.lanes import FirstLanes
from posthouse.flows.operate.monitor import QueueShares, RecentUsage, WaitingView
from posthouse.rules.check_up import DoctorCheck

# Checks query other servers, so within this time the last result is shown again.
CHECKED_FOR: Final = timedelta(seconds=30)
# Large reads are shown again within this time, however many pages are open.
READ_FOR: Final = timedelta(seconds=5)
RANKED_FOR: Final = timedelta(seconds=30)
MUCH: Final = 1_000

Value = TypeVar("Value")


class CachedRead(Generic[Value]):
    """The last value of a read in this process; requests that arrive during a read wait for the same one."""

    def __init__(self, keep_for: timedelta, is_kept: Callable[[Value], bool] = lambda _: True) -> None:
        """Drop the value, if it was so small that it need not be cached."""
        self._keep_for = keep_for
        self._is_kept = is_kept
        self._lock = asyncio.Lock()
        self._last: tuple[datetime, Value] | None = None

    async def get(self, now: Callable[[], datetime], read: Callable[[], Awaitable[Value]]) -> Value:
        async with self._lock:
            if self._last is not None and timedelta() <= now() - self._last[0] <= self._keep_for:
                return self._last[1]
            value = await read()
            self._last = (now(), value) if self._is_kept(value) else None
            return value

    def forget(self) -> None:
        """Drop the value after a change; other processes show the change when their value expires."""
        self._last = None


@dataclass(frozen=True, slots=True)
class CachedReads:
    """Cached reads of this process, which several pages and operators share."""

    checks: CachedRead[tuple[datetime, list[DoctorCheck]]] = field(default_factory=lambda: CachedRead(CHECKED_FOR))
    waiting: CachedRead[WaitingView] = field(
        default_factory=lambda: CachedRead(READ_FOR, lambda view: view.backlog.is_more)
    )
    usage: CachedRead[RecentUsage] = field(
        default_factory=lambda: CachedRead(READ_FOR, lambda recent: recent.rows_read > MUCH)
    )
    stopped_lanes: CachedRead[FirstLanes] = field(
        default_factory=lambda: CachedRead(READ_FOR, lambda first: first.rows_read > MUCH)
    )
    lanes: CachedRead[FirstLanes] = field(
        default_factory=lambda: CachedRead(READ_FOR, lambda first: first.rows_read > MUCH)
    )
    # Keyed by order and number, of which there are few.
    accounts: dict[tuple[str, int], CachedRead[FirstAccounts]] = field(default_factory=dict)
    shares: CachedRead[QueueShares] = field(default_factory=lambda: CachedRead(READ_FOR, lambda shares: shares.is_more))

    def first_accounts(self, order: str, count: int) -> CachedRead[FirstAccounts]:
        return self.accounts.setdefault((order, count), CachedRead(RANKED_FOR, lambda first: first.read > MUCH))
