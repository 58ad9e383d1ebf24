"""What was found: medians, ratios, which bars are reached; as a table, as a page, as a plot."""

import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Final

from rich.table import Table

from bench.bare import written
from bench.ground import ACCOUNTS
from bench.load import Load
from bench.served import CONNECTIONS

RESULTS: Final = "RESULTS.md"
PLOT: Final = "accept.png"
START: Final = "<!-- accept:start -->"
END: Final = "<!-- accept:end -->"

REFERENCE: Final = "bare, 1 message a transaction, 8 clients"
ONE_PROCESS: Final = "HTTP, 1 process, 1,000 accounts"
ONE_PROCESS_HOT: Final = "HTTP, 1 process, one account"
TWO_PROCESSES: Final = "HTTP, 2 processes, 1,000 accounts"
TWO_PROCESSES_HOT: Final = "HTTP, 2 processes, one account"
ONE_PROCESS_ANEW: Final = "HTTP, 1 process, a connection for each request"
TWO_PROCESSES_ANEW: Final = "HTTP, 2 processes, a connection for each request"

ONE_PROCESS_MIN: Final = 0.60
TWO_PROCESSES_MIN: Final = 0.90
HOT_DIFFERENCE_MAX: Final = 0.20

_COLUMNS: Final = (
    "Phase",
    "messages/s",
    "of bare",
    "p50 ms",
    "p99 ms",
    "CPU µs: Python",
    "PostgreSQL",
    "generator",
)


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    is_ours: bool
    is_batch: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """A phase's medians, and its rate in each round; ratios are taken within a round, then their median."""

    phase: Phase
    per_second: float
    ratio: float
    p50_ms: float
    p99_ms: float
    server_cpu_us: float
    postgres_cpu_us: float
    generator_cpu_us: float
    rates: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    text: str
    is_reached: bool


def find(loads: Mapping[Phase, Sequence[Load]]) -> list[Finding]:
    reference = next(measured for phase, measured in loads.items() if phase.name == REFERENCE)
    return [
        Finding(
            phase=phase,
            per_second=median(load.per_second for load in measured),
            ratio=median(load.per_second / other.per_second for load, other in zip(measured, reference, strict=True)),
            p50_ms=median(load.p50_ms for load in measured),
            p99_ms=median(load.p99_ms for load in measured),
            server_cpu_us=median(load.server_cpu_us for load in measured),
            postgres_cpu_us=median(load.postgres_cpu_us for load in measured),
            generator_cpu_us=median(load.generator_cpu_us for load in measured),
            rates=tuple(load.per_second for load in measured),
        )
        for phase, measured in loads.items()
    ]


def bars(findings: Sequence[Finding]) -> list[Bar]:
    by_name = {finding.phase.name: finding for finding in findings}
    single, double = by_name[ONE_PROCESS], by_name[TWO_PROCESSES]
    told = [
        _at_least("one process", single.ratio, ONE_PROCESS_MIN),
        _at_least("two processes", double.ratio, TWO_PROCESSES_MIN),
    ]
    for words, many, hot in (
        ("one process", single, by_name[ONE_PROCESS_HOT]),
        ("two processes", double, by_name[TWO_PROCESSES_HOT]),
    ):
        difference = median(one / other for one, other in zip(hot.rates, many.rates, strict=True)) - 1
        is_reached = abs(difference) <= HOT_DIFFERENCE_MAX
        told.append(
            Bar(
                f"{_verdict(is_reached)}: with {words}, one hot account is within ± {HOT_DIFFERENCE_MAX:.0%} of "
                f"the thousand: {difference:+.0%}",
                is_reached,
            )
        )
    return told


def _at_least(words: str, ratio: float, least: float) -> Bar:
    is_reached = ratio >= least
    return Bar(
        f"{_verdict(is_reached)}: {words} at {least:.0%} or more of bare PostgreSQL with 8 clients: {ratio:.0%}",
        is_reached,
    )


def _verdict(is_reached: bool) -> str:
    return "reached" if is_reached else "missed"


def columned(title: str, columns: Sequence[str]) -> Table:
    """An empty table: names to the left, numbers to the right."""
    drawn = Table(title=title)
    for number, name in enumerate(columns):
        drawn.add_column(name, justify="left" if number == 0 else "right", no_wrap=True)
    return drawn


def table(findings: Sequence[Finding]) -> Table:
    drawn = columned("The accept path: medians of interleaved rounds", _COLUMNS)
    for finding in findings:
        drawn.add_row(*_cells(finding), style="bold" if finding.phase.is_ours else None)
    return drawn


def _cells(finding: Finding) -> list[str]:
    return [
        finding.phase.name,
        f"{finding.per_second:,.0f}",
        f"{finding.ratio:.0%}",
        f"{finding.p50_ms:.1f}",
        f"{finding.p99_ms:.1f}",
        f"{finding.server_cpu_us:.0f}" if finding.phase.is_ours else "–",
        f"{finding.postgres_cpu_us:.0f}",
        f"{finding.generator_cpu_us:.0f}",
    ]


def machine(postgres_version: str) -> str:
    """One line that names the machine and what ran on it."""
    processor = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{datetime.now(UTC):%Y-%m-%d}: {processor[1] if processor else platform.machine()}, "
        f"{os.cpu_count()} cores, {memory_gib:.0f} GiB, Linux {platform.release()}, "
        f"PostgreSQL {postgres_version.split()[0]}, Python {platform.python_version()}"
    )


