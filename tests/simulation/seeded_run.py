"""Run the simulation from a seed: random steps, all promises checked after each, and the audit at the end.

    python -m tests.simulation.seeded_run --seed 7 --steps 500

A run that fails prints its seed and the steps that it took.
"""

import argparse
import asyncio
import inspect
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

from posthouse import crash
from posthouse.rules.audit.promises import AuditTally
from posthouse.rules.credential import Mode
from tests.simulation import invariants
from tests.simulation.invariants import Broken
from tests.simulation.simulated_service import ACCOUNTS, SimulatedService, open_simulation
from tests.simulation.simulated_world import MAIL_BEHAVIOURS
from tests.support.accept_flow import SIMULATOR
from tests.support.fresh_database import fresh_database

DOMAINS: Final = ("one.example", "two.example", "three.example")
PATHS: Final = ("/well", "/never", "/fickle", "/fickle")
# Points that no step of the simulation passes.
_ELSEWHERE: Final = (
    "cancel.",
    "submission.",
    "feedback.",
    "maintenance.",
    "accept.admitted",
    "accept.read",
    "accept.before_answer",
)
POINTS: Final = sorted(
    point for point in crash.POINTS if not point.startswith((*_ELSEWHERE, "accept.answered", "carry.before_dot"))
)
Step = tuple[str, tuple[Any, ...]]
Made = TypeVar("Made")


def recipients(randomness: random.Random) -> tuple[str, ...]:
    """Few addresses, so that they recur: some are suppressed by then."""
    count = randomness.choice((1, 1, 1, 2, 3, 5))
    made = {
        f"{randomness.choice(MAIL_BEHAVIOURS)}-{randomness.randrange(40)}@{randomness.choice(DOMAINS)}"
        for _ in range(count)
    }
    if randomness.random() < 0.1:
        made.add(f"{randomness.choice(('delivered', 'bounced'))}@{SIMULATOR}")
    return tuple(sorted(made))


def steps(randomness: random.Random) -> Step:
    """The next step. Most are ordinary operation."""
    account = randomness.randrange(len(ACCOUNTS))
    mode = Mode.TEST if randomness.random() < 0.05 else Mode.LIVE
    choices: list[tuple[float, Callable[[], Step]]] = [
        (22, lambda: ("send", (account, recipients(randomness), mode))),
        (3, lambda: ("send_again", (randomness.randrange(1_000),))),
        (6, lambda: ("dispatch", ())),
        (12, lambda: ("work", (randomness.randrange(4), randomness.choice((1, 3, 200))))),
        (8, lambda: ("cycle", ())),
        (10, lambda: ("wait", (round(randomness.uniform(0.1, 90), 1),))),
        (5, lambda: ("wait", (round(randomness.uniform(10, 90), 1), randomness.choice((1, 2, 2, 3, 3, 4, 5))))),
        (14, lambda: ("leap", (randomness.choice((0, 0, 30)),))),
        (1, lambda: ("jump", (randomness.choice((-86_400, -3_600, -30, 30, 3_600, 86_400)),))),
        (10, lambda: ("arm", (randomness.choice(POINTS), randomness.choice((1, 1, 2, 3))))),
        (3, lambda: ("kill", (randomness.randrange(6),))),
        (2, lambda: ("stop", (randomness.randrange(6),))),
        (4, lambda: ("restart", ())),
        (1, lambda: ("wipe", ())),
        (2, lambda: ("stream_faults", tuple(round(randomness.choice((0, 0.1, 0.5)), 1) for _ in range(4)))),
        (1, lambda: ("suspend", (account,))),
        (2, lambda: ("resume", (account,))),
        (2, lambda: ("endpoint", (account, randomness.choice(PATHS), randomness.random() < 0.9))),
    ]
    (made,) = randomness.choices([made for _, made in choices], [weight for weight, _ in choices])
    return made()


async def take_step(simulation: SimulatedService, step: Step) -> None:
    """A step, after which every promise holds."""
    await with_steps(simulation, _take(simulation, *step))


async def _take(simulation: SimulatedService, name: str, given: tuple[Any, ...]) -> None:
    simulation.steps.append(f"{name}({', '.join(map(repr, given))})")
    await getattr(simulation, f"step_{name}")(*given)
    await simulation.settle()
    await invariants.require(simulation)


async def run_seed(
    url: str, seed: int, count: int, *, report: Callable[[SimulatedService, int], None] = lambda *_: None, **given: Any
) -> tuple[SimulatedService, AuditTally]:
    """This many steps of a seed; then all work is finished and audited."""
    randomness = random.Random(seed)
    async with open_simulation(url, seed, **given) as simulation:
        for number in range(count):
            await take_step(simulation, steps(randomness))
            report(simulation, number + 1)
        return simulation, await with_steps(simulation, finish(simulation))


async def finish(simulation: SimulatedService) -> AuditTally:
    """Faults end, all work is finished, and the audit runs."""
    simulation.steps.append("run_until_idle()")
    await simulation.run_until_idle()
    return await invariants.require_idle(simulation)


async def with_steps(simulation: SimulatedService, work: Awaitable[Made]) -> Made:
    """A failure names the seed and the steps before it."""
    try:
        return await work
    except Exception as fault:
        taken = "\n".join(f"  {number}. {step}" for number, step in enumerate(simulation.steps, 1))
        what = str(fault) if isinstance(fault, Broken) else repr(fault)
        raise Broken(f"{what}\n\nseed {simulation.seed}, after these steps:\n{taken}") from fault


def summary(simulation: SimulatedService, began_at: Any, tally: AuditTally | None = None) -> str:
    days = (simulation.clock.now() - began_at) / timedelta(days=1)
    arrived, called = len(simulation.carrier.log), len(simulation.caller.log)
    sent = f"{len(simulation.steps)} steps, {days:.1f} days, {len(simulation.asked)} messages sent"
    text = f"{sent}, {arrived} arrivals, {called} calls"
    return (
        text if tally is None else f"{text}, {sum(count.checked for count in tally.counts.values())} checks, 0 breaches"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=inspect.getdoc(inspect.getmodule(main)))
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31))
    parser.add_argument("--steps", type=int, default=1_000)
    asked = parser.parse_args()
    print(f"seed {asked.seed}, {asked.steps} steps", flush=True)
    began = time.monotonic()
    with fresh_database("simulation", {"max_wal_size": "256MB"}) as (_, url):
        first: list[Any] = []

        def report(simulation: SimulatedService, number: int) -> None:
            first[:] = first or [simulation.clock.now()]
            if number % 100 == 0:
                print(f"{time.monotonic() - began:6.1f} s: {summary(simulation, first[0])}", flush=True)

        simulation, tally = asyncio.run(run_seed(url, asked.seed, asked.steps, report=report))
        print(f"{time.monotonic() - began:6.1f} s: {summary(simulation, first[0], tally)}")


if __name__ == "__main__":
    main()
