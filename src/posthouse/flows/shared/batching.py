"""Batches: the items that arrived while the last batch was running are the next batch.

Without a timer, unless no client waits: a single item starts at once. Under load the batches grow by themselves, and
all items of a batch share the cost of a transaction (round trips, locks, fsync). What they cost depends on their
recipients, so a batch is bounded by these, and accounts take turns: an account with much to do delays the others by no
more than the batch that is running.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from typing import Final, Generic, TypeVar

from posthouse.rules import limits
from posthouse.rules.linger import Linger
from posthouse.rules.refusal import Code, Refusal, too_many_waiting

# So many items of a batch may time out by themselves before the rest is refused.
TIMEOUTS_MAX: Final = 3

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Runs `work` on batches, one at a time. Each item has its own answer: a result, or an exception to raise."""

    def __init__(
        self,
        work: Callable[[Sequence[Item]], Awaitable[Sequence[Result | BaseException]]],
        *,
        items_max: int = limits.BATCH_ITEMS_MAX,
        waiting_max: int = limits.WAITING_ITEMS_MAX,
        linger: Linger | None = None,
    ) -> None:
        """With `linger`, a batch that is not full waits for more, as long as that says."""
        self._work = work
        self._linger = linger
        # Ends the wait of the batch that lingers.
        self._enough = asyncio.Event()
        self._items_max = items_max
        self._waiting_max = waiting_max
        # In the order of turns; of an account the first comes first. Each with its recipients and bytes.
        self._waiting: OrderedDict[Hashable, deque[tuple[Item, int, int, asyncio.Future[Result]]]] = OrderedDict()
        self._waiting_items = 0
        self._waiting_recipients = 0
        self._waiting_bytes = 0
        self._running: asyncio.Task[None] | None = None

    async def submit(self, item: Item, account: Hashable = None, recipients: int = 1, size_bytes: int = 0) -> Result:
        """`account` is whose turn it takes; `recipients` and `size_bytes` are what it adds to its batch."""
        if self._waiting_items >= self._waiting_max or self._waiting_bytes >= limits.WAITING_BYTES_MAX:
            raise too_many_waiting()
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        entry = item, recipients, size_bytes, answer
        waiting = self._waiting.get(account)
        if waiting is None:
            self._waiting[account] = deque((entry,))
        else:
            waiting.append(entry)
        self._waiting_items += 1
        self._waiting_recipients += recipients
        self._waiting_bytes += size_bytes
        if self._linger is not None:
            self._linger.note(asyncio.get_running_loop().time())
            if self._is_full:
                self._enough.set()
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await answer

    @property
    def _is_full(self) -> bool:
        """Whether a whole batch waits."""
        return self._waiting_items >= self._items_max or self._waiting_recipients >= limits.BATCH_RECIPIENTS_MAX

    def hurry(self) -> None:
        """The batch that lingers, or the next one, waits no longer than it must: more can't come before it is done."""
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
                if self._linger is not None and not self._is_full:
                    await self._wait_for_more(self._linger)
                self._enough.clear()
                batch = self._take()
                items = [item for item, _ in batch]
                try:
                    results = await self._work(items)
                except Refusal as refusal:
                    # What stops a whole batch (storage is away) would stop the waiting items as well.
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

    async def _wait_for_more(self, linger: Linger) -> None:
        seconds = linger.seconds(asyncio.get_running_loop().time())
        await asyncio.sleep(linger.seconds_min)
        if seconds > linger.seconds_min:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds - linger.seconds_min):
                    await self._enough.wait()

    def _refuse(self, answers: Sequence[asyncio.Future[Result]], refusal: Refusal) -> None:
        for answer in answers:
            if not answer.done():
                answer.set_exception(refusal.copy())

    def _take_answers(self) -> list[asyncio.Future[Result]]:
        answers = [answer for entries in self._waiting.values() for *_, answer in entries]
        self._waiting.clear()
        self._waiting_items = self._waiting_recipients = self._waiting_bytes = 0
        return answers

    def _take(self) -> list[tuple[Item, asyncio.Future[Result]]]:
        batch: list[tuple[Item, asyncio.Future[Result]]] = []
        recipients_left, bytes_left = limits.BATCH_RECIPIENTS_MAX, limits.BATCH_BYTES_MAX
        while self._waiting and len(batch) < self._items_max:
            account, entries = self._waiting.popitem(last=False)
            item, recipients, size_bytes, answer = entries[0]
            recipients_left -= recipients
            bytes_left -= size_bytes
            if batch and (recipients_left < 0 or bytes_left < 0):
                # It is the first of the next batch.
                self._waiting[account] = entries
                self._waiting.move_to_end(account, last=False)
                break
            entries.popleft()
            if entries:
                self._waiting[account] = entries
            self._waiting_items -= 1
            self._waiting_recipients -= recipients
            self._waiting_bytes -= size_bytes
            batch.append((item, answer))
        return batch


async def together_or_apart(
    batch: Sequence[Item], work: Callable[[Sequence[Item]], Awaitable[list[Result | BaseException]]]
) -> list[Result | BaseException]:
    """All items in one transaction; if that fails, each in its own, so that only the item at fault fails.

    If PostgreSQL is away, all items are refused at once. A lock or statement that timed out (TEMPORARY_FAILURE) is
    usually about one item. Each further time-out delays the whole batch, so after a few the rest is refused.
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


async def submit_until_taken(
    batcher: Batcher[Item, Result], item: Item, account: Hashable, recipients: int, pause_seconds: float
) -> Result:
    """Submit again until it is not refused, however long the database is away."""
    while True:
        try:
            return await batcher.submit(item, account, recipients)
        except Refusal:
            await asyncio.sleep(pause_seconds)


def _copied(fault: BaseException) -> BaseException:
    # An exception can't be raised in several tasks: each would add its own traceback to it.
    return RuntimeError(f"the batch failed: {fault!r}") if isinstance(fault, Exception) else fault
