"""Waits for the next message to a recipient.

A request looks once by itself. Then it waits without a database connection: once a second, one statement looks for all
requests of the process that wait.
"""

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final
from uuid import UUID

from posthouse.clock import Clock
from posthouse.rules import ids
from posthouse.rules.credential import Mode
from posthouse.rules.fair_share import FairShare
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.next_message import NextMessageQuery, next_message_query, require_readable
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import next_message
from posthouse.store.next_message import AwaitedMessage
from posthouse.store.postgres import Database

# Of one process; each account has a share.
WAITING_MAX: Final = 200
# An id is made before its message is committed: a look goes back as far as a commit may be late.
COMMITTED_WITHIN: Final = timedelta(seconds=60)
COMPARED_MAX: Final = 20_000


@dataclass(eq=False, slots=True)
class _Waiter:
    awaited: AwaitedMessage
    found: "asyncio.Future[MessageId]"


class NextMessage:
    def __init__(
        self, *, database: Database, clock: Clock, captures: bool = False, waiting_max: int = WAITING_MAX
    ) -> None:
        """`captures`: no mail leaves this service, so that live credentials may wait for it."""
        self._database = database
        self._clock = clock
        self._captures = captures
        self._share: FairShare[AccountId] = FairShare(waiting_max)
        self._waiters: set[_Waiter] = set()
        self._is_closed = False

    async def message_id(
        self, account_id: AccountId, mode: Mode, recipient: str, after: str | None, wait: str | None
    ) -> MessageId:
        """The oldest message to the recipient after `after`, once there is one; not found when the time is over."""
        require_readable(mode, captures=self._captures)
        query = next_message_query(recipient, after, wait, self._clock.now())
        awaited = AwaitedMessage(account_id, query.email, query.after, mode is Mode.TEST)
        if not self._share.take(account_id):
            raise Refusal(
                Code.RATE_LIMITED,
                "This account has too many requests that wait for a message: wait for fewer at a time.",
                1,
            )
        try:
            found = await self._first_of_each([awaited])
            return found[0] if found else await self._wait(awaited, query)
        finally:
            self._share.give_back(account_id)

    async def look(self) -> None:
        """Look for all that wait; to be called about once a second."""
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
        """End all waiting: the process stops, and its requests have seconds to be answered."""
        self._is_closed = True
        for waiter in self._waiters:
            _refuse(waiter, _stopping())

    async def _wait(self, awaited: AwaitedMessage, query: NextMessageQuery) -> MessageId:
        if self._is_closed:
            raise _stopping()
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
        """What is older than this was seen by the first look, however late it was committed."""
        return max(after, ids.lowest_id(self._clock.now() - COMMITTED_WITHIN))

    async def _first_of_each(self, awaited: list[AwaitedMessage]) -> dict[int, MessageId]:
        async with self._database.connection() as connection:
            return await next_message.first_of_each(connection, awaited, COMPARED_MAX)


def _refuse(waiter: _Waiter, refusal: Refusal) -> None:
    if not waiter.found.done():
        waiter.found.set_exception(refusal)


def _stopping() -> Refusal:
    return Refusal(Code.SERVICE_UNAVAILABLE, "This process is about to stop: ask again.", 1)


def _nothing(query: NextMessageQuery) -> Refusal:
    return Refusal(
        Code.NOT_FOUND,
        f"No message to {query.email} was accepted within {query.seconds} s: check that it was sent to this account, "
        "or ask again.",
    )
