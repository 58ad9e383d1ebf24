"""Measures how much mail providers with hidden limits accept: lanes that learn, lanes that obey a 421, fixed limits.

    make bench-providers                          (or: python bench/providers.py)
    python bench/providers.py --seeds 5 --only learning
    python bench/providers.py --saved /tmp/seeds.json      continues where the last run was stopped
    python bench/providers.py --quick --output /tmp/bench

Eight hours for each seed, by a virtual clock, through the real flows and PostgreSQL; volumes and limits are a sixtieth
of what they stand for. Then on real sockets, next to a Postfix, where an hour takes a minute.
`tests/flows/deliver/provider.py` says how the providers behave.
"""

import asyncio
import json
import logging
import smtplib
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from dataclasses import asdict
from functools import partial
from itertools import takewhile
from pathlib import Path
from statistics import mean
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import structlog

from bench import harness, peer_servers, report
from bench.harness import Run
from bench.provider_server import ProviderServer, run_on_sockets
from bench.report import BLUE, GREY, LIGHT_GREY, RED, Goal, Plot, Report, Rows, goal
from tests.flows.deliver.provider import HOUR
from tests.flows.deliver.provider_run import (
    DESTINATIONS,
    HOURS,
    PEAK_PER_SECOND,
    SCALE,
    Policy,
    ProviderResult,
    messages,
    result_of,
    run_providers,
)
from tests.support.fresh_database import create
from tools.private_postgres import PrivatePostgres, free_port

SEEDS: Final = 20
# Runs wait most of the time, for the database and for others' work to share a transaction.
CONCURRENT_SEEDS: Final = 10
SETTINGS: Final = {"max_connections": "800"}
QUICK_PART: Final = 0.1
STRICT: Final = ("gmail.com", "outlook.com", "yahoo.com")
DELIVERED_MIN: Final = 0.99
WORST_MIN: Final = 0.95
TIMES_MIN: Final = 2.0
REFUSALS_MAX: Final = 0.01
POLITE: Final = "polite.example"
POLITE_TIMES_MAX: Final = 1.3
SOCKET_HOURS: Final = 5.0
QUICK_SOCKET_HOURS: Final = 0.25
FEWER_REFUSALS_MIN: Final = 100.0
POSTFIX: Final = "Postfix"
OURS: Final = "Posthouse"
SOCKET_SEED: Final = 1
PLOTTED: Final = "gmail.com"
PLOTTED_SECONDS: Final = 300.0

_COLUMNS: Final = (
    *("Provider", "lanes", "seeds", "messages", "delivered", "worst seed"),
    *("refusals per message", "punished", "wait p50 s", "p95 s"),
)
_SOCKET_COLUMNS: Final = (
    *("Provider", "by", "messages", "delivered", "refusals per message", "punished", "wait p50 s", "p95 s"),
)
_NAMES: Final = {
    Policy.LEARNING: "that learn",
    Policy.BY_CODE: "that heed a 421",
    Policy.FIXED: "with fixed limits",
}

ByProvider = Mapping[str, ProviderResult]
Results = Mapping[Policy, Mapping[str, Sequence[ProviderResult]]]
OnSockets = Mapping[str, ByProvider]


