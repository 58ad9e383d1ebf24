"""Processes of the service that are killed often: each starts at once, and has a log named after its process id."""

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.support import preloaded


class ForkedProcesses:
    def __init__(self, environment: Mapping[str, str], directory: Path) -> None:
        self._environment = dict(environment)
        self._directory = directory
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.alive: list[int] = []
        self.ended: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        for pid in list(self.alive):
            self.kill(pid)
        for process in self._processes.values():
            process.wait()

    def start(self, *words: str) -> int:
        """Runs `posthouse` with these words; returns the process id, after which its log is named."""
        unnamed = self._directory / f"starting-{len(self._processes)}.log"
        with unnamed.open("wb") as log:
            process = preloaded.start(
                *words, environment=self._environment, directory=self._directory, output=log, new_session=True
            )
        unnamed.rename(self._log(process.pid))
        self._processes[process.pid] = process
        self.alive.append(process.pid)
        return process.pid

    def kill(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self.alive.remove(pid)
        self.ended.append(pid)

    def said(self, pid: int) -> str:
        return self._log(pid).read_text(errors="replace")[-4_000:]

    def _log(self, pid: int) -> Path:
        return self._directory / f"{pid}.log"


def owner_of(local_port: int, pids: list[int]) -> int | None:
    """Which of the processes owns the connection from this loopback port."""
    ending = f":{local_port:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(ending):
            wanted = f"socket:[{fields[9]}]"
            return next((pid for pid in pids if wanted in _sockets(pid)), None)
    return None


def _sockets(pid: int) -> set[str]:
    found = set()
    with suppress(FileNotFoundError, ProcessLookupError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):
                found.add(os.readlink(entry.path))
    return found
