"""The report on dispatch and claims under a backlog: rates, the plans, the state of the tables."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import Final, NamedTuple

from bench import report
from bench.backlog_ground import BODY_BYTES, QUIET_PERCENT, Calendar, Shape
from bench.backlog_plans import Explained
from bench.report import Goal, Report, Rows, goal
from posthouse.flows.deliver.dispatch import DISPATCHED_AT_ONCE_MAX, DISPATCHED_AT_ONCE_MIN

DIFFERENCE_MAX: Final = 0.20
# How often every row is postponed before the schedule counts as worn.
TURNS: Final = 3

MIXED: Final = "some due, most later"
CHECKPOINTED: Final = "the same, just after a checkpoint"
WORN: Final = "the same, worn and not vacuumed"
VACUUMED: Final = "the same, vacuumed"
SCATTERED: Final = "due in no order at all"
FULL: Final = "all overdue, lanes full"

_COLUMNS: Final = ("Schedule", "act", "rows", "rows/s", "of smallest", "CPU µs: Python", "PostgreSQL", "WAL bytes")


class Act(StrEnum):
    DISPATCH = "dispatch"
    CLAIM = "claim"
    POSTPONE = "postpone"


@dataclass(frozen=True, slots=True)
class Phase:
    """A shape of the schedules, how they get into it, and what happens to what is published."""

    name: str
    shape: Shape
    prepare: Callable[[Calendar], Awaitable[None]] | None
    is_checkpointed: bool = False
    is_full: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """One turn of one act on one schedule: rows, seconds, and seconds of the processor."""

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
    """The table after a phase."""

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
        """To the smallest schedule: the median of the rounds' ratios."""
        runs, smallest = self.measured[name, act, size], self.measured[name, act, self.sizes[0]]
        return median(read(one) / read(other) for one, other in zip(runs, smallest, strict=True))


def goals(findings: Findings) -> list[Goal]:
    found = []
    small, large = findings.sizes[0], findings.sizes[-1]
    for name, act in (
        (MIXED, Act.DISPATCH),
        (MIXED, Act.CLAIM),
        (FULL, Act.DISPATCH),
        (FULL, Act.POSTPONE),
        (SCATTERED, Act.DISPATCH),
    ):
        rate = findings.ratio(name, act, large, lambda one: one.per_second)
        cost = findings.ratio(name, act, large, lambda one: one.cpu_us)
        found.append(
            goal(
                rate >= 1 - DIFFERENCE_MAX,
                f"{name}, {act} of {large:,} at {1 - DIFFERENCE_MAX:.0%} or more of the rate of {small:,}: {rate:.0%} "
                f"(processor time a row {cost - 1:+.0%})",
            )
        )
    return found


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


def _table(findings: Findings) -> Rows:
    rows = _rows(findings)
    styles = ["bold" if row[1] == Act.DISPATCH else None for row in rows]
    title = "Dispatch and claims under a backlog: medians of interleaved rounds"
    return Rows(title, _COLUMNS, rows, styles, text_columns=2)


def _pages(findings: Findings) -> str:
    rows = [
        [name, f"`{statement}`", *(_pages_a_row(by_size.get(size)) for size in findings.sizes)]
        for (name, statement), by_size in findings.plans.items()
    ]
    columns = ["Schedule", "statement", *(f"{size:,}" for size in findings.sizes)]
    return Rows("", columns, rows, text_columns=2).markdown()


def _pages_a_row(explained: Explained | None) -> str:
    return "–" if explained is None else f"{explained.pages / max(1, explained.rows):.1f}"


def _plans(findings: Findings) -> str:
    """Each statement's plan once, and where it was used if it differed."""
    used_at: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (name, statement), by_size in findings.plans.items():
        for size, explained in by_size.items():
            used_at.setdefault((statement, explained.plan), []).append(f"{name}, {size:,}")
    by_statement: dict[str, list[tuple[tuple[str, ...], list[str]]]] = {}
    for (statement, plan), where in used_at.items():
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
    columns = ["Schedule", "rows", "dead rows", "autovacuums", "table MiB", "index of times MiB"]
    return Rows("", columns, rows).markdown()


def made(findings: Findings, state: str) -> Report:
    repeated = f"medians of {findings.rounds} interleaved rounds" if findings.rounds > 1 else "a single round"
    vacuums = ", ".join(f"{findings.prepared[VACUUMED, size]:.1f} s at {size:,}" for size in findings.sizes)
    largest = findings.sizes[-1]
    through = largest * sum(
        median(one.seconds / one.rows for one in findings.measured[FULL, act, largest])
        for act in (Act.DISPATCH, Act.POSTPONE)
    )
    return Report(
        name="backlog",
        title="Dispatch and claims under a backlog",
        target="bench-backlog",
        machine=report.machine(),
        state=state,
        tables=[_table(findings)],
        goals=goals(findings),
        notes=_notes(findings, repeated, vacuums, through),
    )


def _notes(findings: Findings, repeated: str, vacuums: str, through: float) -> str:
    return f"""\
Pages that a statement read, for each row that it returned:

{_pages(findings)}

The tables when each was measured:

{_states(findings)}

The plans. {_plans(findings)}

What was measured: {repeated} of schedules that differ in length alone, each in a database of its own of one private
PostgreSQL (`fsync` on) that has all of them in memory. The ratios are to the smallest in the same round. PostgreSQL's
processor time is that of the connection's own process.

- *Dispatch* is the flow itself: lease, commit, publish the tickets to the stream in memory, until nothing more is due
  or twice as much as one lease takes is published. A lease begins with {DISPATCHED_AT_ONCE_MIN:,} rows and grows to
  {DISPATCHED_AT_ONCE_MAX:,} while there is more and it is quick. *Claim* takes some of these tickets a hundred at a
  time, as delivery does: lock, read messages and bodies ({BODY_BYTES:,} bytes each), raise the fence, write the
  attempt, commit. What was published goes to the schedule's end, like a deferral, and the clock moves on, so that
  as many are always due.
- *{MIXED}*: two fifths are due. A thousand accounts, few of them large, five large providers and some two thousand
  domains: numbers that we chose. Rows are due in the order of their acceptance, give or take a tenth of the
  schedule's length. *{SCATTERED}*: the same without any order, so that in a long schedule hardly two rows that are due
  lie on one page. Retries with waits from a minute to hours leave something between the two.
- *{WORN}*: every row was postponed {TURNS} times by the schedule's whole length, with autovacuum switched off, so that
  the dead entries of the index lie before those that are due. *{VACUUMED}*: after one `VACUUM`, which took {vacuums};
  autovacuum stayed off. In the other schedules it was on, as the migrations set it (after 5,000 dead rows), and the
  table above shows how often it ran; its own processor time is not in the figures.
- *{FULL}*: everything is overdue, and but for {QUIET_PERCENT} % of the recipients its lanes are full. What can't be
  sent is postponed by up to an hour, by the statement that delivery uses. New mail doesn't wait behind such a backlog,
  since intake publishes its own tickets; a retry does. At the rates above, one after the other, the largest would be
  published and postponed in {through:,.0f} s."""
