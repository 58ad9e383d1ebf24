"""The harness of every benchmark: its options, its directory, interleaved rounds, and its report."""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from bench.processes import BenchError, Missing
from bench.report import Report
from tools.private_postgres import PostgresError

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a benchmark: its options, a directory that is removed afterwards, and the terminal."""

    options: Any
    workplace: Path
    console: Console

    @property
    def is_quick(self) -> bool:
        return bool(self.options.quick)

    @property
    def rounds(self) -> int:
        return 1 if self.is_quick else max(1, self.options.rounds)

    def interleaved(self, items: Sequence[Item]) -> Iterator[tuple[str, Item]]:
        """Each item once a round, every other round backwards, so that a drifting machine favours none."""
        for number in range(self.rounds):
            for item in items if number % 2 == 0 else reversed(items):
                yield f"round {number + 1} of {self.rounds}", item

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False)

    @contextmanager
    def status(self, text: str) -> Iterator[None]:
        with self.console.status(f"{text} …"):
            yield


def parser(description: str | None, *, rounds: int, seconds: float | None = None) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    made = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    made.add_argument("--rounds", type=int, default=rounds, help=f"how often each phase is measured ({rounds})")
    if seconds is not None:
        kind = type(seconds)
        made.add_argument("--seconds", type=kind, default=seconds, help=f"how long each time ({seconds:g})")
    made.add_argument("--quick", action="store_true", help="one small round: shows that it works")
    made.add_argument(
        "--output", type=Path, default=Path(__file__).parent, help="directory for RESULTS.md and the plot"
    )
    return made


@dataclass(frozen=True, slots=True)
class Contestant:
    """A program to compare: `key` selects it with --only, `missing` says what has to be installed for it."""

    key: str
    name: str
    missing: Missing


Compared = TypeVar("Compared", bound=Contestant)


def chosen(
    parser: argparse.ArgumentParser, contestants: Sequence[Compared], arguments: Sequence[str] | None
) -> tuple[argparse.Namespace, list[Compared]]:
    """Adds the options of a comparison with peers, and parses them: the options, and the contestants of --only."""
    known = {contestant.key: contestant for contestant in contestants}
    names = ",".join(known)
    parser.add_argument("--share", type=float, default=1.0, help="share of the usual number of messages (1.0)")
    parser.add_argument("--only", default=names, help=f"some of {names}")
    parser.add_argument("--haraka", type=Path, help="where Haraka is, or is to be installed and kept (temporary)")
    options = parser.parse_args(arguments)
    keys = options.only.split(",")
    if not set(keys) <= set(known):
        parser.error(f"--only takes some of {names}")
    return options, [contestant for key, contestant in known.items() if key in keys]


def main(options: argparse.Namespace, measure: Callable[[Run], Report | None], *missing: Missing) -> int:
    """Measures, prints the report and writes it; 1 with the reason when there is no result.

    `missing` say what has to be installed first. A benchmark that returns no report has printed what it found.
    """
    console = Console(width=None if sys.stdout.isatty() else 160)
    try:
        if absent := [text for check in dict.fromkeys(missing) if (text := check())]:
            raise BenchError("\n".join(absent))
        with tempfile.TemporaryDirectory(prefix="posthouse-bench-") as directory:
            workplace = Path(directory)
            workplace.chmod(0o755)  # daemons of other users work in it
            report = measure(Run(options, workplace, console))
    except (BenchError, PostgresError, AssertionError) as error:
        console.print(f"[bold red]failed:[/] {error}", highlight=False)
        return 1
    if report is not None:
        report.show(console)
        written = report.write(options.output)
        console.print(f"written: {', '.join(map(str, written))}", highlight=False)
    return 0
