"""Who used the machine's processors during a measurement."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from bench.processes import MachineTime, cpu_seconds


@dataclass(frozen=True, slots=True)
class ProcessorLoad:
    """Seconds of processor time: of the whole machine, of the service, of the attacker, and of this program."""

    machine: MachineTime
    service: float
    attacker: float
    victim: float

    @classmethod
    def now(cls, service_pid: int, attacker_pid: int) -> Self:
        return cls(MachineTime.now(), cpu_seconds(service_pid), cpu_seconds(attacker_pid), time.process_time())

    def until(self, end: Self) -> "ProcessorUse":
        """How busy the processors were, and who used them; the rest is PostgreSQL's and the machine's own."""
        whole = end.machine.whole - self.machine.whole
        parts = {
            "service": end.service - self.service,
            "attacker": end.attacker - self.attacker,
            "victim": end.victim - self.victim,
        }
        busy = end.machine.busy - self.machine.busy
        parts["PostgreSQL and others"] = busy - sum(parts.values())
        return ProcessorUse(busy / whole, {name: used / whole for name, used in parts.items()})


@dataclass(frozen=True, slots=True)
class ProcessorUse:
    """Shares of all processors."""

    busy: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.busy:.0%}: " + ", ".join(f"{name} {used:.0%}" for name, used in self.parts.items())
