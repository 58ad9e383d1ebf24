"""Few requests of an account are worked on at a time, and of a network without a credential; its others wait.

All requests of a process share an event loop. A request would otherwise wait behind as many others as one account has
connections. Sending has a share of its own (`in_progress`), and requests that wait for something take no place.
"""

import asyncio
from collections import deque
from collections.abc import Hashable
from typing import Final

from starlette.types import Scope

from posthouse.rules.refusal import Code, Refusal

AT_ONCE_MAX: Final = 4
WAIT_SECONDS_MAX: Final = 5.0
# Their responses wait for something to happen.
WAITING_PATHS: Final = frozenset({"/v1/live", "/v1/messages/next"})

_HOLDER: Final = "posthouse.at_once"


class AtOnce:
    """Of one process."""

    def __init__(self, at_once_max: int = AT_ONCE_MAX, wait_seconds_max: float = WAIT_SECONDS_MAX) -> None:
        self._at_once_max = at_once_max
        self._wait_seconds_max = wait_seconds_max
        self._at_work: dict[Hashable, int] = {}
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}

    async def begin(self, scope: Scope, holder: Hashable) -> None:
        """Wait for the holder's turn; `end` gives it back."""
        if _HOLDER in scope or scope["path"] in WAITING_PATHS:
            return
        at_work = self._at_work.get(holder, 0)
        if at_work < self._at_once_max:
            self._at_work[holder] = at_work + 1
        else:
            await self._wait(holder)
        scope[_HOLDER] = holder

    def end(self, scope: Scope) -> None:
        """When the response begins, or the request ends without one."""
        holder = scope.pop(_HOLDER, None)
        if holder is not None:
            self._pass_on(holder)

    async def _wait(self, holder: Hashable) -> None:
        """For the place of a request that ends."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(holder, deque()).append(turn)
        try:
            async with asyncio.timeout(self._wait_seconds_max):
                await turn
        except (TimeoutError, asyncio.CancelledError) as error:
            if turn.done() and not turn.cancelled():
                self._pass_on(holder)
            if isinstance(error, asyncio.CancelledError):
                raise
            raise Refusal(
                Code.TEMPORARY_FAILURE, "Too many requests of this account at once: send fewer at a time.", 1
            ) from None

    def _pass_on(self, holder: Hashable) -> None:
        waiting = self._waiting.get(holder)
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break
        else:
            self._waiting.pop(holder, None)
            left = self._at_work[holder] - 1
            if left:
                self._at_work[holder] = left
            else:
                del self._at_work[holder]
