"""Services that run at once on one PostgreSQL and get the load in turns: for differences of a few per cent.

PostgreSQL doesn't wait for its disk here: how many mails share a transaction, and so what each costs, would follow from
the disk's moods. A round is every service in turn and again in the opposite order; ratios are within a round.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench import dataset, message, wrk_load
from bench.dataset import Dataset, wait_until_delivered, with_connection
from bench.harness import Run
from bench.processes import Measured, metered, microseconds, posthouse_command, running
from bench.report import Runs
from bench.wrk_load import HttpServer
from tools.private_postgres import free_port

ACCOUNTS: Final = 20
SIMULATED: Final = "delivered@simulator.invalid"


@dataclass(frozen=True, slots=True)
class Variant:
    """A service: its database, its settings, and a directory whose modules come before its own."""

    name: str
    data: Dataset
    parts: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    modules: Path | None = None


def in_turns(run: Run, variants: Sequence[Variant], seconds: int) -> dict[str, list[Measured]]:
    """What a mail costs each, round by round."""
    for data in {variant.data.url: variant.data for variant in variants}.values():
        prepare(data)
    rows: dict[str, list[Measured]] = {variant.name: [] for variant in variants}
    with ExitStack() as stack:
        servers = [(variant, stack.enter_context(started(variant))) for variant in variants]
        for number, (variant, server) in enumerate(servers):
            load(variant, server, f"warm-{number}", seconds)
        for number in range(run.rounds):
            found: dict[str, list[Measured]] = {variant.name: [] for variant in variants}
            for turn, (variant, server) in enumerate([*servers, *reversed(servers)]):
                found[variant.name].append(load(variant, server, f"load-{number}-{turn}", seconds))
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


def prepare(data: Dataset) -> None:
    data.clear()
    with_connection(data.url, _forget_the_disk)


async def _forget_the_disk(connection: Any) -> None:
    await connection.execute("ALTER SYSTEM SET fsync = off")
    await connection.execute("SELECT pg_reload_conf()")


@contextmanager
def started(variant: Variant) -> Iterator[HttpServer]:
    data = variant.data
    workplace = data.workplace / f"{len(variant.parts)} {variant.name}".replace(" ", "-")
    workplace.mkdir()
    port, log = free_port(), workplace / "server.log"
    environment = {
        **data.with_settings({"DATABASE__ALLOW_UNSAFE": "true", **variant.settings}),
        **dataset.with_modules(variant.modules),
    }

    def is_ready() -> bool:
        return "Application startup complete" in log.read_text(errors="replace")

    command = posthouse_command("run", *variant.parts, "--port", str(port))
    with running(command, log, is_ready, environment=environment) as process:
        yield HttpServer(process, port, log)


def load(variant: Variant, server: HttpServer, name: str, seconds: int) -> Measured:
    data = variant.data
    senders = data.senders[:ACCOUNTS]
    requests = [
        wrk_load.post(sender.basic, message.fields(sender.domain, to=SIMULATED), server.port) for sender in senders
    ]
    with metered({"Python": [server.process.pid]}) as used:
        measured = wrk_load.measure(server, data.cluster.pid, requests, name=name, seconds=seconds)
        if "delivery" in variant.parts:
            wait_until_delivered(data.url)
    return Measured(measured.count, measured.seconds, {"Python": microseconds(used, measured.count)["Python"]})


def _together(halves: Sequence[Measured]) -> Measured:
    count = sum(half.count for half in halves)
    python = sum(half.cpu_us * half.count for half in halves) / count
    return Measured(count, sum(half.seconds for half in halves), {"Python": python})
