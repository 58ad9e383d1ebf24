"""The service as a real process, which can be killed and started again at the same port, and a client of it."""

import asyncio
import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

import aiohttp
import asyncpg

from tests.support import preloaded
from tests.support.command_operator import CommandOperator
from tests.support.eventually import HANG_SECONDS
from tests.support.operator_client import Operator
from tests.support.service import Service, service_settings, settings_for
from tools.private_postgres import free_port

# The service's own timeouts with PostgreSQL; other tests wait longer, because their machine may stand still.
USUAL_PATIENCE: Final = {"DATABASE__TIMEOUT_FACTOR": "1"}
LOG_CHARACTERS_SHOWN: Final = 4_000
# Modules are compiled once for all processes that tests start, whatever the environment says about bytecode.
_COMPILED: Final = Path(tempfile.gettempdir()) / f"posthouse-compiled-{os.getuid()}"


def environment(database_url: str, **settings: str) -> dict[str, str]:
    """The environment of a process: this one's without its POSTHOUSE_ settings, and with those given."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("POSTHOUSE_") and name != "PYTHONDONTWRITEBYTECODE"
    }
    return {**kept, "PYTHONPYCACHEPREFIX": str(_COMPILED), **settings_for(database_url, **settings)}


@dataclass(slots=True)
class ServerProcess:
    """`posthouse run` with the parts named in `words`, in its own process group: one signal ends it and its workers.

    Only a process with `http` among its parts can be awaited with `ready`.
    """

    database_url: str
    log: Path
    settings: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    words: tuple[str, ...] = ("http",)
    # The `posthouse` of another version; None is this one.
    program: Path | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def running(self) -> subprocess.Popen[bytes]:
        assert self.process is not None, "the server was not started"
        return self.process

    def spawn(self, processes: int = 1) -> None:
        more = ("--processes", str(processes)) if processes > 1 else ()
        own = environment(self.database_url, HTTP__PORT=str(self.port), **self.settings)
        words = ("run", *self.words, *more)
        directory = self.log.parent  # without a posthouse.toml
        with self.log.open("ab") as written:
            if self.program is None:
                self.process = preloaded.start(
                    *words, environment=own, directory=directory, output=written, new_session=True
                )
            else:
                self.process = subprocess.Popen(
                    [self.program, *words],
                    env=own,
                    cwd=directory,
                    stdout=written,
                    stderr=written,
                    start_new_session=True,
                )

    async def start(self, processes: int = 1) -> None:
        self.spawn(processes)
        await self.ready()

    async def ready(self) -> None:
        deadline = asyncio.get_running_loop().time() + HANG_SECONDS
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=HANG_SECONDS)) as client:
            while True:
                if self.running.poll() is not None:
                    raise RuntimeError(f"the server ended with {self.running.returncode}:\n{self.said()}")
                try:
                    async with client.get(f"{self.url}/healthz") as response:
                        if response.status == 200:
                            return
                except (aiohttp.ClientError, TimeoutError):
                    pass
                assert asyncio.get_running_loop().time() < deadline, f"not ready in time:\n{self.said()}"
                await asyncio.sleep(0.02)  # until the port answers

    def kill(self) -> None:
        """SIGKILL to the process and all its workers."""
        if self.process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    async def terminate(self) -> int:
        """SIGTERM, as a supervisor sends it; the exit status."""
        self.running.send_signal(signal.SIGTERM)
        return await self.ended()

    async def ended(self) -> int:
        return await asyncio.to_thread(self.running.wait, HANG_SECONDS)

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-LOG_CHARACTERS_SHOWN:] if self.log.exists() else ""

    def resident_bytes(self) -> int:
        """The memory of the process without its workers."""
        for line in Path(f"/proc/{self.running.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("no VmRSS in /proc/<pid>/status")

    async def open_client(self, database_url: str = "") -> Service:
        """A client of this process; its own way to the database is `database_url` where that differs.

        `Service.close` closes it; the process runs on.
        """
        url = database_url or self.database_url
        # Idle connections are closed before the server closes them: a request would meet the closing otherwise.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
        client = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=HANG_SECONDS))
        pool = await asyncpg.create_pool(url, min_size=1, max_size=8)
        operator: Operator | CommandOperator
        if self.program is None:
            operator = await Operator.open(service_settings(url))
        else:
            operator = CommandOperator(self.program, environment(url), self.log.parent)
        return Service(self.database_url, self.port, self.log, self.running, client, cast("Operator", operator), pool)


async def start_service(database_url: str, log: Path, **settings: str) -> Service:
    """A ready HTTP process and its client; `settings` are POSTHOUSE_* without the prefix.

    `_DIRECT_URL` is the client's way to the database around a proxy that the test cuts.
    """
    server = ServerProcess(database_url, log, settings)
    try:
        await server.start()
        return await server.open_client(settings.get("_DIRECT_URL", ""))
    except BaseException:
        server.kill()
        raise