def report_of(run: Run) -> Report:
    options = run.options
    seeds = range(1, 2 if run.is_quick else options.seeds + 1)
    policies = [Policy(name) for name in options.only.split(",")]
    saved = _Saved(options.saved)
    part = QUICK_PART if run.is_quick else 1.0
    with run.status(f"{len(seeds)} seeds, {len(policies)} kinds of lanes"):
        if not options.saved_only:
            _measure(saved, policies, seeds, part)
    found = _found(saved, policies, seeds, part)
    hours = QUICK_SOCKET_HOURS if run.is_quick else options.socket_hours
    on_sockets: OnSockets = {}
    if hours:
        with run.status(f"on sockets, for {hours:g} minutes"):
            on_sockets = _on_sockets(run.workplace, saved, hours, part, measure=not options.saved_only)
    return Report(
        name="providers",
        title="Providers with hidden limits",
        target="bench-providers",
        machine=report.machine(),
        tables=[
            Rows("Mail to providers with hidden limits", _COLUMNS, list(_rows(found))),
            *([Rows("The same on sockets", _SOCKET_COLUMNS, _socket_rows(on_sockets))] if on_sockets else []),
        ],
        goals=[*goals(found), *_socket_goals(on_sockets)],
        notes=report.notes("providers", hours=f"{HOURS:g}", socket_hours=f"{hours:g}"),
        plot=Plot(
            "providers.png", "Messages that gmail.com took, and its hidden limit", partial(_draw, found, on_sockets)
        ),
    )


