"""Asks a mail server for its greeting, to see whether port 25 can be reached from here."""

import asyncio
from contextlib import suppress
from typing import Final

SECONDS_MAX: Final = 10.0
LINE_BYTES_MAX: Final = 1024


async def greeting(host: str, port: int = 25, seconds_max: float = SECONDS_MAX) -> str:
    """The first line that the server says; raises OSError (TimeoutError among others) if it says none."""
    async with asyncio.timeout(seconds_max):
        reader, writer = await asyncio.open_connection(host, port, limit=LINE_BYTES_MAX)
        try:
            line = await reader.readline()
        except ValueError:
            line = b""
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
    if not line.startswith(b"220"):
        raise ConnectionError(f"it does not greet as a mail server does: {line[:60]!r}")
    return line.decode("ascii", "replace").strip()
