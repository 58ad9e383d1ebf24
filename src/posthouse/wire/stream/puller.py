"""Pulls tickets from JetStream: an open pull request for each shard, and the tickets that arrived.

A fetch that asked, waited and ended would lose tickets sent a moment later until their ack wait expires. So a
request outlives its fetch: it stays open for some seconds, arriving tickets are kept for the next fetch, and
tickets of a shard that moved are released. A request is never withdrawn: a ticket that the server has just sent to
an inbox without a subscription would be lost too.
"""

import asyncio
import contextlib
import functools
import json
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import NotFoundError

from posthouse.wire.stream import StreamSettings, TicketKind
from posthouse.wire.stream.connection import FAULTS, wait_for

log = structlog.get_logger(__name__)

# The server reports the end of a request; after this grace period it has lost the request.
REQUEST_GRACE_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 0.2

ACK: Final = b"+ACK"
WORKING: Final = b"+WPI"
RELEASE: Final = b"-NAK"

EXPIRED: Final = "408"
NO_MESSAGES: Final = "404"
HEARTBEAT: Final = "100"
NO_RESPONDERS: Final = "503"

Answer = Callable[["JetStreamMessage", bytes], Awaitable[None]]


def stream_name(kind: TicketKind) -> str:
    return kind.value.upper()


@dataclass(frozen=True, slots=True)
class JetStreamMessage:
    payload: bytes
    shard: int
    kind: TicketKind
    reply: str
    # When the stream was created: a response to a ticket of a deleted stream must not reach the new one.
    epoch: datetime | None
    arrived_at: float
    _answer: Answer

    async def ack(self) -> None:
        await self._answer(self, ACK)

    async def working(self) -> None:
        await self._answer(self, WORKING)

    async def release(self, delay_seconds: float = 0.0) -> None:
        delay = b' {"delay": %d}' % int(delay_seconds * 1e9) if delay_seconds > 0 else b""
        await self._answer(self, RELEASE + delay)


@dataclass(slots=True)
class _Request:
    shard: int
    inbox: str
    subscription: Subscription | None = None
    consumer_known: bool = False
    opening: bool = False
    tickets_wanted: int = 0
    tickets_left: int = 0
    open_until: float = 0.0
    not_before: float = 0.0
    abandoned: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def is_open(self, now: float) -> bool:
        return self.opening or (self.tickets_left > 0 and now < self.open_until)

    def end(self, not_before: float = 0.0) -> None:
        self.tickets_left = 0
        self.not_before = not_before
        self.ended.set()


@dataclass(slots=True)
class _Link:
    """State of a connection."""

    client: Client
    jetstream: JetStreamContext
    epoch: datetime | None
    requests: dict[int, _Request] = field(default_factory=dict)


