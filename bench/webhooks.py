"""Measures webhooks: events a second beside a bare loop, and what one endpoint that hangs costs the others.

    make bench-webhooks                           (or: python bench/webhooks.py)
    python bench/webhooks.py --rounds 5
    python bench/webhooks.py --quick --output /tmp/bench
    python bench/webhooks.py --only isolation

The same events go to the same receiver over the same TLS, as many at a time: once from `posthouse run notification`,
which claims, signs, posts and records each; once from a loop with the same HTTP client that only
signs and posts. In turns, and ratios are within each round. A figure is given only when every event came exactly once
and its signature holds.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import asyncpg

from bench import ground, harness, isolation, webhooks_report
from bench.harness import Run
from bench.load import LoadError
from bench.processes import cpu_seconds
from bench.report import Report
from bench.webhooks_report import Findings, Measured, Ours
from posthouse.flows.webhooks.sender import ACCOUNT_CALLS_MAX
from posthouse.rules.lease import WORKER_LEASE
from tests.support import webhook_accounts
from tests.support.service import service_settings
from tests.support.service_processes import ServiceProcesses, prepare_processes
from tests.support.webhook_accounts import WebhookAccount
from tests.support.webhook_isolation import EventsMissingError, Waits, measure_waits
from tests.support.webhook_load_receiver import NAME, Arrival, WebhookLoadReceiver
from tools.private_postgres import PrivatePostgres

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
SETTINGS: Final = {"WORKERS__LEASE_SECONDS": str(WORKER_LEASE.total_seconds()), "WORKERS__TICKET_LEASE_SECONDS": "60"}


@dataclass(slots=True)
class Bench:
    cluster: PrivatePostgres
    workplace: Path
    load_receiver: WebhookLoadReceiver
    _phases: int = field(default=0)

    @asynccontextmanager
    async def processes(self) -> AsyncIterator[ServiceProcesses]:
        """A service without workers, on an empty database."""
        self._phases += 1
        name = f"phase_{self._phases}"
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

    async def side_by_side(self, events: int, run: Run) -> tuple[list[Ours], list[Measured]]:
        ours: list[Ours] = []
        bare: list[Measured] = []
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
                for round_name, is_ours in run.interleaved((True, False)):
                    with run.status(round_name):
                        if is_ours:
                            ours.append(await self._ours(processes, pool, made, events, families))
                        else:
                            bare.append(await self._bare(pool, made, events))
                    found = ours[-1].run if is_ours else bare[-1]
                    others = ours[-1].others_us if is_ours else {}
                    run.say(
                        f"{round_name}: {'Posthouse' if is_ours else 'bare loop'}: [bold]{found.per_second:,.0f}[/] "
                        f"events a second; CPU µs an event: caller {found.caller_us:,.0f}, receiver "
                        f"{found.receiver_us:,.0f}" + "".join(f", {name} {used:,.0f}" for name, used in others.items())
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
        before["PostgreSQL"] = entered["PostgreSQL"]  # making the events does not count
        async with pool.acquire() as connection:
            await connection.execute("UPDATE calls SET next_at = now()")
            deadline = time.monotonic() + TOLD_SECONDS_MAX
            while await connection.fetchval("SELECT count(*) FROM calls"):
                processes.check()
                if time.monotonic() > deadline:
                    raise EventsMissingError("\n".join(part.said() for part in processes.parts))
                await asyncio.sleep(POLL_SECONDS)
            sent = await connection.fetchval("SELECT count(*) FROM webhook_deliveries WHERE status = 'succeeded'")
            await connection.execute("TRUNCATE webhook_deliveries, events")
        if sent != events:
            raise EventsMissingError(f"{sent} of {events} events were sent")
        after = {name: cpu_seconds(pid) for name, pid in families.items()}
        used = {name: (after[name] - before[name]) / events * 1e6 for name in families}
        arrivals = self._arrived(made, events)
        caller = used.pop("notification")
        return Ours(_run(arrivals, caller, (cpu_seconds(self.load_receiver.pid) - receiver) / events * 1e6), used)

    async def _bare(self, pool: Any, made: Sequence[WebhookAccount], events: int) -> Measured:
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


def _run(arrivals: Sequence[Arrival], caller_us: float, receiver_us: float) -> Measured:
    """From the first tenth of the arrivals on, so that start-up and opening connections don't count."""
    times = sorted(one.at for one in arrivals)[len(arrivals) // 10 :]
    return Measured(len(arrivals), (len(times) - 1) / (times[-1] - times[0]), caller_us, receiver_us)


async def measure(bench: Bench, run: Run) -> Findings:
    options = run.options
    events = QUICK_EVENTS if run.is_quick else EVENTS
    load, _, _ = os.getloadavg()
    ours: list[Ours] = []
    bare: list[Measured] = []
    waits: Waits | None = None
    receivers = QUICK_RECEIVERS if run.is_quick else RECEIVERS
    if options.only in ("", "rate"):
        ours, bare = await bench.side_by_side(events, run)
    if options.only in ("", "isolation"):
        number = QUICK_ISOLATION_EVENTS if run.is_quick else ISOLATION_EVENTS
        with run.status("one endpoint hangs"):
            waits = await bench.isolation(receivers, number, options.per_second)
    return Findings(ours, bare, CALLS, SENDERS, receivers, options.per_second, waits, load)


def report_of(run: Run) -> Report | None:
    with (
        PrivatePostgres.start(settings=ground.CLUSTER_SETTINGS) as cluster,
        WebhookLoadReceiver(run.workplace) as load_receiver,
    ):
        isolation.migrate(cluster, run.workplace)
        try:
            findings = asyncio.run(measure(Bench(cluster, run.workplace, load_receiver), run))
        except subprocess.SubprocessError as error:
            raise LoadError(str(error)) from error
    made = webhooks_report.made(findings)
    if not run.options.only:
        return made
    made.show(run.console)
    run.say("nothing is written: the page has both parts")
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = harness.parser(__doc__, rounds=ROUNDS)
    parser.add_argument("--only", choices=("", "rate", "isolation"), default="", help="only one of the two parts")
    parser.add_argument(
        "--per-second",
        type=float,
        default=ISOLATION_PER_SECOND,
        help=f"events a second while one endpoint hangs ({ISOLATION_PER_SECOND})",
    )
    return harness.main(parser.parse_args(arguments), report_of)


if __name__ == "__main__":
    sys.exit(main())
