"""Simulations of what surrounds the service: time, the stream, mail servers, webhook receivers, DNS.

Their random behaviour depends on the seed and on the request, not on its time: a repeated run meets the same servers,
whichever of two tasks comes first. Each keeps the outside log that the audit reads, and writes a line before it acts.
"""

import asyncio
import base64
import heapq
import itertools
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Protocol
from uuid import UUID

from posthouse.mail.reply import Reply
from posthouse.rules import event
from posthouse.rules.audit import outside_logs
from posthouse.rules.outcome import AttemptResult, LookupFailure, NoReply, Replied, Stage, Unresolved
from posthouse.rules.webhook_url import WebhookTarget
from posthouse.wire.carrier import CarrierRequest, CarrierResult
from posthouse.wire.dns import MxRecords, NoAnswer, NoName, Resolver
from posthouse.wire.stream import PublishCounts, StreamMessage, StreamSettings, TicketKind
from posthouse.wire.stream.memory import MemoryStream
from posthouse.wire.webhook_client import NoWebhookAnswer, WebhookAnswer, WebhookCallResult
from tests.support.clock import SettableClock

SHARDS: Final = 4


class Killed(BaseException):
    """A simulated process is dead; a BaseException, so that its own handlers do not catch it."""


class OwningProcess(Protocol):
    """The process that makes a request."""

    name: str
    is_alive: bool


CURRENT: ContextVar[OwningProcess | None] = ContextVar("process", default=None)


def require_alive() -> None:
    """A dead process has no further effect."""
    process = CURRENT.get()
    if process is not None and not process.is_alive:
        raise Killed(process.name)


def drawn(*about: object) -> random.Random:
    """Randomness that depends only on its arguments."""
    return random.Random("/".join(map(str, about)))


@dataclass(slots=True)
class Faults:
    """Planted faults, to see whether the checks notice them; the service itself has none of them."""

    loses_what_it_took: bool = False
    ignores_the_lease: bool = False
    invents_successes: bool = False
    changes_bodies: bool = False
    signs_with_an_old_time: bool = False
    sends_twice: bool = False
    takes_what_it_refused: bool = False


class VirtualClock(SettableClock):
    """Moves when the simulation advances it, and wakes sleeping tasks when their time has come."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._stands_still = timedelta()
        self.parked: set[asyncio.Task[object]] = set()

    async def sleep(self, seconds: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.monotonic() + seconds, next(self._numbers), woken))
        self.parked.add(task)
        try:
            await woken
        finally:
            self.parked.discard(task)

    @property
    def next_wake(self) -> float | None:
        """Seconds until the next task wakes."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return max(self._sleepers[0][0] - self.monotonic(), 0.0) if self._sleepers else None

    def advance(self, step: timedelta = timedelta(), **parts: float) -> None:
        step += timedelta(**parts)
        still = min(step, self._stands_still)
        self._stands_still -= still
        super().advance(step)
        self._now -= still
        while self._sleepers and self._sleepers[0][0] <= self.monotonic():
            _, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)

    def jump(self, seconds: float) -> None:
        """The database's time jumps. The clock never goes back: it stands still until time has caught up."""
        if seconds >= 0:
            self._now += timedelta(seconds=seconds)
        else:
            self._stands_still += timedelta(seconds=-seconds)


class SilentResolver(Resolver):
    """DNS without answers: every destination is its own lane."""

    async def mx_hosts(self, domain: str) -> MxRecords | NoName | NoAnswer:
        return NoAnswer(f"no answer for {domain}")


# The stream


@dataclass(slots=True)
class StreamFaults:
    """The share of messages that are lost, duplicated or late, and of acknowledgements that are lost."""

    lost: float = 0.0
    twice: float = 0.0
    late: float = 0.0
    deaf: float = 0.0


class SharedStream:
    """The stream behind all processes' clients."""

    def __init__(self, clock: VirtualClock, seed: int) -> None:
        self._clock = clock
        self._random = drawn(seed, "stream")
        self._late: list[tuple[TicketKind, int, bytes]] = []
        self.faults = StreamFaults()
        self.wipe()

    def wipe(self) -> None:
        """All data is lost. Acknowledgements of messages fetched before have no effect."""
        self._inner = MemoryStream(StreamSettings(), monotonic=self._clock.monotonic)
        self._late.clear()

    def publish(self, kind: TicketKind, shard: int, payload: bytes) -> None:
        if self._random.random() < self.faults.lost:
            return
        for _ in range(2 if self._random.random() < self.faults.twice else 1):
            if self._random.random() < self.faults.late:
                self._late.append((kind, shard, payload))
            else:
                self._inner.publish(kind, shard, payload)

    async def fetch(self, kind: TicketKind, count: int) -> list[StreamMessage]:
        found = await self._inner.fetch(kind, frozenset(range(SHARDS)), count, 0)
        self._random.shuffle(found)
        late, self._late = self._late, []
        for message in late:
            self._inner.publish(*message)
        return found

    async def backlog(self, kind: TicketKind) -> int:
        return await self._inner.backlog(kind)

    def receives_ack(self) -> bool:
        return self._random.random() >= self.faults.deaf


