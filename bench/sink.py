"""The sink that every relay delivers to: one smtp-sink for a whole run, and its counter.

With -c it writes its counters anew at every message, each time followed by a carriage return. They go
into a pipe that is emptied every few milliseconds, so that the reading costs the machine nothing, and
the moment of a message is known to within that time.
"""

import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Final, Self

from bench.load import LoadError
from tools.private_postgres import free_port

CONNECTIONS_MAX: Final = 1_000
READ_SECONDS: Final = 0.005
# 200,000 updates: more than ever come within one reading.
PIPE_BYTES: Final = 2**20
START_SECONDS_MAX: Final = 10.0
STALL_SECONDS_MAX: Final = 60.0

_COUNTER: Final = b"mesg="
_END: Final = b"\r"


def program() -> str | None:
    return shutil.which("smtp-sink") or shutil.which("smtp-sink", path="/usr/sbin")


class Sink:
    """`with Sink() as sink:`; `count` only grows."""

    def __init__(self) -> None:
        self.port = free_port()
        self.count = 0
        self.counted_at = time.monotonic()
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._is_over = threading.Event()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [
                *_as_nobody(),
                str(program()),
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
        """The moment at which so many had come; raises when none come any more, or what sends them fails."""
        seen, seen_at = self.count, time.monotonic()
        while self.count < count:
            time.sleep(READ_SECONDS)
            require_well()
            if self.count > seen:
                seen, seen_at = self.count, time.monotonic()
            elif time.monotonic() - seen_at > STALL_SECONDS_MAX:
                raise LoadError(f"the sink waits for {count - self.count:,} more mails, and none come")
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


def _as_nobody() -> list[str]:
    """The words before a command that let it end with its parent, and not be root, which the sink refuses to be."""
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0:
        return [setpriv, "--pdeathsig", "TERM"] if setpriv else []
    if setpriv is None:
        raise LoadError("run this as an ordinary user, or install util-linux (for `setpriv`)")
    nobody = pwd.getpwnam("nobody")
    # The kernel forgets the signal when the user changes, so setpriv sets both, in order.
    who = [f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
    return [setpriv, *who, "--pdeathsig", "TERM"]
