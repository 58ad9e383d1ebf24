"""Counts what an accepted and a delivered message cost: calls in Python, by package, and system calls.

    make count                                    (or: python bench/count.py)

Times differ between machines and from minute to minute; calls don't. The service is the same as in `bench-accept` and
in `bench-deliver`, without DKIM, and so is the mail. A profiler counts the calls of one run, strace the system calls of
the next; a quick run leaves those out. Calls differ between versions of Python.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import dataset, deliver, harness, message, report, smtp_sink, wrk_load
from bench.dataset import EmptyServices, with_connection
from bench.deliver import PosthouseRelay, Setup
from bench.harness import Run
from bench.processes import BenchError, Process, ends_with_parent
from bench.report import Report, Rows
from bench.smtp_sink import Sink
from tools.private_postgres import PrivatePostgres

MESSAGES: Final = 2_000
LOAD_SECONDS_MAX: Final = 600
POLL_SECONDS: Final = 0.05
WRITTEN_SECONDS_MAX: Final = 30.0
# The packages and system calls that have their own row; the others are added up.
ROWS_MAX: Final = 12

ACCEPTED: Final = "accepted"
DELIVERED: Final = "delivered"

# Python runs this module, if it finds it, before any other. A signal begins the count, the next one writes it.
_PROFILER: Final = """\
import cProfile
import json
import signal
from pathlib import Path

profiles = []


def package(file):
    if file.startswith("~"):
        return "built in"
    if "/site-packages/" in file:
        return file.partition("/site-packages/")[2].partition("/")[0].removesuffix(".py")
    if "/posthouse/" in file:
        return "posthouse"
    return "Python's library" if file.startswith("/") else "frozen and generated"


def begin_or_write(*_):
    if not profiles:
        profiles.append(cProfile.Profile())
        profiles[0].enable()
        return
    profile = profiles.pop()
    profile.disable()
    counts = {}
    for entry in profile.getstats():
        file = "~" if isinstance(entry.code, str) else entry.code.co_filename
        name = package(file)
        counts[name] = counts.get(name, 0) + entry.callcount - entry.reccallcount
    path = Path(__file__).with_name("counts.json")
    part = path.with_suffix(".part")
    part.write_text(json.dumps(counts))
    part.rename(path)