@dataclass(frozen=True, slots=True)
class _HeldTicket:
    """A ticket held by a process; its acknowledgements may be lost, and are when the process is dead."""

    inner: StreamMessage
    process: OwningProcess
    stream: SharedStream

    @property
    def payload(self) -> bytes:
        return self.inner.payload

    @property
    def shard(self) -> int:
        return self.inner.shard

    def _is_received(self) -> bool:
        return self.process.is_alive and self.stream.receives_ack()

    async def ack(self) -> None:
        if self._is_received():
            await self.inner.ack()

    async def working(self) -> None:
        if self._is_received():
            await self.inner.working()

    async def release(self, delay_seconds: float = 0.0) -> None:
        if self._is_received():
            await self.inner.release(delay_seconds)


class ProcessStream:
    """The stream as one process sees it."""

    def __init__(self, shared: SharedStream, process: OwningProcess) -> None:
        self._shared = shared
        self._process = process
        self._counts = PublishCounts()

    @property
    def counts(self) -> PublishCounts:
        return self._counts

    def publish(self, kind: TicketKind, shard: int, payload: bytes) -> None:
        if self._process.is_alive:
            self._shared.publish(kind, shard, payload)

    async def fetch(
        self,
        kind: TicketKind,
        shards: frozenset[int],  # noqa: ARG002
        count: int,
        wait_seconds: float,  # noqa: ARG002
    ) -> list[StreamMessage]:
        return [_HeldTicket(message, self._process, self._shared) for message in await self._shared.fetch(kind, count)]

    async def backlog(self, kind: TicketKind) -> int:
        return await self._shared.backlog(kind)

    async def close(self) -> None:
        """The shared stream stays open."""


# Mail servers. The address determines the result: `well-7@one.example`

_OK: Final = Reply(250, "2.0.0", "taken")
_LATER: Final = Reply(451, "4.7.1", "try again later")
_BUSY: Final = Reply(421, "4.3.2", "too busy")
_FULL: Final = Reply(452, "4.2.2", "mailbox full")
_UNKNOWN: Final = Reply(550, "5.1.1", "no such user")
_UNWANTED: Final = Reply(554, "5.7.1", "not wanted")

MAIL_BEHAVIOURS: Final = ("well", "well", "fickle", "fickle", "never", "gone", "unwanted", "nowhere", "dead")


