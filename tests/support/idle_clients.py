"""Clients that take a connection and do next to nothing with it, by the thousand."""

import asyncio
import resource
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

# More at once would find the kernel's queue full, and wait a second to be let in.
OPENED_AT_ONCE: Final = 100
OPEN_SECONDS_MAX: Final = 30.0
# Of one source, since a server counts by address, and a loopback has many.
PER_SOURCE: Final = 1_000
TICKS_PER_SECOND: Final = 100


@dataclass(slots=True)
class IdleClient(asyncio.Protocol):
    """Says its words one after the other, each when it is answered; then nothing, but for what it is told to drip."""

    words: Sequence[bytes] = ()
    heard: bytearray = field(default_factory=bytearray)
    transport: asyncio.Transport | None = None
    is_ready: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    hung_up_at: float | None = None
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
        self.hung_up_at = time.monotonic()
        if not self.is_ready.done():
            self.is_ready.set_result(None)

    def drip(self, data: bytes) -> None:
        if self.transport is not None and self.hung_up_at is None:
            self.transport.write(data)

    def leave(self) -> None:
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
    """So many, from as many addresses of the loopback as they need; all have said their words."""
    loop = asyncio.get_running_loop()
    clients: list[IdleClient] = []
    for begin in range(0, count, OPENED_AT_ONCE):
        numbers = range(begin, min(count, begin + OPENED_AT_ONCE))
        async with asyncio.timeout(OPEN_SECONDS_MAX):
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
            await asyncio.gather(*(one.is_ready for _, one in made))
        clients += [one for _, one in made]
    return clients


def source_address(number: int) -> str:
    return f"127.0.{1 + number // PER_SOURCE}.1"


def may_open(count: int) -> None:
    """Descriptors for so many connections and some more; also of the processes that are started from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 1_000
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
        assert hard >= wanted, f"the machine allows {hard} open files, and this needs {wanted}"


@dataclass(frozen=True, slots=True)
class Cost:
    """What a process has taken: memory now, descriptors now, processor seconds since it began."""

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
    """So that a port is free at once."""
    if client.transport is not None:
        given: socket.socket | None = client.transport.get_extra_info("socket")
        if given is not None and client.hung_up_at is None:
            given.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.leave()
