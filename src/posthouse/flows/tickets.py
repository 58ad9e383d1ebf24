"""Tickets on their way: out to the part of the stream that carries them, and from its messages one by one."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from posthouse.rules.ticket import TOGETHER_MAX, DeliveryTicket, Ticket, pack, shard_of, unpack
from posthouse.wire.stream import Delivery as Carried
from posthouse.wire.stream import Kind, Stream

# How long a ticket may be under way before the calendar takes it for lost and writes another.
LEASE: Final = timedelta(seconds=60)


class Tickets:
    def __init__(self, stream: Stream, shards: int, lease: timedelta = LEASE) -> None:
        self.lease = lease
        self._stream = stream
        self._shards = shards

    def publish(self, tickets: Iterable[DeliveryTicket]) -> None:
        """Fire and forget: one that gets lost is due again when its lease is over."""
        together: dict[int, list[DeliveryTicket]] = {}
        for ticket in tickets:
            shard = shard_of(ticket.destination, self._shards)
            group = together.setdefault(shard, [])
            group.append(ticket)
            if len(group) == TOGETHER_MAX:
                self._stream.publish(Kind.DELIVER, shard, pack(together.pop(shard)))
        for shard, group in together.items():
            self._stream.publish(Kind.DELIVER, shard, pack(group))

    async def backlog(self) -> int:
        """How many of the stream's messages are under way or being worked on."""
        return await self._stream.backlog(Kind.DELIVER)


@dataclass(frozen=True, slots=True)
class Item:
    """A ticket in hand, and how to tell the stream what became of it."""

    ticket: DeliveryTicket
    carried: "Carried | Part"


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
class Part:
    """One ticket's share in a message."""

    message: _Message

    async def ack(self) -> None:
        await self.message.answer(None)

    async def working(self) -> None:
        await self.message.carried.working()

    async def release(self, delay_seconds: float = 0.0) -> None:
        await self.message.answer(delay_seconds)


async def items_of(carried: Carried) -> list[Item]:
    """The tickets of a message of the stream; what can't be read is dropped."""
    tickets: list[Ticket] = unpack(carried.payload)
    found = [ticket for ticket in tickets if isinstance(ticket, DeliveryTicket)]
    if not found:
        await carried.ack()
    if len(found) <= 1:
        return [Item(ticket, carried) for ticket in found]
    message = _Message(carried, len(found))
    return [Item(ticket, Part(message)) for ticket in found]
