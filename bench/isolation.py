"""Measures isolation: what a dead destination, or another account's backlog, costs other mail.

    make bench-isolation                          (or: python bench/isolation.py)
    python bench/isolation.py --rounds 3 --seconds 120
    python bench/isolation.py --quick --output /tmp/bench

A thousand destinations and a single further destination, which gets every fifth message and is alive or dead, in turn,
at half of the machine's capacity. Then a slow lane with a backlog in it, and an occasional message from another
account. Everything is real and runs here: PostgreSQL, NATS, DNS, the service's own processes, and a server for the
mail.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import dataset, harness, message, report
from bench.dataset import EmptyServices
from bench.delivery_isolation import (
    DEAD_ADDRESS,
    ONE,
    SLOW,
    Experiment,
    FairShares,
    NotDeliveredError,
    OthersMail,
    Wait,
    percentile,
)
from bench.harness import Run
from bench.rate_load import request
from bench.report import BLUE, GREY, RED, Goal, Plot, Report, Rows, goal
from tests.support.service import Tenant
from tests.support.service_processes import ServiceProcesses
from tests.wire.unresponsive_server import UnresponsiveServer
from tools.private_postgres import PrivatePostgres

ROUNDS: Final = 2
# A whole round of the dead destination: a connection's time-out, the pause, and another message that finds out.
SECONDS: Final = 75
QUICK_SECONDS: Final = 5

EVERY: Final = 5
LOAD_PART: Final = 0.5
LATE_SECONDS_MAX: Final = 120.0
# The single destination's lane may carry what is meant for it: only its being dead stands in the way.
LANE_PER_SECOND_MIN: Final = 100.0

RATIO_MAX: Final = 1.5
SMALL_SECONDS_MAX: Final = 5.0

# The service's default.
LANES: Final = {"LANES__PER_SECOND": "100", "LANES__BURST": "100"}


@dataclass(frozen=True, slots=True)
class Sizes:
    domains: int
    senders: int
    capacity_messages: int
    backlog: int
    small_messages: int
    lane_per_second: int


FULL: Final = Sizes(
    domains=1_000, senders=10, capacity_messages=6_000, backlog=20_000, small_messages=60, lane_per_second=50
)
QUICK: Final = Sizes(domains=50, senders=3, capacity_messages=300, backlog=500, small_messages=5, lane_per_second=50)


@dataclass(frozen=True, slots=True)
class Findings:
    sizes: Sizes
    capacity: float
    per_second: float
    seconds: int
    alive: Sequence[OthersMail]
    dead: Sequence[OthersMail]
    turns: FairShares

    def ratios(self, part: float) -> list[float]:
        """Dead to alive, within each round."""
        pairs = zip(self.dead, self.alive, strict=True)
        return [dead.percentile(part) / alive.percentile(part) for dead, alive in pairs]


@dataclass(slots=True)
class Bench:
    """Every phase has its own empty service, on one cluster and one receiver."""

    services: EmptyServices
    receiver_port: int
    sizes: Sizes

    async def capacity(self) -> float:
        async with self._processes({}) as processes:
            experiment = await self._experiment(processes)
            await experiment.warm(LANE_PER_SECOND_MIN, LATE_SECONDS_MAX)
            return await experiment.capacity(self.sizes.capacity_messages, LATE_SECONDS_MAX)

    async def one_among_many(self, *, is_dead: bool, per_second: float, seconds: int) -> OthersMail:
        lane = {"per_second": max(LANE_PER_SECOND_MIN, 2 * per_second / EVERY)}
        async with self._processes({ONE: lane}) as processes:
            experiment = await self._experiment(processes)
            await experiment.warm(per_second, LATE_SECONDS_MAX)
            return await experiment.one_among_many(
                DEAD_ADDRESS if is_dead else "127.0.0.1",
                every=EVERY,
                per_second=per_second,
                seconds=seconds,
                late_seconds_max=LATE_SECONDS_MAX,
            )

    async def fair_turns(self) -> FairShares:
        async with self._processes({SLOW: {"per_second": self.sizes.lane_per_second}}) as processes:
            experiment = await Experiment.prepared(processes, senders=2, request=_request)
            return await experiment.fair_turns(
                backlog=self.sizes.backlog, seconds=self.sizes.small_messages, late_seconds_max=LATE_SECONDS_MAX
            )

    async def _experiment(self, processes: ServiceProcesses) -> Experiment:
        sizes = self.sizes
        return await Experiment.prepared(processes, senders=sizes.senders, domains=sizes.domains, request=_request)

    @asynccontextmanager
    async def _processes(self, lanes: Mapping[str, Mapping[str, float]]) -> AsyncIterator[ServiceProcesses]:
        settings = {**LANES, "DELIVERY__PORT": str(self.receiver_port), "LANES__BY_NAME": json.dumps(lanes)}
        async with self.services.prepared(settings) as processes:
            processes.start("dispatch")
            processes.start("delivery")
            await processes.start_http()
            yield processes


def _request(tenant: Tenant, to: str) -> bytes:
    return request(tenant, to, subject=message.SUBJECT, text=message.TEXT, html=message.HTML)


@contextmanager
def receiver(workplace: Path) -> Iterator[int]:
    """The receiver, a separate process, which logs a message before it accepts it; its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.smtp_receiver", "--log", str(workplace / "received.jsonl")],
        cwd=Path(__file__).resolve().parents[1],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline().split()[-1])
    finally:
        process.terminate()
        process.wait()


