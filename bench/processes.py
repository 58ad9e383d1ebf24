"""Processor time of a family of processes, those that have ended included."""

import os
from pathlib import Path
from typing import Final

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
    """How long the processors, all together, have been busy since the machine was started, whoever with."""
    user, nice, system, _, _, interrupts, soft_interrupts, stolen = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + interrupts + soft_interrupts + stolen) / _TICKS_PER_SECOND


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
