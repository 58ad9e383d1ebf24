"""Thousands of clients that open a connection and send next to nothing."""

import asyncio
import resource
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.eventually import HANG_SECONDS

# More at once would fill the kernel's accept queue and wait a second.
OPENED_BATCH: Final = 100
# Per source address, because the server limits connections by address; the loopback has many.
PER_SOURCE: Final = 1_000
TICKS_PER_SECOND: Final = 100


@dataclass(slots=True)
class IdleClient(asyncio.Protocol):
    """Sends its commands one by one, each after an answer; then only what `drip` sends."""

    words: Sequence[bytes] = ()
    heard: bytearray = field(default_factory=bytearray)
    transport: asyncio.Transport | None = None
    is_ready: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    closed_at: float | None = None
    _said: int = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if not self.words:
            self.is_ready.set_result(None)

    def data_received(self, data: bytes) -> None:
        self.heard += data
        lines = self.heard.splitlines(keepends=True)
        answers = sum(line[3:4] == b" " and line.endswith(b"\n") for line in lines)
        if self.transport is not None and answers > self._said < len(self.words):
            self.transport.write(self.words[self._said])
            self._said += 1
        elif answers > len(self.words) and not self.is_ready.done():
            self.is_ready.set_result(None)

    def connection_lost(self, _: Exception | None) -> None:
        self.closed_at = time.monotonic()
        if not self.is_ready.done():
            self.is_ready.set_result(None)

    def drip(self, data: bytes) -> None:
        if self.transport is not None and self.closed_at is None:
            self.transport.write(data)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


async def open_clients(
    count: int,
    port: int,
    words: Sequence[bytes] = (),
    *,
    context: ssl.SSLContext | None = None,
    client: type[IdleClient] = IdleClient,
) -> list[IdleClient]:
    """This many clients, from as many loopback addresses as needed; all have sent their commands."""
    loop = asyncio.get_running_loop()
    clients: list[IdleClient] = []
    for begin in range(0, count, OPENED_BATCH):
        numbers = range(begin, min(count, begin + OPENED_BATCH))
        async with asyncio.timeout(HANG_SECONDS):
            made = await asyncio.gather(
                *(
                    loop.create_connection(
                        lambda: client(words),
                        "127.0.0.1",
                        port,
                        local_addr=(source_address(number), 0),
                        ssl=context,
                        server_hostname=None if context is None else "localhost",
                    )
                    for number in numbers
                )
            )
            await asyncio.gather(*(opened.is_ready for _, opened in made))
        clients += [opened for _, opened in made]
    return clients


def source_address(number: int) -> str:
    return f"127.0.{1 + number // PER_SOURCE}.1"


def may_open(count: int) -> None:
    """Raises the limit of open files for this many connections, also for processes started later."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 1_000
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
        assert hard >= wanted, f"the machine allows {hard} open files, and this needs {wanted}"


@dataclass(frozen=True, slots=True)
class Cost:
    """A process's memory and descriptors now, and its processor seconds since its start."""

    resident_bytes: int
    descriptors: int
    processor_seconds: float

    @classmethod
    def of(cls, process: int) -> "Cost":
        here = Path(f"/proc/{process}")
        (resident,) = [line for line in (here / "status").read_text().splitlines() if line.startswith("VmRSS:")]
        times = (here / "stat").read_text().rpartition(")")[2].split()[11:13]
        return cls(
            int(resident.split()[1]) * 1024,
            len(list((here / "fd").iterdir())),
            sum(map(int, times)) / TICKS_PER_SECOND,
        )


def reset(client: IdleClient) -> None:
    """Close with a reset, so that the port is free at once."""
    if client.transport is not None:
        given: socket.socket | None = client.transport.get_extra_info("socket")
        if given is not None and client.closed_at is None:
            given.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.abort()
