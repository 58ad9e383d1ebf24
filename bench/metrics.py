"""Measures what metrics and access lines cost: processor time of a mail with and without them, in turns.

    make bench-metrics                            (or: python bench/metrics.py)
    python bench/metrics.py --rounds 10

The same processes, once as they are, monitored and scraped every second, and once with a counting that does nothing
and no port. Rounds of all phases in turn, and the ratio within each round. Delivery is to the simulator, without a
server's answers: counting has a larger part in it than in any real delivery.
"""

import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import dataset, harness, message, report, wrk_load
from bench.dataset import Dataset, wait_until_delivered
from bench.harness import Run
from bench.processes import BenchError, Measured, metered, microseconds, posthouse_command, running
from bench.report import Goal, Report, Rows, Runs, goal
from bench.wrk_load import HttpServer
from tools.private_postgres import PrivatePostgres, free_port

ROUNDS: Final = 6
SECONDS: Final = 8
QUICK_SECONDS: Final = 2
ACCOUNTS: Final = 20
SCRAPE_SECONDS: Final = 1.0
COST_MAX: Final = 0.03
SIMULATED: Final = "delivered@simulator.invalid"

PARTS: Final = {"accepted": ("http",), "accepted and delivered": ("http", "dispatch", "delivery")}
COUNTED: Final = "with metrics"
NOT_COUNTED: Final = "without"
NO_ACCESS_LINES: Final = "with metrics, without access lines"

# Python runs this module, if it finds it, before any other.
_NO_COUNTING: Final = """\
from posthouse import metrics

metrics.Counter.count = metrics.Gauge.set = metrics.Gauge.replace = metrics.Histogram.observe = lambda *_, **__: None
"""


def _run(data: Dataset, parts: tuple[str, ...], seconds: int, variant: str) -> Measured:
    data.clear()
    port = 0 if variant == NOT_COUNTED else free_port()
    settings = {"MONITORING__PORT": str(port), "HTTP__ACCESS_LOG": str(variant != NO_ACCESS_LINES)}
    with _server(data, parts, settings, is_counted=bool(port)) as server, _scraped(port):
        fields = [message.fields(sender.domain, to=SIMULATED) for sender in data.senders[:ACCOUNTS]]
        requests = [
            wrk_load.post(sender.basic, given, server.port)
            for sender, given in zip(data.senders[:ACCOUNTS], fields, strict=True)
        ]
        wrk_load.measure(server, data.cluster.pid, requests, name="warm", seconds=2)
        if "delivery" in parts:
            wait_until_delivered(data.url)
        with metered({"Python": [server.process.pid]}) as used:
            measured = wrk_load.measure(server, data.cluster.pid, requests, seconds=seconds)
            if "delivery" in parts:
                wait_until_delivered(data.url)
    each = microseconds(used, measured.count)
    return Measured(measured.count, measured.seconds, {"Python": each["Python"]}, p99_ms=measured.p99_ms)


@contextmanager
def _server(
    data: Dataset, parts: tuple[str, ...], settings: Mapping[str, str], *, is_counted: bool
) -> Iterator[HttpServer]:
    port, log = free_port(), data.workplace / "metrics.log"
    patch = data.workplace / "no_counting"
    patch.mkdir(exist_ok=True)
    (patch / "sitecustomize.py").write_text(_NO_COUNTING)
    environment = data.with_settings(settings) | ({} if is_counted else {"PYTHONPATH": str(patch)})
    command = posthouse_command("run", *parts, "--port", str(port))

    def is_ready() -> bool:
        return "Application startup complete" in log.read_text(errors="replace")

    with running(command, log, is_ready, environment=environment) as process:
        yield HttpServer(process, port, log)


@contextmanager
def _scraped(port: int) -> Iterator[None]:
    """As by a Prometheus in a hurry."""
    stop = threading.Event()

    def scrape() -> None:
        while port and not stop.wait(SCRAPE_SECONDS):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
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
    phases = [(name, variant) for name in PARTS for variant in (COUNTED, NOT_COUNTED, NO_ACCESS_LINES)]
    rows: dict[str, list[Measured]] = {_name(*phase): [] for phase in phases}
    with PrivatePostgres.start(settings=dataset.CLUSTER_SETTINGS) as cluster:
        with run.status("creating a cluster, a database, a thousand accounts"):
            data = dataset.make(cluster, run.workplace)
        for round_name, (name, variant) in run.interleaved(phases):
            label = _name(name, variant)
            with run.status(f"{round_name}: {label}"):
                rows[label].append(_run(data, PARTS[name], seconds, variant))
            run.say(f"{round_name}: {label}: {rows[label][-1]}")
    return Report(
        name="metrics",
        title="What metrics and access lines cost",
        target="bench-metrics",
        machine=report.machine(),
        tables=[_table(rows)],
        goals=goals(rows),
        more=access_lines(rows),
        notes=report.notes("metrics", repeated=report.repeated(run.rounds), seconds=seconds),
    )


def _name(name: str, variant: str) -> str:
    return f"{name}, {variant}"


def _table(rows: Runs) -> Rows:
    columns: list[tuple[str, report.Cell]] = [
        ("Python µs a mail", report.middle("{:,.0f}", lambda run: run.cpu_us)),
        ("mails/s", report.middle("{:,.0f}", lambda run: run.per_second)),
    ]
    return report.table("Processor time with and without metrics", "Mail", rows, columns)


def costs(rows: Runs, name: str, without: str) -> list[float]:
    """By how much more a mail costs than in the variant, round by round, the least first."""
    pairs = zip(rows[_name(name, COUNTED)], rows[_name(name, without)], strict=True)
    return sorted(whole.cpu_us / part.cpu_us - 1 for whole, part in pairs)


def goals(rows: Runs) -> list[Goal]:
    found = []
    for name in PARTS:
        counting = costs(rows, name, NOT_COUNTED)
        text = f"a mail {name} costs {_spread(counting)} with metrics (≤ {COST_MAX:.0%})"
        found.append(goal(median(counting) <= COST_MAX, text))
    return found


def access_lines(rows: Runs) -> list[str]:
    return [
        f"access lines make a mail {name} cost {_spread(costs(rows, name, NO_ACCESS_LINES))[:-1]}" for name in PARTS
    ]


def _spread(found: list[float]) -> str:
    return f"{median(found):+.1%}, {found[0]:+.1%} to {found[-1]:+.1%} over the rounds,"


def main(arguments: list[str] | None = None) -> int:
    options = harness.parser(__doc__, rounds=ROUNDS, seconds=SECONDS).parse_args(arguments)
    return harness.main(options, measure, wrk_load.missing)


if __name__ == "__main__":
    sys.exit(main())
