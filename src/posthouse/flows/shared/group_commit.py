"""Batches: the items that arrived while the last batch was running are the next batch.

There is no timer, unless no client waits: a single item starts immediately. Under load the batches grow automatically,
and all items of a batch share the cost of a transaction (round trips, locks, fsync). Their cost depends on their
recipients, so a batch is bounded by these, and accounts take turns: an account with much work delays the others by no
more than the running batch and the one they are in.

Turns are by recipients, not by items. With ten accounts that send to fifty recipients at a time, an account with
single recipients would otherwise wait for 500 others before each of its own. Accounts that wait get equal numbers of
recipients (weighted fair queueing), so an item with few recipients goes before one with many, and no item is overtaken
forever.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from heapq import heappop, heappush, heapreplace
from typing import Final, Generic, TypeVar

from posthouse.rules import limits
from posthouse.rules.claim import BatchDelay
from posthouse.rules.refusal import Code, Refusal, too_many_waiting

# This many items of a batch may time out on their own before the rest is refused.
TIMEOUTS_MAX: Final = 3

Item = TypeVar("Item")
Result = TypeVar("Result")


class GroupCommit(Generic[Item, Result]):
    """Runs `work` on batches, one at a time. Each item gets its own answer: a result, or an exception to raise."""

    def __init__(
        self,
        work: Callable[[Sequence[Item]], Awaitable[Sequence[Result | BaseException]]],
        *,
        items_max: int = limits.GROUP_COMMIT_ITEMS_MAX,
        waiting_max: int = limits.WAITING_ITEMS_MAX,
        batch_delay: BatchDelay | None = None,
    ) -> None:
        """With `batch_delay`, a batch that is not full waits for more items for that long."""
        self._work = work
        self._batch_delay = batch_delay
        # How many items arrived since the last batch began.
        self._arrived = 0
        # Ends the wait of a batch that is delayed.
        self._enough = asyncio.Event()
        self._is_delaying = False
        self._items_max = items_max
        self._waiting_max = waiting_max
        # For each account, the first comes first; each item with its recipients and bytes.
        self._waiting: dict[Hashable, deque[tuple[Item, int, int, asyncio.Future[Result]]]] = {}
        # The turn of each account's first item, as a heap: of equal turns, the earlier one.
        self._turns: list[tuple[float, int, Hashable]] = []
        self._number = 0
        # How many recipients an account has had if it has always had items waiting: an item's turn is this when its
        # account begins to wait, or the turn of the item before it, and its own recipients.
        self._turn = 0.0
        self._waiting_items = 0
        self._waiting_recipients = 0
        self._waiting_bytes = 0
        self._running: asyncio.Task[None] | None = None

    async def submit(self, item: Item, account: Hashable = None, recipients: int = 1, size_bytes: int = 0) -> Result:
        """It takes the turn of `account`; `recipients` and `size_bytes` are what it adds to its batch."""
        if self._waiting_items >= self._waiting_max or self._waiting_bytes >= limits.WAITING_BYTES_MAX:
            raise too_many_waiting()
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        entry = item, recipients, size_bytes, answer
        waiting = self._waiting.get(account)
        if waiting is None:
            self._waiting[account] = deque((entry,))
            self._number += 1
            heappush(self._turns, (self._turn + recipients, self._number, account))
        else:
            waiting.append(entry)
        self._waiting_items += 1
        self._waiting_recipients += recipients
        self._waiting_bytes += size_bytes
        self._arrived += 1
        if self._is_delaying and self._is_full:
            self._enough.set()
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await answer

    @property
    def _is_full(self) -> bool:
        """Whether a whole batch waits."""
        return self._waiting_items >= self._items_max or self._waiting_recipients >= self._recipients_max

    @property
    def _recipients_max(self) -> int:
        """The bound of the next batch: lower while accounts share it, since each of them waits for the whole batch."""
        return (
            limits.GROUP_COMMIT_RECIPIENTS_MAX if len(self._waiting) == 1 else limits.GROUP_COMMIT_RECIPIENTS_SHARED_MAX
        )

    def hurry(self) -> None:
        """Start the waiting batch, or the next one, without further delay: no more items can come before it is done."""
        self._enough.set()

    async def drain(self) -> None:
        """Return when nothing waits."""
        while self._running is not None:
            await asyncio.shield(self._running)

    async def _run(self) -> None:
        try:
            # Requests that are being read at this moment can join.
            await asyncio.sleep(0)
            while self._waiting:
                if self._batch_delay is not None:
                    await self._wait_for_more(self._batch_delay)
                self._enough.clear()
                batch = self._take()
                items = [item for item, _ in batch]
                try:
                    results = await self._work(items)
                except Refusal as refusal:
                    # What stops a whole batch (storage is unavailable) would stop the waiting items as well.
                    self._refuse([answer for _, answer in batch], refusal)
                    self._refuse(self._take_answers(), refusal)
                    continue
                except BaseException as fault:
                    for _, answer in batch:
                        if not answer.done():
                            answer.set_exception(_copied(fault))
                    if not isinstance(fault, Exception):
                        raise
                    continue
                for (_, answer), result in zip(batch, results, strict=True):
                    if answer.done():
                        continue
                    if isinstance(result, BaseException):
                        answer.set_exception(result)
                    else:
                        answer.set_result(result)
        finally:
            self._running = None

    async def _wait_for_more(self, batch_delay: BatchDelay) -> None:
        now = asyncio.get_running_loop().time()
        batch_delay.note_arrivals(self._arrived, now)
        self._arrived = 0
        if self._is_full:
            return
        self._is_delaying = True
        seconds = batch_delay.seconds(now)
        await asyncio.sleep(batch_delay.seconds_min)
        if seconds > batch_delay.seconds_min:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds - batch_delay.seconds_min):
                    await self._enough.wait()
        self._is_delaying = False

    def _refuse(self, answers: Sequence[asyncio.Future[Result]], refusal: Refusal) -> None:
        for answer in answers:
            if not answer.done():
                answer.set_exception(refusal.copy())

    def _take_answers(self) -> list[asyncio.Future[Result]]:
        answers = [answer for entries in self._waiting.values() for *_, answer in entries]
        self._waiting.clear()
        self._turns.clear()
        self._waiting_items = self._waiting_recipients = self._waiting_bytes = 0
        return answers

    def _take(self) -> list[tuple[Item, asyncio.Future[Result]]]:
        batch: list[tuple[Item, asyncio.Future[Result]]] = []
        recipients_left, bytes_left = self._recipients_max, limits.GROUP_COMMIT_BYTES_MAX
        while self._turns and len(batch) < self._items_max:
            turn, _, account = self._turns[0]
            entries = self._waiting[account]
            item, recipients, size_bytes, answer = entries[0]
            recipients_left -= recipients
            bytes_left -= size_bytes
            if batch and (recipients_left < 0 or bytes_left < 0):
                break
            self._turn += recipients / len(self._waiting)
            entries.popleft()
            if entries:
                self._number += 1
                heapreplace(self._turns, (turn + entries[0][1], self._number, account))
            else:
                heappop(self._turns)
                del self._waiting[account]
            self._waiting_items -= 1
            self._waiting_recipients -= recipients
            self._waiting_bytes -= size_bytes
            batch.append((item, answer))
        return batch


async def together_or_apart(
    batch: Sequence[Item], work: Callable[[Sequence[Item]], Awaitable[list[Result | BaseException]]]
) -> list[Result | BaseException]:
    """All items in one transaction; if that fails, each in its own, so that only the item at fault fails.

    If PostgreSQL is unavailable, all items are refused immediately. A lock or statement that timed out
    (TEMPORARY_FAILURE) is usually about one item. Each further time-out delays the whole batch, so after a few the
    rest is refused.
    """
    try:
        return await work(batch)
    except Exception as fault:
        if isinstance(fault, Refusal) and fault.code is not Code.TEMPORARY_FAILURE:
            raise
        if len(batch) == 1:
            return [fault]
    done: list[Result | BaseException] = []
    timeouts = 0
    for item in batch:
        try:
            done += await work([item])
        except Refusal as refusal:
            done.append(refusal)
            timeouts += refusal.code is Code.TEMPORARY_FAILURE
            if refusal.code is not Code.TEMPORARY_FAILURE or timeouts == TIMEOUTS_MAX:
                return done + [refusal.copy() for _ in batch[len(done) :]]
        except Exception as fault:
            done.append(fault)
    return done


def _copied(fault: BaseException) -> BaseException:
    # An exception can't be raised in several tasks: each would add its own traceback to it.
    return RuntimeError(f"the batch failed: {fault!r}") if isinstance(fault, Exception) else fault
