"""A load with a fixed rate: a request is sent when its time has come, however long the others take.

    python bench/steady_load.py plan.json

Prints the answers as JSON: for each status, how many, and the percentiles of their milliseconds, from the time at which
a request was due. Some connections are opened beforehand; a request takes one that is free, or opens another.
"""

import asyncio
import json
import resource
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import uvloop

ANSWER_SECONDS_MAX: Final = 30.0
DESCRIPTORS: Final = 16_384


class Connection(asyncio.Protocol):
    """One request at a time; what is read of the answer is its status, its length and whether it says when to retry."""

    def __init__(self) -> None:
        self.transport: Any = None
        self._answer: asyncio.Future[tuple[str, bool]] | None = None
        self._read = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    async def ask(self, request: bytes) -> tuple[str, bool]:
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, found, body = self._read.partition(b"\r\n\r\n")
        if not found:
            return
        head = head.lower()
        length = int(head.partition(b"content-length: ")[2].split(b"\r\n", 1)[0])
        if len(body) >= length and self._answer is not None and not self._answer.done():
            self._read = b""
            self._answer.set_result((head[9:12].decode(), b"retry-after: " in head))

    def connection_lost(self, _: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(("none", False))


class SteadyLoad:
    def __init__(self, plan: dict[str, Any]) -> None:
        self._requests = [(head.encode(), rest.encode()) for head, rest in plan["requests"]]
        self._name: str = plan["name"]
        self._port: int = plan["port"]
        self._rate: float = plan["rate"]
        self._seconds: float = plan["seconds"]
        self._connections: int = plan["connections"]
        self._free: list[Connection] = []
        self._opened = 0
        self._milliseconds: dict[str, list[float]] = defaultdict(list)
        self._without_retry_after = 0

    async def run(self) -> dict[str, Any]:
        for _ in range(self._connections):
            self._free.append(await self._open())
        began_at = time.monotonic()
        running = set()
        for number in range(round(self._rate * self._seconds)):
            due_at = began_at + number / self._rate
            if (wait := due_at - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            task = asyncio.create_task(self._send(number, due_at))
            running.add(task)
            task.add_done_callback(running.discard)
        sending = time.monotonic() - began_at
        if running:
            await asyncio.wait(running, timeout=ANSWER_SECONDS_MAX)
        self._milliseconds["none"] += [ANSWER_SECONDS_MAX * 1000] * len(running)
        return {
            "answers": {status: _summary(waits) for status, waits in self._milliseconds.items() if waits},
            "seconds": sending,
            "connections": self._opened,
            "without_retry_after": self._without_retry_after,
        }

    async def _send(self, number: int, due_at: float) -> None:
        head, rest = self._requests[number % len(self._requests)]
        try:
            connection = self._free.pop() if self._free else await self._open()
            status, says_when = await connection.ask(b"%b%b-%09d%b" % (head, self._name.encode(), number, rest))
        except OSError:
            status, says_when = "none", False
        else:
            if not connection.transport.is_closing():
                self._free.append(connection)
        self._milliseconds[status].append(1000 * (time.monotonic() - due_at))
        self._without_retry_after += status in ("429", "503") and not says_when

    async def _open(self) -> Connection:
        self._opened += 1
        _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", self._port)
        return connection


def _summary(waits: list[float]) -> dict[str, float]:
    percentiles = statistics.quantiles(waits, n=100, method="inclusive") if len(waits) > 1 else waits * 99
    return {"count": len(waits), "p50": percentiles[49], "p99": percentiles[98], "most": max(waits)}


def main() -> int:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    plan = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps(uvloop.run(SteadyLoad(plan).run())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
