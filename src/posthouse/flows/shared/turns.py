"""Turns for work that takes a core for a while, such as a password's hash or an RSA key.

Little is done at once, and holders (accounts, networks) take turns, so that a holder with much to do hardly delays the
others. What is in progress is bounded, with a share for each holder: what goes beyond it is refused for the moment.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, Generic, TypeVar

from posthouse.rules.fair_share import FairShare
from posthouse.rules.refusal import Code, Refusal

RETRY_SECONDS: Final = 2
WAITING_SECONDS_MAX: Final = 10.0

Holder = TypeVar("Holder", bound=Hashable)


class Turns(Generic[Holder]):
    def __init__(self, *, at_once_max: int, in_progress_max: int, work: str) -> None:
        """`work` names in a refusal what there is too much of: "Many passwords are being checked"."""
        self._free = at_once_max
        self._share: FairShare[Holder] = FairShare(in_progress_max)
        self._work = work
        # In the order of turns.
        self._waiting: OrderedDict[Holder, deque[asyncio.Future[None]]] = OrderedDict()

    @contextmanager
    def place(self, holder: Holder) -> Iterator[None]:
        """A place in what is in progress; raises when the holder has its share already."""
        if not self._share.take(holder):
            raise self._busy()
        try:
            yield
        finally:
            self._share.give_back(holder)

    @asynccontextmanager
    async def turn(self, holder: Holder) -> AsyncIterator[None]:
        """The holder's turn to do the work; raises when it doesn't come in time for an answer."""
        try:
            async with asyncio.timeout(WAITING_SECONDS_MAX):
                await self._wait(holder)
        except TimeoutError:
            raise self._busy() from None
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, holder: Holder) -> None:
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(holder, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pass_on()
            raise

    def _busy(self) -> Refusal:
        return Refusal(Code.TEMPORARY_FAILURE, f"{self._work} at this moment: try again.", RETRY_SECONDS)

    def _pass_on(self) -> None:
        """To the holder whose turn it is; what was cancelled has none."""
        while self._waiting:
            holder, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[holder] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
