"""Measures the accept path: the limits of PostgreSQL and of Python with our statements, and what our server reaches.

    make bench                                    (or: python bench/accept.py)
    python bench/accept.py --rounds 5 --seconds 15
    python bench/accept.py --quick --output /tmp/bench

Everything runs against one private cluster: rounds of all phases in turn, medians over the rounds, ratios within each
round. After every phase the database is checked: a figure counts only messages that are stored, complete and paid for.
"""

import asyncio
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import accept_asgi, accept_floor, dataset, harness, message, rate_load, report, wrk_load
from bench.accept_floor import WAL_KB
from bench.dataset import ACCOUNTS, Dataset
from bench.harness import Run
from bench.processes import BenchError, Measured
from bench.report import BLUE, GREY, LIGHT_GREY, PALE_BLUE, Goal, Plot, RateAndCost, Report, Rows, Runs, goal, middle
from bench.wrk_load import CONNECTIONS, HttpServer
from tools.private_postgres import PrivatePostgres, free_port

ROUNDS: Final = 3
SECONDS: Final = 8
QUICK_SECONDS: Final = 2
# How often an account sends to a process before the load counts.
WARM_REQUESTS: Final = 4
# Whatever a stopped load left unanswered is committed, or given up, by then.
SETTLE_SECONDS: Final = 0.5

REFERENCE: Final = "bare, 1 message a transaction, 8 clients"
BATCHES: Final = "bare, 50 messages a transaction, 2 clients"
ASGI: Final = "raw ASGI, 1 process, 1,000 accounts"
ONE_PROCESS: Final = "HTTP, 1 process, 1,000 accounts"
ONE_PROCESS_HOT: Final = "HTTP, 1 process, one account"
TWO_PROCESSES: Final = "HTTP, 2 processes, 1,000 accounts"
TWO_PROCESSES_HOT: Final = "HTTP, 2 processes, one account"
BATCH: Final = "HTTP, 1 process, 100 emails a request"
# The number that a process works on at a time.
BATCH_CONNECTIONS: Final = 4

ONE_PROCESS_MIN: Final = 0.60
TWO_PROCESSES_MIN: Final = 0.90
HOT_DIFFERENCE_MAX: Final = 0.20
# Of the floor in Python.
PYTHON_TO_ASGI_MAX: Final = 2.0
# Of the processor time of single requests.
BATCH_MAX: Final = 0.6
# At half of what a process accepts; in the first seconds it reads the accounts.
STEADY_SECONDS: Final = 180
STEADY_SECONDS_QUICK: Final = 5
STEADY_BEGINNING: Final = 5
SLOWEST_SECOND_MAX: Final = 2.0

_COLOURS: Final = {"Python": BLUE, "PostgreSQL": PALE_BLUE}


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    colour: str
    run: Callable[[Dataset, int], Measured]

    @property
    def is_ours(self) -> bool:
        return self.colour == BLUE


def _floor(name: str, batch: int, clients: int) -> Phase:
    def run(data: Dataset, seconds: int) -> Measured:
        return accept_floor.run(data, batch=batch, clients=clients, seconds=seconds)

    return Phase(name, LIGHT_GREY if batch > 1 else GREY, run)


def _http(name: str, processes: int, accounts: int, *, keeps_alive: bool = True) -> Phase:
    def run(data: Dataset, seconds: int) -> Measured:
        data.clear()
        with wrk_load.http_server(data.environment, data.workplace, processes) as server:
            return _load(server, data, processes, accounts, seconds, keeps_alive=keeps_alive)

    return Phase(name, BLUE, run)


def _batch(name: str, emails: int) -> Phase:
    def run(data: Dataset, seconds: int) -> Measured:
        data.clear()
        with wrk_load.http_server(data.environment, data.workplace) as server:
            return _load(server, data, 1, ACCOUNTS, seconds, emails=emails)

    return Phase(name, BLUE, run)


def _asgi(name: str) -> Phase:
    def run(data: Dataset, seconds: int) -> Measured:
        data.clear()
        with _asgi_server(data) as server:
            return _load(server, data, 1, ACCOUNTS, seconds)

    return Phase(name, GREY, run)


@contextmanager
def _asgi_server(data: Dataset) -> Iterator[HttpServer]:
    port, senders = free_port(), data.workplace / "senders.json"
    accept_asgi.write_senders(senders, data.senders)
    command = [sys.executable, accept_asgi.__file__, str(port), data.url, str(senders)]
    with wrk_load.started(command, port, data.workplace) as server:
        yield server


