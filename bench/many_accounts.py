"""Measures a service that meets 100,000 accounts and as many destinations, next to one that meets a thousand.

    make bench-accounts                           (or: python bench/many_accounts.py)
    python bench/many_accounts.py --quick --output /tmp/bench

One HTTP process accepts a message from each account in turn, at a fixed rate; another process then delivers all of
them, each to its own destination. The longest pause is how long `GET /healthz` waited at most.
"""

import asyncio
import http.client
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import dataset, harness, message, rate_load, report, smtp_sink
from bench.dataset import EmptyServices, Sender
from bench.delivery_isolation import percentile
from bench.harness import Run
from bench.processes import BenchError, cpu_seconds, memory_mib
from bench.report import Goal, Report, Rows, goal
from bench.smtp_sink import Sink
from tests.support.server_process import ServerProcess
from tests.support.service_processes import ServiceProcesses
from tools.private_postgres import PrivatePostgres, free_port

MANY: Final = 100_000
QUICK_MANY: Final = 2_000
FEW: Final = 1_000
PER_SECOND: Final = 1_000.0
DELIVERED_SECONDS_MAX: Final = 1_800.0
ASKED_EVERY_SECONDS: Final = 0.01

P99_MS_MAX: Final = 50.0
PAUSE_MS_MAX: Final = 100.0
MEMORY_MIB_MAX: Final = 256.0


@dataclass(slots=True)
class Pauses:
    longest_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Part:
    """What a process did with all messages: accepted or delivered them."""

    name: str
    count: int
    seconds: float
    cpu_us: float
    memory_mib: float
    """How much it grew."""
    pause_ms: float
    p99_ms: float | None = None


@contextmanager
def asked(port: int) -> Iterator[Pauses]:
    """Asks again and again meanwhile, from a thread, whether the process is alive."""
    pauses, is_over = Pauses(), threading.Event()

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while not is_over.wait(ASKED_EVERY_SECONDS):
            began = time.monotonic()
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            pauses.longest_seconds = max(pauses.longest_seconds, time.monotonic() - began)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield pauses
    finally:
        is_over.set()
        thread.join()


@dataclass(frozen=True, slots=True)
class Bench:
    services: EmptyServices
    senders: Sequence[Sender]
    sink_port: int
    messages: int
    per_second: float

    async def measured(self, accounts: int) -> list[Part]:
        """Accept a number of messages from that many accounts in turn, then deliver them to as many destinations."""
        settings = {
            "LANES__PER_SECOND": "1000000",
            "LANES__BURST": "1000000",
            "DELIVERY__PORT": str(self.sink_port),
            "DELIVERY__DKIM_ENABLED": "false",
            "INBOUND__PORT": str(free_port()),
        }
        async with self.services.prepared(settings, stream="memory") as processes:
            processes.nameserver.ttl = 3600
            accepting = await processes.start_http()
            accepted = await self._accept(accepting, processes, accounts)
            await asyncio.to_thread(accepting.kill)
            delivering = await processes.start_http("dispatch", "delivery")
            return [accepted, await self._deliver(delivering, processes, accounts)]

    async def _accept(self, part: ServerProcess, processes: ServiceProcesses, accounts: int) -> Part:
        senders = self.senders[:accounts]
        requests = (
            rate_load.raw_request(sender.basic, _body(sender, processes))
            for number in range(self.messages)
            for sender in [senders[number % accounts]]
        )
        pid = part.running.pid
        memory, cpu = memory_mib(pid), cpu_seconds(pid)
        with asked(part.port) as pauses:
            sent = await rate_load.post(part.port, requests, per_second=self.per_second)
        if not sent.is_well:
            raise BenchError(f"not every request was accepted: {sent.answers}")
        return Part(
            name=f"accept, {accounts:,} accounts",
            count=self.messages,
            seconds=sent.seconds,
            cpu_us=(cpu_seconds(pid) - cpu) / self.messages * 1e6,
            memory_mib=memory_mib(pid) - memory,
            pause_ms=pauses.longest_seconds * 1e3,
            p99_ms=percentile(sent.waits, 0.99) * 1e3,
        )

    async def _deliver(self, part: ServerProcess, processes: ServiceProcesses, accounts: int) -> Part:
        pid = part.running.pid
        memory, cpu = memory_mib(pid), cpu_seconds(pid)
        with asked(part.port) as pauses:
            seconds = await processes.wait_until_all_final(DELIVERED_SECONDS_MAX)
        return Part(
            name=f"deliver, {accounts:,} destinations",
            count=self.messages,
            seconds=seconds,
            cpu_us=(cpu_seconds(pid) - cpu) / self.messages * 1e6,
            memory_mib=memory_mib(pid) - memory,
            pause_ms=pauses.longest_seconds * 1e3,
        )


