"""Checks once whether a NATS server can carry the stream."""

import asyncio
from typing import Final

from nats.aio.client import Client
from nats.js.api import StreamInfo
from nats.js.errors import ServiceUnavailableError

from posthouse.rules.stream_check import StreamReplicas, StreamServer
from posthouse.wire.stream.connection import CONNECT_SECONDS_MAX, FAULTS, shut

ANSWER_SECONDS_MAX: Final = 2.0 * CONNECT_SECONDS_MAX


async def probe(server: str) -> StreamServer:
    """What the server says of itself; raises ConnectionError with the reason if it can't be used."""
    client = Client()
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
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