class SimulatedCarrier:
    def __init__(self, clock: VirtualClock, seed: int, faults: Faults) -> None:
        self._clock = clock
        self._seed = seed
        self._faults = faults
        self._tries: Counter[str] = Counter()
        self.is_slow = True
        self.log: list[str] = []
        # How often the permit check before the dot stopped a message.
        self.withdrawn = 0

    async def carry(self, destination: str, parcel: CarrierRequest, before_dot: Callable[[], bool]) -> CarrierResult:
        require_alive()
        name = parcel.recipients[0]
        self._tries[name] += 1
        fate = drawn(self._seed, name, self._tries[name])
        await self._wait(fate)
        happenings: list[AttemptResult | None] = [self._before_dot(recipient, fate) for recipient in parcel.recipients]
        if all(result is not None for result in happenings):
            for recipient in parcel.recipients if self._faults.takes_what_it_refused else ():
                self._arrived(parcel, recipient)
            return CarrierResult(tuple(filter(None, happenings)), f"mx.{destination}", "192.0.2.1")
        if not before_dot():
            self.withdrawn += 1
            if not self._faults.ignores_the_lease:
                return CarrierResult((NoReply(Stage.DATA, "withdrawn"),) * len(happenings))
        require_alive()
        # From here on the message may have arrived, whatever the reply.
        end: AttemptResult = Replied(Stage.DOT, _OK)
        arrives = True
        if fate.random() < 0.08:
            end, arrives = NoReply(Stage.DOT, "no answer"), fate.random() < 0.5
        elif fate.random() < 0.05:
            end, arrives = Replied(Stage.DOT, _LATER), False
        for recipient, happening in zip(parcel.recipients, happenings, strict=True):
            if arrives and happening is None and not self._faults.loses_what_it_took:
                self._arrived(parcel, recipient)
        await self._wait(fate)
        require_alive()
        return CarrierResult(tuple([result or end for result in happenings]), f"mx.{destination}", "192.0.2.1")

    async def _wait(self, fate: random.Random) -> None:
        """Servers are fast, slow or very slow."""
        kind = fate.random()
        seconds = 0.0 if kind < 0.7 else fate.uniform(0.1, 20) if kind < 0.92 else fate.uniform(20, 300)
        if seconds and self.is_slow:
            await self._clock.sleep(seconds)
        require_alive()

    def _before_dot(self, recipient: str, fate: random.Random) -> AttemptResult | None:
        """What ends it before the dot; None when the server takes the recipient."""
        behaviour = recipient.partition("-")[0]
        match behaviour:
            case "well":
                return None
            case "never":
                return Replied(Stage.RCPT, _LATER)
            case "gone":
                return Replied(Stage.RCPT, _UNKNOWN)
            case "unwanted":
                return Replied(Stage.DATA, _UNWANTED)
            case "nowhere":
                return Unresolved(LookupFailure.NO_SUCH_NAME)
            case "dead":
                return NoReply(Stage.CONNECT, "connection refused")
        results: tuple[AttemptResult | None, ...] = (
            Replied(Stage.RCPT, _LATER),
            Replied(Stage.RCPT, _FULL),
            Replied(Stage.MAIL, _BUSY),
            NoReply(Stage.DATA, "connection reset"),
            Unresolved(LookupFailure.NO_ANSWER, "time-out"),
            None,
            None,
        )
        return fate.choice(results)

    def _arrived(self, parcel: CarrierRequest, recipient: str) -> None:
        line = {
            "sender": parcel.sender,
            "recipient": recipient,
            "message": base64.b64encode(parcel.message.content).decode(),
        }
        self.log += [json.dumps(line)] * (2 if self._faults.sends_twice else 1)


# Webhook receivers. The path determines the answers: `/never`


@dataclass(frozen=True, slots=True)
class ReceivedCall:
    """A webhook call; `process` made it."""

    at: float
    process: str
    status: int | None


@dataclass(slots=True)
class SimulatedWebhookClient:
    clock: VirtualClock
    seed: int
    faults: Faults
    is_slow: bool = True
    log: list[str] = field(default_factory=list)
    by_event: defaultdict[UUID, list[ReceivedCall]] = field(default_factory=lambda: defaultdict(list))

    async def call(self, target: WebhookTarget, body: bytes, headers: Mapping[str, str]) -> WebhookCallResult:
        require_alive()
        event_id = outside_logs.event_id(body)
        assert event_id is not None
        calls = self.by_event[event_id]
        fate = drawn(self.seed, event_id, len(calls))
        if fate.random() < 0.2 and self.is_slow:
            await self.clock.sleep(fate.uniform(0.1, 5))
        require_alive()
        if self.faults.invents_successes:
            return WebhookAnswer(200, b"", False, 1, "192.0.2.2")
        status = self._status(target.path_and_query, fate)
        process = CURRENT.get()
        calls.append(ReceivedCall(self.clock.now().timestamp(), process.name if process else "", status))
        if status is not None:
            signature = headers[event.SIGNATURE_HEADER]
            self._log(signature, body, status)
        if fate.random() < 0.2 and self.is_slow:
            await self.clock.sleep(fate.uniform(0.1, 5))
        require_alive()
        if status is None or fate.random() < 0.05:
            return NoWebhookAnswer("no answer came", 5_000)
        return WebhookAnswer(status, b"well", False, 12, "192.0.2.2")

    def _status(self, path: str, fate: random.Random) -> int | None:
        match path:
            case "/well":
                return 204
            case "/never":
                return 500
            case _:
                return fate.choice((200, 200, 204, 301, 404, 500, 503, None))

    def _log(self, signature: str, body: bytes, status: int) -> None:
        at = self.clock.now().timestamp() + (600 if self.faults.signs_with_an_old_time else 0)
        received = body + b" " if self.faults.changes_bodies else body
        line = {"at": at, "signature": signature, "body": base64.b64encode(received).decode(), "status": status}
        self.log.append(json.dumps(line))
