"""The stream: carries tickets for due work to the worker that holds the shard; tickets may be lost at any time.

PostgreSQL holds the data and the schedule, so losing the stream loses nothing. A ticket that is dropped, deleted
or never acknowledged is published again by the next sweep; a duplicate ticket fails the fence check. That is why
publishing neither waits nor fails, why fetching from an unreachable server returns an empty list, and why a single
process can use an in-memory stream.

`jetstream` uses NATS, `memory` is the in-memory stream, `leases` assigns shards to workers, `probe` is the health
check.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol
from urllib.parse import urlsplit


class TicketKind(StrEnum):
    """The purpose of a ticket; also the first word of its subject, as in `deliver.7`."""

    DELIVER = "deliver"
    NOTIFY = "notify"


@dataclass(frozen=True, slots=True)
class StreamSettings:
    replicas: int = 1  # 3 in a cluster
    # How long a ticket may be held before it is redelivered: longer than the longest SMTP session, or, for workers
    # that call `working` regularly, longer than a few of those intervals.
    ack_wait_seconds: float = 900.0
    # Unacknowledged tickets per shard: as many as a worker holds, so that a full lane never blocks the shard's
    # other destinations.
    unacknowledged_max: int = 20_000
    # A full stream drops its oldest tickets, and old tickets expire: the schedule publishes them again.
    stream_bytes_max: int = 256 * 1024 * 1024
    ticket_age_seconds_max: float = 3_600.0
    # Tickets in this process that wait to be published, and published tickets without an acknowledgement.
    waiting_max: int = 20_000
    unconfirmed_max: int = 1_000
    # How long a pull request stays open at the server: after that a shard that moved gets no more tickets here.
    request_seconds: float = 2.0
    # A ticket not confirmed by then is sent again; a stream silent for twice as long is recreated.
    confirm_seconds_max: float = 5.0


@dataclass(slots=True)
class PublishCounts:
    """Outcomes of published tickets; the rest is waiting or in transit."""

    confirmed: int = 0
    dropped: int = 0


class StreamMessage(Protocol):
    """A ticket, held until it is acknowledged, released, or `ack_wait_seconds` have passed.

    The three responses are not confirmed: if a response is lost, the ticket is redelivered.
    """

    @property
    def payload(self) -> bytes: ...

    @property
    def shard(self) -> int: ...

    async def ack(self) -> None:
        """Done: no redelivery."""

    async def working(self) -> None:
        """Still in progress: restart `ack_wait_seconds`."""

    async def release(self, delay_seconds: float = 0.0) -> None:
        """Return it for redelivery after the delay. It counts as unacknowledged until then, so keep the delay short."""


class Stream(Protocol):
    @property
    def counts(self) -> PublishCounts: ...

    def publish(self, kind: TicketKind, shard: int, payload: bytes) -> None:
        """Fire and forget: never waits, never fails; a ticket that doesn't fit or arrive is dropped and counted."""

    async def fetch(
        self, kind: TicketKind, shards: frozenset[int], count: int, wait_seconds: float
    ) -> list[StreamMessage]:
        """Up to `count` tickets of these shards, as soon as there are any; an empty list after `wait_seconds`.

        Only a single loop may fetch a kind: tickets in transit for a shard that is no longer fetched are released
        for its new holder.
        """

    async def backlog(self, kind: TicketKind) -> int:
        """About how many tickets of this kind are published and not yet acknowledged.

        Includes other processes' tickets. May miss their last second, and everything since the server became
        unreachable.
        """

    async def close(self) -> None:
        """Publish waiting tickets, within seconds, and release prefetched ones."""


class Leases(Protocol):
    def held(self) -> frozenset[int]:
        """The shards that this worker holds exclusively right now; check again before every use."""

    def held_since(self, shard: int) -> float:
        """When this worker took a shard that it holds, on the monotonic clock; -inf if no other worker ever had it."""

    @property
    def places(self) -> int:
        """The number of shards over which lanes are distributed: after a renewal, all workers know the same number."""

    async def close(self) -> None:
        """Release all of them."""


def without_password(server: str) -> str:
    """A server address for logs, without its password."""
    return urlsplit(server).netloc.rpartition("@")[2]
