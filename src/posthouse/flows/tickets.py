"""Tickets on their way out: what the calendar has leased goes to the part of the stream that carries it."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from posthouse.rules.ticket import DeliveryTicket, encode, shard_of
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
        for ticket in tickets:
            self._stream.publish(Kind.DELIVER, shard_of(ticket.destination, self._shards), encode(ticket))

    async def backlog(self) -> int:
        """How many are under way or being worked on."""
        return await self._stream.backlog(Kind.DELIVER)
