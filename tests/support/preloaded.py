"""`posthouse` as a separate process, without the 1.6 s of CPU that importing it takes at each start.

A helper process has imported the command, and forks once for each start. The forked process runs `posthouse` as
`python -m posthouse` does, in its own directory, environment and session, and is a child of the tests' process, so
that `subprocess.Popen` waits for it. Its secrets are cheap ones. Some tests of the start itself
(`tests/entrypoints/test_run.py`) don't use this.
"""

import atexit
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final, NoReturn

import posthouse
from tests.support import faster
from tests.support.eventually import HANG_SECONDS

PR_SET_CHILD_SUBREAPER: Final = 36
_LENGTH: Final = struct.Struct("!I")
# Imported only when needed, as some modules of our own are.
_LIBRARIES: Final = ("aiohttp", "alembic.command", "nats", "sqlalchemy.dialects.postgresql.asyncpg", "uvloop")
_MIGRATIONS: Final = "posthouse.store.migrations"


def start(
    *words: str,
    environment: Mapping[str, str],
    directory: Path,
    output: IO[bytes],
    errors: IO[bytes] | None = None,
    given: IO[bytes] | None = None,
    new_session: bool = False,
) -> subprocess.Popen[bytes]:
    """`posthouse` with those words. By default errors go where the output goes, and there is no input."""
    return _helper().fork(words, environment, directory, (given, output, errors or output), new_session)


def run(
    *words: str, environment: Mapping[str, str], directory: Path, given: str = "", seconds_max: float = HANG_SECONDS
) -> subprocess.CompletedProcess[str]:
    """`posthouse` with those words, to its end."""
    with TemporaryFile() as typed, TemporaryFile() as output, TemporaryFile() as errors:
        typed.write(given.encode())
        typed.seek(0)
        process = start(*words, environment=environment, directory=directory, output=output, errors=errors, given=typed)
        try:
            status = process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        said = []
        for file in (output, errors):
            file.seek(0)
            said.append(file.read().decode())
    return subprocess.CompletedProcess(words, status, *said)


class _Forked(subprocess.Popen[bytes]):
    """A child that this process did not start itself, but may wait for."""

    def __init__(self, pid: int, words: Sequence[str]) -> None:
        self.args = ["posthouse", *words]
        self.pid = pid
        self.returncode: Any = None
        self.stdin = self.stdout = self.stderr = None
        self._child_created = True
        self._waitpid_lock = threading.Lock()
        self._sigint_wait_secs = 0.25


class _Helper:
    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "tests.support.preloaded", str(theirs.fileno())]
        self._process = subprocess.Popen(command, cwd=Path(__file__).parents[2], pass_fds=[theirs.fileno()])
        theirs.close()
        self._socket = ours
        self._lock = threading.Lock()
        atexit.register(self.close)

    def fork(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        directory: Path,
        files: tuple[IO[bytes] | None, IO[bytes], IO[bytes]],
        new_session: bool,
    ) -> subprocess.Popen[bytes]:
        request = json.dumps([words, dict(environment), str(directory), new_session]).encode()
        with open(os.devnull, "rb") as nothing, self._lock:
            descriptors = [(file or nothing).fileno() for file in files]
            # The forked process loses its parent at once, and the nearest subreaper becomes its parent.
            _become_subreaper(True)
            try:
                socket.send_fds(self._socket, [_LENGTH.pack(len(request))], descriptors)
                self._socket.sendall(request)
                (pid,) = _LENGTH.unpack(self._socket.recv(_LENGTH.size, socket.MSG_WAITALL))
            finally:
                _become_subreaper(False)
        return _Forked(pid, words)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


@cache
def _helper() -> _Helper:
    return _Helper()


def _become_subreaper(wanted: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


# In the helper


def _serve(control: socket.socket) -> None:
    """Forks once for each request. Returns in the forked process, ready to run the command, or raises SystemExit."""
    while True:
        length, descriptors, _, _ = socket.recv_fds(control, _LENGTH.size, 3)
        if not length:
            raise SystemExit
        request = control.recv(_LENGTH.unpack(length)[0], socket.MSG_WAITALL)
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid != 0:
                os.write(writing, _LENGTH.pack(pid))
                os._exit(0)
            control.close()
            _become(request, descriptors)
            for descriptor in (*descriptors, reading, writing):
                os.close(descriptor)
            return
        os.waitpid(between, 0)
        control.sendall(os.read(reading, _LENGTH.size))
        for descriptor in (*descriptors, reading, writing):
            os.close(descriptor)


def _become(request: bytes, descriptors: Sequence[int]) -> None:
    words, environment, directory, new_session = json.loads(request)
    if new_session:
        os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    faster.prepare_process()
    sys.argv = ["posthouse", *words]
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ends with its parent
    ours = (module.name for module in pkgutil.walk_packages(posthouse.__path__, "posthouse."))
    for name in (*_LIBRARIES, *ours):
        if not name.startswith(_MIGRATIONS):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    del sys.modules["posthouse.__main__"]
    try:
        runpy.run_module("posthouse", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if isinstance(ended.code, int | None):
            _exit(ended.code or 0)
        raise


def _exit(status: int) -> NoReturn:
    """Ends as Python does, without destroying each of the imported modules, which takes 0.1 s of CPU."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _main()
