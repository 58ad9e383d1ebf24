"""Measures what metrics and access lines cost: processor time of a message with and without them.

    make bench-metrics                            (or: python bench/metrics.py)
    python bench/metrics.py --rounds 20

Turns of seconds, or separate processes, differ by more than what is looked for. So one process changes itself every
tenth of a second, in a random order, while the load continues: it counts or doesn't, writes access lines or doesn't;
"once more" is the same under another name, and shows what chance does. A scrape is measured when there is no mail.
Delivery is to the simulator, without a server's answers: counting has a larger part in it than in any real delivery.
"""

import json
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final
from urllib.request import urlopen

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import dataset, harness, report, turns, wrk_load
from bench.dataset import Dataset
from bench.harness import Run
from bench.processes import BenchError, Measured, Process, metered, microseconds
from bench.report import Goal, Report, Rows, Runs, goal
from bench.turns import Variant, spread
from tools.private_postgres import PrivatePostgres, free_port

ROUNDS: Final = 15
SECONDS: Final = 16
QUICK_SECONDS: Final = 2
SCRAPES: Final = 100
SCRAPES_A_SECOND: Final = 1.0
SUMS_SECONDS_MAX: Final = 10.0
COST_MAX: Final = 0.03

PARTS: Final = {"accepted": ("http",), "accepted and delivered": ("http", "dispatch", "delivery")}
COUNTED: Final = "with metrics"
COUNTED_AGAIN: Final = "with metrics, once more"
NOT_COUNTED: Final = "without"
NO_ACCESS_LINES: Final = "with metrics, without access lines"

# Python runs this module, if it finds it, before any other. Everything is switched by the signal of a timer; another
# signal asks for the sums since it was asked last.
_SLICES: Final = """\
import json
import random
import signal
import time
from pathlib import Path

from posthouse import metrics
from posthouse.entrypoints.http.access_log import AccessLog

SLICE_SECONDS = 0.1
COUNTING = {
    (metrics.Counter, "count"),
    (metrics.Gauge, "set"),
    (metrics.Gauge, "replace"),
    (metrics.Histogram, "observe"),
}
LINES = {(AccessLog, "__call__")}
LEFT_OUT = {
    "with metrics": set(),
    "with metrics, once more": set(),
    "with metrics, without access lines": LINES,
    "without": COUNTING,
}

whole = {(owner, name): getattr(owner, name) for owner, name in COUNTING | LINES}
sums = {}
upcoming = []
current, began, requests = "with metrics", time.process_time(), 0


def nothing(*_, **__):
    pass


def counted(line):
    def request(*details):
        global requests
        requests += 1
        line(*details)

    return request


def switch(*_):
    global current, began, requests
    now = time.process_time()
    seconds, count = sums.get(current, (0, 0))
    sums[current] = (seconds + now - began, count + requests)
    if not upcoming:
        upcoming.extend(random.sample(list(LEFT_OUT), len(LEFT_OUT)))
    current, began, requests = upcoming.pop(), now, 0
    for (owner, name), method in whole.items():
        used = nothing if (owner, name) in LEFT_OUT[current] else method
        setattr(owner, name, counted(used) if owner is AccessLog else used)


def write_sums(*_):
    switch()
    path = Path(__file__).with_name("sums.json")
    part = path.with_suffix(".part")
    part.write_text(json.dumps(sums))
    part.rename(path)
    sums.clear()


signal.signal(signal.SIGUSR1, write_sums)
signal.signal(signal.SIGALRM, switch)
signal.setitimer(signal.ITIMER_REAL, SLICE_SECONDS, SLICE_SECONDS)
"""


class _Slices:
    """What the process has measured about itself."""

    def __init__(self, process: Process, path: Path) -> None:
        self._process = process
        self._path = path

    def take(self) -> dict[str, Measured]:
        """Since it was asked last."""
        self._path.unlink(missing_ok=True)
        self._process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + SUMS_SECONDS_MAX
        while not self._path.exists():
            if time.monotonic() > deadline:
                raise BenchError("the service did not write what it measured")
            time.sleep(0.02)
        sums: dict[str, Any] = json.loads(self._path.read_text())
        return {
            name: Measured(count, seconds, microseconds({"Python": seconds}, count))
            for name, (seconds, count) in sums.items()
            if count
        }


