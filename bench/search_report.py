"""What was found about the list of messages: a table, and the section of the page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from rich.table import Table

from bench.report import columned, put_section

START: Final = "<!-- search:start -->"
END: Final = "<!-- search:end -->"
P99_MS_MAX: Final = 50.0

_COLUMNS: Final = ("Search", "pages/s", "p50 ms", "p99 ms", "worst p99", "CPU µs: Python", "PostgreSQL")


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of one search; processor time is in microseconds a page."""

    requests: int
    per_second: float
    p50_ms: float
    p99_ms: float
    server_us: float
    postgres_us: float

    def __str__(self) -> str:
        return (
            f"{self.per_second:,.0f}/s, p50 {self.p50_ms:.1f}, p99 {self.p99_ms:.1f} ms, "
            f"CPU {self.server_us:.0f} + {self.postgres_us:.0f} µs"
        )


def _cells(name: str, runs: Sequence[Measured]) -> list[str]:
    return [
        name,
        f"{median(one.per_second for one in runs):,.0f}",
        f"{median(one.p50_ms for one in runs):.1f}",
        f"{median(one.p99_ms for one in runs):.1f}",
        f"{max(one.p99_ms for one in runs):.1f}",
        f"{median(one.server_us for one in runs):,.0f}",
        f"{median(one.postgres_us for one in runs):,.0f}",
    ]


def table(measured: Mapping[str, Sequence[Measured]]) -> Table:
    drawn = columned("The list of messages: medians of interleaved rounds", _COLUMNS)
    for name, runs in measured.items():
        is_reached = median(one.p99_ms for one in runs) < P99_MS_MAX
        drawn.add_row(*_cells(name, runs), style=None if is_reached else "bold red")
    return drawn


def write(
    directory: Path,
    measured: Mapping[str, Sequence[Measured]],
    machine: str,
    state: str,
    rows: int,
    clients: int,
    seconds: int,
) -> None:
    head = " | ".join(_COLUMNS)
    rule = "|".join(["---", *["---:"] * (len(_COLUMNS) - 1)])
    drawn = "\n".join(f"| {' | '.join(_cells(name, runs))} |" for name, runs in measured.items())
    missed = [name for name, runs in measured.items() if median(one.p99_ms for one in runs) >= P99_MS_MAX]
    verdict = f"missed by {', '.join(missed)}" if missed else "reached by every search"
    slowest = max(measured, key=lambda name: median(one.p99_ms for one in measured[name]))
    rounds = len(measured[slowest])
    repeated = f"medians of {rounds} interleaved rounds" if rounds > 1 else "a single round"
    text = f"""\
## The list of messages

{machine}. Rerun with `make bench-search`.
How fast the machine was: {state}.

| {head} |
|{rule}|
{drawn}

- p99 under {P99_MS_MAX:.0f} ms: {verdict}. The slowest is "{slowest}" with
  {median(one.p99_ms for one in measured[slowest]):.1f} ms.

What was measured: {repeated} of {seconds} s each; *worst p99* is that of the worst round. `GET /v1/messages` with the
default `limit` of 50, one process of `posthouse run http` under `wrk` with {clients} keep-alive clients, each with the
token of a login, on a private PostgreSQL that has read its tables and keys into memory before. It holds {rows:,}
messages over thirty daily partitions, 95 % of them one account's, whose they all ask for; 1.2 recipients and about 12
terms each. A *common* value is on every message to every hundredth or so, a *rare* one on some dozens of them, an
*absent* one on none; the values of a row are drawn anew for each page. A *deep* page begins anywhere in the thirty
days. With two filters, every second page is a deep one. Processor time is user and system time a page, of the server
and of all of PostgreSQL; the load generator shares the cores with them.
"""
    put_section(directory, START, END, text)
