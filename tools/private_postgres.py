"""A PostgreSQL cluster of one's own: in a directory, on the loopback alone, ending with its parent.

Needs nothing but the standard library and PostgreSQL's own programs, so that tests, benchmarks and a
first try of the service all start the same real server:

    python tools/private_postgres.py run --directory .run/postgres --port 54329
    python tools/private_postgres.py run -- posthouse migrate
"""

from __future__ import annotations

import argparse
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, Literal

StopMode = Literal["smart", "fast", "immediate"]

OLDEST_VERSION: Final = 15
START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 60.0
POLL_SECONDS: Final = 0.02
# Below 32768, where Linux begins with the ports that it gives away by itself, and above the well-known ones.
FREE_PORTS: Final = (12_000, 32_000)
FREE_PORT_DRAWS_MAX: Final = 100
# A Unix socket's path must fit into sockaddr_un.
SOCKET_PATH_BYTES_MAX: Final = 107

DEFAULT_SETTINGS: Final[Mapping[str, str]] = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "max_connections": "200",
    # A day's partitions of every large table, in one transaction, are many locks.
    "max_locks_per_transaction": "256",
    "shared_buffers": "256MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
}

_STOP_SIGNALS: Final[Mapping[StopMode, signal.Signals]] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}

_ACCESS: Final = """\
local all all trust
host  all all 127.0.0.1/32 trust
"""


class PostgresError(RuntimeError):
    """The cluster could not be made or started; the text says what to do."""


