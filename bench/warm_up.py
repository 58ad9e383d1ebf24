"""Warms up an address at many providers whose limits it doesn't know, compared with fixed schedules.

    make bench-warm-up                            (or: python bench/warm_up.py)
    python bench/warm_up.py --quick --output /tmp/bench

A model in days: no mail is sent. The rule is the service's own; the providers are drawn by seed.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import harness, report
from bench.harness import Run
from bench.report import BLUE, GREY, RED, Plot, Report, Rows, goal
from tests.rules import warming_provider
from tests.rules.warming_provider import Plan, WarmingRun

PROVIDERS: Final = 400
QUICK_PROVIDERS: Final = 20
DAYS: Final = 60
MESSAGES_A_DAY: Final = 20_000
DAYS_MAX: Final = 20
REFUSALS_PART: Final = 100

OURS: Final = "Posthouse"
PLANS: Final[dict[str, Callable[[], Plan]]] = {
    "SendGrid's 1.4 a day": lambda: warming_provider.sendgrid,
    "SES's 45 days": lambda: warming_provider.ses,
    OURS: warming_provider.autopilot,
}
COLOURS: Final = dict(zip(PLANS, (RED, GREY, BLUE), strict=True))

Runs = dict[str, list[WarmingRun]]


def measure(run: Run) -> Report:
    providers = QUICK_PROVIDERS if run.is_quick else PROVIDERS
    runs = {
        name: [
            warming_provider.run(warming_provider.drawn(Random(seed)), plan(), messages_a_day=MESSAGES_A_DAY, days=DAYS)
            for seed in range(providers)
        ]
        for name, plan in PLANS.items()
    }
    columns = (
        "Plan",
        f"days to {MESSAGES_A_DAY:,}",
        "the slowest",
        "messages refused",
        "blocked days",
        f"messages taken in {DAYS} days",
    )
    return Report(
        name="warm-up",
        title="Warm-up of an address",
        target="bench-warm-up",
        machine=f"A model of {providers} providers; it depends on no machine",
        tables=[Rows("Warm-up of an address", columns, [_row(name, found) for name, found in runs.items()])],
        goals=_goals(runs),
        notes=report.notes("warm_up", days=DAYS, messages=f"{MESSAGES_A_DAY:,}"),
        plot=Plot("warm_up.png", "Messages taken a day, the mean of all providers", partial(_draw, runs)),
    )


def _row(name: str, runs: Sequence[WarmingRun]) -> list[str]:
    return [
        name,
        f"{mean(run.full_on for run in runs):.1f}",
        _slowest(runs),
        f"{mean(run.refused for run in runs):,.0f}",
        f"{mean(run.blocked_days for run in runs):.1f}",
        f"{mean(sum(day.taken for day in run.days) for run in runs):,.0f}",
    ]


def _slowest(runs: Sequence[WarmingRun]) -> str:
    slowest = max(run.full_on for run in runs)
    return f"over {DAYS}" if slowest > DAYS else str(slowest)


def _goals(runs: Runs) -> list[report.Goal]:
    ours = runs[OURS]
    days = mean(run.full_on for run in ours)
    refused = mean(run.refused for run in ours)
    least = min(mean(run.refused for run in found) for name, found in runs.items() if name != OURS)
    blocked = sum(run.blocked_days for run in ours)
    return [
        goal(days <= DAYS_MAX, f"{MESSAGES_A_DAY:,} a day after {days:.1f} days on average; {DAYS_MAX} is the limit"),
        goal(
            refused * REFUSALS_PART <= least,
            f"{refused:,.0f} refusals, 1/{least / max(refused, 1):,.0f} of the better fixed plan; "
            f"1/{REFUSALS_PART} is the limit",
        ),
        goal(blocked == 0, f"{blocked} blocked days"),
    ]


def _draw(runs: Runs, pyplot: Any) -> Any:
    figure, axes = pyplot.subplots(figsize=(8, 3.6), layout="constrained")
    for name, found in runs.items():
        taken = [mean(run.days[day].taken for run in found) for day in range(DAYS)]
        axes.plot(range(1, DAYS + 1), taken, color=COLOURS[name], linewidth=1.8)
    axes.set_title("Messages taken a day, the mean of all providers", fontsize=10, loc="left")
    axes.set_xlabel("day")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    report.plain(axes)
    report.legend(figure, COLOURS)
    return figure


if __name__ == "__main__":
    sys.exit(harness.main(harness.parser(__doc__, rounds=1).parse_args(), measure))
