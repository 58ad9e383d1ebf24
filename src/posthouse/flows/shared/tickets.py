"""Tickets on their way: out to the part of the stream that carries them, and from its messages one by one."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Generic, NamedTuple, TypeVar, assert_never

from posthouse.rules.ticket import (
    TOGETHER_MAX,
    DeliveryTicket,
    Ticket,
    WebhookTicket,
    account_shard_of,
    pack,
    shard_of,
    unpack,
)
from posthouse.wire.stream import Stream, TicketKind
from posthouse.wire.stream import StreamMessage as Carried

# How long a ticket may be under way before the calendar takes it for lost and writes another.
LEASE: Final = timedelta(seconds=60)
# Tickets that one worker takes in hand.
HELD_MAX: Final = 20_000
HEARTBEAT_AFTER_SECONDS: Final = 15.0

Held = TypeVar("Held", DeliveryTicket, WebhookTicket)


class Tickets:
    def __init__(self, stream: Stream, shards: int, lease: timedelta = LEASE) -> None:
        self.lease = lease
        self._stream = stream
        self._shards = shards

    def publish(self, tickets: Iterable[Ticket]) -> None:
        """Fire and forget: one that gets lost is due again when its lease is over."""
        together: dict[tuple[TicketKind, int], list[Ticket]] = {}
        for ticket in tickets:
            way = self._way(ticket)
            group = together.setdefault(way, [])
            group.append(ticket)
            if len(group) == TOGETHER_MAX:
                self._stream.publish(*way, pack(together.pop(way)))
        for way, group in together.items():
            self._stream.publish(*way, pack(group))

    async def backlog(self, kind: TicketKind) -> int:
        """How many of the stream's messages are under way or being worked on."""
        return await self._stream.backlog(kind)

    def _way(self, ticket: Ticket) -> tuple[TicketKind, int]:
        match ticket:
            case DeliveryTicket():
                return TicketKind.DELIVER, shard_of(ticket.destination, self._shards)
            case WebhookTicket():
                return TicketKind.NOTIFY, account_shard_of(ticket.account_id, self._shards)
            case _:
                assert_never(ticket)


class Item(NamedTuple, Generic[Held]):
    """A ticket in hand, and how to tell the stream what became of it."""

    ticket: Held
    carried: "Carried | TicketShare"


@dataclass(slots=True)
class _Message:
    """A message of the stream that brought several tickets: answered when all of them are."""

    carried: Carried
    open: int
    given_back: float | None = None

    async def answer(self, given_back: float | None) -> None:
        if given_back is not None:
            self.given_back = max(given_back, self.given_back or 0.0)
        self.open -= 1
        if self.open:
            return
        # Those that are done with come again with the others, and find their fences gone.
        if self.given_back is None:
            await self.carried.ack()
        else:
            await self.carried.release(self.given_back)


@dataclass(frozen=True, slots=True)
class TicketShare:
    """One ticket's share in a message."""

    message: _Message

    async def ack(self) -> None:
        await self.message.answer(None)

    async def working(self) -> None:
        await self.message.carried.working()

    async def release(self, delay_seconds: float = 0.0) -> None:
        await self.message.answer(delay_seconds)


class InHand(Generic[Held]):
    """The tickets of one kind that a worker has in hand, waiting or being worked on; each of them once."""

    def __init__(self, kind: type[Held], monotonic: Callable[[], float]) -> None:
        self._kind: type[Held] = kind
        self._monotonic = monotonic
        # With the time at which the stream last heard of it.
        self._held: dict[Held, tuple[Item[Held], float]] = {}

    @property
    def room(self) -> int:
        return HELD_MAX - len(self._held)

    async def take(self, carried: Iterable[Carried]) -> list[Item[Held]]:
        """The tickets of these messages. One that is in hand already, or can't be read, is dropped."""
        now = self._monotonic()
        taken = []
        for message in carried:
            for item in await self._items(message):
                if item.ticket in self._held:
                    await item.carried.ack()
                else:
                    self._held[item.ticket] = item, now
                    taken.append(item)
        return taken

    async def heartbeat(self) -> None:
        """The stream learns which tickets are still in hand, and doesn't give them to someone else."""
        now = self._monotonic()
        for ticket, (item, since) in list(self._held.items()):
            if now - since >= HEARTBEAT_AFTER_SECONDS and ticket in self._held:
                self._held[ticket] = item, now
                await item.carried.working()

    async def done_with(self, items: Iterable[Item[Held]]) -> None:
        for item in items:
            self._held.pop(item.ticket, None)
            await item.carried.ack()

    async def give_back(self, items: Iterable[Item[Held]], delay_seconds: float = 0.0) -> None:
        for item in items:
            self._held.pop(item.ticket, None)
            await item.carried.release(delay_seconds)

    async def _items(self, message: Carried) -> list[Item[Held]]:
        found = [ticket for ticket in unpack(message.payload) if isinstance(ticket, self._kind)]
        if not found:
            await message.ack()
        if len(found) <= 1:
            return [Item(ticket, message) for ticket in found]
        shared = _Message(message, len(found))
        return [Item(ticket, TicketShare(shared)) for ticket in found]
