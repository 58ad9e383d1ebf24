"""Measures low load: what a message costs PostgreSQL and the service at fixed rates, and what the idle service costs.

    make bench-low-load                           (or: python bench/low_load.py)
    python bench/low_load.py --rates 0,30,120 --rounds 3 --seconds 30
    python bench/low_load.py --quick --output /tmp/bench

The whole service is one process with the stream in its memory, as on a small server, on a private PostgreSQL with 31
days of partitions. Messages come one by one at their rate and go to a sink.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import dataset, harness, message, report, smtp_sink
from bench.dataset import EmptyServices
from bench.delivery_isolation import percentile
from bench.harness import Run
from bench.processes import BenchError, Measured, metered
from bench.rate_load import CONNECTIONS, post, request
from bench.report import BLUE, PALE_BLUE, Goal, Plot, Report, Rows, goal
from bench.smtp_sink import Sink
from posthouse.store import partitions
from posthouse.store.partitions import Partition
from tests.support.service import Tenant
from tests.support.service_processes import ServiceProcesses
from tools.private_postgres import PrivatePostgres, free_port

RATES: Final = "0,1,10,30,50,120,500"
ROUNDS: Final = 3
SECONDS: Final = 20.0
QUICK_SECONDS: Final = 3.0
# At 1 a second this many messages, however long it takes.
MESSAGES_MIN: Final = 30
WARM_MESSAGES: Final = 200
WARM_PER_SECOND: Final = 50.0
SETTLE_SECONDS: Final = 5.0
RECORDED_SECONDS_MAX: Final = 60.0
PARTITION_DAYS: Final = 31

PARTS: Final = ("dispatch", "delivery", "notification", "inbound", "maintenance")
SENDERS: Final = 10
DESTINATIONS: Final = 16
# Too high to be what is measured.
CREDITS: Final = 1_000_000_000
RATE: Final = (1_000_000, 1_000_000)
LANES: Final = {"LANES__PER_SECOND": "1000000", "LANES__BURST": "1000000", "LANES__CONNECTIONS_MAX": "100"}
CLUSTER_SETTINGS: Final = {
    **dataset.CLUSTER_SETTINGS,
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track_utility": "off",
    # What it does on its own would be measured along with an occasional message.
    "autovacuum": "off",
}
POSTGRES_US_MAX: Final = {120: 800.0}
# For a machine with no other work.
LIMIT_RATE: Final = 50
ACCEPTED_P99_MS_MAX: Final = 50.0
P50_MS_MAX: Final = 250.0
P99_MS_MAX: Final = 500.0
IDLE_PART_MAX: Final = 0.01
QUERY_SECONDS_MIN: Final = 2.0
QUERIES_SHOWN: Final = 12
QUERY_CHARACTERS_SHOWN: Final = 100

_PERCENTILES: Final = """
SELECT count(*), percentile_cont(ARRAY[0.5, 0.99]) WITHIN GROUP (
    ORDER BY extract(epoch FROM delivered_at - messages.created_at)) AS seconds
