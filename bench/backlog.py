"""Measures whether dispatch and claims stay as fast while a backlog grows: ten thousand recipients, and a million.

    make bench-backlog                                      (or: python bench/backlog.py)
    python bench/backlog.py --sizes 10000 50000 --rounds 2 --output /tmp/bench

A private cluster has a database for each size, with messages, recipients and a calendar that were made by SQL. Then
the flow and the statements of the service take rows from each in turn, over several rounds.
"""

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import uvloop

from bench import backlog_ground, backlog_plans, backlog_report, ground, harness
from bench.backlog_ground import MIXED, OVERDUE, QUIET, SCATTERED, Calendar
from bench.backlog_report import Act, Findings, Measured, Phase
from bench.ground import Ground
from bench.harness import Run
from bench.load import LoadError
from bench.processes import Pace
from bench.report import Report
from posthouse.flows.deliver.claim_store import CLAIM_LONGEST
from posthouse.flows.deliver.dispatch import DISPATCHED_AT_ONCE_MAX, DISPATCHED_AT_ONCE_MIN
from posthouse.rules.limits import BATCH_ITEMS_MAX
from posthouse.rules.refusal import Refusal
from posthouse.rules.retry import DELIVERY, Schedule
from posthouse.rules.ticket import DeliveryTicket
from posthouse.store import delivery_claims, delivery_schedule
from posthouse.store.delivery_schedule import DeliveryPostponement
from tools.private_postgres import PrivatePostgres

SIZES: Final = (10_000, 100_000, 1_000_000)
SIZES_QUICK: Final = (3_000, 9_000)
ROUNDS: Final = 5
# A turn is so many cycles, of which the first is to make connections and plans, and to let leases grow. A cycle hands
# out what is due, or as much of it as two of the largest leases take, and claims some of that.
CYCLES: Final = 4
HANDED_OUT_MAX: Final = 2 * DISPATCHED_AT_ONCE_MAX
CLAIMED_MAX: Final = 3_000
PUT_OFF_MAX: Final = timedelta(hours=1)
BYTES_A_ROW: Final = 3_000
# However often a row is claimed here, it is never its last time.
RETRIES: Final = Schedule(DELIVERY.waits)


@dataclass(slots=True)
class Meter:
    """What the acts of one turn took, put together."""

    pid: int = 0
    taken: dict[Act, list[float]] = field(default_factory=dict)

    async def read(self, act: Act, calendar: Calendar, work: Awaitable[int]) -> int:
        """Do the work, which tells how many rows it was."""
        written = await calendar.admin.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'")
        before = _reading(self.pid)
        rows = await work
        after = _reading(self.pid)
        written = await calendar.admin.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'") - written
        passed = [rows, *(late - early for early, late in zip(before, after, strict=True)), float(written)]
        self.taken[act] = [one + other for one, other in zip(self.taken.get(act, [0.0] * 5), passed, strict=True)]
        return rows

    def measured(self) -> dict[Act, Measured]:
        return {act: Measured(*taken) for act, taken in self.taken.items()}


def _reading(pid: int) -> tuple[float, float, float]:
    """The time, and the processor time of this process and of the one of PostgreSQL that serves it."""
    served = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    return time.perf_counter(), time.process_time(), served


def phases() -> list[Phase]:
    async def lay_mixed(calendar: Calendar) -> None:
        await calendar.lay(MIXED)

    async def wear(calendar: Calendar) -> None:
        await calendar.wear(MIXED, backlog_report.TURNS)

    async def vacuum(calendar: Calendar) -> None:
        await calendar.admin.execute("VACUUM schedule")

    async def lay_scattered(calendar: Calendar) -> None:
        await calendar.lay(SCATTERED)

    async def lay_overdue(calendar: Calendar) -> None:
        await calendar.lay(OVERDUE)

    return [
        Phase(backlog_report.MIXED, MIXED, lay_mixed),
        Phase(backlog_report.CHECKPOINTED, MIXED, None, is_checkpointed=True),
        Phase(backlog_report.WORN, MIXED, wear),
        Phase(backlog_report.VACUUMED, MIXED, vacuum),
        Phase(backlog_report.SCATTERED, SCATTERED, lay_scattered),
        Phase(backlog_report.FULL, OVERDUE, lay_overdue, is_full=True),
    ]


async def measure(ready: Ground, sizes: Sequence[int], run: Run) -> Findings:
    rounds = run.rounds
    findings = Findings(sizes=tuple(sizes), rounds=rounds)
    async with AsyncExitStack() as opened:
        calendars = []
        for size in sizes:
            calendars.append(await backlog_ground.open_calendar(ready, size, run.say))
            opened.push_async_callback(calendars[-1].close)
        for phase in phases():
            for calendar in calendars:
                started = time.monotonic()
                if phase.prepare is not None:
                    await phase.prepare(calendar)
                findings.prepared[phase.name, calendar.rows] = time.monotonic() - started
                run.say(f"{phase.name}, {calendar.rows:,}: ready after {time.monotonic() - started:.1f} s")
            for number in range(rounds):
                # Each size is first and last in turn.
                for calendar in _from(calendars, number):
                    for act, one in (await _turn(calendar, phase)).items():
                        findings.add(phase, act, calendar.rows, one)
                        run.say(f"{number + 1}/{rounds} {phase.name}, {calendar.rows:,}, {act}: {one}")
            for calendar in calendars:
                found = await backlog_plans.explain(
                    calendar, RETRIES, phase.shape, leased=DISPATCHED_AT_ONCE_MIN, is_full=phase.is_full
                )
                findings.add_plans(phase, calendar.rows, found)
                findings.add_state(phase, calendar.rows, await _state(calendar))
    return findings


