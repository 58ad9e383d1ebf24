"""Every crash point once, under load: who dies where, is started again, and leaves nothing undone.

`make crash` runs all of them and prints what the audit says; `python -m tests.crash.scenes claim. record.` those whose
points begin so.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvloop
from rich.console import Console

from posthouse import crash
from posthouse.store.schema import migrate
from tests.conftest import _make_partitions
from tests.support import returns
from tests.support.doors import dotted
from tests.support.town import Town, place, settled
from tests.support.verdict import is_failed, judged, show, write
from tools.private_postgres import PrivatePostgres

# Who comes by a point, and at which of its passes it dies: early enough to be seen, late enough to be busy.
WHO: Final = {
    "accept": "http",
    "submission": "submission",
    "dispatch": "dispatch",
    "reclaim": "dispatch",
    "worker": "delivery",
    "delivery": "delivery",
    "claim": "delivery",
    "postpone": "delivery",
    "carry": "delivery",
    "record": "delivery",
    "notification": "notification",
    "feedback": "inbound",
    "upkeep": "upkeep",
}
PASSES: Final = {
    "accept": 20,
    "submission": 8,
    "submission.authenticated": 2,
    "delivery": 5,
    "claim": 5,
    "carry": 12,
    "carry.connected": 3,
    "record": 5,
    "notification": 8,
}
DEATH_SECONDS_MAX: Final = 40.0
REST_SECONDS_MAX: Final = 90.0
CI: Final = (
    "accept.before_commit",
    "accept.after_commit",
    "submission.before_answer",
    "dispatch.before_publish",
    "claim.after_commit",
    "carry.after_dot",
    "record.before_commit",
    "record.after_commit",
    "notification.after_post",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    point: str
    seconds: float
    orphans: int


async def play(town: Town, point: str) -> Outcome:
    """One scene: the process dies at the point, another takes its place, and everything comes to its end."""
    started = time.monotonic()
    family = point.partition(".")[0]
    who = WHO[family]
    armed = f"{point}:{PASSES.get(point, PASSES.get(family, 1))}"
    if who == "upkeep":
        await _keep_house(town, point)
    else:
        async with town.busy():
            part = await town.restart(who, armed)
            await _provoke(town, point)
            await _death(town, part, point)
            for name, each in town.running.items():
                if each.running.poll() is not None:
                    town.start(name)
            await asyncio.sleep(1)
        if who in ("http", "submission"):
            await town.running["http"].ready()
        await town.at_rest(REST_SECONDS_MAX)
    orphans = await town.office.orphans()
    return Outcome(point, time.monotonic() - started, orphans)


async def _death(town: Town, part: Any, point: str) -> None:
    deadline = time.monotonic() + DEATH_SECONDS_MAX
    connections = 0
    while part.running.poll() is None:
        assert time.monotonic() < deadline, f"nobody came by {point}:\n{part.said()}"
        connections = len(town.office.receiver.conversations)
        await asyncio.sleep(0.01)
    assert part.running.returncode == -9, f"{point}: {part.running.returncode}\n{part.said()}"
    if part is town.running["delivery"]:
        await town.under_way.note_death(connections)


async def _provoke(town: Town, point: str) -> None:
    """What doesn't happen by itself under this load."""
    match point.partition(".")[0]:
        case "reclaim":
            # Somebody has to die for something to be taken back.
            await asyncio.sleep(5)
            await town.kill("delivery")
            town.start("delivery")
        case "feedback":
            await _complain(town)
        case "postpone":
            await _begun(town)
            tenant = town.tenants[0]
            await town.office.service.operator.suspend(tenant.id)
            await asyncio.sleep(3)
            await town.office.service.operator.resume(tenant.id)
        case "dispatch" if "calls" in point:
            # Retries of mail are due by themselves; webhooks when nobody takes their tickets in time.
            await town.kill("notification")
    if point in ("worker.before_retirement", "worker.retired"):
        await _begun(town)
        town.running["delivery"].running.terminate()


