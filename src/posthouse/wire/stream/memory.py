"""The in-memory stream: the same guarantees as JetStream's; everything is lost with the process."""

import asyncio
import heapq
import itertools
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from posthouse.wire.stream import PublishCounts, StreamMessage, StreamSettings, TicketKind
from posthouse.wire.stream.connection import wait_for

STALE_ENDS_MAX: Final = 1_000
WAIT_SECONDS_MIN: Final = 0.001


@dataclass(slots=True)
class _Shard:
    kind: TicketKind
    waiting: deque[tuple[int, bytes]] = field(default_factory=deque)
    # Unacknowledged tickets by number: time of redelivery, and payload.
    out: dict[int, tuple[float, bytes]] = field(default_factory=dict)
    # The same times as a heap; entries that `out` no longer has are skipped.
    _ends: list[tuple[float, int]] = field(default_factory=list)

    def give_out(self, number: int, payload: bytes, until: float) -> None:
        self.out[number] = (until, payload)
        heapq.heappush(self._ends, (until, number))
        if len(self._ends) > 2 * len(self.out) + STALE_ENDS_MAX:
            self._ends = [(end, held) for held, (end, _) in self.out.items()]
            heapq.heapify(self._ends)

    def take_back(self, now: float) -> float | None:
        """Requeue expired tickets ahead of the others; returns when the next ticket expires."""
        late: list[tuple[int, bytes]] = []
        while self._ends:
            until, number = self._ends[0]
            known = self.out.get(number)
            if known is not None and known[0] == until:
                if until > now:
                    break
                late.append((number, known[1]))
                del self.out[number]
            heapq.heappop(self._ends)
        for ticket in sorted(late, reverse=True):
            self.waiting.appendleft(ticket)
        return self._ends[0][0] if self._ends else None


@dataclass(frozen=True, slots=True)
class _MemoryMessage:
    payload: bytes
    shard: int
    _number: int
    _home: _Shard
    _stream: "MemoryStream"

    async def ack(self) -> None:
        self._stream.acknowledge(self._home, self._number)

    async def working(self) -> None:
        self._stream.postpone(self._home, self._number, self._stream.settings.ack_wait_seconds)

    async def release(self, delay_seconds: float = 0.0) -> None:
        self._stream.postpone(self._home, self._number, delay_seconds)


class MemoryStream:
    """`monotonic` may be a virtual clock; then fetch without waiting, since waits run in real time."""

    def __init__(
        self, settings: StreamSettings | None = None, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.settings = settings or StreamSettings()
        self.monotonic = monotonic
        self._counts = PublishCounts()
        self._shards: dict[tuple[TicketKind, int], _Shard] = {}
        self._numbers = itertools.count(1)
        self._waiters: set[asyncio.Event] = set()
        # Each kind has its own bound: a kind that no worker here fetches must not block the others.
        self._sizes: Counter[TicketKind] = Counter()
        self._turn = 0
        self._closed = False

    @property
    def counts(self) -> PublishCounts:
        return self._counts

    def publish(self, kind: TicketKind, shard: int, payload: bytes) -> None:
        if self._closed or self._sizes[kind] >= self.settings.waiting_max:
            self._counts.dropped += 1
            return
        self._shards.setdefault((kind, shard), _Shard(kind)).waiting.append((next(self._numbers), payload))
        self._sizes[kind] += 1
        self._counts.confirmed += 1
        self._changed()

    async def fetch(
        self, kind: TicketKind, shards: frozenset[int], count: int, wait_seconds: float
    ) -> list[StreamMessage]:
        changed = asyncio.Event()
        self._waiters.add(changed)
        try:
            deadline = time.monotonic() + wait_seconds
            while True:
                changed.clear()
                homes = {shard: home for shard in shards if (home := self._shards.get((kind, shard)))}
                now = self.monotonic()
                ends = [end for home in homes.values() if (end := home.take_back(now)) is not None]
                taken = self._take(homes, count, now + self.settings.ack_wait_seconds)
                wait_left = deadline - time.monotonic()
                if taken or wait_left <= 0:
                    return taken
                if ends:
                    wait_left = min(wait_left, max(min(ends) - now, WAIT_SECONDS_MIN))
                await wait_for(changed, wait_left)
        finally:
            self._waiters.discard(changed)

    async def backlog(self, kind: TicketKind) -> int:
        return self._sizes[kind]

    async def close(self) -> None:
        self._closed = True
        self._sizes.clear()
        self._shards.clear()
        self._changed()

    def acknowledge(self, home: _Shard, number: int) -> None:
        # An acknowledgement after a redelivery still counts.
        if home.out.pop(number, None) is not None:
            self._sizes[home.kind] -= 1
            self._changed()

    def postpone(self, home: _Shard, number: int, seconds: float) -> None:
        if number in home.out:
            home.give_out(number, home.out[number][1], self.monotonic() + seconds)
            self._changed()

    def _changed(self) -> None:
        for waiter in self._waiters:
            waiter.set()

    def _take(self, homes: dict[int, _Shard], count: int, until: float) -> list[StreamMessage]:
        self._turn += 1
        order = sorted(homes)
        start = self._turn % max(len(order), 1)
        order = order[start:] + order[:start]
        taken: list[StreamMessage] = []
        while len(taken) < count:
            # A ticket from each shard in turn, so that a long queue doesn't hide the others.
            order = [shard for shard in order if homes[shard].waiting and self._has_capacity(homes[shard])]
            if not order:
                break
            for shard in order[: count - len(taken)]:
                home = homes[shard]
                number, payload = home.waiting.popleft()
                home.give_out(number, payload, until)
                taken.append(_MemoryMessage(payload, shard, number, home, self))
        return taken

    def _has_capacity(self, home: _Shard) -> bool:
        return len(home.out) < self.settings.unacknowledged_max


class AllShards:
    """The leases of a single process: it holds every shard."""

    def __init__(self, shards: int) -> None:
        self._held = frozenset(range(shards))

    def held(self) -> frozenset[int]:
        return self._held

    def held_since(self, shard: int) -> float:
        del shard
        return float("-inf")

    @property
    def places(self) -> int:
        return 1  # in a single process, no lane is divided

    async def close(self) -> None:
        self._held = frozenset()