PHASES: Final = (
    _floor("bare, 1 message a transaction, 1 client", batch=1, clients=1),
    _floor(REFERENCE, batch=1, clients=8),
    _floor("bare, 1 message a transaction, 32 clients", batch=1, clients=32),
    _floor("bare, 20 messages a transaction, 2 clients", batch=20, clients=2),
    _floor(BATCHES, batch=50, clients=2),
    _floor("bare, 100 messages a transaction, 2 clients", batch=100, clients=2),
    _asgi(ASGI),
    _http(ONE_PROCESS, processes=1, accounts=ACCOUNTS),
    _http(ONE_PROCESS_HOT, processes=1, accounts=1),
    _http(TWO_PROCESSES, processes=2, accounts=ACCOUNTS),
    _http(TWO_PROCESSES_HOT, processes=2, accounts=1),
    _batch(BATCH, emails=100),
    _http("HTTP, 1 process, a connection for each request", processes=1, accounts=ACCOUNTS, keeps_alive=False),
    _http("HTTP, 2 processes, a connection for each request", processes=2, accounts=ACCOUNTS, keeps_alive=False),
)


def _load(
    server: HttpServer,
    data: Dataset,
    processes: int,
    accounts: int,
    seconds: int,
    *,
    keeps_alive: bool = True,
    emails: int = 1,
) -> Measured:
    """Messages accepted over HTTP, this many in each request; raises unless every one that was answered is stored."""
    requests = [
        wrk_load.post(sender.basic, _body(sender.domain, emails), server.port, _path(emails), keeps_alive=keeps_alive)
        for sender in data.senders[:accounts]
    ]
    connections = CONNECTIONS if emails == 1 else BATCH_CONNECTIONS
    runs, answered = 0, 0
    # Until each process has most probably met every account: what is unknown is looked up first.
    while runs == 0 or (answered < WARM_REQUESTS * accounts * processes and runs < seconds):
        runs += 1
        warm = wrk_load.measure(
            server, data.cluster.pid, requests, name=f"warm{runs}", seconds=1, connections=connections
        )
        answered += warm.count
    wal_bytes = data.wal_bytes()
    measured = wrk_load.measure(server, data.cluster.pid, requests, seconds=seconds, connections=connections)
    time.sleep(SETTLE_SECONDS)
    wal_bytes = data.wal_bytes() - wal_bytes
    answered += measured.count
    # Every run may end with one request in flight on each connection.
    data.require_messages(answered * emails, (answered + (runs + 1) * connections) * emails)
    count = measured.count * emails
    return replace(
        measured,
        count=count,
        server_us={part: cost / emails for part, cost in measured.server_us.items()},
        load_us=measured.load_us / emails,
        figures={**measured.figures, WAL_KB: wal_bytes / count / 1024},
    )


def _steady_ms(data: Dataset, per_second: float, seconds: int) -> list[float]:
    """For each second, the mean milliseconds from when a message was due to its 202."""
    data.clear()
    bodies = [(sender.basic, json.dumps(_body(sender.domain, 1)).encode()) for sender in data.senders]
    count = round(per_second * (STEADY_BEGINNING + seconds))
    requests = (rate_load.raw_request(*bodies[number % ACCOUNTS]) for number in range(count))
    with wrk_load.http_server(data.environment, data.workplace) as server:
        sent = asyncio.run(rate_load.post(server.port, requests, per_second=per_second))
    if not sent.is_well:
        raise BenchError(f"not every request was accepted: {sent.answers}")
    data.require_messages(count)
    by_second: dict[int, list[float]] = defaultdict(list)
    for due, wait in zip(sent.dues, sent.waits, strict=True):
        by_second[int(due)].append(wait * 1000)
    return [fmean(waits) for second, waits in by_second.items() if second >= STEADY_BEGINNING]


def _path(emails: int) -> str:
    return "/emails" if emails == 1 else "/emails/batch"


def _body(domain: str, emails: int) -> dict[str, Any]:
    single = message.fields(domain)
    return dict(single) if emails == 1 else {"emails": [single] * emails}


def measure(run: Run) -> Report:
    seconds = QUICK_SECONDS if run.is_quick else max(1, run.options.seconds)
    rows: dict[str, list[Measured]] = {phase.name: [] for phase in PHASES}
    with PrivatePostgres.start(settings=dataset.CLUSTER_SETTINGS) as cluster:
        with run.status("creating a cluster, a database, a thousand accounts"):
            data = dataset.make(cluster, run.workplace)
        for round_name, phase in run.interleaved(PHASES):
            with run.status(f"{round_name}: {phase.name}"):
                rows[phase.name].append(phase.run(data, seconds))
            run.say(f"{round_name}: {phase.name}: {rows[phase.name][-1]}")
        per_second = report.rate(rows[ONE_PROCESS]) / 2
        steady_seconds = STEADY_SECONDS_QUICK if run.is_quick else STEADY_SECONDS
        with run.status(f"{per_second:.0f} messages a second for {steady_seconds} s"):
            steady_ms = _steady_ms(data, per_second, steady_seconds)
    of_batches = report.ratio(rows[TWO_PROCESSES], rows[BATCHES]) or 0.0
    return Report(
        name="accept",
        title="The accept path",
        target="bench",
        machine=report.machine(),
        tables=[_table(rows)],
        goals=goals(rows, steady_ms),
        more=[f"Of bare PostgreSQL in batches of 50, two processes reach {of_batches:.0%}"],
        notes=report.notes(
            "accept",
            repeated=report.repeated(run.rounds),
            seconds=seconds,
            reference=REFERENCE,
            variation=report.variation(rows),
            connections=CONNECTIONS,
            accounts=f"{ACCOUNTS:,}",
            mail_bytes=f"{len(accept_floor.stored_mail()):,}",
        ),
        plot=Plot("accept.png", "Messages a second and processor time per message", lambda pyplot: _plot(pyplot, rows)),
    )