class _Saved:
    """What was measured, by its name, in a file that a later run continues; in memory without a file."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._by_name: dict[str, Any] = json.loads(file.read_text()) if file is not None and file.exists() else {}

    def get(self, name: str) -> ByProvider | None:
        found = self._by_name.get(name)
        return None if found is None else {provider: ProviderResult(**result) for provider, result in found.items()}

    def put(self, name: str, results: ByProvider) -> None:
        self._by_name[name] = {provider: asdict(result) for provider, result in results.items()}
        if self._file is not None:
            self._file.write_text(json.dumps(self._by_name))


def _measure(saved: _Saved, policies: Sequence[Policy], seeds: Sequence[int], part: float) -> None:
    groups = []
    for policy in policies:
        open_seeds = [seed for seed in seeds if saved.get(f"{policy} {seed} {part:g}") is None]
        groups += [
            (policy, open_seeds[at : at + CONCURRENT_SEEDS]) for at in range(0, len(open_seeds), CONCURRENT_SEEDS)
        ]
    with ProcessPoolExecutor(2) as processes:
        for (policy, group), results in zip(groups, processes.map(partial(_run_seeds, part), groups), strict=True):
            for seed, by_provider in zip(group, results, strict=True):
                saved.put(f"{policy} {seed} {part:g}", by_provider)


def _found(saved: _Saved, policies: Sequence[Policy], seeds: Sequence[int], part: float) -> Results:
    found: dict[Policy, dict[str, list[ProviderResult]]] = {}
    for policy in policies:
        saved_ones = (saved.get(f"{policy} {seed} {part:g}") for seed in seeds)
        by_seed = [results for results in takewhile(bool, saved_ones) if results]
        if by_seed:
            found[policy] = {name: [results[name] for results in by_seed] for name in DESTINATIONS}
    return found


def _run_seeds(part: float, group: tuple[Policy, Sequence[int]]) -> Sequence[ByProvider]:
    policy, seeds = group
    _be_silent()
    with PrivatePostgres.start(settings=SETTINGS) as cluster:
        urls = [create(cluster, f"seed_{seed}") for seed in seeds]
        return asyncio.run(_all(urls, seeds, policy, part))


def _be_silent() -> None:
    # Refusals are what is measured here; the log need not name them.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))


async def _all(
    urls: Sequence[str], seeds: Sequence[int], policy: Policy, part: float
) -> list[dict[str, ProviderResult]]:
    return await asyncio.gather(
        *[run_providers(url, seed, policy, part=part) for url, seed in zip(urls, seeds, strict=True)]
    )


# On sockets


def _on_sockets(workplace: Path, saved: _Saved, hours: float, part: float, *, measure: bool) -> OnSockets:
    """Both at the same time: neither needs much of the machine."""
    _be_silent()
    with ExitStack() as stack:
        runs: dict[str, Callable[[], Coroutine[Any, Any, ByProvider]]] = {}
        names = {name: f"{name} {hours:g} {part:g}" for name in (OURS, POSTFIX)}
        if measure and saved.get(names[OURS]) is None:
            url = create(stack.enter_context(PrivatePostgres.start()), "sockets")
            runs[OURS] = partial(run_on_sockets, url, SOCKET_SEED, hours=hours, part=part)
        if measure and saved.get(names[POSTFIX]) is None and peer_servers.postfix_missing() is None:
            runs[POSTFIX] = partial(_postfix, workplace, hours, part)

        async def all_of_them() -> Sequence[ByProvider]:
            return await asyncio.gather(*[run() for run in runs.values()])

        for name, results in zip(runs, asyncio.run(all_of_them()), strict=True):
            saved.put(names[name], results)
    return {name: found for name in names if (found := saved.get(names[name])) is not None}


async def _postfix(workplace: Path, hours: float, part: float) -> ByProvider:
    providers = {name: kind(SOCKET_SEED, SCALE) for name, kind in DESTINATIONS.items()}
    born = messages(SOCKET_SEED, providers, part)
    loop, port = asyncio.get_running_loop(), free_port()
    hosts = {name: f"127.0.2.{number}" for number, name in enumerate(providers, 1)}
    with peer_servers.postfix_to_providers(
        workplace, {name: f"[{host}]:{port}" for name, host in hosts.items()}
    ) as peer:
        began = loop.time()
        async with AsyncExitStack() as stack:
            for name, provider in providers.items():
                server = ProviderServer(provider, hosts[name], port, lambda: (loop.time() - began) * SCALE)
                await stack.enter_async_context(server)
            await asyncio.to_thread(_submit, peer.port, born, time.monotonic())
            await asyncio.sleep(max(0.0, began + hours * HOUR / SCALE - loop.time()))
    return {name: result_of(provider, born, name) for name, provider in providers.items()}


def _submit(port: int, born: Mapping[str, float], began: float) -> None:
    with smtplib.SMTP("127.0.0.1", port) as client:
        for to, at in sorted(born.items(), key=lambda mail: mail[1]):
            time.sleep(max(0.0, began + at / SCALE - time.monotonic()))
            client.sendmail("news@sender.example", [to], f"To: {to}\r\nSubject: Hello\r\n\r\nGood morning.\r\n")


def _socket_rows(found: OnSockets) -> list[tuple[str, ...]]:
    return [
        (
            provider,
            name,
            f"{result.sent:,}",
            f"{result.delivered_part:.1%}",
            f"{result.refusals_per_message:.4f}",
            f"{result.punished:,}",
            f"{result.wait(0.5):,.0f}",
            f"{result.wait(0.95):,.0f}",
        )
        for provider in DESTINATIONS
        for name, by_provider in found.items()
        for result in [by_provider[provider]]
    ]


def _socket_goals(found: OnSockets) -> list[Goal]:
    if not {OURS, POSTFIX} <= found.keys():
        return []
    ours, theirs = ([found[name][provider] for provider in STRICT] for name in (OURS, POSTFIX))
    delivered = _sum(ours, "delivered") / max(1, _sum(theirs, "delivered"))
    fewer = _sum(theirs, "refused") / max(1, _sum(ours, "refused"))
    return [
        goal(delivered >= TIMES_MIN, f"on sockets, twice what Postfix delivers: {delivered:.1f}×"),
        goal(fewer >= FEWER_REFUSALS_MIN, f"on sockets, a hundredth of Postfix's refusals: 1/{fewer:,.0f}"),
    ]


def _sum(results: Sequence[ProviderResult], name: str) -> int:
    return sum(getattr(result, name) for result in results)


def _draw(found: Results, on_sockets: OnSockets, pyplot: Any) -> Any:
    """The rate over time, of the seed that ran on sockets as well."""
    curves = {f"lanes {_NAMES[policy]}": by_name[PLOTTED][SOCKET_SEED - 1] for policy, by_name in found.items()}
    if POSTFIX in on_sockets:
        curves[POSTFIX] = on_sockets[POSTFIX][PLOTTED]
    colours = dict(zip(curves, (BLUE, RED, LIGHT_GREY, GREY), strict=False))
    # Curves that coincide are seen beneath one another.
    widths = dict(zip(curves, (1.6, 6.0, 3.6, 1.6), strict=False))
    figure, axes = pyplot.subplots(figsize=(8, 3.6), layout="constrained")
    steps = int(SOCKET_HOURS * HOUR / PLOTTED_SECONDS)
    for name, result in curves.items():
        counts = [0] * steps
        for at in result.taken_at:
            if at < SOCKET_HOURS * HOUR:
                counts[int(at / PLOTTED_SECONDS)] += 1
        rates = [count / PLOTTED_SECONDS * SCALE for count in counts]
        axes.plot(
            [step * PLOTTED_SECONDS / HOUR for step in range(steps)], rates, color=colours[name], linewidth=widths[name]
        )
        report.limit_line(axes, y=result.per_second * SCALE)
    axes.set_title(f"Messages a second that {PLOTTED} took; dashed: its hidden limit", fontsize=10, loc="left")
    axes.set_xlabel("hours")
    report.plain(axes)
    report.legend(figure, colours)
    return figure


def _rows(found: Results) -> list[tuple[str, ...]]:
    return [
        (
            name,
            _NAMES[policy],
            f"{len(results)}",
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
        made.append(goal(refusals <= REFUSALS_MAX, f"{name}: 0.01 refusals per message at most: {refusals:.4f}"))
        made += [
            _times(name, policy, results, others[name])
            for policy, others in found.items()
            if policy is not Policy.LEARNING
        ]
    punished = sum(result.punished for name in STRICT for result in ours[name])
    made.append(goal(not punished, f"no punishment for continuing, such as S3150, was provoked: {punished}"))
    if Policy.BY_CODE in found:
        pairs = zip(ours[POLITE], found[Policy.BY_CODE][POLITE], strict=False)
        learning, before = (_p95(results) for results in zip(*pairs, strict=True))
        times = learning / before
        made.append(goal(times <= POLITE_TIMES_MAX, f"{POLITE}: p95 at 1.3× or less of before: {times:.2f}×"))
    return made


def _times(name: str, policy: Policy, ours: Sequence[ProviderResult], theirs: Sequence[ProviderResult]) -> Goal:
    """How much more was delivered, over the seeds that both have, and over those whose limit is below the peak.

    Where it is above what is sent, lanes of any kind deliver nearly everything.
    """
    pairs = list(zip(ours, theirs, strict=False))
    binding = [pair for pair in pairs if pair[0].per_second * SCALE < PEAK_PER_SECOND]
    times = _ratio(pairs)
    text = f"{name}: twice what lanes {_NAMES[policy]} deliver: {times:.1f}×"
    if binding:
        text += f"; {_ratio(binding):.1f}× at the {len(binding)} of {len(pairs)} limits that are below the peak"
    return goal(times >= TIMES_MIN, text)


def _ratio(pairs: Sequence[tuple[ProviderResult, ProviderResult]]) -> float:
    ours, theirs = zip(*pairs, strict=True)
    return _delivered(ours) / max(1e-9, _delivered(theirs))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = harness.parser(__doc__, rounds=1)
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"how many ({SEEDS})")
    parser.add_argument("--socket-hours", type=float, default=SOCKET_HOURS, help="minutes on sockets; 0: not at all")
    parser.add_argument("--saved", type=Path, help="a file for what is measured: a later run continues it")
    parser.add_argument(
        "--saved-only", action="store_true", help="report what the file has, up to the first seed that it lacks"
    )
    parser.add_argument("--only", default=",".join(Policy), help=f"some of {','.join(Policy)}")
    return harness.main(parser.parse_args(arguments), report_of)


if __name__ == "__main__":
    sys.exit(main())
