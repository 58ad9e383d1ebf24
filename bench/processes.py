"""Processor time of a family of processes, those that have ended included."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


def cpu_seconds(root: int) -> float:
    """User and system time of a process and of all its descendants.

    A child that ended is counted by its parent once that has waited for it, as the postmaster does for
    every backend.
    """
    family = {root}
    readings = _readings()
    grown = True
    while grown:
        children = {pid for pid, (parent, _) in readings.items() if parent in family and pid not in family}
        family |= children
        grown = bool(children)
    return sum(readings[pid][1] for pid in family if pid in readings) / _TICKS_PER_SECOND


def busy_seconds() -> float:
    """How long the processors, all together, have been busy since the machine was started, by any program."""
    user, nice, system, _, _, interrupts, soft_interrupts, stolen = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + interrupts + soft_interrupts + stolen) / _TICKS_PER_SECOND


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the machine was over a measurement, in words: a fixed piece of Python, and the host's share."""

    before_ms: float
    stolen: tuple[float, float]

    @classmethod
    def start(cls) -> Self:
        return cls(pace_ms(), stolen_part())

    def text(self) -> str:
        low, high = sorted([self.before_ms, pace_ms()])
        taken, whole = stolen_part(self.stolen)
        return (
            f"a million additions in Python took {low:.0f} ms and {high:.0f} ms before and after it, and the machine's "
            f"host kept {taken / whole:.0%} of the processors to itself meanwhile"
        )


def stolen_part(since: tuple[float, float] | None = None) -> tuple[float, float]:
    """Seconds of the processors that the machine's host gave to others, and all of them, since then or the start."""
    ticks = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))
    stolen, whole = ticks[7] / _TICKS_PER_SECOND, sum(ticks) / _TICKS_PER_SECOND
    return (stolen, whole) if since is None else (stolen - since[0], whole - since[1])


def pace_ms() -> float:
    """How long a million additions in Python take, at best: tells a machine that is slowed from one that isn't."""
    best = float("inf")
    for _ in range(5):
        before = time.process_time()
        total = 0
        for number in range(1_000_000):
            total += number
        best = min(best, time.process_time() - before)
    return best * 1000


def _readings() -> dict[int, tuple[int, int]]:
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
