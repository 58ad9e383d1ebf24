"""Child processes of a benchmark: how they start and end, their processor time, and how fast the machine is."""

import os
import pwd
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

START_SECONDS_MAX: Final = 60.0
# Longer than any part of ours takes to end in order.
STOP_SECONDS_MAX: Final = 40.0
PEER_STOP_SECONDS_MAX: Final = 20.0
LOG_CHARACTERS_SHOWN: Final = 3_000
LOAD: Final = "load"
UNPRIVILEGED_USER: Final = "nobody"

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")

Process = subprocess.Popen[bytes]
Missing = Callable[[], str | None]


class BenchError(RuntimeError):
    """There is no result; the text says why."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: a number of messages, pages, rows or events; processor time is in microseconds for each of them.

    `server_us` is of what is measured, by part; `load_us` of the load generator. `figures` are what only this
    benchmark has.
    """

    count: int
    seconds: float
    server_us: Mapping[str, float]
    load_us: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def per_second(self) -> float:
        return self.count / self.seconds

    @property
    def cpu_us(self) -> float:
        return sum(self.server_us.values())

    def __str__(self) -> str:
        waits = f", p50 {self.p50_ms:.1f} ms, p99 {self.p99_ms:.1f} ms" if self.p99_ms else ""
        costs = "".join(f", {name} {cost:,.1f}" for name, cost in self.server_us.items())
        figures = "".join(f", {name} {figure:,.3f}" for name, figure in self.figures.items())
        return (
            f"[bold]{self.per_second:,.0f}[/] a second, {self.count:,} in {self.seconds:.1f} s{waits}; "
            f"CPU µs: load {self.load_us:,.1f}{costs}{figures}"
        )


def installed(program: str) -> str | None:
    """Where a program is, including one that only root has on its path."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def ends_with_parent() -> list[str]:
    """The words before a command that make it end with its parent, where the system can do that."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM"] if setpriv else []


def unprivileged() -> list[str]:
    """The words before a command that let it end with its parent, and not be root: smtp-sink refuses that."""
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0:
        return ends_with_parent()
    if setpriv is None:
        raise BenchError("run this as an ordinary user, or install util-linux (for `setpriv`)")
    user = pwd.getpwnam(UNPRIVILEGED_USER)
    # The kernel forgets the signal when the user changes, so setpriv sets both, in order.
    who = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    return [setpriv, *who, "--pdeathsig", "TERM"]


def log_end(log: Path) -> str:
    return log.read_text(errors="replace")[-LOG_CHARACTERS_SHOWN:]


@contextmanager
def running(
    command: Sequence[str | Path],
    log: Path,
    is_ready: Callable[[], bool] = lambda: True,
    *,
    environment: Mapping[str, str] | None = None,
    ends_group: bool = False,
) -> Iterator[Process]:
    """The command in the log's directory, from when it is ready to the end of the block.

    With `ends_group` it leads a process group, and the signal to end goes to all of that.
    """
    with log.open("wb") as written:
        process = subprocess.Popen(
            [*ends_with_parent(), *command],
            env=environment,
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=ends_group,
        )

    def send(number: signal.Signals) -> None:
        if ends_group:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)

    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not is_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                words = " ".join(map(str, command))
                raise BenchError(f"`{words}` did not start:\n{log_end(log)}")
            time.sleep(0.05)
        yield process
    finally:
        if process.poll() is None:
            send(signal.SIGTERM)
        try:
            process.wait(PEER_STOP_SECONDS_MAX if ends_group else STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            send(signal.SIGKILL)
            process.wait()


def posthouse_command(*words: str) -> list[str]:
    return [sys.executable, "-m", "posthouse", *words]


# Processor time


@contextmanager
def metered(families: Mapping[str, Sequence[int]]) -> Iterator[dict[str, float]]:
    """Seconds of processor time that pass meanwhile, known afterwards: of the processes with all their descendants.

    `LOAD` is what this process starts and waits for in the block.
    """
    used: dict[str, float] = {}
    before = _reading(families)
    yield used
    used |= {name: late - before[name] for name, late in _reading(families).items()}


def microseconds(used: Mapping[str, float], count: int) -> dict[str, float]:
    """For each of this many."""
    return {name: seconds / count * 1e6 for name, seconds in used.items()}


def _reading(families: Mapping[str, Sequence[int]]) -> dict[str, float]:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        **{name: sum(cpu_seconds(pid) for pid in pids) for name, pids in families.items()},
        LOAD: children.ru_utime + children.ru_stime,
    }


def cpu_seconds(root: int) -> float:
    """User and system time of a process and of all its descendants.

    A child that ended is counted by its parent once that has waited for it, as the postmaster does for
    every backend.
    """
    family = {root}
    readings = _ticks_of_all()
    grown = True
    while grown:
        children = {pid for pid, (parent, _) in readings.items() if parent in family and pid not in family}
        family |= children
        grown = bool(children)
    return sum(readings[pid][1] for pid in family if pid in readings) / _TICKS_PER_SECOND


def _ticks_of_all() -> dict[int, tuple[int, int]]:
    """Of every process: its parent, and the ticks of its own and of the children it waited for."""
    readings = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        # The name in parentheses may hold spaces; what follows it is numbered from field 3 on.
        fields = stat.rpartition(")")[2].split()
        readings[int(entry.name)] = (int(fields[1]), sum(int(field) for field in fields[11:15]))
    return readings


def memory_mib(pid: int) -> float:
    """What the process has in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


# The machine


@dataclass(frozen=True, slots=True)
class MachineTime:
    """Seconds of all processors since the start: in all, busy with any program, and given to others by the host."""

    whole: float
    busy: float
    stolen: float

    @classmethod
    def now(cls) -> Self:
        line = Path("/proc/stat").read_text().split("\n", 1)[0]
        user, nice, system, idle, io_wait, interrupts, soft_interrupts, stolen = (
            int(ticks) / _TICKS_PER_SECOND for ticks in line.split()[1:9]
        )
        busy = user + nice + system + interrupts + soft_interrupts + stolen
        return cls(busy + idle + io_wait, busy, stolen)

    def stolen_since(self) -> float:
        """The share of the processors that the host gave to others since then."""
        now = MachineTime.now()
        return (now.stolen - self.stolen) / (now.whole - self.whole)


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the machine was over a measurement, in words: a fixed piece of Python, and the host's share."""

    before_ms: float
    began: MachineTime

    @classmethod
    def start(cls) -> Self:
        return cls(_pace_ms(), MachineTime.now())

    def text(self) -> str:
        low, high = sorted([self.before_ms, _pace_ms()])
        return (
            f"a million additions in Python took {low:.0f} ms and {high:.0f} ms before and after it, and the machine's "
            f"host kept {self.began.stolen_since():.0%} of the processors to itself meanwhile"
        )


def _pace_ms() -> float:
    """How long a million additions in Python take, at best: shows whether the machine is slowed."""
    best = float("inf")
    for _ in range(5):
        before = time.process_time()
        total = 0
        for number in range(1_000_000):
            total += number
        best = min(best, time.process_time() - before)
    return best * 1000
