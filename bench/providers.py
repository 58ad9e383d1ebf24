"""Measures how much mail providers with hidden limits accept: lanes that learn, lanes that heed a 421, fixed limits.

    make bench-providers                          (or: python bench/providers.py)
    python bench/providers.py --seeds 5 --only learning
    python bench/providers.py --quick --output /tmp/bench

Eight hours for each seed, by a virtual clock, through the real flows and PostgreSQL; volumes and limits are a sixtieth
of what they stand for. `tests/support/provider.py` says how the providers behave.
"""

import asyncio
import logging
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import structlog

from bench import harness, report
from bench.harness import Run
from bench.report import Goal, Report, Rows, goal
from tests.support.fresh_database import create
from tests.support.provider_run import DESTINATIONS, HOURS, Policy, ProviderResult, run_providers
from tools.private_postgres import PrivatePostgres

SEEDS: Final = 20
# Runs wait most of the time, for the database and for others' work to share a transaction.
AT_ONCE: Final = 5
QUICK_PART: Final = 0.1
STRICT: Final = ("gmail.com", "outlook.com", "yahoo.com")
DELIVERED_MIN: Final = 0.99
WORST_MIN: Final = 0.95
TIMES_MIN: Final = 2.0
REFUSALS_MAX: Final = 0.01
POLITE: Final = "polite.example"
POLITE_TIMES_MAX: Final = 1.3

_COLUMNS: Final = (
    *("Provider", "lanes", "mails", "delivered", "worst seed", "refusals a mail", "punished", "wait p50 s", "p95 s"),
)
_NAMES: Final = {
    Policy.LEARNING: "that learn",
    Policy.BY_CODE: "that heed a 421",
    Policy.FIXED: "with fixed limits",
}

Results = Mapping[Policy, Mapping[str, Sequence[ProviderResult]]]


def report_of(run: Run) -> Report:
    options = run.options
    seeds = range(1, 2 if run.is_quick else options.seeds + 1)
    policies = [Policy(name) for name in options.only.split(",")]
    measure = partial(_measured, seeds=seeds, part=QUICK_PART if run.is_quick else 1.0)
    with run.status(f"{len(seeds)} seeds, {len(policies)} kinds of lanes"), ProcessPoolExecutor() as processes:
        found: Results = dict(zip(policies, processes.map(measure, policies), strict=True))
    return Report(
        name="providers",
        title="Providers with hidden limits",
        target="bench-providers",
        machine=report.machine(),
        tables=[Rows("Mail to providers with hidden limits", _COLUMNS, list(_rows(found)))],
        goals=goals(found),
        notes=report.notes("providers", seeds=len(seeds), hours=f"{HOURS:g}"),
    )


def _measured(policy: Policy, *, seeds: Sequence[int], part: float) -> Mapping[str, Sequence[ProviderResult]]:
    # Refusals are what is measured here; the log need not name them.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    by_seed: list[Mapping[str, ProviderResult]] = []
    with PrivatePostgres.start(settings={"max_connections": "400"}) as cluster:
        for first in range(0, len(seeds), AT_ONCE):
            group = seeds[first : first + AT_ONCE]
            urls = [create(cluster, f"seed_{seed}") for seed in group]
            by_seed += asyncio.run(_all(urls, group, policy, part))
    return {name: [results[name] for results in by_seed] for name in DESTINATIONS}


async def _all(
    urls: Sequence[str], seeds: Sequence[int], policy: Policy, part: float
) -> list[dict[str, ProviderResult]]:
    return await asyncio.gather(
        *[run_providers(url, seed, policy, part=part) for url, seed in zip(urls, seeds, strict=True)]
    )


def _rows(found: Results) -> list[tuple[str, ...]]:
    return [
        (
            name,
            _NAMES[policy],
            f"{sum(result.sent for result in results):,}",
            f"{_delivered(results):.1%}",
            f"{min(result.delivered_part for result in results):.1%}",
            f"{_refusals(results):.4f}",
            f"{sum(result.punished for result in results):,}",
            f"{mean(result.wait(0.5) for result in results):,.0f}",
            f"{_p95(results):,.0f}",
        )
        for name in DESTINATIONS
        for policy, by_name in found.items()
        for results in [by_name[name]]
    ]


def _delivered(results: Sequence[ProviderResult]) -> float:
    return mean(result.delivered_part for result in results)


def _p95(results: Sequence[ProviderResult]) -> float:
    return mean(result.wait(0.95) for result in results)


def _refusals(results: Sequence[ProviderResult]) -> float:
    return sum(result.refused for result in results) / sum(result.sent for result in results)


def goals(found: Results) -> list[Goal]:
    made: list[Goal] = []
    ours = found.get(Policy.LEARNING)
    if ours is None:
        return made
    for name in STRICT:
        results = ours[name]
        delivered, worst = _delivered(results), min(result.delivered_part for result in results)
        is_reached = delivered >= DELIVERED_MIN and worst >= WORST_MIN
        made.append(goal(is_reached, f"{name}: 99 % delivered, 95 % for the worst seed: {delivered:.1%}, {worst:.1%}"))
        refusals = _refusals(results)
        made.append(goal(refusals <= REFUSALS_MAX, f"{name}: 0.01 refusals a mail at most: {refusals:.4f}"))
        for policy, others in found.items():
            if policy is not Policy.LEARNING:
                times = delivered / max(1e-9, _delivered(others[name]))
                text = f"{name}: twice what lanes {_NAMES[policy]} deliver: {times:.1f}×"
                made.append(goal(times >= TIMES_MIN, text))
    punished = sum(result.punished for name in STRICT for result in ours[name])
    made.append(goal(not punished, f"no punishment for going on, such as S3150, was provoked: {punished}"))
    if Policy.BY_CODE in found:
        waits = [
            mean(result.wait(0.95) for result in found[policy][POLITE]) for policy in (Policy.LEARNING, Policy.BY_CODE)
        ]
        times = waits[0] / waits[1]
        made.append(goal(times <= POLITE_TIMES_MAX, f"{POLITE}: p95 at 1.3× or less of before: {times:.2f}×"))
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    parser = harness.parser(__doc__, rounds=1)
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"how many ({SEEDS})")
    parser.add_argument("--only", default=",".join(Policy), help=f"some of {','.join(Policy)}")
    return harness.main(parser.parse_args(arguments), report_of)


if __name__ == "__main__":
    sys.exit(main())
