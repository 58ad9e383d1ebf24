"""Live hints: streams of an account learn which messages were accepted, and which recipients have their result.

A stream holds no database connection. Once a second, one statement reads for all watched accounts of the process what
is above the horizon, below which nothing can appear any more; what the look before did not have is new. So mail that
is committed late is found when it appears, whatever its id.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from posthouse.clock import Clock
from posthouse.rules import live as rules
from posthouse.rules.ids import AccountId, UserId
from posthouse.rules.live import LiveEvent
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import live
from posthouse.store.live import Horizon, Recent
from posthouse.store.postgres import Database

# Rows of each table that a look reads of an account: fewer, if many accounts are watched.
READ_MAX: Final = 2_000
READ_MIN: Final = 100
READ_OF_ALL_MAX: Final = 40_000

_ENDING: Final = frozenset({Code.UNAUTHORIZED, Code.FORBIDDEN})


class Watcher:
    """A stream. What it doesn't read in time is dropped: it is then asked to read everything again."""

    def __init__(self, check: Callable[[], Awaitable[object]]) -> None:
        """`check` raises a Refusal once the stream's caller is no longer admitted."""
        self.check = check
        self.is_over = False
        self._events: deque[LiveEvent] = deque()
        self._queued_bytes = 0
        self._has_news = asyncio.Event()

    def put(self, event: LiveEvent) -> None:
        if self.is_over:
            return
        self._queued_bytes += len(event.data)
        if self._queued_bytes > rules.QUEUED_BYTES_MAX:
            self._events.clear()
            event = rules.RESYNC
            self._queued_bytes = len(event.data)
        self._events.append(event)
        self._has_news.set()

    def end(self, refusal: Refusal) -> None:
        """Its last event says why."""
        if not self.is_over:
            self._events.append(rules.end(refusal))
            self.leave()

    def leave(self) -> None:
        self.is_over = True
        self._has_news.set()

    async def next(self, seconds: float) -> list[LiveEvent]:
        """What is new, or nothing after so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._has_news.wait()
        except TimeoutError:
            return []
        if not self.is_over:
            self._has_news.clear()
        events = list(self._events)
        self._events.clear()
        self._queued_bytes = 0
        return events


class _WatchedAccount:
    def __init__(self) -> None:
        self.watchers: set[Watcher] = set()
        # What the last look found; None before the first.
        self.recent: Recent | None = None


class Live:
    def __init__(self, *, database: Database, clock: Clock, streams_max: int = rules.STREAMS_MAX) -> None:
        self._database = database
        self._clock = clock
        self._streams_max = streams_max
        self._accounts: dict[AccountId, _WatchedAccount] = {}
        self._streams_of_user: Counter[UserId] = Counter()
        self._horizon: Horizon | None = None
        self._is_closed = False

    @contextmanager
    def watch(
        self, account_id: AccountId, user_id: UserId, check: Callable[[], Awaitable[object]]
    ) -> Iterator[Watcher]:
        """A stream of the account's hints, while the block runs."""
        if self._is_closed:
            raise _stopping()
        self._require_room(account_id, user_id)
        account = self._accounts.setdefault(account_id, _WatchedAccount())
        watcher = Watcher(check)
        if account.recent is not None:
            watcher.put(rules.READY)
        account.watchers.add(watcher)
        self._streams_of_user[user_id] += 1
        try:
            yield watcher
        finally:
            watcher.leave()
            account.watchers.discard(watcher)
            if not account.watchers:
                self._accounts.pop(account_id, None)
            self._streams_of_user[user_id] -= 1
            if not self._streams_of_user[user_id]:
                del self._streams_of_user[user_id]

    async def look(self) -> None:
        """Look for what is new in all watched accounts, and end streams that are no longer admitted.

        To be called about once a second.
        """
        if not self._accounts:
            self._horizon = None
            return
        try:
            await self._find()
        finally:
            await self._check()

    def close(self) -> None:
        """End all streams: the process stops."""
        self._is_closed = True
        for watcher in self._watchers():
            watcher.end(_stopping())

    def _require_room(self, account_id: AccountId, user_id: UserId) -> None:
        account = self._accounts.get(account_id)
        if self._streams_of_user[user_id] >= rules.STREAMS_PER_USER_MAX:
            raise Refusal(
                Code.RATE_LIMITED,
                f"You have {rules.STREAMS_PER_USER_MAX} streams open: close those that you don't read.",
                5,
            )
        if account is not None and len(account.watchers) >= rules.STREAMS_PER_ACCOUNT_MAX:
            raise Refusal(
                Code.RATE_LIMITED,
                f"This account has {rules.STREAMS_PER_ACCOUNT_MAX} streams open: read its lists instead.",
                30,
            )
        if sum(self._streams_of_user.values()) >= self._streams_max:
            raise Refusal(Code.TEMPORARY_FAILURE, "Many streams are open: read the lists instead, or try later.", 30)

    async def _find(self) -> None:
        account_ids = list(self._accounts)
        limit = max(READ_MIN, min(READ_MAX, READ_OF_ALL_MAX // len(account_ids)))
        async with self._database.connection() as connection:
            # Asked for before the rows are read, and used by the next look.
            horizon = await live.horizon(connection, self._clock.now())
            found = await live.recent(connection, account_ids, self._horizon or horizon, limit)
        self._horizon = horizon
        for account_id, recent in found.items():
            account = self._accounts.get(account_id)
            if account is not None:
                for event in _new_events(account.recent, recent, limit):
                    for watcher in account.watchers:
                        watcher.put(event)
                account.recent = recent

    async def _check(self) -> None:
        for watcher in self._watchers():
            try:
                await watcher.check()
            except Refusal as refusal:
                if refusal.code not in _ENDING:
                    return  # PostgreSQL is away, and with it everything that a hint could name
                watcher.end(refusal)

    def _watchers(self) -> list[Watcher]:
        return [watcher for account in self._accounts.values() for watcher in account.watchers]


def _new_events(known: Recent | None, recent: Recent, limit: int) -> list[LiveEvent]:
    """What `recent` has and the look before it had not; the first look has nothing to compare with."""
    if known is None:
        return [rules.READY]
    if len(recent.messages) >= limit or len(recent.results) >= limit:
        return [rules.RESYNC]
    messages = sorted(recent.messages - known.messages)
    results = [recent.results[event_id] for event_id in sorted(recent.results.keys() - known.results.keys())]
    if max(len(messages), len(results)) > rules.NAMED_AT_ONCE_MAX:
        return [rules.RESYNC]
    return [*([rules.accepted(messages)] if messages else []), *([rules.final(results)] if results else [])]


def _stopping() -> Refusal:
    return Refusal(Code.SERVICE_UNAVAILABLE, "This process is about to stop: connect again.", 1)
