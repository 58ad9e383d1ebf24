"""Publishes tickets to JetStream: a bounded queue, sent without waiting for each acknowledgement.

A ticket that was not confirmed, because its connection was lost or its stream had no leader, is sent again, and may
then be in the stream twice.
"""

import asyncio
import itertools
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from posthouse.wire.stream import PublishCounts, StreamSettings, TicketKind
from posthouse.wire.stream.connection import FAULTS, wait_for

log = structlog.get_logger(__name__)

POLL_SECONDS: Final = 1.0
# Yield to the event loop after this many tickets.
BURST: Final = 64
# With 5 s for each confirmation, enough for the election of a leader.
TRIES_MAX: Final = 3


@dataclass(slots=True)
class _Ticket:
    kind: TicketKind
    subject: str
    payload: bytes
    sent_at: float = 0.0
    tries: int = 0


class Publisher:
    def __init__(self, settings: StreamSettings) -> None:
        self.counts = PublishCounts()
        self.confirmed: Counter[TicketKind] = Counter()
        self.stream_missing = False
        # Kinds whose stream accepts tickets but never confirms: its files are gone or broken.
        self.stuck: set[TicketKind] = set()
        self._settings = settings
        self._waiting: deque[_Ticket] = deque()
        # Sent and not yet confirmed, by number, oldest first.
        self._unconfirmed: dict[int, _Ticket] = {}
        # Since when a kind's tickets have gone unanswered on this connection.
        self._silent_since: dict[TicketKind, float] = {}
        self._number = 0
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._refused = False
        self._client: Client | None = None
        self._inbox = ""

    def offer(self, kind: TicketKind, shard: int, payload: bytes) -> None:
        if len(self._waiting) >= self._settings.waiting_max:
            self.counts.dropped += 1
            return
        self._waiting.append(_Ticket(kind, f"{kind.value}.{shard}", payload))
        self._idle.clear()
        self._wake.set()

    def unconfirmed(self, kind: TicketKind) -> int:
        """How many tickets of this kind wait here, or were sent and are unconfirmed."""
        tickets = itertools.chain(self._waiting, self._unconfirmed.values())
        return sum(ticket.kind is kind for ticket in tickets)

    async def attach(self, client: Client) -> None:
        self._inbox = client.new_inbox()
        await client.subscribe(f"{self._inbox}.*", cb=self._confirmed)
        self._client = client
        self._wake.set()

    def detach(self) -> None:
        """The connection is lost, and with it every pending confirmation."""
        self._client = None
        self.expect_no_answers()

    def expect_no_answers(self) -> None:
        self._silent_since.clear()
        self.stuck.clear()
        tickets = list(self._unconfirmed.values())
        self._unconfirmed.clear()
        self._try_again(tickets)

    def note_missing(self) -> None:
        """Note that a stream doesn't exist: nothing is sent until it has been created."""
        self.stream_missing = True
        self._wake.set()

    async def step(self) -> None:
        """Send waiting tickets, as far as the bound allows; return when there is something to do again."""
        await self._send()
        await wait_for(self._wake, POLL_SECONDS)
        self._wake.clear()
        self._resend_sent_before(time.monotonic() - self._settings.confirm_seconds_max)

    async def drain(self, seconds: float) -> None:
        """Return when no ticket is waiting or in transit, or there is no connection, or time is up."""
        if self._client is not None:
            await wait_for(self._idle, seconds)
        self.counts.dropped += len(self._waiting)
        self._waiting.clear()

    async def _send(self) -> None:
        client = self._client
        while client is not None and self._waiting and len(self._unconfirmed) < self._settings.unconfirmed_max:
            if self.stream_missing:
                return
            ticket = self._waiting.popleft()
            ticket.sent_at = time.monotonic()
            ticket.tries += 1
            self._number = number = self._number + 1
            self._unconfirmed[number] = ticket
            try:
                await client.publish(ticket.subject, ticket.payload, reply=f"{self._inbox}.{number}")
            except FAULTS:
                if self._unconfirmed.pop(number, None) is not None:
                    self._try_again([ticket])
                if client.is_closed:
                    return
            if number % BURST == 0:
                await asyncio.sleep(0)

    async def _confirmed(self, answer: Msg) -> None:
        number = int(answer.subject.rpartition(".")[2])
        ticket = self._unconfirmed.pop(number, None)
        if ticket is None:
            return
        self._silent_since.pop(ticket.kind, None)
        if answer.headers is not None:
            # No stream listens to that subject: its data were wiped, or it has no leader. The ticket was not stored
            # anywhere, so this doesn't count as a try.
            ticket.tries -= 1
            self._try_again([ticket])
            self.note_missing()
        elif b'"error"' in answer.data:
            self.counts.dropped += 1
            if not self._refused:
                log.warning("stream_refuses", answer=answer.data[:500].decode("utf-8", "replace"))
            self._refused = True
        else:
            self.counts.confirmed += 1
            self.confirmed[ticket.kind] += 1
            self._refused = False
        if self._waiting and len(self._unconfirmed) <= self._settings.unconfirmed_max // 2:
            self._wake.set()
        self._note_idleness()

    def _try_again(self, tickets: Sequence[_Ticket]) -> None:
        for ticket in reversed(tickets):
            if ticket.tries >= TRIES_MAX:
                self.counts.dropped += 1
            else:
                self._waiting.appendleft(ticket)
        self._note_idleness()

    def _resend_sent_before(self, moment: float) -> None:
        numbers = [number for number, ticket in self._unconfirmed.items() if ticket.sent_at < moment]
        unanswered = [self._unconfirmed.pop(number) for number in numbers]
        for ticket in unanswered:
            silent_since = self._silent_since.setdefault(ticket.kind, ticket.sent_at)
            if ticket.sent_at >= silent_since + self._settings.confirm_seconds_max:
                self.stuck.add(ticket.kind)
        self._try_again(unanswered)

    def _note_idleness(self) -> None:
        if not self._unconfirmed and not self._waiting:
            self._idle.set()
