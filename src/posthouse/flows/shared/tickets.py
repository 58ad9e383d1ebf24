"""Tickets in the stream: how they are published to their shards, and how a worker holds those that it received."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import takewhile
from typing import Final, Generic, NamedTuple, TypeVar, assert_never

from posthouse import metrics
from posthouse.rules.lane import LaneLimits
from posthouse.rules.lane_shard import LaneShards, first_lane
from posthouse.rules.ticket import (
    TOGETHER_MAX,
    DeliveryTicket,
    Ticket,
    WebhookTicket,
    account_shard_of,
    pack,
    unpack,
)
from posthouse.store.postgres import fast_uuid
from posthouse.wire.stream import Stream, StreamMessage, TicketKind

# How long a ticket may be in the stream before the schedule considers it lost and dispatch publishes another.
LEASE: Final = timedelta(seconds=60)
# How many tickets one worker holds.
HELD_MAX: Final = 20_000
# Most tickets are done before this, and cost the stream nothing more.
HEARTBEAT_AFTER_SECONDS: Final = 6.0

# Their names in the metrics.
KIND_NAMES: Final = {TicketKind.DELIVER: "mail", TicketKind.NOTIFY: "webhook"}

TicketT = TypeVar("TicketT", DeliveryTicket, WebhookTicket)


class Tickets:
    def __init__(
        self, stream: Stream, shards: int, lease: timedelta = LEASE, lane_limits: LaneLimits | None = None
    ) -> None:
        self.lease = lease
        self._stream = stream
        self._shards = shards
        self._lane_shards = LaneShards(lane_limits or LaneLimits(), shards)

    def publish(self, tickets: Iterable[Ticket]) -> None:
        """Fire and forget: the work of a lost ticket is due again when its lease ends."""
        together: dict[tuple[TicketKind, int], list[Ticket]] = {}
        published: Counter[TicketKind] = Counter()
        for ticket in tickets:
            subject = self._subject(ticket)
            published[subject[0]] += 1
            group = together.setdefault(subject, [])
            group.append(ticket)
            if len(group) == TOGETHER_MAX:
                self._stream.publish(*subject, pack(together.pop(subject)))
        for subject, group in together.items():
            self._stream.publish(*subject, pack(group))
        for kind, number in published.items():
            metrics.TICKETS.count(KIND_NAMES[kind], by=number)

    def forward(self, tickets: Sequence[DeliveryTicket], lane: str, shard: int) -> None:
        """Publish tickets to the shard in which their lane lives. They are not forwarded a second time."""
        for start in range(0, len(tickets), TOGETHER_MAX):
            self._stream.publish(TicketKind.DELIVER, shard, pack(tickets[start : start + TOGETHER_MAX], lane))

    async def backlog(self, kind: TicketKind) -> int:
        """How many of the stream's messages are not yet acknowledged."""
        return await self._stream.backlog(kind)

    def _subject(self, ticket: Ticket) -> tuple[TicketKind, int]:
        match ticket:
            case DeliveryTicket():
                lane = first_lane(ticket.destination)
                return TicketKind.DELIVER, self._lane_shards.home(lane, ticket.message_id)
            case WebhookTicket():
                return TicketKind.NOTIFY, account_shard_of(ticket.account_id, self._shards)
            case _:
                assert_never(ticket)


class Item(NamedTuple, Generic[TicketT]):
    """A held ticket, with the message by which it is acknowledged or given back.

    `taken_at` is when this worker received it, by the monotonic clock.
    """

    ticket: TicketT
    message: "StreamMessage | TicketShare"
    taken_at: float = 0.0


@dataclass(slots=True)
class _SharedMessage:
    """A stream message with several tickets; it is answered when all of them are."""

    message: StreamMessage
    open: int
    delay_seconds: float | None = None

    async def answer(self, delay_seconds: float | None) -> None:
        """A delay gives the message back; None acknowledges it, unless another of its tickets was given back."""
        if delay_seconds is not None:
            self.delay_seconds = max(delay_seconds, self.delay_seconds or 0.0)
        self.open -= 1
        if self.open:
            return
        # Acknowledged tickets come again with those given back, and find their fences gone.
        if self.delay_seconds is None:
            await self.message.ack()
        else:
            await self.message.release(self.delay_seconds)


@dataclass(frozen=True, slots=True)
class TicketShare:
    """One ticket's share in a message."""

    shared: _SharedMessage

    @property
    def shard(self) -> int:
        return self.shared.message.shard

    async def ack(self) -> None:
        await self.shared.answer(None)

    async def release(self, delay_seconds: float = 0.0) -> None:
        await self.shared.answer(delay_seconds)


class HeldTickets(Generic[TicketT]):
    """The tickets of one kind that a worker holds, waiting or being worked on; each of them once."""

    def __init__(self, kind: type[TicketT], monotonic: Callable[[], float]) -> None:
        self._kind: type[TicketT] = kind
        self._monotonic = monotonic
        # With the time of the last sign of life to the stream, ordered by it.
        self._held: dict[TicketT, tuple[Item[TicketT], float]] = {}

    @property
    def capacity(self) -> int:
        return HELD_MAX - len(self._held)

    @property
    def is_empty(self) -> bool:
        return not self._held

    async def take_tickets(self, messages: Iterable[StreamMessage]) -> list[Item[TicketT]]:
        """The tickets of these messages. A ticket that is already held, or can't be read, is dropped."""
        now = self._monotonic()
        taken = []
        for message in messages:
            for item in await self._items(message, now):
                if item.ticket in self._held:
                    await item.message.ack()
                else:
                    self._held[item.ticket] = item, now
                    taken.append(item)
        return taken

    async def heartbeat(self) -> None:
        """Stop the stream from giving held tickets to another worker: one sign of life per message, not per ticket."""
        until = self._monotonic() - HEARTBEAT_AFTER_SECONDS
        due = [item for item, _ in takewhile(lambda held: held[1] <= until, self._held.values())]
        signed: set[int] = set()
        for item in due:
            known = self._held.get(item.ticket)
            if known is None or known[0] is not item:
                continue  # it was answered in the meantime
            del self._held[item.ticket]
            self._held[item.ticket] = item, self._monotonic()
            message = item.message.shared.message if isinstance(item.message, TicketShare) else item.message
            if id(message) not in signed:
                signed.add(id(message))
                await message.working()

    async def acknowledge(self, items: Iterable[Item[TicketT]]) -> None:
        for item in items:
            self._held.pop(item.ticket, None)
            await item.message.ack()

    async def release_tickets(self, items: Iterable[Item[TicketT]], delay_seconds: float = 0.0) -> None:
        for item in items:
            self._held.pop(item.ticket, None)
            await item.message.release(delay_seconds)

    async def _items(self, message: StreamMessage, now: float) -> list[Item[TicketT]]:
        found = [ticket for ticket in unpack(message.payload, fast_uuid) if isinstance(ticket, self._kind)]
        if not found:
            await message.ack()
        if len(found) <= 1:
            return [Item(ticket, message, now) for ticket in found]
        shared = _SharedMessage(message, len(found))
        return [Item(ticket, TicketShare(shared), now) for ticket in found]
