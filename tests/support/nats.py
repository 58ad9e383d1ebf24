"""A NATS server of one's own: JetStream on, in a temporary directory, on the loopback alone."""

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


class PrivateNats:
    """`with PrivateNats() as nats:`, or `start()` and `stop()`; the port stays the same over restarts."""

    def __init__(self) -> None:
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="posthouse-nats-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running; call start()"
        return self._process.pid

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.kill()  # what is thrown away needs no orderly end
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self) -> None:
        """Returns when JetStream answers."""
        assert self._process is None, "the server is running already"
        program = [_nats_server(), "--addr", "127.0.0.1", "--port", str(self.port)]
        program += ["--jetstream", "--store_dir", str(self.data)]
        setpriv = shutil.which("setpriv")
        ends_with_parent = [setpriv, "--pdeathsig", "KILL"] if setpriv else []
        with (self.directory / "nats.log").open("ab") as log:
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
                said = (self.directory / "nats.log").read_text(errors="replace")[-2000:]
                self.kill()
                raise RuntimeError(f"the NATS server did not start; its log ends:\n{said}")
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: no file is closed in order."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Connections stay open, nothing is answered."""
        self._running().send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def wipe(self) -> None:
        """Throw the data away, whether or not the server runs."""
        shutil.rmtree(self.data, ignore_errors=True)

    def restart(self) -> None:
        self._end(signal.SIGTERM)
        self.start()

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server is not running; call start()"
        return self._process

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
        # The greeting says `"jetstream":true` once the streams have been recovered.
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                return b'"jetstream":true' in connection.recv(4096).replace(b" ", b"")
        except OSError:
            return False


def _nats_server() -> str:
    found = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    if found is None:
        raise RuntimeError("nats-server is missing: run `make setup`")
    return found