class Puller:
    """The tickets of one kind."""

    def __init__(
        self,
        kind: TicketKind,
        settings: StreamSettings,
        *,
        answer: Answer,
        note_missing: Callable[[], None],
        monotonic: Callable[[], float],
    ) -> None:
        self.changed = asyncio.Event()
        self._kind = kind
        self._settings = settings
        self._answer = answer
        self._note_missing = note_missing
        self._monotonic = monotonic
        self._fetched: dict[int, deque[JetStreamMessage]] = {}
        self._link: _Link | None = None
        self._turn = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def attach(self, client: Client, jetstream: JetStreamContext, epoch: datetime | None) -> None:
        """After a new connection or a recreated stream: every request must be made again."""
        self.detach()
        self._link = _Link(client, jetstream, epoch)
        self.changed.set()

    def detach(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            for request in link.requests.values():
                self._abandon(link, request)

    def take_tickets(self, shards: frozenset[int], count: int) -> list[JetStreamMessage]:
        """Up to `count` of the fetched tickets, round-robin over the shards."""
        stale = self._monotonic() - self._settings.ack_wait_seconds / 2
        self._turn += 1
        order = sorted(shard for shard in shards if self._fetched.get(shard))
        start = self._turn % max(len(order), 1)
        order = order[start:] + order[:start]
        taken: list[JetStreamMessage] = []
        while order and len(taken) < count:
            for shard in order[: count - len(taken)]:
                ticket = self._fetched[shard].popleft()
                # A ticket that waited here for long will be redelivered soon: drop it.
                if ticket.arrived_at > stale:
                    taken.append(ticket)
            order = [shard for shard in order if self._fetched[shard]]
        return taken

    async def release_shards(self, shards: frozenset[int]) -> None:
        """Stop requesting shards other than these, and release the tickets of those others."""
        if self._link is not None:
            for shard in self._link.requests.keys() - shards:
                self._abandon(self._link, self._link.requests.pop(shard))
        for shard in self._fetched.keys() - shards:
            for ticket in self._fetched.pop(shard):
                await ticket.release()

    async def ask(self, shards: frozenset[int], count: int) -> float:
        """Open a request for every shard while there is capacity; returns when to check again."""
        link = self._link
        now = self._monotonic()
        capacity = count - sum(map(len, self._fetched.values()))
        if link is None or capacity <= 0:
            return now + self._settings.request_seconds
        for shard in shards - link.requests.keys():
            link.requests[shard] = _Request(shard, link.client.new_inbox())
        idle = [request for request in link.requests.values() if not request.is_open(now)]
        due = [request for request in idle if request.not_before <= now]
        # The capacity is shared by the shards without an open request: the only shard with tickets gets all of it
        # repeatedly, while the others' requests stay open with little.
        share = max(1, capacity // max(len(due), 1))
        for request in due:
            request.tickets_wanted = share
            request.opening = True
            if request.consumer_known:
                await self._open(link, request)
            else:
                self._spawn(self._open(link, request))
        ends = [request.open_until for request in link.requests.values() if request.is_open(now)]
        ends += [request.not_before for request in idle if request.not_before > now]
        return min(ends, default=now + self._settings.request_seconds)

    async def close(self) -> None:
        await self.release_shards(frozenset())
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _open(self, link: _Link, request: _Request) -> None:
        stream, consumer = stream_name(self._kind), f"{self._kind.value}-{request.shard}"
        try:
            if request.subscription is None:
                on_message = functools.partial(self._arrived, link, request)
                request.subscription = await link.client.subscribe(request.inbox, cb=on_message)
            if not request.consumer_known:
                await _establish(link.jetstream, stream, self._consumer(consumer, request.shard))
                request.consumer_known = True
            if request.abandoned:
                request.end()
                return
            seconds = self._settings.request_seconds
            request.tickets_left = request.tickets_wanted
            request.open_until = self._monotonic() + seconds + REQUEST_GRACE_SECONDS
            pull = {"batch": request.tickets_wanted, "expires": int(seconds * 1e9)}
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
            await link.client.publish(subject, json.dumps(pull).encode(), reply=request.inbox)
        except NotFoundError:
            self._note_missing()
            request.end(self._monotonic() + RETRY_SECONDS)
        except FAULTS as fault:
            if not link.client.is_closed:
                log.warning("stream_request_failed", subject=f"{self._kind}.{request.shard}", cause=repr(fault))
            request.end(self._monotonic() + RETRY_SECONDS)
        finally:
            request.opening = False
            self.changed.set()

    def _consumer(self, name: str, shard: int) -> ConsumerConfig:
        return ConsumerConfig(
            name=name,
            durable_name=name,
            filter_subject=f"{self._kind.value}.{shard}",
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=self._settings.ack_wait_seconds,
            max_ack_pending=self._settings.unacknowledged_max,
            max_deliver=-1,
        )

    async def _arrived(self, link: _Link, request: _Request, message: Msg) -> None:
        status = message.headers.get("Status") if message.headers else None
        now = self._monotonic()
        if status is None:
            ticket = JetStreamMessage(
                message.data, request.shard, self._kind, message.reply, link.epoch, now, self._answer
            )
            request.tickets_left -= 1
            if request.tickets_left <= 0:
                request.ended.set()
            if request.abandoned:
                await ticket.release()
            else:
                self._fetched.setdefault(request.shard, deque()).append(ticket)
        elif status in (EXPIRED, NO_MESSAGES):
            request.end()
        elif status != HEARTBEAT:
            request.consumer_known = False
            request.end(now + RETRY_SECONDS)
            if status == NO_RESPONDERS or "Deleted" in (message.headers or {}).get("Description", ""):
                self._note_missing()
        self.changed.set()

    def _abandon(self, link: _Link, request: _Request) -> None:
        request.abandoned = True
        self._spawn(self._drain(link, request))

    async def _drain(self, link: _Link, request: _Request) -> None:
        """Release arriving tickets until the request has ended, then unsubscribe."""
        while request.is_open(now := self._monotonic()) and not link.client.is_closed:
            request.ended.clear()
            await wait_for(request.ended, max(request.open_until - now, RETRY_SECONDS))
        if request.subscription is not None:
            with contextlib.suppress(*FAULTS):
                await request.subscription.drain()  # type: ignore[no-untyped-call]

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _establish(jetstream: JetStreamContext, stream: str, wanted: ConsumerConfig) -> None:
    info = await jetstream.add_consumer(stream, wanted)
    delivered = info.delivered.stream_seq if info.delivered is not None else 0
    if delivered and delivered > (await jetstream.stream_info(stream)).state.last_seq:
        # The consumer outlived its stream and would skip every new ticket up to the old number.
        await jetstream.delete_consumer(stream, info.name)
        await jetstream.add_consumer(stream, wanted)