async def measure(bench: Bench, seconds: int, run: Run) -> Findings:
    with run.status("how much the machine carries"):
        capacity = await bench.capacity()
    per_second = capacity * LOAD_PART
    run.say(
        f"capacity: [bold]{capacity:,.0f}[/] messages a second; offered: {per_second:,.0f}, every {EVERY}th to the one"
    )
    found: dict[bool, list[OthersMail]] = {False: [], True: []}
    for round_name, is_dead in run.interleaved((False, True)):
        words = f"{round_name}, the one {'dead' if is_dead else 'alive'}"
        with run.status(words):
            others = await bench.one_among_many(is_dead=is_dead, per_second=per_second, seconds=seconds)
        found[is_dead].append(others)
        waits = ", ".join(f"{name} {_ms(others.percentile(part))}" for name, part in (("p50", 0.5), ("p99", 0.99)))
        run.say(f"{words}: the others' {waits} ms ({len(others.waits):,} messages; {others.to_the_one:,} to the one)")
    with run.status("a backlog in a slow lane"):
        turns = await bench.fair_turns()
    return Findings(bench.sizes, capacity, per_second, seconds, found[False], found[True], turns)


def report_of(run: Run) -> Report:
    seconds = QUICK_SECONDS if run.is_quick else max(1, run.options.seconds)
    with (
        PrivatePostgres.start(settings=dataset.CLUSTER_SETTINGS) as cluster,
        receiver(run.workplace) as port,
        UnresponsiveServer(DEAD_ADDRESS, port) as dead_end,
    ):
        dataset.migrate(cluster, run.workplace)
        bench = Bench(EmptyServices(cluster, run.workplace), port, QUICK if run.is_quick else FULL)
        findings = asyncio.run(measure(bench, seconds, run))
        if not dead_end.hangs():
            raise NotDeliveredError("the dead destination accepted a connection")
    columns = ("Whose mail", "messages", "p50 ms", "p99 ms", "most, ms", "p99 of 202, ms")
    return Report(
        name="isolation",
        title="Isolation",
        target="bench-isolation",
        machine=report.machine(),
        tables=[Rows("Isolation: from acceptance to delivery", columns, _rows(findings))],
        goals=goals(findings),
        notes=_notes(findings),
        plot=Plot(
            "isolation.png",
            "How long messages took, the one dead and alive; and with a backlog",
            lambda pyplot: _plot(pyplot, findings),
        ),
    )


def goals(findings: Findings) -> list[Goal]:
    ratio, small = median(findings.ratios(0.99)), findings.turns.percentile(0.99)
    ratio_text = f"the others' p99 at {RATIO_MAX}× or less when the one is dead: {ratio:.2f}×"
    small_text = f"with a backlog, another account's p99 under {SMALL_SECONDS_MAX:.0f} s: {small:.2f} s"
    return [
        goal(ratio <= RATIO_MAX, f"{ratio_text} (p50 {median(findings.ratios(0.5)):.2f}×)"),
        goal(small < SMALL_SECONDS_MAX, small_text),
    ]


