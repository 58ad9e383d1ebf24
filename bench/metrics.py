"""Measures what metrics and access lines cost: processor time of a mail with and without them, in turns.

    make bench-metrics                            (or: python bench/metrics.py)
    python bench/metrics.py --rounds 20

One process, switched by signals while it runs (`bench/turns.py`): as it is, scraped every second; with a counting that
does nothing, not scraped; without access lines; and as it is once more, which shows how far two turns differ by chance.
Delivery is to the simulator, without a server's answers: counting has a larger part in it than in any real delivery.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from statistics import median
from typing import Final
from urllib.request import urlopen

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import dataset, harness, report, turns, wrk_load
from bench.harness import Run
from bench.processes import BenchError, Measured, Process
from bench.report import Goal, Report, Rows, Runs, goal
from bench.turns import Service, Variant, spread
from tools.private_postgres import PrivatePostgres, free_port

ROUNDS: Final = 15
SECONDS: Final = 2
QUICK_SECONDS: Final = 1
SCRAPE_SECONDS: Final = 1.0
COST_MAX: Final = 0.03

PARTS: Final = {"accepted": ("http",), "accepted and delivered": ("http", "dispatch", "delivery")}
COUNTED: Final = "with metrics"
COUNTED_AGAIN: Final = "with metrics, once more"
NOT_COUNTED: Final = "without"
NO_ACCESS_LINES: Final = "with metrics, without access lines"

# Python runs this module, if it finds it, before any other.
_SWITCHES: Final = """\
import signal

from posthouse import metrics
from posthouse.entrypoints.http.access_log import AccessLog

counting = [
    (metrics.Counter, "count"),
    (metrics.Gauge, "set"),
    (metrics.Gauge, "replace"),
    (metrics.Histogram, "observe"),
]
lines = [(AccessLog, "__call__")]
whole = {(owner, name): getattr(owner, name) for owner, name in counting + lines}


def leave_out(*left_out):
    for (owner, name), method in whole.items():
        setattr(owner, name, (lambda *_, **__: None) if (owner, name) in left_out else method)


signal.signal(signal.SIGUSR1, lambda *_: leave_out())
signal.signal(signal.SIGUSR2, lambda *_: leave_out(*counting))
signal.signal(signal.SIGWINCH, lambda *_: leave_out(*lines))
"""


class _Scraper:
    """As a Prometheus in a hurry, while it is switched on."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._scrapes = 0
        self._is_on = threading.Event()
        self._is_over = threading.Event()

    def switch(self, signal_number: signal.Signals, *, is_scraped: bool = True) -> Callable[[Process], None]:
        def to_variant(process: Process) -> None:
            process.send_signal(signal_number)
            if is_scraped:
                self._is_on.set()
            else:
                self._is_on.clear()

        return to_variant

    @contextmanager
    def running(self) -> Iterator[None]:
        with ThreadPoolExecutor(1) as executor:
            executor.submit(self._scrape)
            try:
                yield
            finally:
                self._is_over.set()
        if not self._scrapes:
            raise BenchError("the metrics are not there")

    def _scrape(self) -> None:
        while not self._is_over.wait(SCRAPE_SECONDS):
            if not self._is_on.is_set():
                continue
            # The service may be ending.
            with suppress(OSError, HTTPException), urlopen(f"http://127.0.0.1:{self._port}/metrics") as answer:
                self._scrapes += b"posthouse_accepts_total" in answer.read()


def measure(run: Run) -> Report:
    seconds = QUICK_SECONDS if run.is_quick else max(1, run.options.seconds)
    rows: dict[str, list[Measured]] = {}
    with PrivatePostgres.start(settings=dataset.CLUSTER_SETTINGS) as cluster:
        with run.status("creating a cluster, a database, a thousand accounts"):
            data = dataset.make(cluster, run.workplace)
            switches = run.workplace / "switches"
            switches.mkdir()
            (switches / "sitecustomize.py").write_text(_SWITCHES)
        for name, parts in PARTS.items():
            port = free_port()
            service = Service(parts, {"MONITORING__PORT": str(port)}, switches)
            scraper = _Scraper(port)
            variants = [
                Variant(_name(name, COUNTED), service, scraper.switch(signal.SIGUSR1)),
                Variant(_name(name, NOT_COUNTED), service, scraper.switch(signal.SIGUSR2, is_scraped=False)),
                Variant(_name(name, NO_ACCESS_LINES), service, scraper.switch(signal.SIGWINCH)),
                Variant(_name(name, COUNTED_AGAIN), service, scraper.switch(signal.SIGUSR1)),
            ]
            with scraper.running():
                rows |= turns.in_turns(run, data, variants, seconds)
    return Report(
        name="metrics",
        title="What metrics and access lines cost",
        target="bench-metrics",
        machine=report.machine(),
        tables=[_table(rows)],
        goals=goals(rows),
        more=[*access_lines(rows), *chance(rows)],
        notes=report.notes("metrics", rounds=run.rounds, seconds=seconds),
    )


def _name(name: str, variant: str) -> str:
    return f"{name}, {variant}"


def _table(rows: Runs) -> Rows:
    columns: list[tuple[str, report.Cell]] = [
        ("Python µs a mail", report.middle("{:,.0f}", lambda run: run.cpu_us)),
        ("mails/s", report.middle("{:,.0f}", lambda run: run.per_second)),
    ]
    return report.table("Processor time with and without metrics", "Mail", rows, columns)


def _costs(rows: Runs, name: str, without: str) -> list[float]:
    return turns.costs(rows, _name(name, COUNTED), _name(name, without))


def goals(rows: Runs) -> list[Goal]:
    found = []
    for name in PARTS:
        counting = _costs(rows, name, NOT_COUNTED)
        text = f"a mail {name} costs {spread(counting)} with metrics (≤ {COST_MAX:.0%})"
        found.append(goal(median(counting) <= COST_MAX, text))
    return found


def access_lines(rows: Runs) -> list[str]:
    return [f"access lines make a mail {name} cost {spread(_costs(rows, name, NO_ACCESS_LINES))}" for name in PARTS]


def chance(rows: Runs) -> list[str]:
    return [
        f"a mail {name} costs {spread(_costs(rows, name, COUNTED_AGAIN))} when nothing is changed" for name in PARTS
    ]


def main(arguments: list[str] | None = None) -> int:
    options = harness.parser(__doc__, rounds=ROUNDS, seconds=SECONDS).parse_args(arguments)
    return harness.main(options, measure, wrk_load.missing)


if __name__ == "__main__":
    sys.exit(main())
