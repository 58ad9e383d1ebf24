"""The stream that carries tickets, and the leases on its shards."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from posthouse.config import Settings
from posthouse.flows.shared.tickets import Tickets
from posthouse.randomness import Randomness
from posthouse.rules.check_up import StreamServer
from posthouse.wire.stream import Leases, Stream, StreamSettings, TicketKind, without_password
from posthouse.wire.stream.memory import AllShards, MemoryStream

# Workers confirm every few seconds that they still hold a ticket. A ticket that was lost on its way, with the server
# that carried it or with the worker that held it, is sent again after this. A worker that stalls for longer gets its
# tickets twice, and drops the second copies.
ACK_WAIT_SECONDS: Final = 10.0
WORKER_NAME_BYTES: Final = 8


@asynccontextmanager
async def open_stream(settings: Settings, name: str, *, or_memory: bool) -> AsyncIterator[Stream | None]:
    """NATS if it is set up; if not, a stream in this process's memory with `or_memory`, and None without."""
    chosen = StreamSettings(replicas=settings.stream.replicas, ack_wait_seconds=ACK_WAIT_SECONDS)
    opened: Stream
    if settings.stream.addresses:
        from posthouse.wire.stream.jetstream import JetStream  # its client is slow to import

        opened = await JetStream.open(settings.stream.addresses, chosen, name=f"posthouse-{name}")
    elif or_memory:
        opened = MemoryStream(chosen)
    else:
        yield None
        return
    try:
        yield opened
    finally:
        await opened.close()


def stream_probes(settings: Settings) -> Mapping[str, Callable[[], Awaitable[StreamServer]]]:
    """For each server of the stream, a check whether it can be used; empty for a stream in memory."""

    async def check(server: str) -> StreamServer:
        from posthouse.wire.stream.jetstream import probe

        return await probe(server)

    return {without_password(server): partial(check, server) for server in settings.stream.addresses}


def tickets(settings: Settings, stream: Stream) -> Tickets:
    return Tickets(stream, settings.stream.shards, settings.workers.ticket_lease, settings.lanes.limits)


async def shard_leases(settings: Settings, randomness: Randomness, bucket: str, kind: TicketKind) -> Leases:
    if not settings.stream.addresses:
        return AllShards(settings.stream.shards)
    from posthouse.wire.stream.leases import LeaseSettings, ShardLeases

    return await ShardLeases.open(
        settings.stream.addresses,
        randomness.bytes(WORKER_NAME_BYTES).hex(),
        settings.stream.shards,
        LeaseSettings(replicas=settings.stream.replicas, bucket=bucket, kind=kind),
    )
