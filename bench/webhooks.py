"""Measures webhooks: events a second next to a bare loop, and what one endpoint that hangs costs the others.

    make bench-webhooks                           (or: python bench/webhooks.py)
    python bench/webhooks.py --rounds 5
    python bench/webhooks.py --quick --output /tmp/bench

The same events go to the same receiver over the same TLS, as many at a time: from `posthouse run notification`,
which claims, signs, posts and records each; and from a loop with the same HTTP client that only
signs and posts. In turns, and ratios are within each round. A figure is given only when every event came exactly once
and its signature holds.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import asyncpg

from bench import dataset, harness, report
from bench.dataset import EmptyServices
from bench.harness import Run
from bench.processes import BenchError, Measured, metered, microseconds
from bench.report import BLUE, PALE_BLUE, RED, Goal, Plot, RateAndCost, Report, Rows, goal, middle
from bench.webhook_load_receiver import NAME, Arrival, WebhookLoadReceiver
from bench.webhook_waits import EventsMissingError, Waits, measure_waits
from posthouse.flows.webhooks.sender import ACCOUNT_CALLS_MAX
from tests.support import webhook_accounts
from tests.support.service import service_settings
from tests.support.service_processes import ServiceProcesses
from tests.support.webhook_accounts import WebhookAccount
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
SENT_SECONDS_MAX: Final = 180.0
POLL_SECONDS: Final = 0.05

RATIO_MIN: Final = 0.5
P99_SECONDS_MAX: Final = 2.0
FLOOR: Final = "bare loop: sign, post"
OURS: Final = "Posthouse: claim, sign, post, record"
# The parts of ours, as they are drawn.
CALLER, POSTGRES, STREAM = "caller", "PostgreSQL", "dispatch, NATS"

_FLOOR_PROGRAM: Final = Path(__file__).with_name("webhooks_floor.py")


@dataclass(frozen=True, slots=True)
class Findings:
    ours: Sequence[Measured]
    floor: Sequence[Measured]
    receivers: int
    waits: Waits
    # Of the minute before it began: what else the machine had to do.
    load: float

    @property
    def ratios(self) -> list[float]:
        """Within each round."""
        return [ours.per_second / floor.per_second for ours, floor in zip(self.ours, self.floor, strict=True)]


async def send_events(
    pool: Any, accounts: Sequence[WebhookAccount], events: int, families: Mapping[str, Sequence[int]]
) -> dict[str, float]:
    """The processor time of sending this many events; inserting them does not count."""
    await _insert_events(pool, accounts, events)
    with metered(families) as used:
        await pool.execute("UPDATE webhook_schedule SET next_at = now()")
        deadline = time.monotonic() + SENT_SECONDS_MAX
        while left := await pool.fetchval("SELECT count(*) FROM webhook_schedule"):
            if time.monotonic() > deadline:
                raise EventsMissingError(f"{left} of {events} events were not sent in {SENT_SECONDS_MAX:.0f} s")
            await asyncio.sleep(POLL_SECONDS)
    sent = await pool.fetchval("SELECT count(*) FROM webhook_deliveries WHERE status = 'succeeded'")
    await pool.execute("TRUNCATE webhook_deliveries, events")
    if sent != events:
        raise EventsMissingError(f"{sent} of {events} events were sent")
    return used


async def _insert_events(pool: Any, accounts: Sequence[WebhookAccount], events: int) -> None:
    """Events, and their deliveries in the schedule, which are not due for an hour."""
    for _ in range(0, events, 1_000):
        each = min(1_000, events) // len(accounts)
        await webhook_accounts.add_events(pool, accounts, each, lease=webhook_accounts.LONG_LEASE)
    await pool.execute("ANALYZE webhook_schedule, events, webhook_deliveries")
    await pool.execute("CHECKPOINT")


@dataclass(frozen=True, slots=True)
class Rate:
    """Events that are sent by a service without HTTP, or read from its database and sent by the loop."""

    cluster: PrivatePostgres
    workplace: Path
    load_receiver: WebhookLoadReceiver
    processes: ServiceProcesses
    pool: Any
    accounts: Sequence[WebhookAccount]

    async def ours(self, events: int) -> Measured:
        assert self.processes.nats is not None
        families = {
            CALLER: [part.running.pid for part in self.processes.parts if part.words == ("notification",)],
            POSTGRES: [self.cluster.pid],
            STREAM: [part.running.pid for part in self.processes.parts if part.words == ("dispatch",)],
            "receiver": [self.load_receiver.pid],
        }
        families[STREAM].append(self.processes.nats.pid)
        each_us = microseconds(await send_events(self.pool, self.accounts, events, families), events)
        receiver_us = each_us["receiver"]
        return self._measured(events, {part: each_us[part] for part in (CALLER, POSTGRES, STREAM)}, receiver_us)

    async def floor(self, events: int) -> Measured:
        await _insert_events(self.pool, self.accounts, events)
        accounts = {account.account_id: account for account in self.accounts}
        file = self.workplace / "events"
        with file.open("w") as written:
            for row in await self.pool.fetch("SELECT account_id, body FROM events ORDER BY id"):
                account = accounts[row["account_id"]]
                written.write(json.dumps([account.path, account.secret, row["body"].decode()]) + "\n")
        await self.pool.execute("TRUNCATE webhook_deliveries, events, webhook_schedule")
        with metered({"receiver": [self.load_receiver.pid]}) as used:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(_FLOOR_PROGRAM),
                str(file),
                str(self.load_receiver.authority),
                NAME,
                str(self.load_receiver.port),
                str(CALLS),
                stdout=subprocess.PIPE,
            )
            loop_seconds, _ = await process.communicate()
        if process.returncode:
            raise EventsMissingError(f"the bare loop ended with {process.returncode}")
        receiver_us = microseconds(used, events)["receiver"]
        return self._measured(events, {"loop": float(loop_seconds) / events * 1e6}, receiver_us)

    def _measured(self, events: int, server_us: dict[str, float], receiver_us: float) -> Measured:
        """From the first tenth of the arrivals on, so that start-up and opening connections don't count."""
        times = sorted(arrival.at for arrival in self._arrivals(events))[events // 10 :]
        rate = (len(times) - 1) / (times[-1] - times[0])
        return Measured(events, events / rate, server_us, figures={"receiver_us": receiver_us})

    def _arrivals(self, events: int) -> list[Arrival]:
        arrivals = self.load_receiver.arrivals()
        secrets = {account.path: account.secret for account in self.accounts}
        if len(arrivals) != events or len({arrival.body for arrival in arrivals}) != events:
            raise EventsMissingError(f"{len(arrivals)} calls came of {events} events")
        if not all(arrival.is_signed(secrets[arrival.path]) for arrival in arrivals):
            raise EventsMissingError("not every call was signed")
        return arrivals


@dataclass(frozen=True, slots=True)
class Bench:
    cluster: PrivatePostgres
    workplace: Path
    load_receiver: WebhookLoadReceiver
    services: EmptyServices

    @property
    def settings(self) -> dict[str, Any]:
        return webhook_accounts.webhook_settings(self.load_receiver.port, self.load_receiver.authority)

    def _name_receiver(self, processes: ServiceProcesses) -> None:
        processes.nameserver.records[NAME, "A"] = ["127.0.0.1"]
        processes.nameserver.ttl = 3600

    async def side_by_side(self, events: int, run: Run) -> tuple[list[Measured], list[Measured]]:
        ours: list[Measured] = []
        floor: list[Measured] = []
        async with self.services.prepared(self.settings) as processes:
            self._name_receiver(processes)
            processes.start("dispatch")
            processes.start("notification")
            async with asyncpg.create_pool(processes.database_url, min_size=1, max_size=2) as pool:
                paths = [f"/sender/{number}" for number in range(SENDERS)]
                accounts = await webhook_accounts.create_accounts(
                    pool, service_settings(processes.database_url), self.load_receiver.port, paths
                )
                rate = Rate(self.cluster, self.workplace, self.load_receiver, processes, pool, accounts)
                await rate.ours(min(WARM_EVENTS, events))
                for round_name, is_ours in run.interleaved((True, False)):
                    with run.status(round_name):
                        measured = await (rate.ours(events) if is_ours else rate.floor(events))
                    (ours if is_ours else floor).append(measured)
                    run.say(f"{round_name}: {'Posthouse' if is_ours else 'bare loop'}: {measured}")
        return ours, floor

    async def isolation(self, receivers: int, events: int) -> Waits:
        async with self.services.prepared(self.settings) as processes:
            self._name_receiver(processes)
            for words in ("dispatch", "delivery", "notification"):
                processes.start(words)
            await processes.start_http()
            return await measure_waits(
                processes, self.load_receiver, receivers, events, ISOLATION_PER_SECOND, SENT_SECONDS_MAX
            )


async def measure(bench: Bench, run: Run) -> Findings:
    load, _, _ = os.getloadavg()
    ours, floor = await bench.side_by_side(QUICK_EVENTS if run.is_quick else EVENTS, run)
    receivers = QUICK_RECEIVERS if run.is_quick else RECEIVERS
    with run.status("one endpoint hangs"):
        waits = await bench.isolation(receivers, QUICK_ISOLATION_EVENTS if run.is_quick else ISOLATION_EVENTS)
    return Findings(ours, floor, receivers, waits, load)


def report_of(run: Run) -> Report:
    with (
        PrivatePostgres.start(settings=dataset.CLUSTER_SETTINGS) as cluster,
        WebhookLoadReceiver(run.workplace) as load_receiver,
    ):
        dataset.migrate(cluster, run.workplace)
        bench = Bench(cluster, run.workplace, load_receiver, EmptyServices(cluster, run.workplace))
        try:
            findings = asyncio.run(measure(bench, run))
        except subprocess.SubprocessError as error:
            raise BenchError(str(error)) from error
    return Report(
        name="webhooks",
        title="Webhooks",
        target="bench-webhooks",
        machine=report.machine(),
        state=(
            f"its load average before this began was {findings.load:.1f}; other programs slow both down, so compare "
            "ratios and processor time rather than rates"
        ),
        tables=[_table(findings)],
        goals=goals(findings),
        notes=_notes(findings),
        plot=Plot(
            "webhooks.png",
            "Events a second, what they cost, and how long events took while one endpoint hung",
            lambda pyplot: _plot(pyplot, findings),
        ),
    )


def goals(findings: Findings) -> list[Goal]:
    ratio = median(findings.ratios)
    each = ", ".join(f"{ratio:.0%}" for ratio in findings.ratios)
    p50, p99, most = (findings.waits.percentile(part) for part in (0.5, 0.99, 1))
    hanging = f"one of {findings.receivers} endpoints hangs, the others' p99 under {P99_SECONDS_MAX:.0f} s from the"
    return [
        goal(ratio >= RATIO_MIN, f"at least {RATIO_MIN:.0%} of the bare loop: {ratio:.0%} (round by round: {each})"),
        goal(p99 < P99_SECONDS_MAX, f"{hanging} final result: {p99:.3f} s (p50 {p50:.3f}, most {most:.3f} s)"),
    ]


def _table(findings: Findings) -> Rows:
    def part_us(part: str) -> report.Cell:
        return lambda runs: f"{report.costs(runs)[part]:,.0f}" if part in runs[0].server_us else "–"

    columns = [
        ("events/s", middle("{:,.0f}", lambda run: run.per_second)),
        ("of bare", lambda runs: f"{(report.ratio(runs, findings.floor) or 0) * 100:.0f} %"),
        # The loop is its own caller.
        ("caller µs", middle("{:,.0f}", lambda run: run.server_us.get(CALLER, run.cpu_us))),
        ("PostgreSQL µs", part_us(POSTGRES)),
        ("stream µs", part_us(STREAM)),
        ("receiver µs", middle("{:,.0f}", lambda run: run.figures["receiver_us"])),
    ]
    rows = {FLOOR: findings.floor, OURS: findings.ours}
    return report.table("Webhooks: events a second", "Who calls", rows, columns)


def _notes(findings: Findings) -> str:
    rounds, waits = len(findings.ours), findings.waits
    return report.notes(
        "webhooks",
        repeated=f"Medians of {rounds} interleaved rounds" if rounds > 1 else "One round",
        events=f"{findings.ours[0].count:,}",
        senders=SENDERS,
        calls=CALLS,
        isolation_events=f"{len(waits.others) + waits.hanging_events:,}",
        receivers=findings.receivers,
        per_second=ISOLATION_PER_SECOND,
        hanging_calls=waits.hanging_calls,
        hanging_events=waits.hanging_events,
    )


def _plot(pyplot: Any, findings: Findings) -> Any:
    figure, (rates, costs, moments) = pyplot.subplots(1, 3, figsize=(14, 3.8), layout="constrained")
    colours = {CALLER: BLUE, POSTGRES: PALE_BLUE, STREAM: "#c3d7ee"}
    bars = [
        RateAndCost("bare loop", findings.floor),
        RateAndCost("Posthouse", findings.ours, f" {median(findings.ratios):.0%}", BLUE),
    ]
    titles = ("Events a second (dashed: half of bare)", "Processor time an event, µs")
    report.rates_and_costs((rates, costs), titles, bars, colours)
    report.limit_line(rates, x=report.rate(findings.floor) * RATIO_MIN, colour=RED)
    at, seconds = zip(*findings.waits.others, strict=True)
    moments.scatter(at, seconds, s=2, color=BLUE, linewidths=0)
    report.limit_line(moments, y=P99_SECONDS_MAX, colour=RED)
    moments.set(yscale="log", xlabel="seconds from the start")
    moments.set_title(f"Seconds to {findings.receivers - 1} endpoints while one more hangs", fontsize=10, loc="left")
    report.plain(moments)
    report.legend(figure, colours)
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    return harness.main(harness.parser(__doc__, rounds=ROUNDS).parse_args(arguments), report_of)


if __name__ == "__main__":
    sys.exit(main())