FROM recipients JOIN messages ON messages.account_id = recipients.account_id AND id = message_id
WHERE messages.created_at >= $1 AND delivered_at IS NOT NULL
"""
_CALLS: Final = """
SELECT query, sum(calls)::bigint AS calls, sum(total_exec_time + total_plan_time) AS milliseconds
FROM pg_stat_statements JOIN pg_database ON pg_database.oid = dbid
WHERE datname = current_database() AND query NOT LIKE '%pg_stat_statements%'
GROUP BY 1 ORDER BY 2 DESC
"""


@dataclass(frozen=True, slots=True)
class Query:
    text: str
    per_second: float
    milliseconds: float


@dataclass(frozen=True, slots=True)
class Findings:
    """The runs at each rate, and the queries of the idle service, the most frequent first."""

    runs: dict[int, list[Measured]]
    idle_queries: list[Query]


@dataclass(slots=True)
class Bench:
    services: EmptyServices
    sink_port: int
    seconds: float

    async def measured(self, rate: int) -> tuple[Measured, list[Query]]:
        async with self._service() as (processes, tenants):
            addresses = [f"ada@{processes.destination(f'customer{number}.example')}" for number in range(DESTINATIONS)]
            await self._send(processes, tenants, addresses, WARM_MESSAGES, WARM_PER_SECOND)
            await asyncio.sleep(SETTLE_SECONDS)
            seconds = max(self.seconds, MESSAGES_MIN / rate if rate else 3 * self.seconds)
            service = processes.service
            await service.value("SELECT pg_stat_statements_reset()")
            began_at: datetime = await service.value("SELECT now()")
            families = {"posthouse": [processes.parts[0].running.pid], "PostgreSQL": [self.services.cluster.pid]}
            with metered(families) as used:
                accepted: Sequence[float] = (0.0,)
                if rate:
                    seconds, accepted = await self._send(processes, tenants, addresses, round(rate * seconds), rate)
                else:
                    await asyncio.sleep(seconds)
            rows = await service.sql(_CALLS)
            queries = [Query(row["query"], row["calls"] / seconds, row["milliseconds"]) for row in rows]
            count, waits = (await service.sql(_PERCENTILES, began_at))[0]
            # Of the idle service it is microseconds of a second.
            units = count or seconds
            p50, p99 = waits or (0.0, 0.0)
            return (
                Measured(
                    count=count,
                    seconds=seconds,
                    server_us={name: used[name] / units * 1e6 for name in families},
                    p50_ms=p50 * 1e3,
                    p99_ms=p99 * 1e3,
                    figures={
                        "queries_per_unit": sum(query.per_second for query in queries) * seconds / units,
                        "accepted_p99_ms": percentile(accepted, 0.99) * 1e3,
                    },
                ),
                queries,
            )

    async def _send(
        self,
        processes: ServiceProcesses,
        tenants: Sequence[Tenant],
        addresses: Sequence[str],
        messages: int,
        per_second: float,
    ) -> tuple[float, Sequence[float]]:
        """Returns when all are recorded: how many seconds it took, and those that each waited for its 202."""
        requests = [
            request(
                tenants[number % len(tenants)],
                addresses[number % len(addresses)],
                subject=message.SUBJECT,
                text=message.TEXT,
                html=message.HTML,
            )
            for number in range(messages)
        ]
        began = asyncio.get_running_loop().time()
        # Few, so that each is used before the server closes it.
        connections = max(1, min(CONNECTIONS, round(per_second / 2)))
        sent = await post(processes.parts[0].port, requests, per_second=per_second, connections=connections)
        if not sent.is_well:
            raise BenchError(f"not every request was accepted: {sent.answers}")
        await processes.wait_until_all_final(RECORDED_SECONDS_MAX)
        return asyncio.get_running_loop().time() - began, sent.waits

    @asynccontextmanager
    async def _service(self) -> AsyncIterator[tuple[ServiceProcesses, list[Tenant]]]:
        settings = {
            **LANES,
            "DELIVERY__PORT": str(self.sink_port),
            "DELIVERY__DKIM_ENABLED": "false",
            "INBOUND__PORT": str(free_port()),
        }
        async with self.services.prepared(settings, stream="memory") as processes:
            processes.nameserver.ttl = 3600
            await processes.start_http(*PARTS)
            service = processes.service
            tenants = [await service.account(credits=CREDITS, rate=RATE) for _ in range(SENDERS)]
            # Long ago: a server drops an account that changed lately from its cache.
            await service.sql("UPDATE accounts SET changed_at = now() - interval '1 hour'")
            yield processes, tenants


async def _add_partitions(connection: Any) -> None:
    """Those of the last days, which a service that runs for a month has."""
    await connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
    known = set(await partitions.attached(connection))
    today = datetime.now(UTC).date()
    for back in range(PARTITION_DAYS):
        for table in partitions.TABLES:
            wanted = Partition(today - timedelta(days=back), table)
            if wanted not in known:
                await partitions.create(connection, wanted)


async def measure(bench: Bench, rates: Sequence[int], run: Run) -> Findings:
    runs: dict[int, list[Measured]] = {rate: [] for rate in rates}
    idle: list[Query] = []
    for round_name, rate in run.interleaved(rates):
        with run.status(f"{round_name}: {rate} messages a second"):
            measured, queries = await bench.measured(rate)
        runs[rate].append(measured)
        if not rate:
            idle = queries
        run.say(f"{round_name}: {rate} messages a second: {measured}")
        dearest = sorted(queries, key=lambda query: query.milliseconds, reverse=True)[:QUERIES_SHOWN]
        for query in dearest:
            us = query.milliseconds * 1e3 / (measured.count or measured.seconds)
            run.say(f"  {us:8,.1f} µs, {query.per_second:6.2f} a second: {_short(query)}")
    return Findings(runs, idle)


def report_of(run: Run) -> Report:
    rates = [int(rate) for rate in run.options.rates.split(",")]
    with PrivatePostgres.start(settings=CLUSTER_SETTINGS) as cluster, Sink() as sink:
        dataset.migrate(cluster, run.workplace)
        dataset.with_connection(cluster.url(dataset.DATABASE), _add_partitions)
        seconds = QUICK_SECONDS if run.is_quick else run.options.seconds
        bench = Bench(EmptyServices(cluster, run.workplace), sink.port, seconds)
        findings = asyncio.run(measure(bench, rates, run))
    columns = (
        "Load",
        "PostgreSQL µs",
        "service µs",
        "queries",
        "202 p99 ms",
        "p50 ms",
        "p99 ms",
        "messages",
        "seconds",
    )
    return Report(
        name="low-load",
        title="Low load",
        target="bench-low-load",
        machine=report.machine(),
        tables=[
            Rows("Low load: what a message, or an idle second, costs", columns, _rows(findings)),
            Rows("The idle service's queries", ("Query", "a second"), _query_rows(findings)),
        ],
        goals=goals(findings),
        notes=report.notes(
            "low-load",
            repeated=report.repeated(run.rounds),
            seconds=f"{seconds:g}",
            days=PARTITION_DAYS,
            parts=", ".join(("http", *PARTS)),
        ),
        plot=Plot("low-load.png", "Processor time per message over the rate", lambda pyplot: _plot(pyplot, findings)),
    )


def goals(findings: Findings) -> list[Goal]:
    """As far as what they are about was measured."""
    found = []
    costs = {rate: report.costs(runs) for rate, runs in findings.runs.items()}
    for rate, most in POSTGRES_US_MAX.items():
        if rate in costs:
            us = costs[rate]["PostgreSQL"]
            found.append(
                goal(us <= most, f"PostgreSQL at {rate} messages/s, {most:,.0f} µs per message or less: {us:,.0f} µs")
            )
    if runs := findings.runs.get(LIMIT_RATE):
        for words, most, read in (
            ("the 202, p99", ACCEPTED_P99_MS_MAX, _accepted_p99_ms),
            ("accepted to delivered, p50", P50_MS_MAX, lambda run: run.p50_ms),
            ("accepted to delivered, p99", P99_MS_MAX, lambda run: run.p99_ms),
        ):
            ms = median(map(read, runs))
            found.append(goal(ms <= most, f"{words} at {LIMIT_RATE} messages/s, {most:.0f} ms or less: {ms:.0f}"))
    if 0 in costs:
        part = sum(costs[0].values()) / 1e6
        found.append(goal(part <= IDLE_PART_MAX, f"the idle service under {IDLE_PART_MAX:.0%} of a core: {part:.2%}"))
    if findings.idle_queries:
        every = 1 / findings.idle_queries[0].per_second
        found.append(
            goal(
                every >= QUERY_SECONDS_MIN * 0.95,
                f"no query of the idle service more often than every {QUERY_SECONDS_MIN:.0f} s: every {every:.1f} s",
            )
        )
    return found


def _accepted_p99_ms(run: Measured) -> float:
    return run.figures["accepted_p99_ms"]


def _rows(findings: Findings) -> list[list[str]]:
    rows = []
    for rate, runs in findings.runs.items():
        costs = report.costs(runs)
        middle = [
            f"{median(map(_accepted_p99_ms, runs)):,.0f}" if rate else "–",
            f"{median(run.p50_ms for run in runs):,.0f}" if rate else "–",
            f"{median(run.p99_ms for run in runs):,.0f}" if rate else "–",
            f"{median(run.count for run in runs):,.0f}",
            f"{median(run.seconds for run in runs):.0f}",
        ]
        queries = median(run.figures["queries_per_unit"] for run in runs)
        name = f"{rate} messages/s, per message" if rate else "idle, per second"
        rows.append([name, f"{costs['PostgreSQL']:,.0f}", f"{costs['posthouse']:,.0f}", f"{queries:.1f}", *middle])
    return rows


def _query_rows(findings: Findings) -> list[list[str]]:
    return [
        [f"`{_short(query)}`".replace("|", "\\|"), f"{query.per_second:.2f}"]
        for query in findings.idle_queries[:QUERIES_SHOWN]
    ]


def _short(query: Query) -> str:
    return " ".join(query.text.split())[:QUERY_CHARACTERS_SHOWN]


def _plot(pyplot: Any, findings: Findings) -> Any:
    figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    rates = [rate for rate in findings.runs if rate]
    for part, colour in (("PostgreSQL", PALE_BLUE), ("posthouse", BLUE)):
        axes.plot(rates, [report.costs(findings.runs[rate])[part] for rate in rates], "o-", color=colour, label=part)
    axes.set(xscale="log", yscale="log", xlabel="messages a second")
    axes.set_xticks(rates, [str(rate) for rate in rates])
    axes.set_title("Processor time per message, µs", fontsize=10, loc="left")
    axes.legend(fontsize=8, frameon=False)
    report.plain(axes)
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    parser = harness.parser(__doc__, rounds=ROUNDS, seconds=SECONDS)
    parser.add_argument("--rates", default=RATES, help=f"messages a second; 0 is the idle service ({RATES})")
    return harness.main(parser.parse_args(arguments), report_of, smtp_sink.missing)


if __name__ == "__main__":
    sys.exit(main())