async def _begun(town: Town) -> None:
    """Returns when a worker is there that was not there before: one that can be told to end."""
    query = "SELECT array_agg(id ORDER BY id) FROM workers"
    known = await town.office.service.value(query)
    deadline = time.monotonic() + DEATH_SECONDS_MAX
    while set(await town.office.service.value(query) or ()) <= set(known or ()):
        assert time.monotonic() < deadline, "no worker came"
        await asyncio.sleep(0.1)


async def _complain(town: Town) -> None:
    """A bounce comes back for a mail that arrived."""
    deadline = time.monotonic() + DEATH_SECONDS_MAX
    await town.doors.open(town.running["inbound"], town.doors.inbound_port)
    while not town.office.lines():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.2)
    line = town.office.lines()[-1]
    bounce = returns.bounce(line["recipient"], to=line["sender"])
    async with town.doors.line(is_secure=False, port=town.doors.inbound_port) as spoken:
        await spoken.say("EHLO mx.example.org", "MAIL FROM:<>", f"RCPT TO:<{line['sender']}>", "DATA")
        spoken.writer.write(dotted(bounce))
        await spoken.writer.drain()


async def _keep_house(town: Town, point: str) -> None:
    """Days to make, or long past and to drop, or keys to forget; it dies, and the next round does the rest."""
    service = town.office.service
    match point:
        case "upkeep.before_partition" | "upkeep.partition_made":
            await service.sql("DROP TABLE webhook_deliveries_" + await _last_day(town))
        case "upkeep.before_detaching" | "upkeep.detached" | "upkeep.before_drop" | "upkeep.dropped":
            await service.sql(
                "CREATE TABLE IF NOT EXISTS bodies_20200101 PARTITION OF bodies FOR VALUES FROM"
                " ('016f5e66-e800-7000-8000-000000000000') TO ('016f638d-4400-7000-8000-000000000000')"
            )
    assert await asyncio.to_thread(town.upkeep, point) == -9, point
    assert await asyncio.to_thread(town.upkeep) == 0
    assert await service.value("SELECT to_regclass('bodies_20200101')") is None
    assert await service.value(f"SELECT to_regclass('webhook_deliveries_{await _last_day(town)}')") is not None


async def _last_day(town: Town) -> str:
    name: str = await town.office.service.value(
        "SELECT max(substring(relname FROM 20)) FROM pg_class WHERE relname ~ '^webhook_deliveries_[0-9]{8}$'"
    )
    wanted: str = await town.office.service.value(
        "SELECT max(substring(relname FROM 10)) FROM pg_class WHERE relname ~ '^messages_[0-9]{8}$'"
    )
    return max(name, wanted)


async def perform(points: Sequence[str], url: str, directory: Path, seed: int, console: Console) -> dict[str, Any]:
    """All of these points in one town, one after the other; then the audit."""
    async with settled(url, directory, seed) as town:
        async with town.busy():
            await asyncio.sleep(2)
        for number, point in enumerate(points, 1):
            outcome = await play(town, point)
            console.print(f"{number:>3} of {len(points)}  {point:<36} {outcome.seconds:5.1f} s", highlight=False)
        await town.at_rest(REST_SECONDS_MAX)
        return await judged(town)


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill every process at every crash point, and audit.")
    parser.add_argument("points", nargs="*", help="only points that begin so")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--report", type=Path, help="write the tables here as Markdown, too")
    asked = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(f"seed {asked.seed}")
    points = sorted(crash.POINTS, key=lambda point: (list(WHO).index(point.partition(".")[0]), point))
    chosen = [point for point in points if not asked.points or point.startswith(tuple(asked.points))]
    with tempfile.TemporaryDirectory(dir=place()) as directory, PrivatePostgres.start() as cluster:
        cluster.create_database("crash")
        url = cluster.url("crash")
        migrate(url)
        asyncio.run(_make_partitions(url))
        said = uvloop.run(perform(chosen, url, Path(directory), asked.seed, console))
    show(said, console)
    if asked.report is not None:
        write(said, f"{len(chosen)} crash points, seed {asked.seed}", asked.report)
    return int(is_failed(said))


if __name__ == "__main__":
    sys.exit(main())
