"""A game day: ten things break one after another under load; each has its alert, its runbook and the repair.

The whole service runs as separate processes next to PostgreSQL, NATS, a mail server, a webhook receiver and a real
Prometheus with the alerts of `deploy/monitoring`. Their times are twenty times shorter than in production. At the end
the audit compares the record with the logs of the senders and the receivers.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import random
import resource
import signal
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvloop
from rich.console import Console

from posthouse.rules import ids
from tests.deploy.files import ROOT, documents
from tests.support import preloaded
from tests.support.audit_report import audit_result, is_failed, show
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.fresh_database import stoppable_cluster
from tests.support.prometheus import DIRECTORY, asked, prometheus
from tests.support.server_process import environment
from tests.support.smtp_listeners import plain
from tests.support.whole_service import PARTS, WholeService, log_directory, start_whole_service
from tools.private_postgres import PrivatePostgres, free_port

TIMES_FASTER: Final = 20
PROCESSES: Final = 8
PER_SECOND: Final = 15.0
ALERT_SECONDS_MAX: Final = 3 * HANG_SECONDS
IDLE_SECONDS_MAX: Final = 3 * HANG_SECONDS
DATABASE: Final = "gameday"
OUTSIDER: Final = "127.0.0.9"
OUTSIDERS: Final = 40
OUTSIDERS_MAX: Final = 20
AMBIGUOUS_MESSAGES: Final = 12
FILES_MORE: Final = 4
PAUSE_SECONDS: Final = 0.1


@dataclass(slots=True)
class Day:
    service: WholeService
    cluster: PrivatePostgres
    prometheus: str

    async def firing(self) -> set[str]:
        found = await asked(self.prometheus, "alerts")
        return {alert["labels"]["alertname"] for alert in found.get("alerts", []) if alert["state"] == "firing"}

    async def parts(self) -> set[str]:
        """The parts of the service that are scraped."""
        found = await asked(self.prometheus, "query", query="posthouse_process_info")
        return {row["metric"]["part"] for row in found.get("result", [])}

    async def posthouse(self, *words: str) -> str:
        """What the command tells the operator."""
        processes = self.service.processes
        own = environment(processes.database_url, **processes.settings)
        done = await asyncio.to_thread(preloaded.run, *words, environment=own, directory=processes.directory)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


Break = Callable[[Day], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True)
class Scene:
    """Inside `broken` something is broken; its end is the repair."""

    title: str
    what: str
    repair: str
    alert: str
    broken: Break


@dataclass(frozen=True, slots=True)
class Played:
    scene: Scene
    alert_seconds: float
    over_seconds: float
    others: Sequence[str] = ()


@asynccontextmanager
async def _http_dies(day: Day) -> AsyncIterator[None]:
    await day.service.kill("http")
    yield
    await day.service.start("http").ready()


@asynccontextmanager
async def _postgres_stops(day: Day) -> AsyncIterator[None]:
    await asyncio.to_thread(day.cluster.kill)
    yield
    await asyncio.to_thread(day.cluster.restart)


@asynccontextmanager
async def _workers_die(day: Day) -> AsyncIterator[None]:
    for name in ("delivery", "notification"):
        await day.service.kill(name)
    yield
    for name in ("delivery", "notification"):
        day.service.start(name)


@asynccontextmanager
async def _worker_freezes(day: Day) -> AsyncIterator[None]:
    service = day.service
    connections = len(service.processes.receiver.conversations)
    os.killpg(service.running["delivery"].running.pid, signal.SIGSTOP)
    # What it had in flight is counted now: when it is killed, another worker has it.
    await service.in_flight.note_death(connections)
    yield
    service.running["delivery"].kill()
    service.start("delivery")


@asynccontextmanager
async def _nats_dies(day: Day) -> AsyncIterator[None]:
    nats = day.service.processes.nats
    assert nats is not None
    await asyncio.to_thread(nats.kill)
    yield
    await asyncio.to_thread(nats.start)


@asynccontextmanager
async def _webhooks_fail(day: Day) -> AsyncIterator[None]:
    receiver = day.service.webhook_receiver
    await receiver.__aexit__()
    yield
    await receiver.__aenter__()
    for tenant in day.service.tenants:
        await day.posthouse("webhook", "replay", ids.text(ids.ACCOUNT, tenant.id), "--failed-since", "1h", "--yes")


@asynccontextmanager
async def _passwords_are_guessed(day: Day) -> AsyncIterator[None]:
    listeners, username = day.service.listeners, day.service.tenants[0].username

    async def guess() -> None:
        async with listeners.line(source=OUTSIDER) as line:
            await line.say("EHLO outsider.example", plain(username, "a-wrong-password"))

    async with _unauthenticated(guess):
        yield


@asynccontextmanager
async def _connections_are_hoarded(day: Day) -> AsyncIterator[None]:
    port = day.service.listeners.inbound_port

    async def hoard() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(OUTSIDER, 0))
        try:
            async with asyncio.timeout(HANG_SECONDS):
                await reader.read()
        finally:
            writer.close()

    async with _unauthenticated(hoard):
        yield


@asynccontextmanager
async def _files_are_short(day: Day) -> AsyncIterator[None]:
    pid = day.service.running["http"].running.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    open_files = len(os.listdir(f"/proc/{pid}/fd"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (open_files + FILES_MORE, before[1]))
    yield
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@asynccontextmanager
async def _replies_are_lost(day: Day) -> AsyncIterator[None]:
    tenant, domain = day.service.tenants[0], day.service.domains[0]
    for number in range(AMBIGUOUS_MESSAGES):
        await day.service.post(tenant, [f"lose-dot+gameday{number}@{domain}"])
    yield


@asynccontextmanager
async def _unauthenticated(act: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """This many unauthenticated clients do this again and again."""

    async def again_and_again() -> None:
        while True:
            with contextlib.suppress(OSError, ssl.SSLError, TimeoutError, EOFError, AssertionError, IndexError):
                await act()
            await asyncio.sleep(PAUSE_SECONDS)

    tasks = [asyncio.create_task(again_and_again()) for _ in range(OUTSIDERS)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


SCENES: Final = (
    Scene(
        "The HTTP process dies",
        "`kill -9`, as the kernel does when memory is short.",
        "Start it again: `posthouse run http`.",
        "PosthousePartDown",
        _http_dies,
    ),
    Scene(
        "PostgreSQL is killed",
        "Its first process gets `kill -9`; all transactions end.",
        "Start PostgreSQL. No process of the service is restarted.",
        "PosthouseNotReady",
        _postgres_stops,
    ),
    Scene(
        "All workers die",
        "The delivery and the webhook process get `kill -9` in the middle of sessions.",
        "Start them: `posthouse run delivery`, `posthouse run notification`.",
        "PosthouseNoWorkers",
        _workers_die,
    ),
    Scene(
        "A worker freezes",
        "The delivery process gets `SIGSTOP`: it holds claims and does nothing.",
        "`kill -9`, and start it again. Its claims were reclaimed when its lease ended.",
        "PosthouseClaimsReclaimed",
        _worker_freezes,
    ),
    Scene(
        "NATS dies",
        "`kill -9`; tickets in its memory are gone.",
        "Start NATS. Mail that is due is published again from PostgreSQL.",
        "PosthouseStreamAway",
        _nats_dies,
    ),
    Scene(
        "Customers' webhook endpoint is down",
        "Nothing listens at its port.",
        "It is back; `posthouse webhook replay ACCOUNT --failed-since 1h` replays the deliveries that failed.",
        "PosthouseWebhooksFailing",
        _webhooks_fail,
    ),
    Scene(
        "Someone guesses passwords",
        f"{OUTSIDERS} clients at one address log in over submission with wrong passwords.",
        "The firewall drops the address. Customers were served in the meantime.",
        "PosthouseLoginsFailing",
        _passwords_are_guessed,
    ),
    Scene(
        "Someone hoards connections",
        f"{OUTSIDERS} clients at one address keep connections to port 25 open; it may have {OUTSIDERS_MAX}.",
        "The firewall drops the address.",
        "PosthouseConnectionsRefused",
        _connections_are_hoarded,
    ),
    Scene(
        "Open files run short",
        f"The HTTP process may open {FILES_MORE} more files than it has.",
        "Raise the limit: `LimitNOFILE=` in systemd; here `prlimit`, without a restart.",
        "PosthouseFilesShort",
        _files_are_short,
    ),
    Scene(
        "A mail server accepts mail and hangs up",
        f"{AMBIGUOUS_MESSAGES} messages get no reply after their last byte: they may have arrived.",
        "Nothing to do: they are tried again, and each copy is recorded as ambiguous.",
        "PosthouseAmbiguous",
        _replies_are_lost,
    ),
)


async def play(day: Day, scene: Scene) -> Played:
    """The scene from its fault to the end of its alert."""

    async def is_firing() -> bool:
        return scene.alert in await day.firing()

    await eventually(is_firing, lambda fires: not fires, within=ALERT_SECONDS_MAX, every=0.5)
    began_at = time.monotonic()
    async with scene.broken(day):
        await eventually(is_firing, within=ALERT_SECONDS_MAX, every=0.5, or_say=day.firing)
        alert_at = time.monotonic()
        others = sorted(await day.firing() - {scene.alert})
    repaired_at = time.monotonic()
    await eventually(is_firing, lambda fires: not fires, within=ALERT_SECONDS_MAX, every=0.5)
    return Played(scene, alert_at - began_at, time.monotonic() - repaired_at, others)


async def run(
    directory: Path, cluster: PrivatePostgres, scenes: Sequence[Scene], seed: int, console: Console
) -> dict[str, Any]:
    port = free_port()
    async with start_whole_service(
        cluster.url(DATABASE),
        directory,
        seed,
        MONITORING__PORT=str(port),
        SMTP__CONNECTIONS_PER_ADDRESS_MAX=str(OUTSIDERS_MAX),
    ) as service:
        with prometheus(directory, port, PROCESSES, times_faster=TIMES_FASTER) as url:
            day = Day(service, cluster, url)
            service.behaviours = [how for how in service.behaviours if how != "lose-dot"]
            await eventually(day.parts, lambda found: found == set(PARTS), within=ALERT_SECONDS_MAX, every=0.5)
            played = []
            async with service.busy(http=4, smtp=2, per_second=PER_SECOND):
                for number, scene in enumerate(scenes, start=1):
                    console.print(f"{number}. [bold]{scene.title}[/]: {scene.what}", highlight=False)
                    result = await play(day, scene)
                    played.append(result)
                    console.print(
                        f"   {scene.alert} after {result.alert_seconds:.0f} s, {_runbook(scene.alert)}\n"
                        f"   {scene.repair} Over after {result.over_seconds:.0f} s.",
                        highlight=False,
                    )
            await service.wait_until_idle(IDLE_SECONDS_MAX)
        report = await audit_result(service)
    return report | {"played": played, "accepted": service.accepted}


def _runbook(alert: str) -> str:
    rules = [rule for group in documents(DIRECTORY / "alerts.yaml")[0]["groups"] for rule in group["rules"]]
    address: str = next(rule["annotations"]["runbook_url"] for rule in rules if rule["alert"] == alert)
    return f"docs/runbooks/{address.rpartition('/')[2]}.md"


def story(report: dict[str, Any]) -> str:
    """The day as a page of the documentation."""
    lines = []
    for number, played in enumerate(report["played"], start=1):
        scene = played.scene
        runbook = Path(_runbook(scene.alert))
        symptom = (ROOT / runbook).read_text().partition("\n")[0].removeprefix("# ")
        alert = f"{scene.alert}, [{symptom}](../{runbook.relative_to('docs')})"
        others = f" Also firing: {', '.join(played.others)}." if played.others else ""
        lines += [
            f"### {number}. {scene.title}",
            "",
            scene.what,
            "",
            f"**Alert** after {played.alert_seconds:.0f} s: {alert}.{others}",
            "",
            f"**Repair**: {scene.repair} The alert ended {played.over_seconds:.0f} s later.",
            "",
        ]
    broken = "nothing is broken" if not is_failed(report) else "**broken**"
    lines.append(
        f"**Audit** of {report['messages']:,} messages and {report['recipients']:,} recipients against the logs of "
        f"senders, mail servers and webhook receivers: {broken}."
    )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Ten things break; each ends with its alert, its runbook, its repair.")
    parser.add_argument("scenes", nargs="*", type=int, help="numbers of scenes (default: all)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--report", type=Path, help="write the story into this page, below its marker")
    asked_for = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(f"seed {asked_for.seed}")
    logging.getLogger("asyncpg").setLevel(logging.CRITICAL)
    scenes = [SCENES[number - 1] for number in asked_for.scenes] or list(SCENES)
    with tempfile.TemporaryDirectory(dir=log_directory()) as directory, stoppable_cluster(DATABASE) as cluster:
        report = uvloop.run(run(Path(directory), cluster, scenes, asked_for.seed, console))
    show(report, console)
    if asked_for.report is not None:
        marker = "<!-- the story: written by make gameday -->\n"
        above, found, _ = asked_for.report.read_text().partition(marker)
        assert found, f"{asked_for.report} has no line {marker}"
        asked_for.report.write_text(above + marker + "\n" + story(report))
    return int(is_failed(report))


if __name__ == "__main__":
    sys.exit(main())
