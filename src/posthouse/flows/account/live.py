"""Live hints: tell streams of an account which messages were accepted, and which recipients have their result.

A stream holds no database connection. Once a second, one statement reads, for all watched accounts of the process, what
is above the horizon, below which nothing can appear any more. What the previous look did not find is new. So mail that
is committed late is found when it appears, whatever its id.

`NextMessage` waits in a similar way for the next message to a recipient.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final
from uuid import UUID

from posthouse.flows.shared.context import Context, Flow
from posthouse.flows.shared.shares import FairShare
from posthouse.rules import ids
from posthouse.rules import live as rules
from posthouse.rules.credential import Mode
from posthouse.rules.ids import AccountId, MessageId, UserId
from posthouse.rules.live import LiveEvent, NextMessageQuery, next_message_query, require_readable
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import live
from posthouse.store.live import AwaitedMessage, Horizon, Recent

# How many rows of each table a look reads for an account; fewer if many accounts are watched.
READ_MAX: Final = 2_000
READ_MIN: Final = 100
READ_OF_ALL_MAX: Final = 40_000

_ENDING: Final = frozenset({Code.UNAUTHORIZED, Code.FORBIDDEN})
# How many requests wait in one process; each account has a share.
WAITING_MAX: Final = 200
# An id is created before its message is committed, so a look goes back as far as a commit may be late.
COMMITTED_WITHIN: Final = timedelta(seconds=60)
COMPARED_MAX: Final = 20_000
_TOO_MANY: Final = Refusal(
    Code.RATE_LIMITED, "This account has too many requests that wait for a message: send fewer at a time.", 1
)


class Watcher:
    """A stream. Hints that it doesn't read in time are dropped, and it is asked to read everything again."""

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
        """End the stream; its last event says why."""
        if not self.is_over:
            self._events.append(rules.end(refusal))
            self.leave()

    def leave(self) -> None:
        self.is_over = True
        self._has_news.set()

    async def next(self, seconds: float) -> list[LiveEvent]:
        """What is new; nothing if that takes longer than `seconds`."""
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


