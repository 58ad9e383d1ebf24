"""Measures isolation: what a dead destination, or another account's backlog, costs other mail.

    make bench-isolation                          (or: python bench/isolation.py)
    python bench/isolation.py --rounds 3 --seconds 120
    python bench/isolation.py --quick --output /tmp/bench

A thousand destinations and one more, which gets every fifth mail and is alive or dead, in turn, at half of
what the machine was found to carry. Then one slow lane with a backlog in it, and a mail now and then from
another account. Everything is real and runs here: PostgreSQL, NATS, DNS, the service's own processes, and a
server that takes the mail.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import ground, harness, isolation_report, letter
from bench.harness import Run
from bench.isolation_report import Findings, Sizes
from bench.report import Report
from posthouse.rules.lease import WORKER_LEASE
from posthouse.rules.retry import DELIVERY
from tests.support.delivery_isolation import (
    DEAD_ADDRESS,
    ONE,
    SLOW,
    Experiment,
    FairShares,
    NotDeliveredError,
    OthersMail,
)
from tests.support.rate_load import request
from tests.support.server_process import environment
from tests.support.service import Tenant
from tests.support.service_processes import ServiceProcesses, run_processes
from tests.support.unresponsive_server import UnresponsiveServer
from tools.private_postgres import PrivatePostgres

ROUNDS: Final = 2
# A whole round of the dead one: a connection's time-out, the pause, and another mail that finds out.
SECONDS: Final = 75
FULL: Final = Sizes(domains=1_000, senders=10, capacity_mails=6_000, backlog=20_000, small_mails=60, lane_per_second=50)
QUICK: Final = Sizes(domains=50, senders=3, capacity_mails=300, backlog=500, small_mails=5, lane_per_second=50)
QUICK_SECONDS: Final = 5

EVERY: Final = 5
LOAD_PART: Final = 0.5
LATE_SECONDS_MAX: Final = 120.0
# The one's lane may carry what is meant for it: only its being dead stands in the way.
LANE_PER_SECOND_MIN: Final = 100.0
TEMPLATE: Final = "posthouse_template"

# The service's own defaults, where the tests that share these processes hurry.
DEFAULTS: Final = {
    "DELIVERY__RETRY_MINUTES": json.dumps([wait.total_seconds() / 60 for wait in DELIVERY.waits]),
    "WORKERS__LEASE_SECONDS": str(WORKER_LEASE.total_seconds()),
    "WORKERS__TICKET_LEASE_SECONDS": "60",
    "LANES__PER_SECOND": "100",
    "LANES__BURST": "100",
}


def usual_letter(tenant: Tenant, to: str) -> bytes:
    return request(tenant, to, subject=letter.SUBJECT, text=letter.TEXT, html=letter.HTML)


@dataclass(slots=True)
class Bench:
    """Every phase has its own empty service, on one cluster and one receiver."""

    cluster: PrivatePostgres
    workplace: Path
    receiver_port: int
    sizes: Sizes
    _phases: int = 0

    async def capacity(self) -> float:
        async with self._processes({}) as processes:
            experiment = await self._prepared(processes)
            await experiment.warm(LANE_PER_SECOND_MIN, LATE_SECONDS_MAX)
            return await experiment.capacity(self.sizes.capacity_mails, LATE_SECONDS_MAX)

    async def one_among_many(self, *, is_dead: bool, per_second: float, seconds: int) -> OthersMail:
        lane = {"per_second": max(LANE_PER_SECOND_MIN, 2 * per_second / EVERY)}
        async with self._processes({ONE: lane}) as processes:
            experiment = await self._prepared(processes)
            await experiment.warm(per_second, LATE_SECONDS_MAX)
            return await experiment.one_among_many(
                DEAD_ADDRESS if is_dead else "127.0.0.1",
                every=EVERY,
                per_second=per_second,
                seconds=seconds,
                late_seconds_max=LATE_SECONDS_MAX,
            )

    async def fair_turns(self) -> FairShares:
        async with self._processes({SLOW: {"per_second": self.sizes.lane_per_second}}) as processes:
            experiment = await Experiment.prepared(processes, senders=2, request=usual_letter)
            return await experiment.fair_turns(
                backlog=self.sizes.backlog, seconds=self.sizes.small_mails, late_seconds_max=LATE_SECONDS_MAX
            )

    async def _prepared(self, processes: ServiceProcesses) -> Experiment:
        return await Experiment.prepared(
            processes, senders=self.sizes.senders, domains=self.sizes.domains, request=usual_letter
        )

    @asynccontextmanager
    async def _processes(self, lanes: Mapping[str, Mapping[str, float]]) -> AsyncIterator[ServiceProcesses]:
        self._phases += 1
        name = f"phase_{self._phases}"
        directory = self.workplace / name
        directory.mkdir()
        await asyncio.to_thread(self.cluster.create_database, name, TEMPLATE)
        settings: dict[str, Any] = {
            **DEFAULTS,
            "DELIVERY__PORT": str(self.receiver_port),
            "LANES__BY_NAME": json.dumps(lanes),
        }
        async with run_processes(self.cluster.url(name), directory, keeps_mail=False, **settings) as processes:
            yield processes


@contextmanager
def receiving(workplace: Path) -> Iterator[int]:
    """The receiver, a process of its own, which logs a mail before it accepts it; its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.smtp_receiver", "--log", str(workplace / "received.jsonl")],
        cwd=Path(__file__).resolve().parents[1],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline().split()[-1])
    finally:
        process.terminate()
        process.wait()


