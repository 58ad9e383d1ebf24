"""Measures what metrics and access lines cost: processor time of a mail with and without them, in turns.

    make bench-metrics                            (or: python bench/metrics.py)
    python bench/metrics.py --rounds 20

The services of `bench/turns.py`: as they are, monitored and scraped every second; with a counting that does nothing and
no port; and without access lines. Delivery is to the simulator, without a server's answers: counting has a larger part
in it than in any real delivery.
"""

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Final
from urllib.error import URLError
from urllib.request import urlopen

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import dataset, harness, report, turns, wrk_load
from bench.harness import Run
from bench.processes import BenchError, Measured
from bench.report import Goal, Report, Rows, Runs, goal
from bench.turns import Variant, spread
from tools.private_postgres import PrivatePostgres, free_port

ROUNDS: Final = 15
SECONDS: Final = 2
QUICK_SECONDS: Final = 1
SCRAPE_SECONDS: Final = 1.0
COST_MAX: Final = 0.03

PARTS: Final = {"accepted": ("http",), "accepted and delivered": ("http", "dispatch", "delivery")}
COUNTED: Final = "with metrics"
NOT_COUNTED: Final = "without"
NO_ACCESS_LINES: Final = "with metrics, without access lines"

# Python runs this module, if it finds it, before any other.
_NO_COUNTING: Final = """\
from posthouse import metrics

metrics.Counter.count = metrics.Gauge.set = metrics.Gauge.replace = metrics.Histogram.observe = lambda *_, **__: None
"""


@contextmanager
def _scraped(ports: Sequence[int]) -> Iterator[None]:
    """As by a Prometheus in a hurry, once the services listen."""
    stop = threading.Event()

    def scrape() -> None:
        while not stop.wait(SCRAPE_SECONDS):
            for port in ports:
                with suppress(URLError), urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                    if b"posthouse_accepts_total" not in answer.read():
                        raise BenchError("the metrics are not there")

    scraper = threading.Thread(target=scrape)
    scraper.start()
    try:
        yield
    finally:
        stop.set()
        scraper.join()


def measure(run: Run) -> Report:
    seconds = QUICK_SECONDS if run.is_quick else max(1, run.options.seconds)
    rows: dict[str, list[Measured]] = {}
    with PrivatePostgres.start(settings=dataset.CLUSTER_SETTINGS) as cluster:
        with run.status("creating a cluster, a database, a thousand accounts"):
            data = dataset.make(cluster, run.workplace)
            patch = run.workplace / "no_counting"
            patch.mkdir()
            (patch / "sitecustomize.py").write_text(_NO_COUNTING)
        for name, parts in PARTS.items():
            ports = [free_port(), free_port()]
            counted, no_lines = ({"MONITORING__PORT": str(port)} for port in ports)
            variants = [
                Variant(_name(name, COUNTED), parts, counted),
                Variant(_name(name, NOT_COUNTED), parts, {"MONITORING__PORT": "0"}, patch),
                Variant(_name(name, NO_ACCESS_LINES), parts, no_lines | {"HTTP__ACCESS_LOG": "false"}),
            ]
            with _scraped(ports):
                rows |= turns.in_turns(run, data, variants, seconds)
    return Report(
        name="metrics",
        title="What metrics and access lines cost",
        target="bench-metrics",
        machine=report.machine(),
        tables=[_table(rows)],
        goals=goals(rows),
        more=access_lines(rows),
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


def main(arguments: list[str] | None = None) -> int:
    options = harness.parser(__doc__, rounds=ROUNDS, seconds=SECONDS).parse_args(arguments)
    return harness.main(options, measure, wrk_load.missing)


if __name__ == "__main__":
    sys.exit(main())