class Live(Flow):
    def __init__(self, context: Context, *, streams_max: int = rules.STREAMS_MAX) -> None:
        super().__init__(context)
        self._accounts: dict[AccountId, _WatchedAccount] = {}
        self._streams: FairShare[UserId] = FairShare(streams_max, holder_max=rules.STREAMS_PER_USER_MAX)
        self._horizon: Horizon | None = None
        self._is_closed = False

    @contextmanager
    def watch(
        self, account_id: AccountId, user_id: UserId, check: Callable[[], Awaitable[object]]
    ) -> Iterator[Watcher]:
        """A stream of the account's hints, while the block runs."""
        if self._is_closed:
            raise _stopping("connect again")
        self._take_stream(account_id, user_id)
        account = self._accounts.setdefault(account_id, _WatchedAccount())
        watcher = Watcher(check)
        if account.recent is not None:
            watcher.put(rules.READY)
        account.watchers.add(watcher)
        try:
            yield watcher
        finally:
            watcher.leave()
            account.watchers.discard(watcher)
            if not account.watchers:
                self._accounts.pop(account_id, None)
            self._streams.release_units(user_id)

    async def look(self) -> None:
        """Look for new results in all watched accounts, and end streams that are no longer admitted.

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
        """End all streams, because the process stops."""
        self._is_closed = True
        for watcher in self._watchers():
            watcher.end(_stopping("connect again"))

    def _take_stream(self, account_id: AccountId, user_id: UserId) -> None:
        account = self._accounts.get(account_id)
        if self._streams.held(user_id) >= rules.STREAMS_PER_USER_MAX:
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
        if not self._streams.take_units(user_id):
            raise Refusal(Code.TEMPORARY_FAILURE, "Many streams are open: read the lists instead, or try later.", 30)

    async def _find(self) -> None:
        account_ids = list(self._accounts)
        limit = max(READ_MIN, min(READ_MAX, READ_OF_ALL_MAX // len(account_ids)))
        async with self._database.connection() as connection:
            # Read before the rows, and used by the next look.
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
                    return  # PostgreSQL is unavailable, and with it everything that a hint could name
                watcher.end(refusal)

    def _watchers(self) -> list[Watcher]:
        return [watcher for account in self._accounts.values() for watcher in account.watchers]


def _new_events(known: Recent | None, recent: Recent, limit: int) -> list[LiveEvent]:
    """What `recent` has and the previous look had not; the first look has nothing to compare with."""
    if known is None:
        return [rules.READY]
    if len(recent.messages) >= limit or len(recent.results) >= limit:
        return [rules.RESYNC]
    messages = sorted(recent.messages - known.messages)
    results = [recent.results[event_id] for event_id in sorted(recent.results.keys() - known.results.keys())]
    if max(len(messages), len(results)) > rules.NAMED_MAX:
        return [rules.RESYNC]
    return [*([rules.accepted(messages)] if messages else []), *([rules.final(results)] if results else [])]


def _stopping(what_to_do: str) -> Refusal:
    return Refusal(Code.SERVICE_UNAVAILABLE, f"This process is about to stop: {what_to_do}.", 1)


@dataclass(eq=False, slots=True)
class _Waiter:
    awaited: AwaitedMessage
    found: "asyncio.Future[MessageId]"


class NextMessage(Flow):
    """Waits for the next message to a recipient.

    A request first looks once on its own. Then it waits without a database connection: once a second, one statement
    looks for all waiting requests of the process.
    """

    def __init__(self, context: Context, *, captures: bool = False, waiting_max: int = WAITING_MAX) -> None:
        """`captures`: no mail leaves this service, so that live credentials may wait for it."""
        super().__init__(context)
        self._captures = captures
        self._share: FairShare[AccountId] = FairShare(waiting_max)
        self._waiters: set[_Waiter] = set()
        self._is_closed = False

    async def message_id(
        self, account_id: AccountId, mode: Mode, recipient: str, after: str | None, wait: str | None
    ) -> MessageId:
        """The oldest message to the recipient after `after`, once there is one; not found if none comes in time."""
        require_readable(mode, captures=self._captures)
        query = next_message_query(recipient, after, wait, self._clock.now())
        awaited = AwaitedMessage(account_id, query.email, query.after, mode is Mode.TEST)
        with self._share.taking(account_id, _TOO_MANY):
            found = await self._first_of_each([awaited])
            return found[0] if found else await self._wait(awaited, query)

    async def look(self) -> None:
        """Look for all waiting requests; to be called about once a second."""
        waiters = [waiter for waiter in self._waiters if not waiter.found.done()]
        if not waiters:
            return
        try:
            found = await self._first_of_each([waiter.awaited for waiter in waiters])
        except Refusal as refusal:
            for waiter in waiters:
                _refuse(waiter, refusal.copy())
            return
        for place, message_id in found.items():
            if not waiters[place].found.done():
                waiters[place].found.set_result(message_id)

    def close(self) -> None:
        """End all waiting, because the process stops, and its requests must be answered within seconds."""
        self._is_closed = True
        for waiter in self._waiters:
            _refuse(waiter, _stopping("send the request again"))

    async def _wait(self, awaited: AwaitedMessage, query: NextMessageQuery) -> MessageId:
        if self._is_closed:
            raise _stopping("send the request again")
        waiter = _Waiter(replace(awaited, after=self._settled(query.after)), asyncio.get_running_loop().create_future())
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(query.seconds):
                return await waiter.found
        except TimeoutError:
            raise _nothing(query) from None
        finally:
            self._waiters.discard(waiter)

    def _settled(self, after: UUID) -> UUID:
        """Messages older than this were seen by the first look, however late they were committed."""
        return max(after, ids.lowest_id(self._clock.now() - COMMITTED_WITHIN))

    async def _first_of_each(self, awaited: list[AwaitedMessage]) -> dict[int, MessageId]:
        async with self._database.connection() as connection:
            return await live.awaited_messages(connection, awaited, COMPARED_MAX)


def _refuse(waiter: _Waiter, refusal: Refusal) -> None:
    if not waiter.found.done():
        waiter.found.set_exception(refusal)


def _nothing(query: NextMessageQuery) -> Refusal:
    return Refusal(
        Code.NOT_FOUND,
        f"No message to {query.email} was accepted within {query.seconds} s: check that it was sent to this account, "
        "or send the request again.",
    )
