"""Measures webhooks: events a second beside a bare loop, and what one endpoint that hangs costs the others.

    make bench-webhooks                           (or: python bench/webhooks.py)
    python bench/webhooks.py --rounds 5
    python bench/webhooks.py --quick --output /tmp/bench
    python bench/webhooks.py --only isolation

The same events go to the same receiver over the same TLS, as many at a time: once from `posthouse run notification`,
which claims each, signs it, calls and records what came of it; once from a loop with the same HTTP client that only
signs and posts. In turns, and ratios are within each round. A figure is given only when every event came exactly once
and its signature holds.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import asyncpg
from rich.console import Console

from bench import ground, isolation, report, webhooks_report
from bench.processes import cpu_seconds
from bench.webhooks_report import Findings, Ours, Run
from posthouse.flows.webhooks.sender import ACCOUNT_CALLS_MAX
from posthouse.rules.lease import WORKER_LEASE
from tests.support import webhook_accounts
from tests.support.service import service_settings
from tests.support.service_processes import ServiceProcesses, prepare_processes
from tests.support.webhook_accounts import WebhookAccount
from tests.support.webhook_isolation import EventsMissingError, Waits, measure_waits
from tests.support.webhook_load_receiver import NAME, Arrival, WebhookLoadReceiver
from tools.private_postgres import PostgresError, PrivatePostgres

ROUNDS: Final = 3
EVENTS: Final = 10_000
WARM_EVENTS: Final = 1_000
QUICK_EVENTS: Final = 500
# As many calls at a time, for both, as this many accounts have.
SENDERS: Final = 50
CALLS: Final = SENDERS * ACCOUNT_CALLS_MAX

RECEIVERS: Final = 100
QUICK_RECEIVERS: Final = 10
ISOLATION_EVENTS: Final = 10_000
QUICK_ISOLATION_EVENTS: Final = 200
ISOLATION_PER_SECOND: Final = 150
TOLD_SECONDS_MAX: Final = 180.0
POLL_SECONDS: Final = 0.05
# Out of the way of what is measured.
SETTINGS: Final = {"WORKER_LEASE_SECONDS": str(WORKER_LEASE.total_seconds()), "TICKET_LEASE_SECONDS": "60"}


@dataclass(slots=True)
class Bench:
    cluster: PrivatePostgres
    workplace: Path
    load_receiver: WebhookLoadReceiver
    _offices: int = field(default=0)

    @asynccontextmanager
    async def processes(self) -> AsyncIterator[ServiceProcesses]:
        """An office where nobody works yet, on a database with nothing in it."""
        self._offices += 1
        name = f"phase_{self._offices}"
        directory = self.workplace / name
        directory.mkdir()
        await asyncio.to_thread(self.cluster.create_database, name, isolation.TEMPLATE)
        settings = {
            **webhook_accounts.webhook_settings(self.load_receiver.port, self.load_receiver.authority),
            **SETTINGS,
        }
        async with prepare_processes(self.cluster.url(name), directory, keeps_mail=False, **settings) as processes:
            processes.nameserver.records[NAME, "A"] = ["127.0.0.1"]
            processes.nameserver.ttl = 3600
            yield processes

    async def side_by_side(self, rounds: int, events: int, console: Console) -> tuple[list[Ours], list[Run]]:
        ours: list[Ours] = []
        bare: list[Run] = []
        async with self.processes() as processes:
            parts = {words: processes.start(words).running.pid for words in ("dispatch", "notification")}
            pool = await asyncpg.create_pool(processes.database_url, min_size=1, max_size=2)
            try:
                paths = [f"/sender/{number}" for number in range(SENDERS)]
                made = await webhook_accounts.create_accounts(
                    pool, service_settings(processes.database_url), self.load_receiver.port, paths
                )
                assert processes.nats is not None
                families = {**parts, "PostgreSQL": self.cluster.pid, "NATS": processes.nats.pid}
                await self._ours(processes, pool, made, min(WARM_EVENTS, events), families)
                for number in range(rounds):
                    # Every other round the other way round, so that a machine that slows down favours nobody.
                    for is_ours in (True, False) if number % 2 == 0 else (False, True):
                        with console.status(f"round {number + 1} of {rounds} …"):
                            if is_ours:
                                ours.append(await self._ours(processes, pool, made, events, families))
                            else:
                                bare.append(await self._bare(pool, made, events))
                        run = ours[-1].run if is_ours else bare[-1]
                        console.print(
                            f"round {number + 1} of {rounds}: {'Posthouse' if is_ours else 'the bare loop'}: "
                            f"[bold]{run.per_second:,.0f}[/] events a second; CPU µs an event: caller "
                            f"{run.caller_us:,.0f}, receiver {run.receiver_us:,.0f}"
                            + (f", {_told(ours[-1])}" if is_ours else ""),
                            highlight=False,
                        )
            finally:
                await pool.close()
        return ours, bare

    async def _ours(
        self,
        processes: ServiceProcesses,
        pool: Any,
        made: Sequence[WebhookAccount],
        events: int,
        families: dict[str, int],
    ) -> Ours:
        before = {name: cpu_seconds(pid) for name, pid in families.items()}
        receiver = cpu_seconds(self.load_receiver.pid)
        await self._entered(pool, made, events)
        entered = {name: cpu_seconds(pid) for name, pid in families.items()}
        before["PostgreSQL"] = entered["PostgreSQL"]  # what it took to make the events is nobody's
        async with pool.acquire() as connection:
            await connection.execute("UPDATE calls SET next_at = now()")
            deadline = time.monotonic() + TOLD_SECONDS_MAX
            while await connection.fetchval("SELECT count(*) FROM calls"):
                processes.check()
                if time.monotonic() > deadline:
                    raise EventsMissingError("\n".join(part.said() for part in processes.parts))
                await asyncio.sleep(POLL_SECONDS)
            told = await connection.fetchval("SELECT count(*) FROM webhook_deliveries WHERE status = 'succeeded'")
            await connection.execute("TRUNCATE webhook_deliveries, events")
        if told != events:
            raise EventsMissingError(f"{told} of {events} events are told")
        after = {name: cpu_seconds(pid) for name, pid in families.items()}
        used = {name: (after[name] - before[name]) / events * 1e6 for name in families}
        arrivals = self._arrived(made, events)
        caller = used.pop("notification")
        return Ours(_run(arrivals, caller, (cpu_seconds(self.load_receiver.pid) - receiver) / events * 1e6), used)

    async def _bare(self, pool: Any, made: Sequence[WebhookAccount], events: int) -> Run:
        await self._entered(pool, made, events)
        secrets = {one.account_id: one for one in made}
        rows = await pool.fetch("SELECT account_id, body FROM events ORDER BY id")
        file = self.workplace / "events"
        with file.open("w") as written:
            for row in rows:
                one = secrets[row["account_id"]]
                written.write(json.dumps([one.path, one.secret, row["body"].decode()]) + "\n")
        await pool.execute("TRUNCATE webhook_deliveries, events, calls")
        receiver = cpu_seconds(self.load_receiver.pid)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__).with_name("bare_webhooks.py")),
            str(file),
            *("--authority", str(self.load_receiver.authority)),
            *("--host", NAME),
            *("--port", str(self.load_receiver.port)),
            *("--calls", str(CALLS)),
            stdout=subprocess.PIPE,
        )
        said, _ = await process.communicate()
        if process.returncode:
            raise EventsMissingError(f"the bare loop ended with {process.returncode}")
        arrivals = self._arrived(made, events)
        return _run(
            arrivals, float(said) / events * 1e6, (cpu_seconds(self.load_receiver.pid) - receiver) / events * 1e6
        )

    async def _entered(self, pool: Any, made: Sequence[WebhookAccount], events: int) -> None:
        """Events, and their calls in the calendar, not due before long."""
        for _ in range(0, events, 1_000):
            each = min(1_000, events) // len(made)
            await webhook_accounts.add_events(pool, made, each, lease=webhook_accounts.LONG_LEASE)
        await pool.execute("ANALYZE calls, events, webhook_deliveries")
        await pool.execute("CHECKPOINT")

    def _arrived(self, made: Sequence[WebhookAccount], events: int) -> list[Arrival]:
        arrivals = self.load_receiver.arrivals()
        secrets = {one.path: one.secret for one in made}
        if len(arrivals) != events or len({one.body for one in arrivals}) != events:
            raise EventsMissingError(f"{len(arrivals)} calls came of {events} events")
        if not all(one.is_signed(secrets[one.path]) for one in arrivals):
            raise EventsMissingError("not every call was signed")
        return arrivals

    async def isolation(self, receivers: int, events: int, per_second: float) -> Waits:
        async with self.processes() as processes:
            for words in ("dispatch", "delivery", "notification"):
                processes.start(words)
            await processes.start_http()
            return await measure_waits(processes, self.load_receiver, receivers, events, per_second, TOLD_SECONDS_MAX)


def _run(arrivals: Sequence[Arrival], caller_us: float, receiver_us: float) -> Run:
    """From the first tenth that came to the last, so that nobody's start counts, nor the connections that it opens."""
    times = sorted(one.at for one in arrivals)[len(arrivals) // 10 :]
    return Run(len(arrivals), (len(times) - 1) / (times[-1] - times[0]), caller_us, receiver_us)


def _told(ours: Ours) -> str:
    return ", ".join(f"{name} {used:,.0f}" for name, used in ours.others_us.items())


async def measure(bench: Bench, given: argparse.Namespace, console: Console) -> Findings:
    rounds, events = (1, QUICK_EVENTS) if given.quick else (max(1, given.rounds), EVENTS)
    load, _, _ = os.getloadavg()
    ours: list[Ours] = []
    bare: list[Run] = []
    waits: Waits | None = None
    receivers = QUICK_RECEIVERS if given.quick else RECEIVERS
    if given.only in ("", "rate"):
        ours, bare = await bench.side_by_side(rounds, events, console)
    if given.only in ("", "isolation"):
        number = QUICK_ISOLATION_EVENTS if given.quick else ISOLATION_EVENTS
        with console.status("one endpoint hangs …"):
            waits = await bench.isolation(receivers, number, given.per_second)
    return Findings(ours, bare, CALLS, SENDERS, receivers, given.per_second, waits, load)


async def _version(url: str) -> str:
    connection = await asyncpg.connect(url)
    try:
        return str(await connection.fetchval("SHOW server_version"))
    finally:
        await connection.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"how often each is measured ({ROUNDS})")
    parser.add_argument("--quick", action="store_true", help="one round of few events: shows that it works")
    parser.add_argument("--only", choices=("", "rate", "isolation"), default="", help="only one of the two parts")
    parser.add_argument(
        "--per-second",
        type=float,
        default=ISOLATION_PER_SECOND,
        help=f"events a second while one endpoint hangs ({ISOLATION_PER_SECOND})",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(__file__).parent,
        help=f"directory for RESULTS.md and {webhooks_report.PLOT}",
    )
    given = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 140)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="posthouse-bench-") as directory,
            PrivatePostgres.start(settings=ground.CLUSTER_SETTINGS) as cluster,
            WebhookLoadReceiver(Path(directory)) as load_receiver,
        ):
            isolation.migrate(cluster, Path(directory))
            findings = asyncio.run(measure(Bench(cluster, Path(directory), load_receiver), given, console))
            machine = report.machine(asyncio.run(_version(cluster.url())))
    except (AssertionError, PostgresError, subprocess.SubprocessError) as error:
        console.print(f"[bold red]failed:[/] {error}", highlight=False)
        return 1
    console.print(webhooks_report.table(findings))
    for bar in webhooks_report.bars(findings):
        console.print(bar.text, style="green" if bar.is_reached else "yellow", highlight=False)
    if given.only:
        console.print("nothing is written: the page has both parts", highlight=False)
        return 0
    given.output.mkdir(parents=True, exist_ok=True)
    webhooks_report.write(given.output, findings, machine)
    webhooks_report.plot(given.output / webhooks_report.PLOT, findings)
    console.print(f"written: {given.output / report.RESULTS}, {given.output / webhooks_report.PLOT}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