class PrivatePostgres:
    """A running cluster. Make one with `PrivatePostgres.start()`; stop it, or leave its `with` block."""

    def __init__(
        self,
        directory: Path,
        port: int,
        settings: Mapping[str, str],
        environment: Mapping[str, str],
        *,
        temporary: bool,
    ) -> None:
        self.directory = directory
        self._environment = environment
        self.port = port
        self._settings = {**DEFAULT_SETTINGS, **settings}
        self._temporary = temporary
        self._binaries = find_binaries()
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls,
        directory: Path | None = None,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        *,
        below: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> PrivatePostgres:
        """Makes the cluster if `directory` holds none, starts it, returns when it answers.

        Without a directory the data lives in a temporary one (made `below` that one, if it is given) and goes
        away on `stop`. The server gets `environment` besides its own.
        """
        temporary = directory is None
        home = (
            Path(tempfile.mkdtemp(prefix="posthouse-postgres-", dir=below))
            if directory is None
            else directory.resolve()
        )
        cluster = cls(home, port or free_port(), settings or {}, environment or {}, temporary=temporary)
        try:
            cluster._make()
            cluster._run()
        except BaseException:
            cluster.stop("immediate")
            raise
        return cluster

    def __enter__(self) -> PrivatePostgres:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # What is thrown away needs no last checkpoint, which would sync every file of it.
        self.stop("immediate" if self._temporary else "fast")

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    @property
    def pid(self) -> int:
        """The postmaster's process id."""
        if self._process is None:
            raise PostgresError("this cluster is not running; call restart()")
        return self._process.pid

    @property
    def log(self) -> Path:
        return self.directory / "postgres.log"

    def stop(self, mode: StopMode = "fast") -> None:
        self._end(_STOP_SIGNALS[mode])
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def kill(self) -> None:
        """SIGKILL to the postmaster: what a crash of the machine's memory killer looks like."""
        self._end(signal.SIGKILL)

    def restart(self, mode: StopMode = "fast") -> None:
        """Stops the server in the given manner (if it still runs) and starts it on the same data and port."""
        self._end(_STOP_SIGNALS[mode])
        self._run()

    def create_database(self, name: str, template: str = "template1") -> None:
        """Creates the database, as a copy of the template, unless it is there already."""
        identifier, source = (one.replace('"', '""') for one in (name, template))
        creating = f'CREATE DATABASE "{identifier}" TEMPLATE "{source}"'
        wanted, statement = (one.replace("'", "''") for one in (name, creating))
        self._tell(
            f"SELECT '{statement}' WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = '{wanted}')", "\\gexec"
        )

    def drop_database(self, name: str) -> None:
        """The database is gone, and whoever was still connected to it is cut off."""
        identifier = name.replace('"', '""')
        self._tell(f'DROP DATABASE IF EXISTS "{identifier}" WITH (FORCE)')

    # -- how it is done ------------------------------------------------------------------------------

    def _tell(self, *lines: str) -> None:
        command = [str(self._binaries / "psql"), "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", self.url()]
        _checked(command, typed="\n".join(lines))

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _make(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        _give_to_postgres(self.directory)
        if (self._data / "PG_VERSION").exists():
            return
        initdb = [
            str(self._binaries / "initdb"),
            f"--pgdata={self._data}",
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
        ]
        if self._temporary:
            initdb.append("--no-sync")  # a cluster that nobody returns to need not survive a power cut
        _checked([*_as_postgres(), *initdb], directory=self.directory)
        (self._data / "pg_hba.conf").write_text(_ACCESS)

    def _run(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            log_start = self.log.stat().st_size if self.log.exists() else 0
            self._spawn()
            if self._wait_until_ready(deadline):
                return
            said = self.log.read_text(errors="replace")[log_start:] if self.log.exists() else ""
            self._process = None
            # After kill(), the orphaned backends need a moment to notice and let go of the memory.
            if "shared memory block" not in said or time.monotonic() > deadline:
                raise PostgresError(f"PostgreSQL did not start; its log {self.log} ends:\n{said[-2000:]}")
            time.sleep(0.1)

    def _spawn(self) -> None:
        sockets = str(self.directory)
        if len(os.fsencode(f"{sockets}/.s.PGSQL.{self.port}")) > SOCKET_PATH_BYTES_MAX:
            sockets = ""  # TCP on the loopback does as well
        settings = {
            **self._settings,
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": sockets,
        }
        postgres = [str(self._binaries / "postgres"), "-D", str(self._data)]
        for name, value in settings.items():
            postgres += ["-c", f"{name}={value}"]
        if self._environment:
            # For the server alone: the program that changes the user must not see it.
            postgres = ["env", *(f"{name}={value}" for name, value in self._environment.items()), *postgres]
        with self.log.open("ab") as log:
            # In a session of its own, so that Ctrl-C reaches this program first and stops it in order.
            self._process = subprocess.Popen(
                [*_as_postgres(ends_with_parent=True), *postgres],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _wait_until_ready(self, deadline: float) -> bool:
        """True once the server answers; False when it ended instead."""
        process = self._process
        assert process is not None
        while time.monotonic() < deadline:
            if process.poll() is not None:
                return False
            if self._says_ready(process.pid) and _answers(self.port):
                return True
            time.sleep(POLL_SECONDS)
        self._end(signal.SIGKILL)
        return False

    def _says_ready(self, pid: int) -> bool:
        # postmaster.pid: the first line is the process id, the eighth its state. A file left by a
        # killed server names another process, and a foreign server on our port writes no file here.
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except (FileNotFoundError, PermissionError):
            return False
        return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGQUIT)
            process.wait(STOP_SECONDS_MAX)


def find_binaries() -> Path:
    """The directory with `postgres` and `initdb`, of the newest PostgreSQL installed."""
    candidates: list[Path] = []
    pg_config = shutil.which("pg_config")
    if pg_config:
        answer = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        candidates.append(Path(answer.stdout.strip()))
    candidates += Path("/usr/lib/postgresql").glob("*/bin")
    candidates += [Path(part) for part in os.environ.get("PATH", "").split(os.pathsep) if part]
    versions = {
        path: _version(path / "postgres")
        for path in candidates
        if all(os.access(path / program, os.X_OK) for program in ("postgres", "initdb", "psql"))
    }
    newest = max(versions, key=lambda path: versions[path], default=None)
    if newest is None or versions[newest] < OLDEST_VERSION:
        raise PostgresError(
            f"PostgreSQL {OLDEST_VERSION} or newer was not found: install it "
            "(Debian, Ubuntu: `apt install postgresql`; macOS: `brew install postgresql@17`) "
            "or put the directory with `postgres` and `initdb` on PATH"
        )
    return newest


def free_port() -> int:
    """A port on which nobody listens, for a program that is yet to be started.

    It is none of those that the kernel gives to connections and to whoever asks for any port, so that in the
    meantime only a second caller of this can take it, and that one would have to draw the same number.
    """
    drawing = random.SystemRandom()
    for _ in range(FREE_PORT_DRAWS_MAX):
        port = drawing.randrange(*FREE_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise PostgresError(f"no free port was found between {FREE_PORTS[0]} and {FREE_PORTS[1]}")


def _version(program: Path) -> int:
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    words = answer.split()  # postgres (PostgreSQL) 15.8 (Debian …), or 18beta1
    digits = words[2].split(".")[0] if len(words) > 2 else ""
    return int("".join(character for character in digits[:2] if character.isdigit()) or 0)


def _as_postgres(*, ends_with_parent: bool = False) -> list[str]:
    """The words before a command that make it run as an ordinary user; PostgreSQL refuses to be root."""
    setpriv = shutil.which("setpriv")
    # The kernel forgets the parent-death signal when the user changes, so setpriv sets both, in order.
    with_parent = ["--pdeathsig", "INT"] if ends_with_parent else []
    if os.geteuid() == 0:
        if setpriv is None:
            raise PostgresError("run this as an ordinary user, or install util-linux (for `setpriv`)")
        _postgres_user()
        return [setpriv, "--reuid", "postgres", "--regid", "postgres", "--init-groups", *with_parent]
    return [setpriv, *with_parent] if setpriv and ends_with_parent else []


def _postgres_user() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        raise PostgresError(
            "PostgreSQL refuses to run as root and there is no user `postgres`: "
            "create it (`useradd --system postgres`) or run this as an ordinary user"
        ) from None


def _give_to_postgres(directory: Path) -> None:
    if os.geteuid() == 0:
        user = _postgres_user()
        os.chown(directory, user.pw_uid, user.pw_gid)
    directory.chmod(0o700)


def _checked(command: Sequence[str], directory: Path | None = None, typed: str = "") -> str:
    done = subprocess.run(command, cwd=directory, input=typed, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PostgresError(f"{Path(command[0]).name} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 (the shape of a signal handler)
    sys.exit(128 + number)


def _run_to_its_end(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """The cluster outlives the command: a signal to end is passed on, and its end awaited."""
    process = subprocess.Popen(command, env=environment)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: process.send_signal(number))
    return process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    run = parser.add_subparsers(dest="act", required=True).add_parser(
        "run", help="start the cluster; run a command against it, or stay until interrupted"
    )
    run.add_argument("--directory", type=Path, help="where the data stays (default: temporary)")
    run.add_argument("--port", type=int, help="port on 127.0.0.1 (default: a free one)")
    run.add_argument("--database", default="posthouse", help="database to create and name in the URL")
    run.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a PostgreSQL setting")
    run.add_argument("command", nargs="*", help="after `--`: what to run with POSTHOUSE_DATABASE__URL set")
    given = parser.parse_args(arguments)
    settings = dict(pair.split("=", 1) for pair in given.set)
    signal.signal(signal.SIGTERM, _leave)
    try:
        with PrivatePostgres.start(given.directory, given.port, settings) as cluster:
            cluster.create_database(given.database)
            address = cluster.url(given.database)
            if given.command:
                return _run_to_its_end(given.command, {**os.environ, "POSTHOUSE_DATABASE__URL": address})
            print(f"PostgreSQL answers at {address} (Ctrl-C stops it; log: {cluster.log})", flush=True)
            signal.pause()
    except KeyboardInterrupt:
        return 0
    except PostgresError as error:
        print(f"private_postgres: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
