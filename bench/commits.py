"""Measures whether a change costs processor time: six loads at an earlier commit, now, and now again.

    make bench-commits BEFORE=<commit>            (or: python bench/commits.py --before COMMIT)
    python bench/commits.py --before COMMIT --loads accept,deliver --rounds 20

*Now* is the working tree. *Now again* is the same code in another service: it shows by how much the same code differs
from itself. A larger change must stay within 3 %. The services are loaded in turns, as `bench/turns.py` says. Files are
written only if `--output` names a directory. The earlier commit must have today's names of tables and settings.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import asyncpg
from anyio.from_thread import start_blocking_portal

from bench import dataset, harness, message, report, search, search_dataset, submission, turns, webhooks, wrk_load
from bench.dataset import Dataset, with_connection
from bench.harness import Run
from bench.peer_servers import SubmissionTerms
from bench.processes import BenchError, Measured, microseconds
from bench.report import Goal, Report, Rows, Runs, goal
from bench.turns import POSTGRES, PYTHON, Turn, Variant, costs, spread
from bench.webhook_load_receiver import NAME, WebhookLoadReceiver
from tests.support import webhook_accounts
from tests.support.nameserver import Nameserver
from tests.support.service import service_settings
from tools.private_postgres import PrivatePostgres, free_port

ROUNDS: Final = 10
SECONDS: Final = 2
COST_MAX: Final = 0.03
# What a service does after it has started takes no longer.
STARTED_SECONDS: Final = 15
ROOT: Final = Path(__file__).resolve().parents[1]

BEFORE: Final = "before"
NOW: Final = "now"
AGAIN: Final = "now again"
COMPARED: Final = {NOW: BEFORE, AGAIN: NOW}


class Scale(NamedTuple):
    """How much each turn of a load sends; `listed` is a number of batches of 100 messages."""

    seconds: int
    submitted: int
    events: int
    listed: int
    idle_seconds: float


QUICK: Final = Scale(seconds=1, submitted=submission.MESSAGES_MIN, events=200, listed=2, idle_seconds=1)


@dataclass(frozen=True, slots=True)
class Bench:
    run: Run
    scale: Scale
    datasets: Mapping[str, Dataset]
    certificate: tuple[Path, Path]
    receiver: WebhookLoadReceiver
    nameserver: Nameserver

    def in_turns(self, load: Callable[["Bench", Dataset], AbstractContextManager[Turn]]) -> Runs:
        with ExitStack() as stack:
            for data in self.datasets.values():
                turns.prepare(data)
            services = {name: stack.enter_context(load(self, data)) for name, data in self.datasets.items()}
            return turns.in_turns(self.run, services)


def _accept(bench: Bench, data: Dataset) -> AbstractContextManager[Turn]:
    return turns.accepting(Variant(data, ("http",)), bench.scale.seconds)


def _deliver(bench: Bench, data: Dataset) -> AbstractContextManager[Turn]:
    return turns.accepting(Variant(data, ("http", "dispatch", "delivery")), bench.scale.seconds)


@contextmanager
def _submission(bench: Bench, data: Dataset) -> Iterator[Turn]:
    terms = SubmissionTerms(*bench.certificate, data.senders[: submission.SENDERS])
    setup = submission.Setup(data.workplace, terms, data, None, sorted(os.sched_getaffinity(0)))
    load, shape = submission.Load(setup), submission.MANY
    with submission.posthouse(setup) as server:
        server.families = {PYTHON: server.families["submission"], POSTGRES: server.families["PostgreSQL"]}
        yield lambda _: load.measured(server, bench.scale.submitted, shape.messages)


@contextmanager
def _webhooks(bench: Bench, data: Dataset) -> Iterator[Turn]:
    receiver, events = bench.receiver, bench.scale.events
    settings = {
        **webhook_accounts.webhook_settings(receiver.port, receiver.authority),
        "SERVICE__RESOLVERS": f"127.0.0.1:{bench.nameserver.port}",
    }
    paths = [f"/sender/{number}" for number in range(webhooks.SENDERS)]
    accounts = _with_pool(
        data,
        lambda pool: webhook_accounts.create_accounts(pool, service_settings(data.url), receiver.port, paths),
    )
    # Dispatch and notification share a stream in memory only if delivery does.
    with turns.started(Variant(data, ("http", "dispatch", "delivery", "notification"), settings)) as server:
        families = turns.families_of(server, data)

        def turn(_: str) -> Measured:
            began = time.monotonic()
            used = _with_pool(data, lambda pool: webhooks.send_events(pool, accounts, events, families))
            each_us = microseconds(used, events)
            return Measured(events, time.monotonic() - began, {part: each_us[part] for part in families})

        yield turn


def _with_pool(data: Dataset, act: Callable[[Any], Any]) -> Any:
    async def run() -> Any:
        async with asyncpg.create_pool(data.url, min_size=1, max_size=1) as pool:
            return await act(pool)

    return asyncio.run(run())


@contextmanager
def _list(bench: Bench, data: Dataset) -> Iterator[Turn]:
    search_dataset.make_user(data)
    with turns.started(Variant(data, ("http",))) as server:
        token, sender = search.login(server.port), data.senders[0]
        body = json.dumps({"emails": [message.fields(sender.domain)] * 100}).encode()
        for number in range(bench.scale.listed):
            headers = {
                "Authorization": sender.basic,
                "Content-Type": "application/json",
                "Idempotency-Key": f"{number}",
            }
            url = f"http://127.0.0.1:{server.port}/emails/batch"
            urllib.request.urlopen(urllib.request.Request(url, body, headers)).close()
        with_connection(data.url, lambda connection: connection.execute("VACUUM ANALYZE"))
        requests = [wrk_load.get("/v1/messages?limit=50", token, server.port)]
        yield lambda name: wrk_load.measure(
            server,
            data.cluster.pid,
            requests,
            seconds=bench.scale.seconds,
            connections=search.CLIENTS,
            name=name,
        )


def _idle(bench: Bench) -> Runs:
    """All at the same time: an idle second has so little to do that seconds in turns would take too long."""
    seconds, rows = bench.scale.idle_seconds, dict[str, list[Measured]]()
    with ExitStack() as stack:
        pids = {}
        for name, data in bench.datasets.items():
            turns.prepare(data)
            settings = {
                **submission.posthouse_settings(*bench.certificate, free_port()),
                "INBOUND__RETURN_PATH_DOMAIN": "bounces.posthouse.example",
                "INBOUND__PORT": str(free_port()),
            }
            pids[name] = stack.enter_context(turns.started(Variant(data, (), settings))).process.pid
        time.sleep(STARTED_SECONDS)
        for number in range(bench.run.rounds):
            before = {name: _cpu_seconds(pid) for name, pid in pids.items()}
            time.sleep(seconds)
            for name, pid in pids.items():
                idle_us = (_cpu_seconds(pid) - before[name]) / seconds * 1e6
                rows.setdefault(name, []).append(Measured(1, seconds, {PYTHON: idle_us}))
            turns.say_costs(bench.run, number, rows)
    return rows


def _cpu_seconds(pid: int) -> float:
    """Of one process, in nanoseconds and not in ticks, of which an idle second takes only one or two."""
    return time.clock_gettime((~pid << 3) | 2)  # the number that clock_getcpuclockid(3) makes of a process


LOADS: Final[Mapping[str, tuple[str, Callable[[Bench], Runs]]]] = {
    # Before there is mail whose search entries and counts are still to be made.
    "idle": ("an idle second of all parts", _idle),
    "accept": ("a message accepted over HTTP", partial(Bench.in_turns, load=_accept)),
    "deliver": ("a message accepted over HTTP and delivered", partial(Bench.in_turns, load=_deliver)),
    "submission": ("a message accepted over SMTP, 20 a session", partial(Bench.in_turns, load=_submission)),
    "webhooks": ("an event sent to a webhook", partial(Bench.in_turns, load=_webhooks)),
    "list": ("a page of 50 messages", partial(Bench.in_turns, load=_list)),
}


def measure(run: Run, loads: Sequence[str]) -> Report | None:
    whole = Scale(seconds=max(1, run.options.seconds), submitted=1_600, events=2_000, listed=40, idle_seconds=10)
    with ExitStack() as stack:
        cluster = stack.enter_context(PrivatePostgres.start(settings=dataset.CLUSTER_SETTINGS))
        receiver = stack.enter_context(WebhookLoadReceiver(run.workplace))
        portal = stack.enter_context(start_blocking_portal())
        nameserver = stack.enter_context(portal.wrap_async_context_manager(Nameserver()))
        nameserver.records[NAME, "A"] = ["127.0.0.1"]
        nameserver.ttl = 3600
        with run.status("creating a cluster, and three databases with a thousand accounts each"):
            commit, modules = _sources(run.options.before, run.workplace)
            datasets = {name: _dataset(cluster, run.workplace, name, modules[name]) for name in (BEFORE, NOW, AGAIN)}
            certificate = submission.make_certificate(run.workplace)
        bench = Bench(run, QUICK if run.is_quick else whole, datasets, certificate, receiver, nameserver)
        found: dict[str, Runs] = {}
        for name in loads:
            title, load = LOADS[name]
            run.say(f"{name}: {title}")
            found[name] = load(bench)
    made = Report(
        name="commits",
        title="What a change costs",
        target=f"bench-commits BEFORE={commit}",
        machine=report.machine(),
        tables=[_table(name, rows, commit) for name, rows in found.items()],
        goals=goals(found),
        notes=report.notes("commits", rounds=run.rounds, seconds=bench.scale.seconds, commit=commit),
    )
    if run.options.output:
        return made
    made.show(run.console)
    return None


def _sources(commit: str, workplace: Path) -> tuple[str, dict[str, Path]]:
    """The commit's short name, and the directory of each variant's modules: all are copies, so that all are alike."""

    def git(*words: str) -> bytes:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)
        if done.returncode:
            raise BenchError(f"git {' '.join(words)}: {done.stderr.decode().strip()}")
        return done.stdout

    name = git("rev-parse", "--short", f"{commit}^{{commit}}").decode().strip()
    earlier, present = workplace / "earlier", workplace / "present"
    earlier.mkdir()
    subprocess.run(["tar", "-x"], input=git("archive", name, "src"), cwd=earlier, check=True)
    shutil.copytree(ROOT / "src", present / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return name, {BEFORE: earlier / "src", NOW: present / "src", AGAIN: present / "src"}


def _dataset(cluster: PrivatePostgres, workplace: Path, variant: str, modules: Path) -> Dataset:
    database = variant.replace(" ", "_")
    directory = workplace / database
    directory.mkdir()
    return dataset.make(cluster, directory, database, modules)


def _table(load: str, rows: Runs, commit: str) -> Rows:
    parts = list(rows[NOW][0].server_us)
    lines = []
    for name, runs in rows.items():
        cells = [f"{name}, {commit}" if name == BEFORE else name]
        for part in parts:
            cells.append(f"{median(run.server_us[part] for run in runs):,.0f}")
            cells.append(spread(costs(rows, name, COMPARED[name], part)) if name in COMPARED else "–")
        lines.append(cells)
    columns = [column for part in parts for column in (f"{part} µs", "to the row above")]
    return Rows(f"{load}: {LOADS[load][0]}", ("Code", *columns), lines)


def goals(found: Mapping[str, Runs]) -> list[Goal]:
    made = []
    for load, rows in found.items():
        cost, twin = costs(rows, NOW, BEFORE), costs(rows, AGAIN, NOW)
        text = f"{load} costs {spread(cost)} of Python (≤ {COST_MAX:.0%}); the same code again {spread(twin)}"
        made.append(goal(median(cost) <= COST_MAX, text))
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    parser = harness.parser(__doc__, rounds=ROUNDS, seconds=SECONDS)
    parser.set_defaults(output=None)
    parser.add_argument("--before", required=True, help="the commit to compare with")
    parser.add_argument("--loads", default=",".join(LOADS), help=f"some of {','.join(LOADS)}")
    options = parser.parse_args(arguments)
    loads = options.loads.split(",")
    if not set(loads) <= set(LOADS):
        parser.error(f"--loads takes some of {','.join(LOADS)}")
    return harness.main(options, lambda run: measure(run, loads), wrk_load.missing)


if __name__ == "__main__":
    sys.exit(main())
