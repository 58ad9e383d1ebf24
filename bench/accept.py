"""Measures the accept path: the limit of PostgreSQL with our statements, and what our server reaches of it.

    make bench                                    (or: python bench/accept.py)
    python bench/accept.py --rounds 5 --seconds 15
    python bench/accept.py --quick --output /tmp/bench

Everything runs against one private cluster: rounds of all phases in turn, medians over the rounds, ratios within each
round. After every phase the database is checked: a figure counts only messages that are stored, complete and paid for.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import bare, ground, harness, report, served
from bench.ground import ACCOUNTS, Ground
from bench.harness import Run
from bench.load import Load
from bench.report import BLUE, GREY, LIGHT_GREY, PALE_BLUE, Bar, Goal, Plot, Report, Rows, goal, medians
from bench.served import CONNECTIONS
from tools.private_postgres import PrivatePostgres

ROUNDS: Final = 3
SECONDS: Final = 8
QUICK_SECONDS: Final = 2

REFERENCE: Final = "bare, 1 message a transaction, 8 clients"
ONE_PROCESS: Final = "HTTP, 1 process, 1,000 accounts"
ONE_PROCESS_HOT: Final = "HTTP, 1 process, one account"
TWO_PROCESSES: Final = "HTTP, 2 processes, 1,000 accounts"
TWO_PROCESSES_HOT: Final = "HTTP, 2 processes, one account"

ONE_PROCESS_MIN: Final = 0.60
TWO_PROCESSES_MIN: Final = 0.90
HOT_DIFFERENCE_MAX: Final = 0.20

Loads = Mapping[str, Sequence[Load]]


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    is_ours: bool
    colour: str
    run: Callable[[Ground, int], Load]


def _bare(name: str, batch: int, clients: int) -> Phase:
    def run(ready: Ground, seconds: int) -> Load:
        return bare.run(ready, batch=batch, clients=clients, seconds=seconds)

    return Phase(name, is_ours=False, colour=LIGHT_GREY if batch > 1 else GREY, run=run)


def _served(name: str, processes: int, accounts: int, *, keeps_alive: bool = True) -> Phase:
    def run(ready: Ground, seconds: int) -> Load:
        return served.run(
            ready,
            processes=processes,
            accounts=accounts,
            keeps_alive=keeps_alive,
            seconds=seconds,
            warm_runs_max=seconds,
        )

    return Phase(name, is_ours=True, colour=BLUE, run=run)


PHASES: Final = (
    _bare("bare, 1 message a transaction, 1 client", batch=1, clients=1),
    _bare(REFERENCE, batch=1, clients=8),
    _bare("bare, 1 message a transaction, 32 clients", batch=1, clients=32),
    _bare("bare, 20 messages a transaction, 2 clients", batch=20, clients=2),
    _bare("bare, 100 messages a transaction, 2 clients", batch=100, clients=2),
    _served(ONE_PROCESS, processes=1, accounts=ACCOUNTS),
    _served(ONE_PROCESS_HOT, processes=1, accounts=1),
    _served(TWO_PROCESSES, processes=2, accounts=ACCOUNTS),
    _served(TWO_PROCESSES_HOT, processes=2, accounts=1),
    _served("HTTP, 1 process, a connection for each request", processes=1, accounts=ACCOUNTS, keeps_alive=False),
    _served("HTTP, 2 processes, a connection for each request", processes=2, accounts=ACCOUNTS, keeps_alive=False),
)


def measure(run: Run) -> Report:
    seconds = QUICK_SECONDS if run.is_quick else max(1, run.options.seconds)
    loads: dict[str, list[Load]] = {phase.name: [] for phase in PHASES}
    with PrivatePostgres.start(settings=ground.CLUSTER_SETTINGS) as cluster:
        with run.status("creating a cluster, a database, a thousand accounts"):
            ready = ground.lay(cluster, run.workplace)
        for round_name, phase in run.interleaved(PHASES):
            with run.status(f"{round_name}: {phase.name}"):
                load = phase.run(ready, seconds)
            loads[phase.name].append(load)
            run.say(
                f"{round_name}: {phase.name}: [bold]{load.per_second:,.0f}[/] a second, p50 {load.p50_ms:.1f} ms, "
                f"p99 {load.p99_ms:.1f} ms, {load.messages:,} messages stored"
            )
    return Report(
        name="accept",
        title="The accept path",
        target="bench",
        machine=report.machine(),
        tables=[_table(loads)],
        goals=goals(loads),
        notes=_notes(loads, run.rounds, seconds),
        plot=Plot("accept.png", "Messages a second and processor time a message", lambda pyplot: _plot(pyplot, loads)),
    )


def _to_reference(loads: Loads, name: str) -> float:
    found = report.ratio(loads[name], loads[REFERENCE])
    assert found is not None
    return found


def goals(loads: Loads) -> list[Goal]:
    found = []
    for words, many, hot, least in (
        ("one process", ONE_PROCESS, ONE_PROCESS_HOT, ONE_PROCESS_MIN),
        ("two processes", TWO_PROCESSES, TWO_PROCESSES_HOT, TWO_PROCESSES_MIN),
    ):
        ratio = _to_reference(loads, many)
        found.append(
            goal(ratio >= least, f"{words} at {least:.0%} or more of bare PostgreSQL with 8 clients: {ratio:.0%}")
        )
        difference = (report.ratio(loads[hot], loads[many]) or 0.0) - 1
        found.append(
            goal(
                abs(difference) <= HOT_DIFFERENCE_MAX,
                f"with {words}, one hot account is within ± {HOT_DIFFERENCE_MAX:.0%} of the thousand: "
                f"{difference:+.0%}",
            )
        )
    return found


def _table(loads: Loads) -> Rows:
    columns = ("Phase", "messages/s", "of bare", "p50 ms", "p99 ms", "CPU µs: Python", "PostgreSQL", "generator")
    rows = [
        [
            phase.name,
            f"{medians(measured, 'per_second'):,.0f}",
            f"{_to_reference(loads, phase.name):.0%}",
            f"{medians(measured, 'p50_ms'):.1f}",
            f"{medians(measured, 'p99_ms'):.1f}",
            f"{medians(measured, 'server_cpu_us'):.0f}" if phase.is_ours else "–",
            f"{medians(measured, 'postgres_cpu_us'):.0f}",
            f"{medians(measured, 'generator_cpu_us'):.0f}",
        ]
        for phase in PHASES
        for measured in [loads[phase.name]]
    ]
    styles = ["bold" if phase.is_ours else None for phase in PHASES]
    return Rows("The accept path: medians of interleaved rounds", columns, rows, styles)


def _notes(loads: Loads, rounds: int, seconds: int) -> str:
    rates = {name: [load.per_second for load in measured] for name, measured in loads.items()}
    repeated, varied = report.variation(rates, rounds)
    return f"""\
