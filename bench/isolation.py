"""Measures isolation: what a dead destination, or another account's backlog, costs everybody else's mail.

    make bench-isolation                          (or: python bench/isolation.py)
    python bench/isolation.py --rounds 3 --seconds 120
    python bench/isolation.py --quick --output /tmp/bench

A thousand destinations and one more, which gets every fifth mail and is alive or dead, in turn, at half of
what the machine was found to carry. Then one slow lane with a backlog in it, and a mail now and then from
another account. Everything is real and runs here: PostgreSQL, NATS, DNS, the service's own processes, and a
server that takes the mail.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import asyncpg
from rich.console import Console

from bench import ground, isolation_report, letter, report
from bench.isolation_report import Findings, Sizes
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
from tools.private_postgres import PostgresError, PrivatePostgres

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

# The service's own defaults, where the tests that share this post office hurry.
DEFAULTS: Final = {
    "DELIVERY_RETRY_MINUTES": json.dumps([wait.total_seconds() / 60 for wait in DELIVERY.waits]),
    "WORKER_LEASE_SECONDS": str(WORKER_LEASE.total_seconds()),
    "TICKET_LEASE_SECONDS": "60",
    "LANE_PER_SECOND": "100",
    "LANE_BURST": "100",
}


def usual_letter(tenant: Tenant, to: str) -> bytes:
    return request(tenant, to, subject=letter.SUBJECT, text=letter.TEXT, html=letter.HTML)


@dataclass(slots=True)
class Bench:
    """Every phase has a post office of its own, with nothing in it, on one cluster and one receiver."""

    cluster: PrivatePostgres
    workplace: Path
    receiver_port: int
    sizes: Sizes
    _offices: int = 0

    async def capacity(self) -> float:
        async with self._office({}) as processes:
            experiment = await self._prepared(processes)
            await experiment.warm(LANE_PER_SECOND_MIN, LATE_SECONDS_MAX)
            return await experiment.capacity(self.sizes.capacity_mails, LATE_SECONDS_MAX)

    async def one_among_many(self, *, is_dead: bool, per_second: float, seconds: int) -> OthersMail:
        lane = {"per_second": max(LANE_PER_SECOND_MIN, 2 * per_second / EVERY)}
        async with self._office({ONE: lane}) as processes:
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
        async with self._office({SLOW: {"per_second": self.sizes.lane_per_second}}) as processes:
            experiment = await Experiment.prepared(processes, senders=2, request=usual_letter)
            return await experiment.fair_turns(
                backlog=self.sizes.backlog, seconds=self.sizes.small_mails, late_seconds_max=LATE_SECONDS_MAX
            )

    async def _prepared(self, processes: ServiceProcesses) -> Experiment:
        return await Experiment.prepared(
            processes, senders=self.sizes.senders, domains=self.sizes.domains, request=usual_letter
        )

    @asynccontextmanager
    async def _office(self, lanes: Mapping[str, Mapping[str, float]]) -> AsyncIterator[ServiceProcesses]:
        self._offices += 1
        name = f"phase_{self._offices}"
        directory = self.workplace / name
        directory.mkdir()
        await asyncio.to_thread(self.cluster.create_database, name, TEMPLATE)
        settings: dict[str, Any] = {**DEFAULTS, "SMTP_PORT": str(self.receiver_port), "LANES": json.dumps(lanes)}
        async with run_processes(self.cluster.url(name), directory, keeps_mail=False, **settings) as processes:
            yield processes


@contextmanager
def receiving(workplace: Path) -> Iterator[int]:
    """The receiver, a process of its own, which writes down what it takes before it says so; its port."""
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


async def measure(bench: Bench, rounds: int, seconds: int, console: Console) -> Findings:
    with console.status("how much the machine carries …"):
        capacity = await bench.capacity()
    per_second = capacity * LOAD_PART
    console.print(
        f"capacity: [bold]{capacity:,.0f}[/] mails a second; offered: {per_second:,.0f}, every {EVERY}th to the one",
        highlight=False,
    )
    found: dict[bool, list[OthersMail]] = {False: [], True: []}
    for number in range(rounds):
        # Every other round the other way round, so that a machine that slows down or speeds up favours nobody.
        for is_dead in (False, True) if number % 2 == 0 else (True, False):
            words = f"round {number + 1} of {rounds}, the one {'dead' if is_dead else 'alive'}"
            with console.status(f"{words} …"):
                others = await bench.one_among_many(is_dead=is_dead, per_second=per_second, seconds=seconds)
            found[is_dead].append(others)
            console.print(
                f"{words}: the others' p50 {others.percentile(0.5) * 1e3:,.0f} ms, "
                f"p99 [bold]{others.percentile(0.99) * 1e3:,.0f}[/] ms, most {others.percentile(1) * 1e3:,.0f} ms "
                f"({len(others.waits):,} mails; {others.to_the_one:,} to the one)",
                highlight=False,
            )
    with console.status("a backlog in a slow lane …"):
        turns = await bench.fair_turns()
    return Findings(bench.sizes, capacity, per_second, seconds, found[False], found[True], turns)


async def _version(url: str) -> str:
    connection = await asyncpg.connect(url)
    try:
        return str(await connection.fetchval("SHOW server_version"))
    finally:
        await connection.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"how often, dead and alive ({ROUNDS})")
    parser.add_argument("--seconds", type=int, default=SECONDS, help=f"how long each time ({SECONDS})")
    parser.add_argument("--quick", action="store_true", help="one short round of few: shows that it works")
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).parent, help="directory for RESULTS.md and isolation.png"
    )
    given = parser.parse_args(arguments)
    rounds, seconds = (1, QUICK_SECONDS) if given.quick else (max(1, given.rounds), max(1, given.seconds))
    console = Console(width=None if sys.stdout.isatty() else 140)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="posthouse-bench-") as directory,
            PrivatePostgres.start(settings=ground.CLUSTER_SETTINGS) as cluster,
            receiving(Path(directory)) as port,
            UnresponsiveServer(DEAD_ADDRESS, port) as dead_end,
        ):
            workplace = Path(directory)
            migrate(cluster, workplace)
            bench = Bench(cluster, workplace, port, QUICK if given.quick else FULL)
            findings = asyncio.run(measure(bench, rounds, seconds, console))
            if not dead_end.hangs():
                raise NotDeliveredError("the dead destination took a connection")
            machine = report.machine(asyncio.run(_version(cluster.url())))
    except (AssertionError, PostgresError) as error:
        console.print(f"[bold red]failed:[/] {error}", highlight=False)
        return 1
    console.print(isolation_report.table(findings))
    for bar in isolation_report.bars(findings):
        console.print(bar.text, style="green" if bar.is_reached else "yellow", highlight=False)
    given.output.mkdir(parents=True, exist_ok=True)
    isolation_report.write(given.output, findings, machine)
    isolation_report.plot(given.output / isolation_report.PLOT, findings)
    console.print(f"written: {given.output / report.RESULTS}, {given.output / isolation_report.PLOT}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
