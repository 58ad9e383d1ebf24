"""Measures overload: what requests get while more come than one process can accept.

The load comes at a fixed rate, however long the answers take: at a part of the capacity, at twice of it, and again at
the part, which shows what an overload leaves behind.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import accept_floor, dataset, harness, message, report, steady_load, wrk_load
from bench.dataset import Dataset
from bench.harness import Run
from bench.processes import BenchError, memory_mib
from bench.report import Goal, Report, Rows, goal
from bench.wrk_load import HttpServer
from tools.private_postgres import PrivatePostgres

ROUNDS: Final = 3
SECONDS: Final = 12.0
QUICK_SECONDS: Final = 2.0
ACCOUNTS: Final = 1_000
WARM_RUNS: Final = 3
CAPACITY_SECONDS: Final = 6
USUAL: Final = 0.7
OVERLOAD: Final = 2.0
# As a proxy keeps them.
CONNECTIONS: Final = 1_000
PARTS: Final = (USUAL, OVERLOAD, USUAL)

P99_TO_P50_MAX: Final = 5.0
ACCEPTED_MS_MAX: Final = 1_000.0
REFUSED_MS_MAX: Final = 250.0
# On top of what the server has for each connection that the load opens.
MEMORY_GROWTH_MAX: Final = 1.25

Figures = dict[str, Any]


def measured(data: Dataset, run: Run, seconds: float) -> list[Figures]:
    """The capacity, and then each part of it."""
    data.clear()
    with wrk_load.http_server(data.environment, data.workplace) as server:
        requests = [
            wrk_load.post(sender.basic, message.fields(sender.domain), server.port)
            for sender in data.senders[:ACCOUNTS]
        ]
        for number in range(WARM_RUNS):
            wrk_load.measure(server, data.cluster.pid, requests, name=f"warm{number}", seconds=2)
        capacity = wrk_load.measure(
            server, data.cluster.pid, requests, seconds=1 if run.is_quick else CAPACITY_SECONDS
        ).per_second
        found = []
        for number, part in enumerate(PARTS):
            figures = _load(server, requests, f"load{number}", part * capacity, seconds)
            found.append({**figures, "part": part, "capacity": capacity, "memory_mib": memory_mib(server.process.pid)})
        return found


def _load(server: HttpServer, requests: Sequence[str], name: str, rate: float, seconds: float) -> Figures:
    plan = server.log.parent / "steady.json"
    plan.write_text(
        json.dumps(
            {
                "requests": [json.loads(f"[{request.strip()[1:-1]}]") for request in requests],
                "name": name,
                "port": server.port,
                "rate": rate,
                "seconds": seconds,
                "connections": CONNECTIONS,
            }
        )
    )
    done = subprocess.run([sys.executable, steady_load.__file__, str(plan)], capture_output=True, text=True)
    if done.returncode:
        raise BenchError(f"the load failed:\n{done.stderr[-2000:]}")
    figures: Figures = json.loads(done.stdout)
    return figures


def report_of(run: Run) -> Report:
    seconds = QUICK_SECONDS if run.is_quick else run.options.seconds
    rounds: list[list[Figures]] = []
    with PrivatePostgres.start(settings=dataset.CLUSTER_SETTINGS) as cluster:
        with run.status("creating a cluster, a database, a thousand accounts"):
            data = dataset.make(cluster, run.workplace)
        for number in range(run.rounds):
            with run.status(f"round {number + 1} of {run.rounds}"):
                rounds.append(measured(data, run, seconds))
            run.say(f"round {number + 1} of {run.rounds}: {rounds[-1]}")
    columns = ("Load", "a second", "202 a second", "p50 ms", "p99 ms", "503 a second", "p50 ms", "p99 ms", "MiB")
    return Report(
        name="overload",
        title="Overload",
        target="bench-overload",
        machine=report.machine(),
        tables=[Rows("Requests at a fixed rate", columns, [_row(phase) for phase in zip(*rounds, strict=True)])],
        goals=goals(rounds),
        notes=report.notes(
            "overload",
            repeated=report.repeated(run.rounds),
            seconds=f"{seconds:g}",
            accounts=f"{ACCOUNTS:,}",
            connections=f"{CONNECTIONS:,}",
        ),
    )


def _of(phase: Sequence[Figures], status: str, figure: str) -> float:
    found: list[float] = [figures["answers"].get(status, {}).get(figure, 0.0) for figures in phase]
    return median(found)


def _row(phase: Sequence[Figures]) -> list[str]:
    seconds = median(figures["seconds"] for figures in phase)
    cells = []
    for status in ("202", "503"):
        count = _of(phase, status, "count")
        waits = [f"{_of(phase, status, name):,.0f}" for name in ("p50", "p99")] if count else ["–", "–"]
        cells += [f"{count / seconds:,.0f}", *waits]
    rate = median(figures["part"] * figures["capacity"] for figures in phase)
    memory = median(figures["memory_mib"] for figures in phase)
    return [f"{phase[0]['part']:g} × capacity", f"{rate:,.0f}", *cells, f"{memory:,.0f}"]


def goals(rounds: Sequence[Sequence[Figures]]) -> list[Goal]:
    usual, overload, after = list(zip(*rounds, strict=True))
    to_p50 = median(figures["answers"]["202"]["p99"] / figures["answers"]["202"]["p50"] for figures in usual)
    accepted = _of(overload, "202", "p99")
    refused = _of(overload, "503", "p99")
    growth = median(late["memory_mib"] / early["memory_mib"] for early, late in zip(usual, overload, strict=True))
    others = sum(
        summary["count"]
        for figures in (*usual, *overload, *after)
        for status, summary in figures["answers"].items()
        if status not in ("202", "503")
    )
    silent = sum(figures["without_retry_after"] for figures in (*usual, *overload, *after))
    after_refused = sum(figures["answers"].get("503", {}).get("count", 0) for figures in after)
    return [
        goal(
            to_p50 <= P99_TO_P50_MAX,
            f"at {USUAL:g} × capacity, p99 at most {P99_TO_P50_MAX:g} × p50: {to_p50:.1f} ×",
        ),
        goal(
            accepted <= ACCEPTED_MS_MAX,
            f"at {OVERLOAD:g} ×, p99 of what is accepted at most {ACCEPTED_MS_MAX:,.0f} ms: {accepted:,.0f} ms",
        ),
        goal(
            refused <= REFUSED_MS_MAX,
            f"at {OVERLOAD:g} ×, p99 of the refusals at most {REFUSED_MS_MAX:,.0f} ms: {refused:,.0f} ms",
        ),
        goal(not others and not silent, f"each is a 202, or a 503 with Retry-After: {others + silent} are not"),
        goal(growth <= MEMORY_GROWTH_MAX, f"memory at most {MEMORY_GROWTH_MAX:g} × of before: {growth:.2f} ×"),
        goal(not after_refused, f"after the overload nothing is refused: {after_refused}"),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    options = harness.parser(__doc__, rounds=ROUNDS, seconds=SECONDS).parse_args(arguments)
    return harness.main(options, report_of, accept_floor.missing, wrk_load.missing)


if __name__ == "__main__":
    sys.exit(main())
