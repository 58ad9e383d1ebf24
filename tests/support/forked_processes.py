"""Processes of the service that are there at once: forked from one that has loaded all of it and done nothing yet.

For tests that end a process often. Each runs what its command runs, has nothing in common with its siblings, and can
be killed like any other; only the second or so that Python takes to load is spent once.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

ROOT: Final = Path(__file__).resolve().parents[2]


class ForkedProcesses:
    def __init__(self, environment: Mapping[str, str], directory: Path) -> None:
        self._environment = dict(environment)
        self._directory = directory
        self._parent: subprocess.Popen[str] | None = None
        self.alive: list[int] = []
        self.ended: list[int] = []

    def __enter__(self) -> Self:
        path = os.pathsep.join([str(ROOT), *filter(None, [self._environment.get("PYTHONPATH")])])
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forked_processes"],
            env={**self._environment, "PYTHONPATH": path},
            cwd=self._directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._answer()
        return self

    def __exit__(self, *failure: object) -> None:
        assert self._parent is not None
        with suppress(ProcessLookupError):
            os.killpg(self._parent.pid, signal.SIGKILL)
        self._parent.communicate()

    def start(self, *words: str) -> int:
        """`posthouse` with these words; the id of the process, whose log is named after it."""
        assert self._parent is not None
        assert self._parent.stdin is not None
        self._parent.stdin.write(json.dumps(words) + "\n")
        self._parent.stdin.flush()
        self.alive.append(self._answer())
        return self.alive[-1]

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self.alive.remove(pid)
        self.ended.append(pid)

    def said(self, pid: int) -> str:
        return (self._directory / f"{pid}.log").read_text(errors="replace")[-4_000:]

    def _answer(self) -> int:
        assert self._parent is not None
        assert self._parent.stdout is not None
        return int(self._parent.stdout.readline())


def owner_of(local_port: int, pids: list[int]) -> int | None:
    """Which of the processes has the connection that begins at this port of the loopback."""
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


def _parent() -> None:
    # What the commands load only when they need it.
    import aiohttp  # noqa: F401
    import asyncpg  # noqa: F401
    import nats  # noqa: F401
    import uvloop  # noqa: F401

    import posthouse.compose.http
    import posthouse.compose.run
    import posthouse.flows.webhooks.sender
    import posthouse.wire.stream.jetstream
    import posthouse.wire.stream.leases  # noqa: F401
    from posthouse.cli.app import app

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    print(os.getpid(), flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with Path(f"{os.getpid()}.log").open("wb") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        with Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        app(json.loads(line))


if __name__ == "__main__":
    _parent()
