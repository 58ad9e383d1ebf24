"""Variants of a service that get the load in turns on one database: for differences of a few per cent.

PostgreSQL doesn't wait for its disk here: how many mails share a transaction, and so what each costs, would follow from
the disk's moods. A round is every variant in turn and again in the opposite order; ratios are within a round. Two
processes of the same program can differ by several per cent for as long as they live: variants that can be switched
while they run share one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench import message, wrk_load
from bench.dataset import Dataset, wait_until_delivered, with_connection
from bench.harness import Run
from bench.processes import Measured, Process, metered, microseconds, posthouse_command, running
from bench.report import Runs
from bench.wrk_load import HttpServer
from tools.private_postgres import free_port

ACCOUNTS: Final = 20
SIMULATED: Final = "delivered@simulator.invalid"


@dataclass(frozen=True, slots=True, eq=False)
class Service:
    """A process: its settings, and a directory whose modules come before its own."""

    parts: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    modules: Path | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """`switch` makes the running service this variant, before each of its turns."""

    name: str
    service: Service
    switch: Callable[[Process], None] = lambda _: None


def in_turns(run: Run, data: Dataset, variants: Sequence[Variant], seconds: int) -> dict[str, list[Measured]]:
    """What a mail costs with each variant, round by round."""
    data.clear()
    with_connection(data.url, _forget_the_disk)
    rows: dict[str, list[Measured]] = {variant.name: [] for variant in variants}
    with ExitStack() as stack:
        services = dict.fromkeys(variant.service for variant in variants)
        servers = {service: stack.enter_context(_server(data, service)) for service in services}
        for number, variant in enumerate(variants):
            _load(data, variant, servers[variant.service], f"warm-{number}", seconds)
        for number in range(run.rounds):
            found: dict[str, list[Measured]] = {variant.name: [] for variant in variants}
            for turn, variant in enumerate([*variants, *reversed(variants)]):
                name = f"load-{number}-{turn}"
                found[variant.name].append(_load(data, variant, servers[variant.service], name, seconds))
            for name, halves in found.items():
                rows[name].append(_together(halves))
            costs = ", ".join(f"{name} {runs[-1].cpu_us:,.0f} µs" for name, runs in rows.items())
            run.say(f"round {number + 1} of {run.rounds}: {costs}")
    return rows


def costs(rows: Runs, variant: str, without: str) -> list[float]:
    """By how much more a mail costs, round by round, the least first."""
    pairs = zip(rows[variant], rows[without], strict=True)
    return sorted(whole.cpu_us / part.cpu_us - 1 for whole, part in pairs)


def spread(found: Sequence[float]) -> str:
    """The median, and between what half of the rounds are."""
    quarter = len(found) // 4
    return f"{median(found):+.1%} (half of the rounds: {found[quarter]:+.1%} to {found[-1 - quarter]:+.1%})"


async def _forget_the_disk(connection: Any) -> None:
    await connection.execute("ALTER SYSTEM SET fsync = off")
    await connection.execute("SELECT pg_reload_conf()")


@contextmanager
def _server(data: Dataset, service: Service) -> Iterator[HttpServer]:
    port = free_port()
    log = data.workplace / f"server-{port}.log"
    environment = data.with_settings({"DATABASE__ALLOW_UNSAFE": "true", **service.settings})
    if service.modules is not None:
        environment["PYTHONPATH"] = str(service.modules)

    def is_ready() -> bool:
        return "Application startup complete" in log.read_text(errors="replace")

    command = posthouse_command("run", *service.parts, "--port", str(port))
    with running(command, log, is_ready, environment=environment) as process:
        yield HttpServer(process, port, log)


def _load(data: Dataset, variant: Variant, server: HttpServer, name: str, seconds: int) -> Measured:
    senders = data.senders[:ACCOUNTS]
    requests = [
        wrk_load.post(sender.basic, message.fields(sender.domain, to=SIMULATED), server.port) for sender in senders
    ]
    variant.switch(server.process)
    with metered({"Python": [server.process.pid]}) as used:
        measured = wrk_load.measure(server, data.cluster.pid, requests, name=name, seconds=seconds)
        if "delivery" in variant.service.parts:
            wait_until_delivered(data.url)
    return Measured(measured.count, measured.seconds, {"Python": microseconds(used, measured.count)["Python"]})


def _together(halves: Sequence[Measured]) -> Measured:
    count = sum(half.count for half in halves)
    python = sum(half.cpu_us * half.count for half in halves) / count
    return Measured(count, sum(half.seconds for half in halves), {"Python": python})
