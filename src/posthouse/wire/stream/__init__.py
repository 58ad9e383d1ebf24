"""The stream: carries what is due now to whoever holds its shard, and may be lost at any moment.

PostgreSQL holds the truth and the calendar, so nothing here is precious. A ticket that is dropped, wiped
or never acknowledged is published again by the next sweep; a ticket that comes twice meets a fence that
has moved on. That is why publishing neither waits nor fails, why fetching from a server that is away
brings an empty list rather than an error, and why a single process can do with a twin in its own memory.

`jetstream` speaks to NATS, `memory` is the twin, `leases` says which worker reads which shard, `probe` asks for a
check-up.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol
from urllib.parse import urlsplit


class TicketKind(StrEnum):
    """What a ticket is for; also the first word of its subject, as in `deliver.7`."""

    DELIVER = "deliver"
    NOTIFY = "notify"


@dataclass(frozen=True, slots=True)
class StreamSettings:
    replicas: int = 1  # 3 in a cluster
    # How long a ticket may be worked on before it is given out again: above the longest SMTP session, or, for
    # workers that say `working` all along, above a few of the pauses in between.
    ack_wait_seconds: float = 900.0
    # Tickets of one shard that may be out at a time: as many as a worker takes in hand, so that a lane which holds
    # all that it may never keeps the shard's other destinations waiting.
    unacknowledged_max: int = 20_000
    # A stream that is full, or whose tickets are old, loses the oldest: the calendar brings them back.
    stream_bytes_max: int = 256 * 1024 * 1024
    ticket_age_seconds_max: float = 3_600.0
    # Tickets that wait in this process to be published, and those sent whose acknowledgement is awaited.
    waiting_max: int = 20_000
    unconfirmed_max: int = 1_000
    # How long a request for tickets stands at the server: after that a shard that moved is left alone.
    request_seconds: float = 2.0
    # A ticket not acknowledged by then is given up; a stream silent for twice as long is made anew.
    confirm_seconds_max: float = 5.0


@dataclass(slots=True)
class PublishCounts:
    """What became of the tickets given to `publish`; the rest still waits or travels."""

    confirmed: int = 0
    dropped: int = 0


class StreamMessage(Protocol):
    """A ticket, held until it is acknowledged, released, or `ack_wait_seconds` have passed.

    The three answers are sent and not confirmed: one that gets lost makes the ticket come again.
    """

    @property
    def payload(self) -> bytes: ...

    @property
    def shard(self) -> int: ...

    async def ack(self) -> None:
        """Done with: it won't come again."""

    async def working(self) -> None:
        """Still at it: the wait begins anew."""

    async def release(self, delay_seconds: float = 0.0) -> None:
        """Give it back, to come again after the delay. It counts as being out until then, so keep it short."""


class Stream(Protocol):
    @property
    def counts(self) -> PublishCounts: ...

    def publish(self, kind: TicketKind, shard: int, payload: bytes) -> None:
        """Fire and forget: never waits and never fails; what doesn't fit or arrive is dropped and counted."""

    async def fetch(
        self, kind: TicketKind, shards: frozenset[int], count: int, wait_seconds: float
    ) -> list[StreamMessage]:
        """Up to `count` tickets of these shards, as soon as there are any; none after `wait_seconds`.

        One loop fetches a kind: tickets that were on their way here for a shard that is no longer asked
        for are given back to whoever holds it now.
        """

    async def backlog(self, kind: TicketKind) -> int:
        """About how many tickets of this kind were published and are not acknowledged yet, as far as is known.

        Other processes' tickets count too. What they did in the last second may be missing, and all that
        happened since the server went away.
        """

    async def close(self) -> None:
        """Send what waits, within seconds, and give back what was fetched ahead."""


class Leases(Protocol):
    def held(self) -> frozenset[int]:
        """The shards that are this worker's alone at this moment; ask again before every use."""

    async def close(self) -> None:
        """Hand all of them over."""


def without_password(server: str) -> str:
    """An address as it may be told: without the password that it may carry."""
    return urlsplit(server).netloc.rpartition("@")[2]
