"""The stream on NATS JetStream: work queues, with a durable consumer for each shard."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import structlog
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig, StreamInfo
from nats.js.errors import BadRequestError, NotFoundError, ServiceUnavailableError

from posthouse import metrics
from posthouse.rules.check_up import StreamReplicas, StreamServer
from posthouse.wire.stream import PublishCounts, StreamMessage, StreamSettings, TicketKind
from posthouse.wire.stream.connection import CONNECT_SECONDS_MAX, FAULTS, Outage, keep_connected, shut, wait_for
from posthouse.wire.stream.publisher import Publisher
from posthouse.wire.stream.puller import ACK, JetStreamMessage, Puller, stream_name

log = structlog.get_logger(__name__)

# A request that meets no leader is never answered: it is made again soon, and changes nothing the second time.
ANSWER_SECONDS_MAX: Final = 2.0
ELECTION_SECONDS: Final = 0.25
CLOSE_SECONDS_MAX: Final = 3  # for each of the two sides
# Acknowledgements kept while the server is unreachable; beyond the limit, tickets are redelivered.
LATE_ACKS_MAX: Final = 10_000
NAME_IN_USE_WITH_OTHER_CONFIGURATION: Final = 10058
# How often the server is queried for its backlog, and the timeout of that query.
BACKLOG_SECONDS: Final = 1.0


@dataclass(slots=True)
class _Backlog:
    """The stream's backlog at the last query, and how many of our tickets were confirmed by then."""

    held: int = 0
    confirmed: int = 0
    good_until: float = float("-inf")
    is_queried: bool = False


class JetStream:
    """Create it with `open`, which returns immediately, whether or not a server is reachable."""

    def __init__(
        self, settings: StreamSettings | None = None, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings or StreamSettings()
        self._publisher = Publisher(self._settings)
        self._pullers = {
            kind: Puller(
                kind,
                self._settings,
                answer=self._answer,
                note_missing=self._publisher.note_missing,
                monotonic=monotonic,
            )
            for kind in TicketKind
        }
        self._fetching: set[TicketKind] = set()
        self._client: Client | None = None
        self._epochs: dict[TicketKind, datetime | None] = {}
        self._backlogs = {kind: _Backlog() for kind in TicketKind}
        self._late_acks: deque[JetStreamMessage] = deque(maxlen=LATE_ACKS_MAX)
        self._keeping: asyncio.Task[None] | None = None
        self._closed = False

    @classmethod
    async def open(
        cls, servers: Sequence[str], settings: StreamSettings | None = None, *, name: str = "posthouse"
    ) -> "JetStream":
        stream = cls(settings)
        metrics.STREAM_CONNECTED.set(0)
        stream._keeping = asyncio.create_task(keep_connected(servers, name, stream._serve))
        return stream

    @property
    def counts(self) -> PublishCounts:
        return self._publisher.counts

    @property
    def is_ready(self) -> bool:
        """A server is connected and has the streams."""
        return self._client is not None

    def publish(self, kind: TicketKind, shard: int, payload: bytes) -> None:
        if self._closed:
            self.counts.dropped += 1
        else:
            self._publisher.offer(kind, shard, payload)

    async def fetch(
        self, kind: TicketKind, shards: frozenset[int], count: int, wait_seconds: float
    ) -> list[StreamMessage]:
        if kind in self._fetching:
            raise RuntimeError(f"two loops fetch {kind.value} tickets from one connection")
        self._fetching.add(kind)
        try:
            return await self._fetch(self._pullers[kind], shards, count, time.monotonic() + wait_seconds)
        finally:
            self._fetching.discard(kind)

    async def backlog(self, kind: TicketKind) -> int:
        known = self._backlogs[kind]
        if self._client is not None and not known.is_queried and time.monotonic() >= known.good_until:
            confirmed = self._publisher.confirmed[kind]
            known.is_queried = True
            try:
                info = await self._client.jetstream(timeout=BACKLOG_SECONDS).stream_info(stream_name(kind))
            except FAULTS:
                pass  # keep the last known value
            else:
                known.held, known.confirmed = info.state.messages, confirmed
            finally:
                known.is_queried, known.good_until = False, time.monotonic() + BACKLOG_SECONDS
        # Count tickets published since then, or a publishing loop would run ahead for a second.
        return known.held + self._publisher.confirmed[kind] - known.confirmed + self._publisher.unconfirmed(kind)

    async def close(self) -> None:
        self._closed = True
        await self._publisher.drain(CLOSE_SECONDS_MAX)
        with contextlib.suppress(*FAULTS):
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                for puller in self._pullers.values():
                    await puller.close()
                if self._client is not None:
                    await self._client.flush(CLOSE_SECONDS_MAX)
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)

    async def _fetch(self, puller: Puller, shards: frozenset[int], count: int, deadline: float) -> list[StreamMessage]:
        while True:
            puller.changed.clear()
            await puller.release_shards(shards)
            taken: list[StreamMessage] = [*puller.take_tickets(shards, count)]
            # Request more before returning these, so that the next tickets are in transit meanwhile.
            check_again_at = await puller.ask(shards, count)
            now = time.monotonic()
            if taken or now >= deadline:
                return taken
            await wait_for(puller.changed, min(deadline, check_again_at) - now)

    async def _serve(self, client: Client, outage: Outage) -> None:
        """Use a connection until it is lost."""
        jetstream = client.jetstream(timeout=ANSWER_SECONDS_MAX)
        try:
            await self._publisher.attach(client)
            await self._establish(client, jetstream)
            outage.over()
            metrics.STREAM_CONNECTED.set(1)
            while not client.is_closed:
                await self._publisher.step()
                if self._publisher.stuck:
                    await self._delete_stuck(jetstream)
                if self._publisher.stream_missing:
                    log.warning("stream_missing")
                    await self._establish(client, jetstream)
                    # A stream whose leader is being elected is there and takes nothing.
                    await asyncio.sleep(ELECTION_SECONDS)
        finally:
            self._client = None
            metrics.STREAM_CONNECTED.set(0)
            self._publisher.detach()
            for puller in self._pullers.values():
                puller.detach()

    async def _establish(self, client: Client, jetstream: JetStreamContext) -> None:
        """Create the streams and pass their creation times on."""
        epochs: dict[TicketKind, datetime | None] = {}
        for kind in TicketKind:
            info = await _created(jetstream, self._configuration(kind))
            epochs[kind] = info.created
        self._epochs = epochs
        self._publisher.stream_missing = False
        for kind, puller in self._pullers.items():
            puller.attach(client, jetstream, epochs[kind])
        self._client = client
        for _ in range(len(self._late_acks)):
            await self._answer(self._late_acks.popleft(), ACK)

    async def _delete_stuck(self, jetstream: JetStreamContext) -> None:
        """Delete stuck streams; only this or a server restart helps, and PostgreSQL has the data."""
        for kind in sorted(self._publisher.stuck):
            log.error("stream_stuck", stream=stream_name(kind))
            with contextlib.suppress(NotFoundError):
                await jetstream.delete_stream(stream_name(kind))
        self._publisher.expect_no_answers()
        self._publisher.note_missing()

    def _configuration(self, kind: TicketKind) -> StreamConfig:
        return StreamConfig(
            name=stream_name(kind),
            subjects=[f"{kind.value}.*"],
            retention=RetentionPolicy.WORK_QUEUE,
            storage=StorageType.FILE,
            discard=DiscardPolicy.OLD,
            max_bytes=self._settings.stream_bytes_max,
            max_age=self._settings.ticket_age_seconds_max,
            num_replicas=self._settings.replicas,
        )

    async def _answer(self, ticket: JetStreamMessage, body: bytes) -> None:
        if self._client is None:
            if body == ACK:
                self._late_acks.append(ticket)
            return
        if ticket.epoch != self._epochs[ticket.kind]:
            return
        with contextlib.suppress(*FAULTS):
            await self._client.publish(ticket.reply, body)


