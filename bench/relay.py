"""A contestant at work, and what one measurement of it came to."""

import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.load import LoadError
from bench.processes import cpu_seconds
from bench.sink import Sink

# What a relay still does after its last mail: the end of a queue file, of a connection.
SETTLE_SECONDS: Final = 0.5
LOAD_STOP_SECONDS_MAX: Final = 30.0

_GREETING: Final = b"220"

# Longer than any part of ours takes to end in order.
STOP_SECONDS_MAX: Final = 40.0

Process = subprocess.Popen[bytes]


@dataclass(frozen=True, slots=True)
class Relay:
    """`families` are the processes, by id, whose time is the relay's, with all their descendants'.

    `start_load` starts so many mails on their way, `end_load` sees to it that all of them were taken.
    `require_well` raises when the relay runs no more. `finish` returns once nothing is left to do, and
    raises unless all is as it should be.
    """

    families: Mapping[str, int]
    start_load: Callable[[int], Process]
    end_load: Callable[[Process, int], None]
    require_well: Callable[[], None]
    finish: Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Relayed:
    """Processor time is in microseconds a mail. `finished_seconds` is how long after the last mail all was done."""

    mails: int
    seconds: float
    finished_seconds: float
    relay_cpu_us: Mapping[str, float]
    sink_cpu_us: float
    load_cpu_us: float

    @property
    def per_second(self) -> float:
        return self.mails / self.seconds

    @property
    def cpu_us(self) -> float:
        return sum(self.relay_cpu_us.values())


def measured(relay: Relay, sink: Sink, mails: int) -> Relayed:
    """From the load's start to the sink's last mail; raises unless exactly so many came."""
    before_count = sink.count
    before = _reading(relay, sink)
    started_at = time.monotonic()
    load = relay.start_load(mails)

    def require_well() -> None:
        if load.poll() not in (None, 0):
            relay.end_load(load, mails)
        relay.require_well()

    try:
        ended_at = sink.wait_for(before_count + mails, require_well)
        relay.end_load(load, mails)
    finally:
        if load.poll() is None:
            load.kill()
            load.wait()
    relay.finish(mails)
    finished_at = time.monotonic()
    time.sleep(SETTLE_SECONDS)
    if sink.count != before_count + mails:
        raise LoadError(f"{mails:,} mails were sent, and the sink has {sink.count - before_count:,}")
    passed = {name: late - before[name] for name, late in _reading(relay, sink).items()}
    each_us = {name: seconds / mails * 1e6 for name, seconds in passed.items()}
    return Relayed(
        mails=mails,
        seconds=ended_at - started_at,
        finished_seconds=finished_at - ended_at,
        relay_cpu_us={name: each_us[name] for name in relay.families},
        sink_cpu_us=each_us[_SINK],
        load_cpu_us=each_us[_LOAD],
    )


def ended_well(load: Process, mails: int) -> None:
    """An `end_load` for a load that ends by itself."""
    _, said = load.communicate(timeout=LOAD_STOP_SECONDS_MAX)
    if load.returncode != 0:
        raise LoadError(f"the load of {mails:,} mails failed: {said.decode(errors='replace')[-2000:]}")


def ends_with_parent(how: str = "TERM") -> list[str]:
    """The words before a command that make it end with its parent, where the system can do that."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", how] if setpriv else []


@contextmanager
def part_running(words: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[Process]:
    """`posthouse run` with these words, in the log's directory, until it is left."""
    with log.open("wb") as written:
        process = subprocess.Popen(
            [*ends_with_parent(), sys.executable, "-m", "posthouse", "run", *words],
            env=environment,
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def answers(port: int) -> bool:
    """Whether an SMTP server greets there."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            greeting = connection.recv(512)
            connection.sendall(b"QUIT\r\n")
            return greeting.startswith(_GREETING)
    except OSError:
        return False


_SINK: Final = "the sink"
_LOAD: Final = "the load"


def _reading(relay: Relay, sink: Sink) -> dict[str, float]:
    """Seconds of processor time so far, by name."""
    # The load is the only child that starts and is waited for between two readings.
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        **{name: cpu_seconds(pid) for name, pid in relay.families.items()},
        _SINK: cpu_seconds(sink.pid),
        _LOAD: children.ru_utime + children.ru_stime,
    }
