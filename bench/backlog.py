"""Measures whether dispatch and claims stay as fast while a backlog grows: ten thousand recipients, and a million.

    make bench-backlog                                      (or: python bench/backlog.py)
    python bench/backlog.py --sizes 10000 50000 --rounds 2 --output /tmp/bench

A private cluster has a database for each size, with messages, recipients and a schedule that were made by SQL. Then
the flow and the statements of the service take rows from each in turn, over several rounds.
"""

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import uvloop

from bench import backlog_dataset, dataset, harness, report, statement_plans
from bench.backlog_dataset import BODY_BYTES, FOR_LATER, MIXED, OVERDUE, QUIET, QUIET_PERCENT, SCATTERED, Backlog, Shape
from bench.dataset import Dataset
from bench.harness import Run
from bench.processes import BenchError, Measured, Pace
from bench.report import Goal, Report, Rows, goal
from bench.statement_plans import Explained
from posthouse.flows.deliver.claim_store import CLAIM_LONGEST
from posthouse.flows.deliver.dispatch import DISPATCH_BATCH_MAX, DISPATCH_BATCH_MIN
from posthouse.rules.limits import GROUP_COMMIT_ITEMS_MAX
from posthouse.rules.refusal import Refusal
from posthouse.rules.retry import DELIVERY, Schedule
from posthouse.rules.ticket import DeliveryTicket
from posthouse.store import delivery_claims, delivery_schedule
from posthouse.store.delivery_schedule import DeliveryPostponement
from tools.private_postgres import PrivatePostgres

SIZES: Final = (10_000, 100_000, 1_000_000)
SIZES_QUICK: Final = (3_000, 9_000)
ROUNDS: Final = 5
# A turn is this many cycles. The first one makes connections and plans, and lets leases grow. A cycle publishes what is
# due, at most what two of the largest leases take, and claims some of that.
CYCLES: Final = 4
PUBLISHED_MAX: Final = 2 * DISPATCH_BATCH_MAX
CLAIMED_MAX: Final = 3_000
POSTPONED_MAX: Final = timedelta(hours=1)
# How often every row is postponed before the schedule counts as worn.
TURNS: Final = 3
BYTES_A_ROW: Final = 3_000
# However often a row is claimed here, it is never its last time.
RETRIES: Final = Schedule(DELIVERY.waits)
DIFFERENCE_MAX: Final = 0.20

SOME_DUE: Final = "some due, most later"
CHECKPOINTED: Final = "the same, just after a checkpoint"
WORN: Final = "the same, worn and not vacuumed"
VACUUMED: Final = "the same, vacuumed"
UNORDERED: Final = "due in no order at all"
LATER: Final = "the same, each with a send_at"
FULL: Final = "all overdue, lanes full"


class Act(StrEnum):
    DISPATCH = "dispatch"
    CLAIM = "claim"
    POSTPONE = "postpone"


@dataclass(frozen=True, slots=True)
class Phase:
    """A shape of the schedules, how they get into it, and what happens to what is published."""

    name: str
    shape: Shape
    prepare: Callable[[Backlog], Awaitable[object]] | None
    is_checkpointed: bool = False
    is_full: bool = False


PHASES: Final = (
    Phase(SOME_DUE, MIXED, lambda backlog: backlog.fill(MIXED)),
    Phase(CHECKPOINTED, MIXED, None, is_checkpointed=True),
    Phase(WORN, MIXED, lambda backlog: backlog.postpone_all(MIXED, TURNS)),
    Phase(VACUUMED, MIXED, lambda backlog: backlog.admin.execute("VACUUM delivery_schedule")),
    Phase(UNORDERED, SCATTERED, lambda backlog: backlog.fill(SCATTERED)),
    Phase(LATER, FOR_LATER, lambda backlog: backlog.fill(FOR_LATER)),
    Phase(FULL, OVERDUE, lambda backlog: backlog.fill(OVERDUE), is_full=True),
)


class State(NamedTuple):
    """The table after a phase."""

    dead: int
    autovacuums: int
    table_bytes: int
    index_bytes: int


@dataclass(slots=True)
class Findings:
    """Keyed by the name of the phase and the number of rows, among others."""

    sizes: Sequence[int]
    rounds: int
    measured: dict[tuple[str, Act, int], list[Measured]] = field(default_factory=dict)
    plans: dict[tuple[str, str], dict[int, Explained]] = field(default_factory=dict)
    states: dict[tuple[str, int], State] = field(default_factory=dict)
    prepared_seconds: dict[tuple[str, int], float] = field(default_factory=dict)

    def ratio(self, name: str, act: Act, size: int, read: Callable[[Measured], float]) -> float:
        """To the smallest schedule: the median of the rounds' ratios."""
        runs, smallest = self.measured[name, act, size], self.measured[name, act, self.sizes[0]]
        return report.ratio(runs, smallest, read) or 0.0


