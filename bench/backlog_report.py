"""What was found about dispatch and claims under a backlog: a table, the plans, and the section of the page."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from rich.table import Table

from bench.backlog_ground import BODY_BYTES, QUIET_PERCENT, Calendar, Shape
from bench.backlog_plans import Explained
from bench.report import Bar, columned, put_section
from posthouse.flows.deliver.dispatch import DISPATCHED_AT_ONCE_MAX, DISPATCHED_AT_ONCE_MIN

START: Final = "<!-- backlog:start -->"
END: Final = "<!-- backlog:end -->"
DIFFERENCE_MAX: Final = 0.20
# How often every row is put off before the calendar counts as worn.
TURNS: Final = 3

MIXED: Final = "some due, most later"
CHECKPOINTED: Final = "the same, just after a checkpoint"
WORN: Final = "the same, worn and not vacuumed"
VACUUMED: Final = "the same, vacuumed"
SCATTERED: Final = "due in no order at all"
FULL: Final = "all overdue, lanes full"

_COLUMNS: Final = ("Calendar", "act", "rows", "rows/s", "of smallest", "CPU µs: Python", "PostgreSQL", "WAL bytes")


class Act(StrEnum):
    DISPATCH = "dispatch"
    CLAIM = "claim"
    PUT_OFF = "put off"


@dataclass(frozen=True, slots=True)
class Phase:
    """A shape of the calendars, how they get into it, and what is done with what is handed out of them."""

    name: str
    shape: Shape
    prepare: Callable[[Calendar], Awaitable[None]] | None
    is_checkpointed: bool = False
    is_full: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """One turn of one act on one calendar: rows, seconds, and seconds of the processor."""

    rows: float
    seconds: float
    ours: float
    postgres: float
    wal_bytes: float

    @property
    def per_second(self) -> float:
        return self.rows / self.seconds

    @property
    def cpu_us(self) -> float:
        return (self.ours + self.postgres) / self.rows * 1e6

    def __str__(self) -> str:
        ours, postgres = (seconds / self.rows * 1e6 for seconds in (self.ours, self.postgres))
        return f"{self.per_second:,.0f}/s, CPU {ours:.1f} + {postgres:.1f} µs, WAL {self.wal_bytes / self.rows:,.0f} B"


class State(NamedTuple):
    """How a calendar lay when a phase was over."""

    dead: int
    autovacuums: int
    table_bytes: int
    index_bytes: int


@dataclass(slots=True)
class Findings:
    sizes: tuple[int, ...]
    rounds: int
    measured: dict[tuple[str, Act, int], list[Measured]] = field(default_factory=dict)
    plans: dict[tuple[str, str], dict[int, Explained]] = field(default_factory=dict)
    states: dict[tuple[str, int], State] = field(default_factory=dict)
    prepared: dict[tuple[str, int], float] = field(default_factory=dict)

    def add(self, phase: Phase, act: Act, size: int, one: Measured) -> None:
        self.measured.setdefault((phase.name, act, size), []).append(one)

    def add_plans(self, phase: Phase, size: int, found: Sequence[Explained]) -> None:
        for one in found:
            self.plans.setdefault((phase.name, one.name), {})[size] = one

    def add_state(self, phase: Phase, size: int, state: State) -> None:
        self.states[phase.name, size] = state

    def ratio(self, name: str, act: Act, size: int, read: Callable[[Measured], float]) -> float:
        """To the smallest calendar, within each round, and of those the median."""
        runs, smallest = self.measured[name, act, size], self.measured[name, act, self.sizes[0]]
        return median(read(one) / read(other) for one, other in zip(runs, smallest, strict=True))


def bars(findings: Findings) -> list[Bar]:
    told = []
    small, large = findings.sizes[0], findings.sizes[-1]
    for name, act in (
        (MIXED, Act.DISPATCH),
        (MIXED, Act.CLAIM),
        (FULL, Act.DISPATCH),
        (FULL, Act.PUT_OFF),
        (SCATTERED, Act.DISPATCH),
    ):
        rate = findings.ratio(name, act, large, lambda one: one.per_second)
        cost = findings.ratio(name, act, large, lambda one: one.cpu_us)
        is_reached = rate >= 1 - DIFFERENCE_MAX
        told.append(
            Bar(
                f"{'reached' if is_reached else 'missed'}: {name}, {act} of {large:,} at {1 - DIFFERENCE_MAX:.0%} or "
                f"more of the rate of {small:,}: {rate:.0%} (processor time a row {cost - 1:+.0%})",
                is_reached,
            )
        )
    return told


def _rows(findings: Findings) -> list[list[str]]:
    rows = []
    for (name, act, size), runs in findings.measured.items():
        rows.append(
            [
                name,
                act.value,
                f"{size:,}",
                f"{median(one.per_second for one in runs):,.0f}",
                f"{findings.ratio(name, act, size, lambda one: one.per_second):.0%}",
                f"{median(one.ours / one.rows for one in runs) * 1e6:.1f}",
                f"{median(one.postgres / one.rows for one in runs) * 1e6:.1f}",
                f"{median(one.wal_bytes / one.rows for one in runs):,.0f}",
            ]
        )
    order = {name: number for number, name in enumerate(dict.fromkeys(name for name, _, _ in findings.measured))}
    acts = list(Act)
    return sorted(rows, key=lambda row: (order[row[0]], acts.index(Act(row[1])), int(row[2].replace(",", ""))))


def table(findings: Findings) -> Table:
    drawn = columned("Dispatch and claims under a backlog: medians of interleaved rounds", _COLUMNS)
    for row in _rows(findings):
        drawn.add_row(*row, style="bold" if row[1] == Act.DISPATCH else None)
    return drawn


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]], texts: int) -> str:
    rule = "|".join(["---"] * texts + ["---:"] * (len(columns) - texts))
    drawn = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"| {' | '.join(columns)} |\n|{rule}|\n{drawn}"


def _pages(findings: Findings) -> str:
    rows = [
        [name, f"`{statement}`", *(_pages_a_row(by_size.get(size)) for size in findings.sizes)]
        for (name, statement), by_size in findings.plans.items()
    ]
    return _markdown(["Calendar", "statement", *(f"{size:,}" for size in findings.sizes)], rows, 2)


def _pages_a_row(explained: Explained | None) -> str:
    return "–" if explained is None else f"{explained.pages / max(1, explained.rows):.1f}"


def _plans(findings: Findings) -> str:
    """Each statement's plan once, and with whom, if it was not everyone's."""
    told: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (name, statement), by_size in findings.plans.items():
        for size, explained in by_size.items():
            told.setdefault((statement, explained.plan), []).append(f"{name}, {size:,}")
    by_statement: dict[str, list[tuple[tuple[str, ...], list[str]]]] = {}
    for (statement, plan), where in told.items():
        by_statement.setdefault(statement, []).append((plan, where))
    parts = []
    for statement, known in by_statement.items():
        for plan, where in known:
            words = "" if len(known) == 1 else f" ({'; '.join(where)})"
            parts.append(f"{statement}{words}\n" + "\n".join(f"    {line}" for line in plan))
    changed = [statement for statement, known in by_statement.items() if len(known) > 1]
    verdict = f"Not the same everywhere: {', '.join(changed)}." if changed else "Each is the same at every size."
    return f"{verdict}\n\n```\n{chr(10).join(parts)}\n```"


def _states(findings: Findings) -> str:
    rows = [
        [
            name,
            f"{size:,}",
            f"{state.dead:,}",
            f"{state.autovacuums}",
            f"{state.table_bytes / 2**20:,.1f}",
            f"{state.index_bytes / 2**20:,.1f}",
        ]
        for (name, size), state in findings.states.items()
    ]
    return _markdown(["Calendar", "rows", "dead rows", "autovacuums", "table MiB", "index of times MiB"], rows, 1)


def write(directory: Path, findings: Findings, machine: str, state: str) -> None:
    repeated = f"medians of {findings.rounds} interleaved rounds" if findings.rounds > 1 else "a single round"
    vacuums = ", ".join(f"{findings.prepared[VACUUMED, size]:.1f} s at {size:,}" for size in findings.sizes)
    largest = findings.sizes[-1]
    through = largest * sum(
        median(one.seconds / one.rows for one in findings.measured[FULL, act, largest])
        for act in (Act.DISPATCH, Act.PUT_OFF)
    )
    text = f"""\
