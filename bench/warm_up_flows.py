"""Thirty days of a new address through the flows: real PostgreSQL, a clock that leaps, volumes 1 : 60.

    make bench-warm-up-flows                      (or: python bench/warm_up_flows.py)
    python bench/warm_up_flows.py --quick --output /tmp/bench

All figures are by the receiver's log. The first run has an overflow; the second, of ten days, only an external relay,
which is down for two of them.
"""

import asyncio
import logging
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import harness, report
from bench.harness import Run
from bench.report import BLUE, GREY, RED, Plot, Report, Rows, goal
from tests.flows.deliver.warm_up_run import KNOWN, NEW, RELAY, SCALE, WarmUpRun, run_warm_up
from tests.support.fresh_database import create
from tools.private_postgres import PrivatePostgres

SEED: Final = 1
DAYS, QUICK_DAYS = 30, 3
RELAY_DAYS: Final = 10
STEP: Final = timedelta(minutes=30)
MESSAGES_A_DAY, QUICK_MESSAGES_A_DAY = 120, 48
RELAY_DOWN: Final = (5, 7)
QUICK_RELAY_DOWN: Final = (1, 2)
WAIT_SECONDS_MAX: Final = 300.0
# As Linux has it: nothing here is about a disk.
MEMORY: Final = Path("/dev/shm")

_COLUMNS: Final = (
    "Run",
    "messages",
    "from the new address",
    "over the overflow",
    "over the relay",
    "hours above",
    "days above",
    "refused",
    "longest wait",
    "lost",
)


def measure(run: Run) -> Report:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    days = QUICK_DAYS if run.is_quick else DAYS
    messages = QUICK_MESSAGES_A_DAY if run.is_quick else MESSAGES_A_DAY
    down = QUICK_RELAY_DOWN if run.is_quick else RELAY_DOWN
    with (
        run.status(f"{days} days with an overflow, then with a relay"),
        PrivatePostgres.start(below=MEMORY if MEMORY.is_dir() else None) as cluster,
    ):
        with_overflow = asyncio.run(
            run_warm_up(create(cluster, "overflow"), SEED, days=days, messages_a_day=messages, step=STEP)
        )
        with_relay = asyncio.run(
            run_warm_up(
                create(cluster, "relay"),
                SEED + 1,
                days=min(days, RELAY_DAYS),
                messages_a_day=messages,
                has_overflow=False,
                has_relay=True,
                relay_down=down,
                step=STEP,
            )
        )
    return Report(
        name="warm-up-flows",
        title="Warm-up of an address through the flows",
        target="bench-warm-up-flows",
        machine="By the virtual clock; it depends on no machine",
        tables=[
            Rows(
                "Warm-up of an address through the flows",
                _COLUMNS,
                [
                    _row("with an overflow", with_overflow),
                    _row(f"with a relay that is down on days {down[0] + 1} to {down[1]}", with_relay),
                ],
            )
        ],
        goals=_goals(with_overflow, with_relay),
        notes=report.notes("warm_up_flows", days=days, messages=messages, scale=SCALE),
        plot=Plot("warm_up_flows.png", "A new address: its quota and what it sent", partial(_draw, with_overflow)),
    )


def _row(name: str, run: WarmUpRun) -> list[str]:
    return [
        name,
        f"{len(run.sent):,}",
        *[f"{run.days(over).total():,}" for over in (NEW, KNOWN, RELAY)],
        str(run.hours_over),
        str(run.days_over),
        str(run.refused),
        str(run.longest_wait),
        str(run.lost),
    ]


def _goals(with_overflow: WarmUpRun, with_relay: WarmUpRun) -> list[report.Goal]:
    above = [run.hours_over + run.days_over for run in (with_overflow, with_relay)]
    wait = with_overflow.longest_wait.total_seconds()
    return [
        goal(not any(above), f"{sum(above)} hours or days above their quota"),
        goal(wait <= WAIT_SECONDS_MAX, f"with an overflow the longest wait was {wait:.0f} s; 300 s is the limit"),
        goal(not with_relay.lost + with_overflow.lost, f"{with_relay.lost + with_overflow.lost} messages lost"),
    ]


def _draw(run: WarmUpRun, pyplot: Any) -> Any:
    figure, axes = pyplot.subplots(figsize=(8, 3.6), layout="constrained")
    days = sorted(run.address_quotas)
    numbers = range(1, len(days) + 1)
    new, known = run.days(NEW), run.days(KNOWN)
    axes.bar(numbers, [new[day] * SCALE for day in days], color=BLUE)
    axes.bar(numbers, [known[day] * SCALE for day in days], bottom=[new[day] * SCALE for day in days], color=GREY)
    axes.step(numbers, [run.address_quotas[day] * SCALE for day in days], where="mid", color=RED, linewidth=1.8)
    axes.set_title("Messages a day, and the new address's quota", fontsize=10, loc="left")
    axes.set_xlabel("day")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    report.plain(axes)
    report.legend(figure, {"from the new address": BLUE, "over the overflow": GREY, "quota": RED})
    return figure


if __name__ == "__main__":
    sys.exit(harness.main(harness.parser(__doc__, rounds=1).parse_args(), measure))
