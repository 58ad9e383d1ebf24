"""smtp-sink, which every relay delivers to and which counts for a whole run; and smtp-source, the SMTP load.

With -c the sink rewrites its counters at every message, each time followed by a carriage return. They go
into a pipe that is emptied every few milliseconds, so that the reading costs the machine nothing, and
the moment of a message is known to within that time.
"""

import fcntl
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

from bench import message
from bench.processes import BenchError, Process, ends_with_parent, installed, unprivileged
from tools.private_postgres import free_port

CONNECTIONS_MAX: Final = 1_000
READ_SECONDS: Final = 0.005
# 200,000 updates: more than ever come within one reading.
PIPE_BYTES: Final = 2**20
STALL_SECONDS_MAX: Final = 60.0

_COUNTER: Final = b"mesg="
_END: Final = b"\r"


def missing() -> str | None:
    if installed("smtp-source") is None or installed("smtp-sink") is None:
        return "smtp-source or smtp-sink is missing: they come with Postfix (Debian, Ubuntu: `apt install postfix`)"
    return None


class Sink:
    """`with Sink() as sink:`; `count` only grows."""

    def __init__(self) -> None:
        self.port = free_port()
        self.count = 0
        self.counted_at = time.monotonic()
        self._process: Process | None = None
        self._reader: threading.Thread | None = None
        self._is_over = threading.Event()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [
                *unprivileged(),
                str(installed("smtp-sink")),
                "-c",
                *("-m", str(CONNECTIONS_MAX)),
                f"127.0.0.1:{self.port}",
                str(CONNECTIONS_MAX),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        os.set_blocking(pipe, False)
        self._reader = threading.Thread(target=self._read, args=(pipe,), daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *failure: object) -> None:
        assert self._process is not None
        assert self._reader is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()
        self._is_over.set()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def wait_for(self, count: int, require_well: Callable[[], None]) -> float:
        """The moment at which this many had come; raises when none come any more, or what sends them fails."""
        seen, seen_at = self.count, time.monotonic()
        while self.count < count:
            time.sleep(READ_SECONDS)
            require_well()
            if self.count > seen:
                seen, seen_at = self.count, time.monotonic()
            elif time.monotonic() - seen_at > STALL_SECONDS_MAX:
                raise BenchError(f"the sink waits for {count - self.count:,} more messages, and none come")
        return self.counted_at

    def _read(self, pipe: int) -> None:
        rest = b""
        while not self._is_over.wait(READ_SECONDS):
            try:
                read = os.read(pipe, PIPE_BYTES)
            except BlockingIOError:
                continue
            if not read:
                return
            whole, _, rest = (rest + read).rpartition(_END)
            _, found, number = whole.rpartition(_COUNTER)
            # An update also comes when a session ends, with the number that is known already.
            if found and int(number) > self.count:
                self.counted_at = time.monotonic()
                self.count = int(number)


def write_mail(file: Path) -> None:
    file.write_bytes(message.mail().replace(b"\r\n", b"\n"))  # smtp-source ends the lines itself


def start_source(file: Path, *, port: int, messages: int, sessions: int, recipient: str = message.RECIPIENT) -> Process:
    """Sends the file this many times; ends when the server has accepted every message, or with an error."""
    return subprocess.Popen(
        [
            *ends_with_parent(),
            str(installed("smtp-source")),
            "-d",  # the next message over the same connection
            *("-s", str(min(sessions, messages))),
            *("-m", str(messages)),
            *("-M", "source.example"),
            *("-f", f"orders@{message.SENDER_DOMAIN}"),
            *("-t", recipient),
            *("-F", str(file)),
            f"127.0.0.1:{port}",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