def put_section(directory: Path, start: str, end: str, text: str) -> None:
    """Puts the section into the page, in the place of the one that was there; the rest stays as it is."""
    file = directory / RESULTS
    page = file.read_text() if file.exists() else "# Results of the benchmarks\n"
    section = f"{start}\n{text}{end}"
    if start in page and end in page:
        before, _, rest = page.partition(start)
        page = before + section + rest.partition(end)[2]
    else:
        page = f"{page.rstrip()}\n\n{section}\n"
    file.write_text(page)


def write(directory: Path, findings: Sequence[Finding], machine: str, rounds: int, seconds: int) -> None:
    put_section(directory, START, END, _section(findings, machine, rounds, seconds))


def _section(findings: Sequence[Finding], machine: str, rounds: int, seconds: int) -> str:
    head = " | ".join(_COLUMNS)
    rule = "|".join(["---", *["---:"] * (len(_COLUMNS) - 1)])
    rows = "\n".join(f"| {' | '.join(_cells(finding))} |" for finding in findings)
    widest = max(findings, key=_spread)
    repeated = f"medians of {rounds} interleaved rounds" if rounds > 1 else "a single round"
    return f"""\
## The accept path

{machine}. Rerun with `make bench`.

| {head} |
|{rule}|
{rows}

![Messages a second and processor time a message]({PLOT})

{chr(10).join(f"- {bar.text}." for bar in bars(findings))}

What was measured: {repeated} of {seconds} s each, all against one private PostgreSQL with `fsync` on. The
ratios are to "{REFERENCE}" of the same round. The same phase varied by up to
{_spread(widest):.2f}× between rounds ({widest.phase.name}), so compare ratios and processor time
rather than rates.

- *bare* is `pgbench -M prepared`, on connections set like the server's, running the server's own accepting
  statements (imported, not copied): begin, lock, recall, write, commit. What a batch row gives is a batch's
  latency, and messages a second. Nothing is in front of PostgreSQL there: no HTTP, no check, no rule. The
  statements are made for sets, and one message alone pays for all of their start: what is measured is the limit
  of these statements, not of PostgreSQL.
- *HTTP* is `posthouse run http --processes N` under `wrk`, {CONNECTIONS} connections, Basic
  authentication, a new Idempotency-Key for every request, rate limit, warm-up and credits all applied (with
  numbers too high to refuse). One account, or {ACCOUNTS:,} in turn, each with its own credential and domain.
  Connections are kept alive, but for the last two rows ({ACCOUNTS:,} accounts, too), where every request opens
  its own, as clients without a pool do and proxies that keep none.
- Every message is the same letter to one recipient, text and HTML, {len(written()):,} bytes as stored.
- Processor time is user and system time a message, of all the server's processes, of all of PostgreSQL's
  (those that ended included), and of the load generator, which shares the cores with them.
- Before each phase the tables are emptied, the accounts refilled and a checkpoint made; after it, every
  message must be on the books with its recipient, body, schedule, key and reserved credit, and every account
  must balance, or there is no result.
"""


def _spread(finding: Finding) -> float:
    return max(finding.rates) / min(finding.rates)


def plot(file: Path, findings: Sequence[Finding]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    bare, batch, python, postgres = "#9aa5b1", "#cbd2d9", "#2f6fb0", "#7aa6d6"
    shown = list(reversed(findings))
    names = [finding.phase.name for finding in shown]
    places = range(len(shown))
    figure, (rates, costs) = pyplot.subplots(
        1, 2, figsize=(12, 4.8), sharey=True, width_ratios=(1.2, 1), layout="constrained"
    )
    colours = [python if one.phase.is_ours else batch if one.phase.is_batch else bare for one in shown]
    rates.barh(places, [one.per_second for one in shown], color=colours, height=0.62)
    reference = next(one for one in shown if one.phase.name == REFERENCE)
    rates.axvline(reference.per_second, color="#52606d", linewidth=1, linestyle=(0, (4, 3)))
    widest = max(one.per_second for one in shown)
    for place, one in zip(places, shown, strict=True):
        rates.text(
            one.per_second + widest * 0.012, place, f"{one.per_second:,.0f} ({one.ratio:.0%})",
            va="center", fontsize=9, color="#323f4b", bbox={"color": "white", "pad": 1.5},
        )  # fmt: skip
    rates.set_xlim(0, widest * 1.22)
    rates.set_yticks(places, names, fontsize=9)
    rates.set_title("Messages accepted a second\n(dashed: bare, one a transaction, 8 clients)", fontsize=10, loc="left")
    ours = [one.server_cpu_us for one in shown]
    theirs = [one.postgres_cpu_us for one in shown]
    costs.barh(places, ours, color=python, height=0.62, label="our server (Python)")
    costs.barh(places, theirs, left=ours, color=postgres, height=0.62, label="PostgreSQL")
    dearest = max(own + other for own, other in zip(ours, theirs, strict=True))
    for place, own, other in zip(places, ours, theirs, strict=True):
        said = f"{own:.0f} + {other:.0f}" if own else f"{other:.0f}"
        costs.text(own + other + dearest * 0.012, place, said, va="center", fontsize=9, color="#323f4b")
    costs.set_xlim(0, dearest * 1.2)
    costs.set_title("Processor time a message, µs\n", fontsize=10, loc="left")
    figure.legend(fontsize=8, frameon=False, loc="outside lower right", ncols=2)
    for axes in (rates, costs):
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.tick_params(axis="x", labelsize=8, colors="#52606d")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_axisbelow(True)
        axes.grid(axis="x", color="#e4e7eb", linewidth=0.8)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)
