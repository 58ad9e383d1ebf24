"""Tickets that a worker holds stay with it, and cost the stream little."""

from itertools import pairwise
from uuid import UUID

from posthouse.compose.stream import ACK_WAIT_SECONDS
from posthouse.entrypoints.workers import HEARTBEAT_SECONDS
from posthouse.flows.shared.tickets import HEARTBEAT_AFTER_SECONDS, HeldTickets, Item
from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.ticket import DeliveryTicket, pack
from posthouse.wire.stream import StreamMessage, StreamSettings, TicketKind
from posthouse.wire.stream.memory import MemoryStream
from tests.support.clock import SettableClock

SECONDS = 60
TOGETHER = 3


class Signs:
    """A message of the stream that counts its signs of life."""

    def __init__(self, message: StreamMessage, at: list[float], clock: SettableClock) -> None:
        self.payload = message.payload
        self.shard = message.shard
        self.ack = message.ack
        self.release = message.release
        self._message = message
        self._at = at
        self._clock = clock

    async def working(self) -> None:
        self._at.append(self._clock.monotonic())
        await self._message.working()


def ticket(number: int) -> DeliveryTicket:
    return DeliveryTicket(AccountId(UUID(int=1)), MessageId(UUID(int=number)), 0, 1, "example.org")


async def test_held_tickets_are_never_sent_again_and_seldom_signed() -> None:
    """Tickets come every second, three in a message; some are answered soon, some after long, some never."""
    clock = SettableClock()
    stream = MemoryStream(StreamSettings(ack_wait_seconds=ACK_WAIT_SECONDS), monotonic=clock.monotonic)
    held = HeldTickets(DeliveryTicket, clock.monotonic)
    taken: list[list[Item[DeliveryTicket]]] = []
    signs: list[list[float]] = []

    for second in range(SECONDS):
        stream.publish(TicketKind.DELIVER, 0, pack([ticket(second * TOGETHER + part) for part in range(TOGETHER)]))
        fetched = await stream.fetch(TicketKind.DELIVER, frozenset({0}), 100, 0)
        assert len(fetched) == 1, "a held ticket was sent again"
        signs.append([])
        taken.append(await held.take_tickets([Signs(fetched[0], signs[-1], clock)]))
        assert len(taken[-1]) == TOGETHER
        if second % 3 == 0:
            await held.acknowledge(taken[second])
        if second >= 20 and second % 3 == 1:
            await held.acknowledge(taken[second - 18])
        # One look in four is missed.
        if second % 4 != 3:
            await held.heartbeat()
        clock.advance(seconds=HEARTBEAT_SECONDS)

    for second, at in enumerate(signs):
        assert all(late - early >= HEARTBEAT_AFTER_SECONDS for early, late in pairwise(at))
        if second % 3 == 0:
            assert at == []
    assert len(signs[2]) >= SECONDS / (HEARTBEAT_AFTER_SECONDS + 2 * HEARTBEAT_SECONDS) - 1
