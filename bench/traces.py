"""Measures what tracing costs: processor time of a mail before there was tracing, with it switched off, and all traced.

    make bench-traces                             (or: python bench/traces.py)
    python bench/traces.py --rounds 20 --before COMMIT

The services of `bench/turns.py`. Delivery is to the simulator.
"""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import dataset, harness, report, turns, wrk_load
from bench.harness import Run
from bench.processes import BenchError
from bench.report import Goal, Report, Rows, Runs, goal
from bench.turns import Variant, costs, spread
from tools.private_postgres import PrivatePostgres

ROUNDS: Final = 15
SECONDS: Final = 2
QUICK_SECONDS: Final = 1
COST_MAX: Final = 0.01
PARTS: Final = ("http", "dispatch", "delivery")
ROOT: Final = Path(__file__).resolve().parents[1]

BEFORE: Final = "before there was tracing"
OFF: Final = "tracing switched off"
TRACED: Final = "every mail traced"


class _Taken(BaseHTTPRequestHandler):
    """Answers as a collector does that takes everything."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def _collector() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Taken)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _git(*words: str) -> bytes:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        raise BenchError(f"git {' '.join(words)}: {done.stderr.decode().strip()}")
    return done.stdout


def _sources(commit: str | None, directory: Path) -> tuple[str, Path]:
    """The name and the source directory of the commit; without one, of the last before tracing."""
    if commit is None:
        added = _git("log", "-1", "--diff-filter=A", "--format=%H", "--", "src/posthouse/traces.py").decode().strip()
        commit = f"{added}^"
    name = _git("rev-parse", "--short", commit).decode().strip()
    directory.mkdir()
    subprocess.run(["tar", "-x"], input=_git("archive", name, "src"), cwd=directory, check=True)
    return name, directory / "src"


def measure(run: Run) -> Report:
    seconds = QUICK_SECONDS if run.is_quick else max(1, run.options.seconds)
    with PrivatePostgres.start(settings=dataset.CLUSTER_SETTINGS) as cluster, _collector() as collector:
        with run.status("creating a cluster, a database, a thousand accounts"):
            commit, before = _sources(run.options.before, run.workplace / "before")
            data = dataset.make(cluster, run.workplace)
            # The tables of that commit.
            data_before = dataset.make(cluster, run.workplace, "before", before)
        no_lines = {"HTTP__ACCESS_LOG": "false"}
        traced = {**no_lines, "TRACING__SHARE": "1", "TRACING__ENDPOINT": collector}
        variants = [
            Variant(BEFORE, data_before, PARTS, no_lines, before),
            Variant(OFF, data, PARTS, no_lines),
            Variant(TRACED, data, PARTS, traced),
        ]
        rows = turns.in_turns(run, variants, seconds)
    return Report(
        name="traces",
        title="What tracing costs",
        target="bench-traces",
        machine=report.machine(),
        tables=[_table(rows)],
        goals=goals(rows),
        more=[f"a traced mail costs {spread(costs(rows, TRACED, OFF))} more than one that is not"],
        notes=report.notes("traces", rounds=run.rounds, seconds=seconds, commit=commit),
    )


def _table(rows: Runs) -> Rows:
    columns: list[tuple[str, report.Cell]] = [
        ("Python µs a mail", report.middle("{:,.0f}", lambda run: run.cpu_us)),
        ("mails/s", report.middle("{:,.0f}", lambda run: run.per_second)),
    ]
    return report.table("Processor time of a mail, accepted and delivered", "Mail", rows, columns)


def goals(rows: Runs) -> list[Goal]:
    off = costs(rows, OFF, BEFORE)
    text = f"tracing that is switched off costs {spread(off)} of a mail (≤ {COST_MAX:.0%})"
    return [goal(median(off) <= COST_MAX, text)]


def main(arguments: list[str] | None = None) -> int:
    parser = harness.parser(__doc__, rounds=ROUNDS, seconds=SECONDS)
    parser.add_argument("--before", help="the commit to compare with (the last one without tracing)")
    return harness.main(parser.parse_args(arguments), measure, wrk_load.missing)


if __name__ == "__main__":
    sys.exit(main())