What was measured: {repeated} of {seconds} s each, all against one private PostgreSQL with `fsync` on. The
ratios are to "{REFERENCE}" of the same round. {varied}: compare ratios and processor time rather than rates.

- *bare* is `pgbench -M prepared`, on connections set like the server's, running the server's own accepting
  statements (imported, not copied): begin, lock, recall, write, commit. A batch row has a batch's latency, and messages
  a second. Nothing is in front of PostgreSQL: no HTTP, no check, no rule. The statements are made for sets, and a lone
  message pays for their whole start: this is the limit of these statements, not of PostgreSQL.
- *HTTP* is `posthouse run http --processes N` under `wrk`, {CONNECTIONS} connections, Basic
  authentication, a new Idempotency-Key for every request, rate limit, warm-up and credits all applied (with
  numbers too high to refuse). One account, or {ACCOUNTS:,} in turn, each with its own credential and domain.
  Connections are kept alive, except in the last two rows ({ACCOUNTS:,} accounts, too), where every request opens
  its own, as clients and proxies without a pool do.
- Every message is the same mail to one recipient, text and HTML, {len(bare.written()):,} bytes as stored.
- Processor time is user and system time a message, of all the server's processes, of all of PostgreSQL's
  (those that ended included), and of the load generator, which shares the cores with them.
- Before each phase the tables are emptied, the accounts refilled and a checkpoint made; after it, every
  message must be stored with its recipient, body, schedule row, key and reserved credit, and every account
  must balance, or there is no result."""


def _plot(pyplot: Any, loads: Loads) -> Any:
    figure, (rates, costs) = pyplot.subplots(
        1, 2, figsize=(12, 4.8), sharey=True, width_ratios=(1.2, 1), layout="constrained"
    )
    colours = {"Python": BLUE, "PostgreSQL": PALE_BLUE}
    speed, cost = [], []
    for phase in PHASES:
        measured = loads[phase.name]
        rate, python, postgres = (
            medians(measured, name) for name in ("per_second", "server_cpu_us", "postgres_cpu_us")
        )
        label = f"{rate:,.0f} ({_to_reference(loads, phase.name):.0%})"
        speed.append(Bar(phase.name, {"rate": rate}, label, phase.colour))
        words = f"{python:.0f} + {postgres:.0f}" if python else f"{postgres:.0f}"
        cost.append(Bar(phase.name, {"Python": python, "PostgreSQL": postgres}, words))
    report.bar_panel(rates, "Messages accepted a second\n(of bare PostgreSQL with 8 clients: dashed)", speed, {})
    report.limit_line(rates, x=medians(loads[REFERENCE], "per_second"))
    report.bar_panel(costs, "Processor time a message, µs\n", cost, colours)
    report.legend(figure, colours)
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    options = harness.parser(__doc__, rounds=ROUNDS, seconds=SECONDS).parse_args(arguments)
    return harness.main(options, measure, bare.missing, served.missing)


if __name__ == "__main__":
    sys.exit(main())