def _body(sender: Sender, processes: ServiceProcesses) -> bytes:
    """A message to a destination of the account's own."""
    destination = processes.destination(f"customer{sender.number}.example")
    return json.dumps(message.fields(sender.domain, to=f"ada@{destination}")).encode()


async def measure(bench: Bench, run: Run) -> list[Part]:
    parts: list[Part] = []
    for accounts in (FEW, len(bench.senders)):
        with run.status(f"{bench.messages:,} messages of {accounts:,} accounts"):
            parts += await bench.measured(accounts)
        for part in parts[-2:]:
            run.say(str(part))
    return parts


def report_of(run: Run) -> Report:
    many = QUICK_MANY if run.is_quick else MANY
    with PrivatePostgres.start(settings=dataset.CLUSTER_SETTINGS) as cluster, Sink() as sink:
        with run.status(f"creating {many:,} accounts"):
            senders = dataset.make(cluster, run.workplace, accounts=many).senders
        services = EmptyServices(cluster, run.workplace)
        parts = asyncio.run(measure(Bench(services, senders, sink.port, many, run.options.per_second), run))
    columns = ("Part", "messages/s", "CPU µs", "memory, MiB more", "longest pause, ms", "202 p99 ms")
    return Report(
        name="accounts",
        title="Many accounts and destinations",
        target="bench-accounts",
        machine=report.machine(),
        tables=[Rows("Many accounts, then many destinations, next to few", columns, [_row(part) for part in parts])],
        goals=goals(parts),
        notes=report.notes(
            "accounts", messages=f"{many:,}", per_second=f"{run.options.per_second:,.0f}", few=f"{FEW:,}"
        ),
    )


def _row(part: Part) -> list[str]:
    return [
        part.name,
        f"{part.count / part.seconds:,.0f}",
        f"{part.cpu_us:,.0f}",
        f"{part.memory_mib:,.0f}",
        f"{part.pause_ms:,.0f}",
        "–" if part.p99_ms is None else f"{part.p99_ms:,.0f}",
    ]


def goals(parts: Sequence[Part]) -> list[Goal]:
    found = []
    for part in parts[-2:]:
        found += [
            goal(
                part.memory_mib <= MEMORY_MIB_MAX,
                f"{part.name}: at most {MEMORY_MIB_MAX:.0f} MiB more: {part.memory_mib:.0f}",
            ),
            goal(
                part.pause_ms <= PAUSE_MS_MAX,
                f"{part.name}: no pause above {PAUSE_MS_MAX:.0f} ms: {part.pause_ms:.0f}",
            ),
        ]
        if part.p99_ms is not None:
            found.append(
                goal(
                    part.p99_ms <= P99_MS_MAX,
                    f"{part.name}: p99 of the 202 at most {P99_MS_MAX:.0f} ms: {part.p99_ms:.0f}",
                )
            )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = harness.parser(__doc__, rounds=1)
    parser.add_argument("--per-second", type=float, default=PER_SECOND, help=f"messages a second ({PER_SECOND:.0f})")
    return harness.main(parser.parse_args(arguments), report_of, smtp_sink.missing)


if __name__ == "__main__":
    sys.exit(main())
