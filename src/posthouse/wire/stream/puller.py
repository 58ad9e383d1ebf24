"""Tickets on their way from JetStream: for each shard a standing request, and what came of it.

A fetch that asked, waited and went away would lose whatever the server sent a moment later, until the
acknowledgement's time is up. So a request outlives the fetch that made it: it stands for some seconds,
tickets that come are kept for the next fetch, and those of a shard that has moved on are given back. Nor is
a request withdrawn: a ticket that the server has just sent to an inbox nobody listens to is lost as well.
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
from posthouse.wire.stream.connection import FAULTS
from posthouse.wire.stream.wait import wait_for

log = structlog.get_logger(__name__)

# The server says when a request has ended; past this much more, it has forgotten the request.
REQUEST_GRACE_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 0.2

ACK: Final = b"+ACK"
WORKING: Final = b"+WPI"
RELEASE: Final = b"-NAK"

EXPIRED: Final = "408"
NO_MESSAGES: Final = "404"
HEARTBEAT: Final = "100"
NOBODY_THERE: Final = "503"

Answer = Callable[["JetStreamMessage", bytes], Awaitable[None]]


def stream_name(kind: TicketKind) -> str:
    return kind.value.upper()


@dataclass(frozen=True, slots=True)
class JetStreamMessage:
    payload: bytes
    shard: int
    kind: TicketKind
    reply: str
    # When the stream was created: an answer to a ticket of its predecessor must not reach it.
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

    def stands(self, now: float) -> bool:
        return self.opening or (self.tickets_left > 0 and now < self.open_until)

    def end(self, not_before: float = 0.0) -> None:
        self.tickets_left = 0
        self.not_before = not_before
        self.ended.set()


@dataclass(slots=True)
class _Link:
    """What lives as long as a connection."""

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
        self._kept: dict[int, deque[JetStreamMessage]] = {}
        self._link: _Link | None = None
        self._turn = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def attach(self, client: Client, jetstream: JetStreamContext, epoch: datetime | None) -> None:
        """A connection is there, or the stream has been created anew: every request is to be made again."""
        self.detach()
        self._link = _Link(client, jetstream, epoch)
        self.changed.set()

    def detach(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            for request in link.requests.values():
                self._abandon(link, request)

    def take(self, shards: frozenset[int], count: int) -> list[JetStreamMessage]:
        """Up to `count` of the tickets kept, one from each shard in turn."""
        stale = self._monotonic() - self._settings.ack_wait_seconds / 2
        self._turn += 1
        order = sorted(shard for shard in shards if self._kept.get(shard))
        start = self._turn % max(len(order), 1)
        order = order[start:] + order[:start]
        taken: list[JetStreamMessage] = []
        while order and len(taken) < count:
            for shard in order[: count - len(taken)]:
                ticket = self._kept[shard].popleft()
                # One that lay here for long is soon given out again: it is left to that.
                if ticket.arrived_at > stale:
                    taken.append(ticket)
            order = [shard for shard in order if self._kept[shard]]
        return taken

    async def give_back(self, shards: frozenset[int]) -> None:
        """Ask no more for shards other than these, and return the tickets of those others."""
        if self._link is not None:
            for shard in self._link.requests.keys() - shards:
                self._abandon(self._link, self._link.requests.pop(shard))
        for shard in self._kept.keys() - shards:
            for ticket in self._kept.pop(shard):
                await ticket.release()

    async def ask(self, shards: frozenset[int], count: int) -> float:
        """See that a request stands for every shard while there is room; returns when to look again."""
        link = self._link
        now = self._monotonic()
        room = count - sum(map(len, self._kept.values()))
        if link is None or room <= 0:
            return now + self._settings.request_seconds
        for shard in shards - link.requests.keys():
            link.requests[shard] = _Request(shard, link.client.new_inbox())
        idle = [request for request in link.requests.values() if not request.stands(now)]
        due = [request for request in idle if request.not_before <= now]
        # What there is room for is shared by the shards that have no request standing: a shard that is
        # alone in having tickets gets all of it, time and again, while the others stand with little.
        share = max(1, room // max(len(due), 1))
        for request in due:
            request.tickets_wanted = share
            request.opening = True
            if request.consumer_known:
                await self._open(link, request)
            else:
                self._spawn(self._open(link, request))
        ends = [request.open_until for request in link.requests.values() if request.stands(now)]
        ends += [request.not_before for request in idle if request.not_before > now]
        return min(ends, default=now + self._settings.request_seconds)

    async def close(self) -> None:
        await self.give_back(frozenset())
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _open(self, link: _Link, request: _Request) -> None:
        stream, consumer = stream_name(self._kind), f"{self._kind.value}-{request.shard}"
        try:
            if request.subscription is None:
                heard = functools.partial(self._arrived, link, request)
                request.subscription = await link.client.subscribe(request.inbox, cb=heard)
            if not request.consumer_known:
                await _establish(link.jetstream, stream, self._consumer(consumer, request.shard))
                request.consumer_known = True
            if request.abandoned:
                request.end()
                return
            seconds = self._settings.request_seconds
            request.tickets_left = request.tickets_wanted
            request.open_until = self._monotonic() + seconds + REQUEST_GRACE_SECONDS
            wish = {"batch": request.tickets_wanted, "expires": int(seconds * 1e9)}
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
            await link.client.publish(subject, json.dumps(wish).encode(), reply=request.inbox)
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
                self._kept.setdefault(request.shard, deque()).append(ticket)
        elif status in (EXPIRED, NO_MESSAGES):
            request.end()
        elif status != HEARTBEAT:
            request.consumer_known = False
            request.end(now + RETRY_SECONDS)
            if status == NOBODY_THERE or "Deleted" in (message.headers or {}).get("Description", ""):
                self._note_missing()
        self.changed.set()

    def _abandon(self, link: _Link, request: _Request) -> None:
        request.abandoned = True
        self._spawn(self._see_off(link, request))

    async def _see_off(self, link: _Link, request: _Request) -> None:
        """Listen until the request has ended, giving back what comes, and then no more."""
        while request.stands(now := self._monotonic()) and not link.client.is_closed:
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
        # Its file outlived its stream, and it would pass over every new ticket up to the old number.
        await jetstream.delete_consumer(stream, info.name)
        await jetstream.add_consumer(stream, wanted)