signal.signal(signal.SIGUSR1, begin_or_write)
"""

_ACCEPTED: Final = "SELECT count(*) FROM messages"
_STRACE_ROW: Final = re.compile(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(\w+)$", re.MULTILINE)

Counts = Mapping[str, float]
"""For each message, by name."""


@dataclass(frozen=True, slots=True)
class Counted:
    calls: Counts
    system_calls: Counts


def missing() -> str | None:
    if shutil.which("strace") is None:
        return "strace is missing: install it (Debian, Ubuntu: `apt install strace`)"
    return None


Load = Callable[[str], int]
"""Sends messages, and returns how many when they are accepted or delivered; each load has its name."""


@dataclass(frozen=True, slots=True)
class Counter:
    """Counts in a process that was started with the profiler in `modules`."""

    modules: Path
    with_system_calls: bool

    def count(self, process: Process, load: Load) -> Counted:
        load("warm")
        calls = self._calls(process, load)
        return Counted(calls, self._system_calls(process, load) if self.with_system_calls else {})

    def _calls(self, process: Process, load: Load) -> Counts:
        path = self.modules / "counts.json"
        process.send_signal(signal.SIGUSR1)
        messages = load("counted")
        process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + WRITTEN_SECONDS_MAX
        while not path.exists():
            if time.monotonic() > deadline:
                raise BenchError("the service did not write what it counted")
            time.sleep(0.02)
        counts: dict[str, int] = json.loads(path.read_text())
        path.unlink()
        return _each(counts, messages)

    def _system_calls(self, process: Process, load: Load) -> Counts:
        command = [*ends_with_parent(), "strace", "-c", "-f", "-p", str(process.pid)]
        tracer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert tracer.stderr is not None
        attached = tracer.stderr.readline()
        if "attached" not in attached:
            tracer.kill()
            raise BenchError(f"strace can't follow the service: {attached}{tracer.communicate()[1]}")
        messages = load("traced")
        tracer.send_signal(signal.SIGINT)
        table = tracer.communicate(timeout=WRITTEN_SECONDS_MAX)[1]
        counts = {name: int(count) for count, name in _STRACE_ROW.findall(table) if name != "total"}
        return _each(counts, messages)


def _each(counts: Mapping[str, int], messages: int) -> Counts:
    return {name: count / messages for name, count in counts.items()}


def _accepted(run: Run, cluster: PrivatePostgres, counter: Counter) -> Counted:
    data = dataset.make(cluster, run.workplace, "accepted")
    with wrk_load.http_server({**data.environment, **dataset.with_modules(counter.modules)}, run.workplace) as server:
        requests = [wrk_load.post(sender.basic, message.fields(sender.domain), server.port) for sender in data.senders]

        expected = 0

        def load(name: str) -> int:
            nonlocal expected
            expected += MESSAGES
            sent = wrk_load.start(server, requests, seconds=LOAD_SECONDS_MAX, name=name, most=MESSAGES)
            while with_connection(data.url, lambda connection: connection.fetchval(_ACCEPTED)) < expected:
                if sent.poll() is not None:
                    raise BenchError(f"not every message was accepted: {wrk_load.result(sent)}")
                time.sleep(POLL_SECONDS)
            sent.send_signal(signal.SIGINT)
            wrk_load.result(sent, WRITTEN_SECONDS_MAX)
            return MESSAGES

        return counter.count(server.process, load)


async def _delivered(run: Run, cluster: PrivatePostgres, counter: Counter) -> Counted:
    dataset.migrate(cluster, run.workplace)
    (unsigned,) = (relay for relay in deliver.RELAYS if relay.key == "unsigned")
    with Sink() as sink:
        setup = Setup(sink, run.workplace, services=EmptyServices(cluster, run.workplace))
        async with unsigned.running(setup) as relay:
            assert isinstance(relay, PosthouseRelay)

            def load(_: str) -> int:
                expected = sink.count + MESSAGES
                started = relay.start_load(MESSAGES)
                sink.wait_for(expected, relay.require_running)
                relay.end_load(started, MESSAGES)
                dataset.wait_until_delivered(relay.processes.database_url)
                return MESSAGES

            # The loop keeps running meanwhile: it answers DNS.
            return await asyncio.to_thread(counter.count, relay.processes.parts[-1].running, load)


@contextmanager
def _profiled(modules: Path) -> Iterator[None]:
    """Processes that are started in this block can count their calls."""
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(_PROFILER)
    os.environ |= dataset.with_modules(modules)
    try:
        yield
    finally:
        del os.environ["PYTHONPATH"]


def measure(run: Run) -> Report:
    counter = Counter(run.workplace / "profiler", with_system_calls=not run.is_quick)
    with PrivatePostgres.start(settings=dataset.CLUSTER_SETTINGS) as cluster, _profiled(counter.modules):
        with run.status("messages are accepted"):
            accepted = _accepted(run, cluster, counter)
        with run.status("messages are delivered"):
            delivered = asyncio.run(_delivered(run, cluster, counter))
    counted = {ACCEPTED: accepted, DELIVERED: delivered}
    return Report(
        name="count",
        title="Calls for a message",
        target="count",
        machine=report.machine(),
        tables=[
            _table("Calls in Python", "Package", {name: each.calls for name, each in counted.items()}, "{:,.0f}"),
            _table("System calls", "Call", {name: each.system_calls for name, each in counted.items()}, "{:,.2f}"),
        ],
        goals=[],
        notes=report.notes("count"),
    )


def _table(title: str, first: str, columns: Mapping[str, Counts], form: str) -> Rows:
    names = {name for counts in columns.values() for name in counts}
    by_size = sorted(names, key=lambda name: -sum(counts.get(name, 0) for counts in columns.values()))
    shown, others = by_size[:ROWS_MAX], by_size[ROWS_MAX:]
    rows = [[name, *(form.format(counts.get(name, 0)) for counts in columns.values())] for name in shown]
    rows.append(["others", *(form.format(sum(counts.get(name, 0) for name in others)) for counts in columns.values())])
    rows.append(["all", *(form.format(sum(counts.values())) for counts in columns.values())])
    return Rows(title, (first, *columns), rows)


def main(arguments: list[str] | None = None) -> int:
    options = harness.parser(__doc__, rounds=1).parse_args(arguments)
    needed = [wrk_load.missing, smtp_sink.missing] if options.quick else [missing, wrk_load.missing, smtp_sink.missing]
    return harness.main(options, measure, *needed)


if __name__ == "__main__":
    sys.exit(main())