def _from(calendars: Sequence[Calendar], number: int) -> Iterator[Calendar]:
    for place in range(len(calendars)):
        yield calendars[(number + place) % len(calendars)]


async def _turn(calendar: Calendar, phase: Phase) -> dict[Act, Measured]:
    if phase.is_checkpointed:
        await calendar.admin.execute("CHECKPOINT")
    await _cycle(calendar, phase, Meter(await _pid(calendar)))
    meter = Meter(await _pid(calendar))
    for _ in range(CYCLES - 1):
        await _cycle(calendar, phase, meter)
    return meter.measured()


async def _pid(calendar: Calendar) -> int:
    async with calendar.database.connection() as connection:
        pid: int = await connection.fetchval("SELECT pg_backend_pid()")
    return pid


async def _cycle(calendar: Calendar, phase: Phase, meter: Meter) -> None:
    """What is longest due is handed out; it is claimed, or its lane is full and it is put off; and time passes."""
    handed_out = await meter.read(Act.DISPATCH, calendar, _hand_out(calendar))
    tickets = await calendar.tickets()
    if not handed_out or len(tickets) != handed_out:
        raise LoadError(f"{handed_out} rows were handed out and {len(tickets)} tickets came")
    late = [one for one in tickets if phase.is_full and not one.destination.startswith(QUIET)]
    in_time = [one for one in tickets if not phase.is_full or one.destination.startswith(QUIET)]
    to_claim = in_time[:CLAIMED_MAX]
    claimed = await meter.read(Act.CLAIM, calendar, _claim(calendar, to_claim))
    if claimed != len(to_claim):
        raise LoadError(f"{claimed} of {len(to_claim)} were claimed")
    if phase.is_full:
        put_off = await meter.read(Act.POSTPONE, calendar, _put_off(calendar, late))
        if put_off != len(late):
            raise LoadError(f"{put_off} of {len(late)} were put off")
        await calendar.put_back(in_time, calendar.clock.now() + PUT_OFF_MAX / 2, PUT_OFF_MAX / 2)
        calendar.clock.advance(PUT_OFF_MAX)
    else:
        await calendar.pass_time(tickets, phase.shape)


async def _hand_out(calendar: Calendar) -> int:
    handed_out, more = 0, DISPATCHED_AT_ONCE_MIN
    while more >= DISPATCHED_AT_ONCE_MIN and handed_out < HANDED_OUT_MAX:
        more = await calendar.dispatch.step()
        handed_out += more
    return handed_out


async def _claim(calendar: Calendar, tickets: Sequence[DeliveryTicket]) -> int:
    claimed = 0
    now = calendar.clock.now()
    for batch in _batches(tickets):
        async with calendar.database.transaction() as tx:
            found = await delivery_claims.claim(tx, calendar.worker_id, batch, now, now + CLAIM_LONGEST, RETRIES)
        claimed += sum(not one.is_over and one.message.mime is not None for one in found)
    return claimed


async def _put_off(calendar: Calendar, tickets: Sequence[DeliveryTicket]) -> int:
    put_off = 0
    now = calendar.clock.now()
    chance = random.Random(7)
    for batch in _batches(tickets):
        postponements = [
            DeliveryPostponement(
                one.account_id, one.message_id, one.position, one.fence, now + PUT_OFF_MAX * (0.5 + chance.random() / 2)
            )
            for one in batch
        ]
        async with calendar.database.transaction() as tx:
            put_off += await delivery_schedule.postpone(tx, postponements, now)
    return put_off


def _batches(tickets: Sequence[DeliveryTicket]) -> Iterable[Sequence[DeliveryTicket]]:
    return (tickets[at : at + BATCH_ITEMS_MAX] for at in range(0, len(tickets), BATCH_ITEMS_MAX))


async def _state(calendar: Calendar) -> backlog_report.State:
    await calendar.admin.execute("SELECT pg_stat_force_next_flush()")
    row: Any = await calendar.admin.fetchrow("""
        SELECT n_dead_tup, autovacuum_count, pg_relation_size('schedule'), pg_relation_size('schedule_next_at')
        FROM pg_stat_user_tables WHERE relname = 'schedule'""")
    return backlog_report.State(*row)


def report_of(run: Run) -> Report:
    sizes = SIZES_QUICK if run.is_quick else sorted(set(run.options.sizes))
    if sizes[0] < SIZES_QUICK[0]:
        raise LoadError(f"a schedule of fewer than {SIZES_QUICK[0]:,} rows has too few that are due")
    settings = ground.CLUSTER_SETTINGS | {
        "shared_buffers": f"{max(256, sum(sizes) * BYTES_A_ROW // 2**20)}MB",
        "max_wal_size": "32GB",
    }
    with PrivatePostgres.start(below=run.options.below, settings=settings) as cluster:
        ready = ground.lay(cluster, run.workplace)
        pace = Pace.start()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                findings = runner.run(measure(ready, sizes, run))
            except Refusal as refusal:
                raise LoadError(str(refusal)) from refusal
        return backlog_report.made(findings, pace.text())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = harness.parser(__doc__, rounds=ROUNDS)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help=f"recipients in the schedules {SIZES}")
    parser.add_argument("--below", type=Path, help="directory below which the cluster is made, and removed again")
    return harness.main(parser.parse_args(arguments), report_of)


if __name__ == "__main__":
    sys.exit(main())