def migrate(cluster: PrivatePostgres, workplace: Path) -> None:
    cluster.create_database(TEMPLATE)
    subprocess.run(
        [sys.executable, "-m", "posthouse", "migrate"],
        env=environment(cluster.url(TEMPLATE)),
        cwd=workplace,  # away from any posthouse.toml
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=ground.MIGRATE_SECONDS_MAX,
    )


async def measure(bench: Bench, seconds: int, run: Run) -> Findings:
    with run.status("how much the machine carries"):
        capacity = await bench.capacity()
    per_second = capacity * LOAD_PART
    run.say(
        f"capacity: [bold]{capacity:,.0f}[/] mails a second; offered: {per_second:,.0f}, every {EVERY}th to the one"
    )
    found: dict[bool, list[OthersMail]] = {False: [], True: []}
    for round_name, is_dead in run.interleaved((False, True)):
        words = f"{round_name}, the one {'dead' if is_dead else 'alive'}"
        with run.status(words):
            others = await bench.one_among_many(is_dead=is_dead, per_second=per_second, seconds=seconds)
        found[is_dead].append(others)
        run.say(
            f"{words}: the others' p50 {others.percentile(0.5) * 1e3:,.0f} ms, "
            f"p99 [bold]{others.percentile(0.99) * 1e3:,.0f}[/] ms, most {others.percentile(1) * 1e3:,.0f} ms "
            f"({len(others.waits):,} mails; {others.to_the_one:,} to the one)"
        )
    with run.status("a backlog in a slow lane"):
        turns = await bench.fair_turns()
    return Findings(bench.sizes, capacity, per_second, seconds, found[False], found[True], turns)


def report_of(run: Run) -> Report:
    seconds = QUICK_SECONDS if run.is_quick else max(1, run.options.seconds)
    with (
        PrivatePostgres.start(settings=ground.CLUSTER_SETTINGS) as cluster,
        receiving(run.workplace) as port,
        UnresponsiveServer(DEAD_ADDRESS, port) as dead_end,
    ):
        migrate(cluster, run.workplace)
        bench = Bench(cluster, run.workplace, port, QUICK if run.is_quick else FULL)
        findings = asyncio.run(measure(bench, seconds, run))
        if not dead_end.hangs():
            raise NotDeliveredError("the dead destination took a connection")
    return isolation_report.made(findings)


def main(arguments: Sequence[str] | None = None) -> int:
    options = harness.parser(__doc__, rounds=ROUNDS, seconds=SECONDS).parse_args(arguments)
    return harness.main(options, report_of)


if __name__ == "__main__":
    sys.exit(main())