def _scrape_seconds(process: Process, port: int) -> float:
    with metered({"Python": [process.pid]}) as used:
        for _ in range(SCRAPES):
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                if b"posthouse_accepts_total" not in answer.read():
                    raise BenchError("the metrics are not there")
    return used["Python"] / SCRAPES


def _measured(
    run: Run, data: Dataset, name: str, modules: Path, seconds: int
) -> tuple[dict[str, list[Measured]], float]:
    """Each variant, round by round; and the processor time of a scrape, in seconds."""
    turns.prepare(data)
    port = free_port()
    measuring = replace(data, environment={**data.environment, **dataset.with_modules(modules)})
    variant = Variant(measuring, PARTS[name], {"MONITORING__PORT": str(port)})
    rows: dict[str, list[Measured]] = {}
    with turns.started(variant) as server:
        slices = _Slices(server.process, modules / "sums.json")
        turns.load(variant, server, "warm", seconds)
        slices.take()
        for number in range(run.rounds):
            turns.load(variant, server, f"load-{number}", seconds)
            for each, measured in slices.take().items():
                rows.setdefault(_name(name, each), []).append(measured)
            costs = ", ".join(f"{each} {runs[-1].cpu_us:,.0f} µs" for each, runs in sorted(rows.items()))
            run.say(f"round {number + 1} of {run.rounds}: {costs}")
        return rows, _scrape_seconds(server.process, port)


def measure(run: Run) -> Report:
    seconds = QUICK_SECONDS if run.is_quick else max(1, run.options.seconds)
    rows: dict[str, list[Measured]] = {}
    scrapes: dict[str, float] = {}
    with PrivatePostgres.start(settings=dataset.CLUSTER_SETTINGS) as cluster:
        with run.status("creating a cluster, a database, a thousand accounts"):
            data = dataset.make(cluster, run.workplace)
            modules = run.workplace / "slices"
            modules.mkdir()
            (modules / "sitecustomize.py").write_text(_SLICES)
        for name in PARTS:
            found, scrapes[name] = _measured(run, data, name, modules, seconds)
            rows |= found
    return Report(
        name="metrics",
        title="What metrics and access lines cost",
        target="bench-metrics",
        machine=report.machine(),
        tables=[_table(rows)],
        goals=goals(rows, scrapes),
        more=[*access_lines(rows), *randomness(rows)],
        notes=report.notes("metrics", rounds=run.rounds, seconds=seconds),
    )


def _name(name: str, variant: str) -> str:
    return f"{name}, {variant}"


def _table(rows: Runs) -> Rows:
    columns: list[tuple[str, report.Cell]] = [
        ("Python µs per message", report.middle("{:,.0f}", lambda run: run.cpu_us)),
        ("messages", lambda runs: f"{sum(run.count for run in runs):,}"),
    ]
    return report.table("Processor time with and without metrics", "Mail", dict(sorted(rows.items())), columns)


def _costs(rows: Runs, name: str, without: str) -> list[float]:
    return turns.costs(rows, _name(name, COUNTED), _name(name, without))


def goals(rows: Runs, scrapes: Mapping[str, float]) -> list[Goal]:
    """A busy process spends all of a second on mail; a scrape a second takes its part of that."""
    found = []
    for name in PARTS:
        counting, scraping = _costs(rows, name, NOT_COUNTED), scrapes[name] * SCRAPES_A_SECOND
        text = (
            f"a message {name} costs {spread(counting)} with metrics, and a scrape a second, {scrapes[name] * 1e3:.1f} "
            f"ms each, {scraping:+.1%} (≤ {COST_MAX:.0%} together)"
        )
        found.append(goal(median(counting) + scraping <= COST_MAX, text))
    return found


def access_lines(rows: Runs) -> list[str]:
    return [f"access lines make a message {name} cost {spread(_costs(rows, name, NO_ACCESS_LINES))}" for name in PARTS]


def randomness(rows: Runs) -> list[str]:
    return [
        f"a message {name} costs {spread(_costs(rows, name, COUNTED_AGAIN))} when nothing is changed" for name in PARTS
    ]


def main(arguments: list[str] | None = None) -> int:
    options = harness.parser(__doc__, rounds=ROUNDS, seconds=SECONDS).parse_args(arguments)
    return harness.main(options, measure, wrk_load.missing)


if __name__ == "__main__":
    sys.exit(main())
