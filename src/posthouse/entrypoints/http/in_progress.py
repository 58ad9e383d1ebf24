"""What accounts have in progress: each has its share of the memory for bodies, and of the work of accepting mail.

Memory is taken when the credential is known, before the body is read; work when the body is complete. A request that
finds no room waits, and is refused when it would wait or has waited too long. So a slow sender holds memory alone,
and the mail of an account waits behind a few requests of each other account, however many they send.

The account's limits (rate, warm-up, credits) are decided at the end of the work, because a replay must not meet them.
So the requests of an account that has just met one are worked on a few at a time.
"""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Final

from posthouse.flows.shared.fair_room import FairRoom
from posthouse.rules import limits
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Code, Refusal

# Of all bodies that this process holds at a time, complete or not.
BODY_BYTES_MAX: Final = 512 * limits.MIB
# Processing a body may take this many times its size.
WEIGHT: Final = 3
# Smaller bodies are not counted: they take no more than the buffers of their connection, which has a share itself.
COUNTED_BYTES_MIN: Final = 16 * 1024
# A body of unknown size counts as this much, until it is larger.
UNKNOWN_BYTES: Final = limits.THREAD_BODY_BYTES_MIN

# A unit of work is a small message, this many bytes of a larger one, or this many recipients.
WORK_BYTES: Final = 8 * 1024
WORK_RECIPIENTS: Final = 10
WORK_MAX: Final = 160
# Of a large mail or a bulk request: three of an account alone, and one of another account beside them.
LARGE_WORK: Final = WORK_MAX // 4
WORK_SECONDS_MAX: Final = 4.0
# A request that would wait longer, by the rate of turns, is refused at once.
QUEUE_SECONDS_MAX: Final = 0.25
# Of a request of an account that met a limit within this time: four at a time.
OVER_LIMIT_WORK: Final = WORK_MAX // 5
OVER_LIMIT_SECONDS: Final = 1.0
OVER_LIMIT_ACCOUNTS_MAX: Final = 10_000

_LIMITS: Final = frozenset({Code.RATE_LIMITED, Code.WARMUP_LIMITED, Code.INSUFFICIENT_CREDITS, Code.ACCOUNT_SUSPENDED})


class InProgress:
    """Of one process."""

    def __init__(self) -> None:
        self.body_bytes: FairRoom[AccountId] = FairRoom(BODY_BYTES_MAX)
        self.work: FairRoom[AccountId] = FairRoom(
            WORK_MAX, wait_seconds_max=WORK_SECONDS_MAX, queue_seconds_max=QUEUE_SECONDS_MAX
        )
        self._over_limit_until: dict[AccountId, float] = {}

    def request(self, account_id: AccountId, headers: Mapping[bytes, bytes]) -> "RequestInProgress":
        """To be entered before the body is read; the headers are checked already."""
        length = headers.get(b"content-length", b"")
        return RequestInProgress(self, account_id, int(length) if length.isdigit() else UNKNOWN_BYTES)

    def met_limit(self, account_id: AccountId) -> None:
        if len(self._over_limit_until) >= OVER_LIMIT_ACCOUNTS_MAX:
            self._over_limit_until.clear()
        self._over_limit_until[account_id] = time.monotonic() + OVER_LIMIT_SECONDS

    def work_of(self, account_id: AccountId, body: bytes) -> int:
        if len(body) > limits.THREAD_BODY_BYTES_MIN:
            work = LARGE_WORK
        else:
            # Every address has an @: there are no more recipients than that, and nothing was parsed yet.
            work = 1 + max(len(body) // WORK_BYTES, body.count(b"@") // WORK_RECIPIENTS)
            work = min(work, LARGE_WORK)
        if self._over_limit_until and self._is_over_limit(account_id):
            return max(work, OVER_LIMIT_WORK)
        return work

    def _is_over_limit(self, account_id: AccountId) -> bool:
        until = self._over_limit_until.get(account_id, 0.0)
        if until > time.monotonic():
            return True
        self._over_limit_until.pop(account_id, None)
        return False


class RequestInProgress:
    """Gives back at its end what the request has taken."""

    __slots__ = ("_account_id", "_body_bytes", "_in_progress", "_taken_bytes", "_work")

    def __init__(self, in_progress: InProgress, account_id: AccountId, body_bytes: int) -> None:
        self._in_progress = in_progress
        self._account_id = account_id
        self._body_bytes = body_bytes
        self._taken_bytes = 0
        self._work = 0

    async def __aenter__(self) -> "RequestInProgress":
        if self._body_bytes > COUNTED_BYTES_MIN:
            taken = WEIGHT * self._body_bytes
            room = self._in_progress.body_bytes
            if not room.take_now(self._account_id, taken):
                await room.take(self._account_id, taken)
            self._taken_bytes = taken
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, traceback: TracebackType | None
    ) -> None:
        in_progress = self._in_progress
        if fault is not None and isinstance(fault, Refusal) and fault.code in _LIMITS:
            in_progress.met_limit(self._account_id)
        if self._work:
            in_progress.work.give_back(self._account_id, self._work)
        if self._taken_bytes:
            in_progress.body_bytes.give_back(self._account_id, self._taken_bytes)

    async def grow(self, received_bytes: int, bytes_max: int) -> None:
        """While a body of unknown size is read: take the largest, once it is larger than it was counted as."""
        if received_bytes > self._body_bytes:
            more = WEIGHT * bytes_max - self._taken_bytes
            await self._in_progress.body_bytes.take(self._account_id, more)
            self._taken_bytes += more
            self._body_bytes = bytes_max

    async def begin_work(self, body: bytes, work_min: int = 1) -> None:
        """Once the body is complete: count its real size, and wait for a turn to process it."""
        size = len(body)
        if self._taken_bytes > WEIGHT * size:
            self._in_progress.body_bytes.give_back(self._account_id, self._taken_bytes - WEIGHT * size)
            self._taken_bytes = WEIGHT * size
        work = max(work_min, self._in_progress.work_of(self._account_id, body))
        room = self._in_progress.work
        if not room.take_now(self._account_id, work):
            await room.take(self._account_id, work)
        self._work = work

    def reduce_work(self) -> None:
        """What follows takes turns by itself: it counts as little, so that others may begin."""
        self._in_progress.work.give_back(self._account_id, self._work - 1)
        self._work = 1
