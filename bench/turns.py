"""Services that run at the same time on one PostgreSQL and get the load in turns: for differences of a few per cent.

PostgreSQL doesn't wait for its disk here: how many messages share a transaction, and so what each costs, would follow
from how fast the disk happens to be. A round is every service in turn, twice in the same order: each has rested equally
long before its turn, and has lost as many of its idle connections. Ratios are within a round.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Any, Final

from bench import message, wrk_load
from bench.dataset import Dataset, wait_until_delivered, with_connection
from bench.harness import Run
from bench.processes import Measured, metered, microseconds, posthouse_command, running
from bench.report import Runs
from bench.wrk_load import HttpServer
from tools.private_postgres import free_port

ACCOUNTS: Final = 20
SIMULATED: Final = "delivered@simulator.invalid"
PYTHON: Final = "Python"
POSTGRES: Final = "PostgreSQL"

Turn = Callable[[str], Measured]
"""Loads one of the services; the name of the turn makes its requests differ from those of other turns."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A service: its database and its settings."""

    data: Dataset
    parts: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)


def in_turns(run: Run, services: Mapping[str, Turn]) -> dict[str, list[Measured]]:
    """What a message costs each of the services, round by round."""
    rows: dict[str, list[Measured]] = {name: [] for name in services}
    for number, load_once in enumerate(services.values()):
        load_once(f"warm-{number}")
    for number in range(run.rounds):
        found: dict[str, list[Measured]] = {name: [] for name in services}
        for turn, (name, load_once) in enumerate([*services.items(), *services.items()]):
            found[name].append(load_once(f"load-{number}-{turn}"))
        for name, halves in found.items():
            rows[name].append(_together(halves))
        say_costs(run, number, rows)
    return rows


def say_costs(run: Run, number: int, rows: Runs) -> None:
    costs = ", ".join(f"{name} {runs[-1].server_us[PYTHON]:,.0f} µs" for name, runs in rows.items())
    run.say(f"round {number + 1} of {run.rounds}: {costs}")


def costs(rows: Runs, variant: str, without: str, part: str = PYTHON) -> list[float]:
    """By how much more a message costs, round by round, the least first."""
    pairs = zip(rows[variant], rows[without], strict=True)
    return sorted(one.server_us[part] / other.server_us[part] - 1 for one, other in pairs)


def spread(found: Sequence[float]) -> str:
    """The median, and the range that half of the rounds are in."""
    quarter = len(found) // 4
    return f"{median(found):+.1%} (half of the rounds: {found[quarter]:+.1%} to {found[-1 - quarter]:+.1%})"


def prepare(data: Dataset) -> None:
    data.clear()
    with_connection(data.url, _forget_the_disk)


async def _forget_the_disk(connection: Any) -> None:
    await connection.execute("ALTER SYSTEM SET fsync = off")
    await connection.execute("SELECT pg_reload_conf()")


@contextmanager
def started(variant: Variant) -> Iterator[HttpServer]:
    data = variant.data
    port, log = free_port(), Path(mkdtemp(dir=data.workplace)) / "server.log"
    environment = data.with_settings({"DATABASE__ALLOW_UNSAFE": "true", **variant.settings})

    def is_ready() -> bool:
        return "Application startup complete" in log.read_text(errors="replace")

    command = posthouse_command("run", *variant.parts, "--port", str(port))
    with running(command, log, is_ready, environment=environment) as process:
        yield HttpServer(process, port, log)


@contextmanager
def accepting(variant: Variant, seconds: int) -> Iterator[Turn]:
    """Its turns are those of `load`."""
    with started(variant) as server:
        yield partial(load, variant, server, seconds=seconds)


def load(variant: Variant, server: HttpServer, name: str, seconds: int) -> Measured:
    """As many messages as are accepted; where they are also delivered, until all of them are."""
    data = variant.data
    to = SIMULATED if "delivery" in variant.parts else message.RECIPIENT
    requests = [
        wrk_load.post(sender.basic, message.fields(sender.domain, to=to), server.port)
        for sender in data.senders[:ACCOUNTS]
    ]
    families = families_of(server, data)
    with metered(families) as used:
        measured = wrk_load.measure(server, data.cluster.pid, requests, name=name, seconds=seconds)
        if "delivery" in variant.parts:
            wait_until_delivered(data.url)
    each_us = microseconds(used, measured.count)
    return Measured(measured.count, measured.seconds, {part: each_us[part] for part in families})


def families_of(server: HttpServer, data: Dataset) -> dict[str, list[int]]:
    """Only one service is loaded at a time, so that PostgreSQL's processor time is spent on that."""
    return {PYTHON: [server.process.pid], POSTGRES: [data.cluster.pid]}


def _together(halves: Sequence[Measured]) -> Measured:
    count = sum(half.count for half in halves)
    each_us = {part: sum(half.server_us[part] * half.count for half in halves) / count for part in halves[0].server_us}
    return Measured(count, sum(half.seconds for half in halves), each_us)