## Dispatch and claims under a backlog

{machine}. Rerun with `make bench-backlog`.
How fast the machine was: {state}.

{_markdown(_COLUMNS, _rows(findings), 2)}

{chr(10).join(f"- {bar.text}." for bar in bars(findings))}

Pages that a statement looked at, for each row that it brought:

{_pages(findings)}

How the calendars lay when each was measured:

{_states(findings)}

The plans. {_plans(findings)}

What was measured: {repeated} of calendars that differ in length alone, each in a database of its own of one private
PostgreSQL (`fsync` on) that has all of them in memory. The ratios are to the smallest in the same round. PostgreSQL's
processor time is that of the connection's own process.

- *Dispatch* is the flow itself: lease, commit, publish the tickets to the stream in memory, until nothing more is due
  or twice as much as one lease takes is handed out. A lease begins with {DISPATCHED_AT_ONCE_MIN:,} rows and grows to
  {DISPATCHED_AT_ONCE_MAX:,} while there is more and it is quick. *Claim* takes some of these tickets a hundred at a
  time, as delivery does: lock, read messages and bodies ({BODY_BYTES:,} bytes each), raise the fence, write the
  attempt, commit. What was handed out goes to the calendar's end, like a deferral, and the clock goes on, so that
  always as many are due.
- *{MIXED}*: two fifths are due. A thousand accounts, few of them large, five large providers and some two thousand
  domains: numbers that we chose. Rows are due in the order of their acceptance, give or take a tenth of the
  calendar's length. *{SCATTERED}*: the same without any order, so that in a long calendar hardly two rows that are due
  lie on one page. Retries with waits from a minute to hours leave something between the two.
- *{WORN}*: every row was put off {TURNS} times by the calendar's whole length, with autovacuum switched off, so that
  the dead entries of the index lie before those that are due. *{VACUUMED}*: after one `VACUUM`, which took {vacuums};
  autovacuum stayed off. In the other calendars it was on, as the migrations set it (after 5,000 dead rows), and the
  table above tells how often it came; its own processor time is not in the figures.
- *{FULL}*: everything is overdue, and but for {QUIET_PERCENT} % of the recipients its lanes are full. What can't be
  sent is put off by up to an hour, by the statement that delivery uses. New mail doesn't wait behind such a backlog,
  since intake hands out its own tickets; a retry does. At the rates above, one after the other, the largest would be
  handed out and put off in {through:,.0f} s.
"""
    put_section(directory, START, END, text)