def _rows(findings: Findings) -> list[list[str]]:
    rows = []
    for state, rounds in (("alive", findings.alive), ("dead", findings.dead)):
        p50, p99 = (median(others.percentile(part) for others in rounds) for part in (0.5, 0.99))
        most = max(others.percentile(1) for others in rounds)
        accepted = median(percentile(others.accepted.waits, 0.99) for others in rounds)
        messages = sum(len(others.waits) for others in rounds)
        name = f"{findings.sizes.domains:,} destinations, the one {state}"
        rows.append([name, f"{messages:,}", *map(_ms, (p50, p99, most, accepted))])
    for name, waits in (
        ("slow lane: the account with one message a second", findings.turns.waits),
        ("slow lane: the backlog, as far as delivered", findings.turns.backlog_waits),
    ):
        shown = [_ms(percentile(_seconds(waits), part)) for part in (0.5, 0.99, 1)]
        rows.append([name, f"{len(waits):,}", *shown, "–"])
    return rows


def _seconds(waits: Sequence[Wait]) -> list[float]:
    return [wait.seconds for wait in waits]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f}"


def _notes(findings: Findings) -> str:
    sizes, turns, rounds = findings.sizes, findings.turns, len(findings.alive)
    return report.notes(
        "isolation",
        repeated=f"{rounds} interleaved rounds" if rounds > 1 else "One round",
        seconds=findings.seconds,
        domains=f"{sizes.domains:,}",
        per_second=f"{findings.per_second:,.0f}",
        capacity=f"{findings.capacity:,.0f}",
        capacity_messages=f"{sizes.capacity_messages:,}",
        ratios=", ".join(f"{ratio:.2f}" for ratio in findings.ratios(0.99)),
        lane_per_second=sizes.lane_per_second,
        backlog=f"{sizes.backlog:,}",
        posted_seconds=f"{turns.backlog_posted_seconds:.1f}",
        small_messages=sizes.small_messages,
        lane_carried=f"{turns.lane_per_second:.1f}",
    )


def _plot(pyplot: Any, findings: Findings) -> Any:
    figure, (shares, moments) = pyplot.subplots(1, 2, figsize=(12, 4.4), width_ratios=(1, 1), layout="constrained")
    sizes, turns = findings.sizes, findings.turns
    for name, rounds, colour in (("the one alive", findings.alive, GREY), ("the one dead", findings.dead, BLUE)):
        for number, others in enumerate(rounds):
            ordered = sorted(_seconds(others.waits))
            longer = [1 - place / len(ordered) for place in range(len(ordered))]
            shares.plot(ordered, longer, color=colour, linewidth=1.6, label=None if number else name)
    report.limit_line(shares, y=0.01)
    shares.text(1, 0.0105, "p99 ", transform=shares.get_yaxis_transform(), fontsize=8, ha="right", color="#52606d")
    shares.set(xscale="log", yscale="log", xlabel="seconds from acceptance to delivery")
    shares.set_title(
        f"Share of the other {sizes.domains:,} destinations' mail that took longer", fontsize=10, loc="left"
    )
    for name, waits, colour, size in (
        (f"the backlog of {sizes.backlog:,}", turns.backlog_waits, GREY, 2),
        ("another account's mail, one a second", turns.waits, BLUE, 14),
    ):
        delivered_at = [wait.at + wait.seconds for wait in waits]
        moments.scatter(delivered_at, _seconds(waits), s=size, color=colour, label=name, linewidths=0)
    report.limit_line(moments, y=SMALL_SECONDS_MAX, colour=RED)
    moments.set(yscale="log", xlabel="seconds from the start, when it was delivered")
    title = f"Seconds from acceptance to delivery in a lane of {sizes.lane_per_second} a second"
    moments.set_title(title, fontsize=10, loc="left")
    for axes in (shares, moments):
        axes.legend(fontsize=8, frameon=False)
        report.plain(axes)
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    options = harness.parser(__doc__, rounds=ROUNDS, seconds=SECONDS).parse_args(arguments)
    return harness.main(options, report_of)


if __name__ == "__main__":
    sys.exit(main())
