"""Measures the accept path: what PostgreSQL can do with our statements, and what our server makes of it.

    make bench                                    (or: python bench/accept.py)
    python bench/accept.py --rounds 5 --seconds 15
    python bench/accept.py --quick --output /tmp/bench

Everything runs against one private cluster, in one run: rounds of all phases in turn, medians over the
rounds, ratios within each round. After every phase the books are checked: a figure is given only for
messages that are really there, whole and paid for.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console

from bench import bare, ground, report, served
from bench.ground import BooksError, Ground
from bench.load import Load, LoadError
from bench.report import Phase
from tools.private_postgres import PostgresError, PrivatePostgres

ROUNDS: Final = 3
SECONDS: Final = 8


@dataclass(frozen=True, slots=True)
class Measure:
    """A phase, and how it is measured for so many seconds."""

    phase: Phase
    run: Callable[[Ground, int], Load]


def _bare(name: str, batch: int, clients: int) -> Measure:
    def run(laid: Ground, seconds: int) -> Load:
        return bare.run(laid, batch=batch, clients=clients, seconds=seconds)

    return Measure(Phase(name, is_ours=False, is_batch=batch > 1), run)


def _served(name: str, processes: int, accounts: int, *, keeps_alive: bool = True) -> Measure:
    def run(laid: Ground, seconds: int) -> Load:
        return served.run(
            laid,
            processes=processes,
            accounts=accounts,
            keeps_alive=keeps_alive,
            seconds=seconds,
            warm_runs_max=seconds,
        )

    return Measure(Phase(name, is_ours=True, is_batch=False), run)


MEASURES: Final = (
    _bare("bare, 1 message a transaction, 1 client", batch=1, clients=1),
    _bare(report.REFERENCE, batch=1, clients=8),
    _bare("bare, 1 message a transaction, 32 clients", batch=1, clients=32),
    _bare("bare, 20 messages a transaction, 2 clients", batch=20, clients=2),
    _bare("bare, 100 messages a transaction, 2 clients", batch=100, clients=2),
    _served(report.ONE_PROCESS, processes=1, accounts=ground.ACCOUNTS),
    _served(report.ONE_PROCESS_HOT, processes=1, accounts=1),
    _served(report.TWO_PROCESSES, processes=2, accounts=ground.ACCOUNTS),
    _served(report.TWO_PROCESSES_HOT, processes=2, accounts=1),
    _served(report.ONE_PROCESS_ANEW, processes=1, accounts=ground.ACCOUNTS, keeps_alive=False),
    _served(report.TWO_PROCESSES_ANEW, processes=2, accounts=ground.ACCOUNTS, keeps_alive=False),
)


def measure(laid: Ground, rounds: int, seconds: int, console: Console) -> dict[Phase, list[Load]]:
    loads: dict[Phase, list[Load]] = {one.phase: [] for one in MEASURES}
    for number in range(rounds):
        # Every other round backwards, so that a machine that slows down or speeds up favours nobody.
        for one in MEASURES if number % 2 == 0 else reversed(MEASURES):
            with console.status(f"round {number + 1} of {rounds}: {one.phase.name} …"):
                load = one.run(laid, seconds)
            loads[one.phase].append(load)
            console.print(
                f"round {number + 1} of {rounds}: {one.phase.name}: [bold]{load.per_second:,.0f}[/] a second, "
                f"p50 {load.p50_ms:.1f} ms, p99 {load.p99_ms:.1f} ms, {load.messages:,} messages on the books",
                highlight=False,
            )
    return loads


def missing_programs() -> list[str]:
    """What has to be installed first, each with how."""
    missing = []
    if bare.program() is None:
        missing.append(
            "pgbench is missing: it comes with PostgreSQL (Debian, Ubuntu: `apt install postgresql-contrib`)"
        )
    if served.program() is None:
        missing.append("wrk is missing: install it (Debian, Ubuntu: `apt install wrk`; macOS: `brew install wrk`)")
    return missing


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"how often each phase is run ({ROUNDS})")
    parser.add_argument("--seconds", type=int, default=SECONDS, help=f"how long each time ({SECONDS})")
    parser.add_argument("--quick", action="store_true", help="one round of two seconds: shows that it works")
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).parent, help="directory for RESULTS.md and accept.png"
    )
    given = parser.parse_args(arguments)
    rounds, seconds = (1, 2) if given.quick else (max(1, given.rounds), max(1, given.seconds))
    console = Console(width=None if sys.stdout.isatty() else 140)
    try:
        missing = missing_programs()
        if missing:
            raise LoadError("\n".join(missing))
        with (
            tempfile.TemporaryDirectory(prefix="posthouse-bench-") as workplace,
            PrivatePostgres.start(settings=ground.CLUSTER_SETTINGS) as cluster,
        ):
            with console.status("laying the ground: a cluster, a database, a thousand accounts …"):
                laid = ground.lay(cluster, Path(workplace))
            loads = measure(laid, rounds, seconds, console)
            machine = report.machine(laid.version())
    except (LoadError, BooksError, PostgresError) as error:
        console.print(f"[bold red]failed:[/] {error}", highlight=False)
        return 1
    findings = report.find(loads)
    console.print(report.table(findings))
    for bar in report.bars(findings):
        console.print(bar.text, style="green" if bar.is_reached else "yellow", highlight=False)
    given.output.mkdir(parents=True, exist_ok=True)
    report.write(given.output, findings, machine, rounds, seconds)
    report.plot(given.output / report.PLOT, findings)
    console.print(f"written: {given.output / report.RESULTS}, {given.output / report.PLOT}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