@dataclass(slots=True)
class Meter:
    """The sums of each act in a turn: rows, seconds, seconds of the processor (ours, PostgreSQL's), bytes of WAL."""

    pid: int
    sums: dict[Act, list[float]] = field(default_factory=dict)

    async def measure(self, act: Act, backlog: Backlog, work: Awaitable[int]) -> int:
        """Do the work, which returns its number of rows."""
        wal_before = await self._wal_bytes(backlog)
        before = self._reading()
        rows = await work
        passed = [late - early for early, late in zip(before, self._reading(), strict=True)]
        wal_bytes = await self._wal_bytes(backlog) - wal_before
        known = self.sums.get(act, [0.0] * 5)
        self.sums[act] = [sum(pair) for pair in zip(known, [rows, *passed, wal_bytes], strict=True)]
        return rows

    def measured(self) -> dict[Act, Measured]:
        found = {}
        for act, (rows, seconds, ours, postgres, wal_bytes) in self.sums.items():
            server_us = {"Python": ours / rows * 1e6, "PostgreSQL": postgres / rows * 1e6}
            found[act] = Measured(int(rows), seconds, server_us, figures={"wal_bytes": wal_bytes / rows})
        return found

    def _reading(self) -> tuple[float, float, float]:
        """The time, and the processor time of this process and of the connection's process in PostgreSQL."""
        postgres = int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e9
        return time.perf_counter(), time.process_time(), postgres

    async def _wal_bytes(self, backlog: Backlog) -> float:
        return float(await backlog.admin.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'"))


async def measure(data: Dataset, sizes: Sequence[int], run: Run) -> Findings:
    findings = Findings(sizes, run.rounds)
    async with AsyncExitStack() as opened:
        backlogs = []
        for size in sizes:
            backlogs.append(await backlog_dataset.make(data, size, run.say))
            opened.push_async_callback(backlogs[-1].close)
        for phase in PHASES:
            await _measure_phase(phase, backlogs, findings, run)
    return findings


async def _measure_phase(phase: Phase, backlogs: Sequence[Backlog], findings: Findings, run: Run) -> None:
    for backlog in backlogs:
        started = time.monotonic()
        if phase.prepare is not None:
            await phase.prepare(backlog)
        findings.prepared_seconds[phase.name, backlog.rows] = time.monotonic() - started
        run.say(f"{phase.name}, {backlog.rows:,}: ready after {time.monotonic() - started:.1f} s")
    for number in range(run.rounds):
        # Each size is first and last in turn.
        first = number % len(backlogs)
        for backlog in (*backlogs[first:], *backlogs[:first]):
            for act, measured in (await _turn(backlog, phase)).items():
                findings.measured.setdefault((phase.name, act, backlog.rows), []).append(measured)
                run.say(f"{number + 1}/{run.rounds} {phase.name}, {backlog.rows:,}, {act}: {measured}")
    for backlog in backlogs:
        for explained in await statement_plans.explain(
            backlog, RETRIES, phase.shape, leased=DISPATCH_BATCH_MIN, is_full=phase.is_full
        ):
            findings.plans.setdefault((phase.name, explained.name), {})[backlog.rows] = explained
        findings.states[phase.name, backlog.rows] = await _state(backlog)


async def _turn(backlog: Backlog, phase: Phase) -> dict[Act, Measured]:
    if phase.is_checkpointed:
        await backlog.admin.execute("CHECKPOINT")
    await _cycle(backlog, phase, Meter(await _pid(backlog)))
    meter = Meter(await _pid(backlog))
    for _ in range(CYCLES - 1):
        await _cycle(backlog, phase, meter)
    return meter.measured()


async def _pid(backlog: Backlog) -> int:
    async with backlog.database.connection() as connection:
        pid: int = await connection.fetchval("SELECT pg_backend_pid()")
    return pid


async def _cycle(backlog: Backlog, phase: Phase, meter: Meter) -> None:
    """The longest due are published; they are claimed, or postponed if their lane is full; and time passes."""
    published = await meter.measure(Act.DISPATCH, backlog, _publish(backlog))
    tickets = await backlog.tickets()
    if not published or len(tickets) != published:
        raise BenchError(f"{published} rows were published and {len(tickets)} tickets came")
    in_time = [ticket for ticket in tickets if not phase.is_full or ticket.destination.startswith(QUIET)]
    to_claim = in_time[:CLAIMED_MAX]
    claimed = await meter.measure(Act.CLAIM, backlog, _claim(backlog, to_claim))
    if claimed != len(to_claim):
        raise BenchError(f"{claimed} of {len(to_claim)} were claimed")
    if not phase.is_full:
        await backlog.pass_time(tickets, phase.shape)
        return
    late = [ticket for ticket in tickets if not ticket.destination.startswith(QUIET)]
    postponed = await meter.measure(Act.POSTPONE, backlog, _postpone(backlog, late))
    if postponed != len(late):
        raise BenchError(f"{postponed} of {len(late)} were postponed")
    await backlog.put_back(in_time, backlog.clock.now() + POSTPONED_MAX / 2, POSTPONED_MAX / 2)
    backlog.clock.advance(POSTPONED_MAX)


async def _publish(backlog: Backlog) -> int:
    published, more = 0, DISPATCH_BATCH_MIN
    while more >= DISPATCH_BATCH_MIN and published < PUBLISHED_MAX:
        more = await backlog.dispatch.step()
        published += more
    return published


async def _claim(backlog: Backlog, tickets: Sequence[DeliveryTicket]) -> int:
    claimed = 0
    now = backlog.clock.now()
    for batch in _batches(tickets):
        async with backlog.database.transaction() as tx:
            claims = await delivery_claims.claim(tx, backlog.worker_id, batch, now, now + CLAIM_LONGEST, RETRIES)
        claimed += sum(not claim.is_over and claim.message.mime is not None for claim in claims)
    return claimed


async def _postpone(backlog: Backlog, tickets: Sequence[DeliveryTicket]) -> int:
    postponed = 0
    now = backlog.clock.now()
    randomness = random.Random(7)
    for batch in _batches(tickets):
        postponements = [
            DeliveryPostponement(
                ticket.account_id,
                ticket.message_id,
                ticket.position,
                ticket.fence,
                now + POSTPONED_MAX * (0.5 + randomness.random() / 2),
            )
            for ticket in batch
        ]
        async with backlog.database.transaction() as tx:
            postponed += await delivery_schedule.postpone(tx, postponements, now)
    return postponed


def _batches(tickets: Sequence[DeliveryTicket]) -> Iterable[Sequence[DeliveryTicket]]:
    return (tickets[at : at + GROUP_COMMIT_ITEMS_MAX] for at in range(0, len(tickets), GROUP_COMMIT_ITEMS_MAX))


async def _state(backlog: Backlog) -> State:
    await backlog.admin.execute("SELECT pg_stat_force_next_flush()")
    row: Any = await backlog.admin.fetchrow("""
        SELECT n_dead_tup, autovacuum_count, pg_relation_size('delivery_schedule'),
            pg_relation_size('delivery_schedule_next_at')
        FROM pg_stat_user_tables WHERE relname = 'delivery_schedule'""")
    return State(*row)


def report_of(run: Run) -> Report:
    sizes = SIZES_QUICK if run.is_quick else sorted(set(run.options.sizes))
    if sizes[0] < SIZES_QUICK[0]:
        raise BenchError(f"a schedule of fewer than {SIZES_QUICK[0]:,} rows has too few that are due")
    settings = dataset.CLUSTER_SETTINGS | {
        "shared_buffers": f"{max(256, sum(sizes) * BYTES_A_ROW // 2**20)}MB",
        "max_wal_size": "32GB",
    }
    with PrivatePostgres.start(below=run.options.below, settings=settings) as cluster:
        data = dataset.make(cluster, run.workplace)
        pace = Pace.start()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                findings = runner.run(measure(data, sizes, run))
            except Refusal as refusal:
                raise BenchError(str(refusal)) from refusal
        return Report(
            name="backlog",
            title="Dispatch and claims under a backlog",
            target="bench-backlog",
            machine=report.machine(),
            state=pace.text(),
            tables=[_table(findings)],
            goals=goals(findings),
            notes=_notes(findings),
        )


def goals(findings: Findings) -> list[Goal]:
    found = []
    small, large = findings.sizes[0], findings.sizes[-1]
    for name, act in (
        (SOME_DUE, Act.DISPATCH),
        (SOME_DUE, Act.CLAIM),
        (FULL, Act.DISPATCH),
        (FULL, Act.POSTPONE),
        (UNORDERED, Act.DISPATCH),
        (LATER, Act.DISPATCH),
        (LATER, Act.CLAIM),
    ):
        rate = findings.ratio(name, act, large, lambda run: run.per_second)
        cost = findings.ratio(name, act, large, lambda run: run.cpu_us)
        text = f"{name}, {act} of {large:,} at {1 - DIFFERENCE_MAX:.0%} or more of the rate of {small:,}: {rate:.0%}"
        found.append(goal(rate >= 1 - DIFFERENCE_MAX, f"{text} (processor time a row {cost - 1:+.0%})"))
    return found


def _table(findings: Findings) -> Rows:
    names = [phase.name for phase in PHASES]
    ordered = sorted(findings.measured, key=lambda key: (names.index(key[0]), list(Act).index(key[1]), key[2]))
    rows = []
    for name, act, size in ordered:
        runs = findings.measured[name, act, size]
        costs = report.costs(runs)
        rows.append(
            [
                name,
                act.value,
                f"{size:,}",
                f"{report.rate(runs):,.0f}",
                f"{findings.ratio(name, act, size, lambda run: run.per_second):.0%}",
                f"{costs['Python']:.1f}",
                f"{costs['PostgreSQL']:.1f}",
                f"{median(run.figures['wal_bytes'] for run in runs):,.0f}",
            ]
        )
    title = "Dispatch and claims under a backlog: medians of interleaved rounds"
    columns = ("Schedule", "act", "rows", "rows/s", "of smallest", "CPU µs: Python", "PostgreSQL", "WAL bytes")
    styles = ["bold" if act is Act.DISPATCH else None for _, act, _ in ordered]
    return Rows(title, columns, rows, styles, text_columns=2)


def _pages(findings: Findings) -> Rows:
    rows = [
        [name, f"`{statement}`", *(_pages_a_row(by_size.get(size)) for size in findings.sizes)]
        for (name, statement), by_size in findings.plans.items()
    ]
    return Rows("", ["Schedule", "statement", *(f"{size:,}" for size in findings.sizes)], rows, text_columns=2)


def _pages_a_row(explained: Explained | None) -> str:
    return "–" if explained is None else f"{explained.pages / max(1, explained.rows):.1f}"


def _states(findings: Findings) -> Rows:
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
    return Rows("", ("Schedule", "rows", "dead rows", "autovacuums", "table MiB", "index of times MiB"), rows)


def _plans(findings: Findings) -> str:
    """Each statement's plan once, and where it was used if it differed."""
    used_at: dict[str, dict[tuple[str, ...], list[str]]] = {}
    for (name, statement), by_size in findings.plans.items():
        for size, explained in by_size.items():
            used_at.setdefault(statement, {}).setdefault(explained.plan, []).append(f"{name}, {size:,}")
    parts = []
    for statement, known in used_at.items():
        for plan, where in known.items():
            words = "" if len(known) == 1 else f" ({'; '.join(where)})"
            parts.append(f"{statement}{words}\n" + "\n".join(f"    {line}" for line in plan))
    changed = [statement for statement, known in used_at.items() if len(known) > 1]
    verdict = f"Not the same everywhere: {', '.join(changed)}." if changed else "Each is the same at every size."
    return f"{verdict}\n\n```\n{chr(10).join(parts)}\n```"


def _notes(findings: Findings) -> str:
    largest = findings.sizes[-1]
    through_seconds = largest * sum(
        median(run.seconds / run.count for run in findings.measured[FULL, act, largest])
        for act in (Act.DISPATCH, Act.POSTPONE)
    )
    vacuums = [f"{findings.prepared_seconds[VACUUMED, size]:.1f} s at {size:,}" for size in findings.sizes]
    return report.notes(
        "backlog",
        pages=_pages(findings).markdown(),
        states=_states(findings).markdown(),
        plans=_plans(findings),
        repeated=report.repeated(findings.rounds),
        lease_min=f"{DISPATCH_BATCH_MIN:,}",
        lease_max=f"{DISPATCH_BATCH_MAX:,}",
        body_bytes=f"{BODY_BYTES:,}",
        some_due=SOME_DUE,
        unordered=UNORDERED,
        later=LATER,
        worn=WORN,
        turns=TURNS,
        vacuumed=VACUUMED,
        vacuums=", ".join(vacuums),
        full=FULL,
        quiet_percent=QUIET_PERCENT,
        through_seconds=f"{through_seconds:,.0f}",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = harness.parser(__doc__, rounds=ROUNDS)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help=f"recipients in the schedules {SIZES}")
    parser.add_argument("--below", type=Path, help="directory below which the cluster is made, and removed again")
    return harness.main(parser.parse_args(arguments), report_of)


if __name__ == "__main__":
    sys.exit(main())