def _to_reference(rows: Runs, runs: Sequence[Measured]) -> float:
    return report.ratio(runs, rows[REFERENCE]) or 0.0


def goals(rows: Runs, steady_ms: Sequence[float]) -> list[Goal]:
    found = []
    for words, many, hot, least in (
        ("one process", ONE_PROCESS, ONE_PROCESS_HOT, ONE_PROCESS_MIN),
        ("two processes", TWO_PROCESSES, TWO_PROCESSES_HOT, TWO_PROCESSES_MIN),
    ):
        ratio = _to_reference(rows, rows[many])
        difference = (report.ratio(rows[hot], rows[many]) or 0.0) - 1
        hot_text = f"with {words}, one hot account is within ± {HOT_DIFFERENCE_MAX:.0%} of the thousand"
        found += [
            goal(ratio >= least, f"{words} at {least:.0%} or more of bare PostgreSQL with 8 clients: {ratio:.0%}"),
            goal(abs(difference) <= HOT_DIFFERENCE_MAX, f"{hot_text}: {difference:+.0%}"),
        ]
    python_us = report.costs(rows[ONE_PROCESS])["Python"]
    to_asgi = report.ratio(rows[ONE_PROCESS], rows[ASGI], lambda run: run.server_us["Python"]) or 0.0
    batch = report.ratio(rows[BATCH], rows[ONE_PROCESS], lambda run: run.cpu_us) or 0.0
    return [
        *found,
        goal(
            batch <= BATCH_MAX,
            f"100 emails a request at {BATCH_MAX:.0%} or less of their processor time alone: {batch:.0%}",
        ),
        goal(
            to_asgi <= PYTHON_TO_ASGI_MAX,
            f"at most {PYTHON_TO_ASGI_MAX:.1f} times the Python time of raw ASGI per message: {to_asgi:.2f} times, "
            f"{python_us:.0f} µs",
        ),
        goal(
            max(steady_ms) <= SLOWEST_SECOND_MAX * median(steady_ms),
            f"at half of that for {len(steady_ms)} seconds, no second above {SLOWEST_SECOND_MAX:g} times the median "
            f"second: a 202 took {median(steady_ms):.1f} ms there, {max(steady_ms):.1f} ms in the slowest",
        ),
    ]


def _python_us(runs: Sequence[Measured]) -> str:
    return f"{report.costs(runs)['Python']:.0f}" if "Python" in runs[0].server_us else "–"


def _table(rows: Runs) -> Rows:
    columns = [
        ("messages/s", middle("{:,.0f}", lambda run: run.per_second)),
        ("of bare", lambda runs: f"{_to_reference(rows, runs):.0%}"),
        ("p50 ms", middle("{:.1f}", lambda run: run.p50_ms)),
        ("p99 ms", middle("{:.1f}", lambda run: run.p99_ms)),
        ("CPU µs: Python", _python_us),
        ("PostgreSQL", middle("{:.0f}", lambda run: run.server_us["PostgreSQL"])),
        ("WAL KB", middle("{:.1f}", lambda run: run.figures[WAL_KB])),
        ("generator", middle("{:.0f}", lambda run: run.load_us)),
    ]
    ours = [phase.name for phase in PHASES if phase.is_ours]
    return report.table("The accept path: medians of interleaved rounds", "Phase", rows, columns, ours)


def _plot(pyplot: Any, rows: Runs) -> Any:
    figure, panels = pyplot.subplots(1, 2, figsize=(12, 4.8), sharey=True, width_ratios=(1.2, 1), layout="constrained")
    bars = [
        RateAndCost(phase.name, rows[phase.name], f" ({_to_reference(rows, rows[phase.name]):.0%})", phase.colour)
        for phase in PHASES
    ]
    titles = (
        "Messages accepted a second\n(of bare PostgreSQL with 8 clients: dashed)",
        "Processor time a message, µs\n",
    )
    report.rates_and_costs(tuple(panels), titles, bars, _COLOURS)
    report.limit_line(panels[0], x=report.rate(rows[REFERENCE]))
    report.legend(figure, _COLOURS)
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    options = harness.parser(__doc__, rounds=ROUNDS, seconds=SECONDS).parse_args(arguments)
    return harness.main(options, measure, accept_floor.missing, wrk_load.missing)


if __name__ == "__main__":
    sys.exit(main())
