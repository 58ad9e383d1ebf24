"""Measures what tracing costs: processor time of a message with tracing switched off, and with every message traced.

    make bench-traces                             (or: python bench/traces.py)
    python bench/traces.py --rounds 20

The services of `bench/turns.py`. Delivery is to the simulator.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import dataset, harness, report, turns, wrk_load
from bench.harness import Run
from bench.report import Report, Rows, Runs
from bench.turns import PYTHON, Variant, costs, spread
from tools.private_postgres import PrivatePostgres

ROUNDS: Final = 15
SECONDS: Final = 2
QUICK_SECONDS: Final = 1
PARTS: Final = ("http", "dispatch", "delivery")

OFF: Final = "tracing switched off"
TRACED: Final = "every message traced"


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


def measure(run: Run) -> Report:
    seconds = QUICK_SECONDS if run.is_quick else max(1, run.options.seconds)
    with (
        PrivatePostgres.start(settings=dataset.CLUSTER_SETTINGS) as cluster,
        _collector() as collector,
        ExitStack() as stack,
    ):
        with run.status("creating a cluster, a database, a thousand accounts"):
            data = dataset.make(cluster, run.workplace)
            turns.prepare(data)
        no_lines = {"HTTP__ACCESS_LOG": "false"}
        traced = {**no_lines, "TRACING__SHARE": "1", "TRACING__ENDPOINT": collector}
        services = {
            name: stack.enter_context(turns.accepting(Variant(data, PARTS, settings), seconds))
            for name, settings in {OFF: no_lines, TRACED: traced}.items()
        }
        rows = turns.in_turns(run, services)
    more = f"a traced message costs {spread(costs(rows, TRACED, OFF))} more Python than one that is not"
    run.say(more)
    return Report(
        name="traces",
        title="What tracing costs",
        target="bench-traces",
        machine=report.machine(),
        tables=[_table(rows)],
        goals=[],
        more=[more],
        notes=report.notes("traces", rounds=run.rounds, seconds=seconds),
    )


def _table(rows: Runs) -> Rows:
    columns: list[tuple[str, report.Cell]] = [
        ("Python µs a message", report.middle("{:,.0f}", lambda run: run.server_us[PYTHON])),
        ("messages/s", report.middle("{:,.0f}", lambda run: run.per_second)),
    ]
    return report.table("Processor time of a message, accepted and delivered", "Message", rows, columns)


def main(arguments: list[str] | None = None) -> int:
    options = harness.parser(__doc__, rounds=ROUNDS, seconds=SECONDS).parse_args(arguments)
    return harness.main(options, measure, wrk_load.missing)


if __name__ == "__main__":
    sys.exit(main())