async def _created(jetstream: JetStreamContext, configuration: StreamConfig) -> StreamInfo:
    try:
        return await jetstream.add_stream(configuration)
    except BadRequestError as fault:
        if fault.err_code != NAME_IN_USE_WITH_OTHER_CONFIGURATION:
            raise
        return await jetstream.update_stream(configuration)


# Checks once whether a NATS server can carry the stream.


PROBE_SECONDS_MAX: Final = 2.0 * CONNECT_SECONDS_MAX


async def probe(server: str) -> StreamServer:
    """What the server reports about itself; raises ConnectionError with the reason if it can't be used."""
    client = Client()
    try:
        async with asyncio.timeout(PROBE_SECONDS_MAX):
            await client.connect(server, allow_reconnect=False, connect_timeout=CONNECT_SECONDS_MAX, error_cb=_give_up)
            stream = client.jetstream()
            held = await stream.account_info()
            streams = await stream.streams_info() if held.streams else []
    except ServiceUnavailableError as fault:
        raise ConnectionError("it runs without JetStream") from fault
    except FAULTS as fault:
        raise ConnectionError(str(fault) or "no answer in time") from fault
    finally:
        await shut(client)
    version = client.connected_server_version
    most = held.limits.max_storage
    return StreamServer(
        (version.major, version.minor, version.patch),
        [_replicas(info) for info in streams],
        held.storage,
        most if most is not None and most > 0 else None,
    )


def _replicas(info: StreamInfo) -> StreamReplicas:
    peers = (info.cluster.replicas if info.cluster else None) or []
    lagging = tuple(peer.name or "a server" for peer in peers if peer.offline or not peer.current)
    return StreamReplicas(info.config.name or "", info.config.num_replicas or 1, lagging)


async def _give_up(fault: Exception) -> None:
    """Without this the client retries until its timeout and then hides the reason."""
    raise fault
