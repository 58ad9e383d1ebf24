"""Checks once whether a NATS server can carry the stream."""

import asyncio
from typing import Final

from nats.aio.client import Client
from nats.js.errors import ServiceUnavailableError

from posthouse.wire.stream.connection import CONNECT_SECONDS_MAX, FAULTS, shut

ANSWER_SECONDS_MAX: Final = 2.0 * CONNECT_SECONDS_MAX


async def probe(server: str) -> str:
    """The server's version and streams; raises ConnectionError with the reason if it can't be used."""
    client = Client()
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            await client.connect(server, allow_reconnect=False, connect_timeout=CONNECT_SECONDS_MAX, error_cb=_give_up)
            held = await client.jetstream().account_info()
    except ServiceUnavailableError as fault:
        raise ConnectionError("it runs without JetStream") from fault
    except FAULTS as fault:
        raise ConnectionError(str(fault) or "no answer in time") from fault
    finally:
        await shut(client)
    version = client.connected_server_version
    return f"NATS {version.major}.{version.minor}.{version.patch}, {held.streams} streams"


async def _give_up(fault: Exception) -> None:
    """Without this the client retries until its timeout and then hides the reason."""
    raise fault
