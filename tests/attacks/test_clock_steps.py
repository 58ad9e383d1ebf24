"""The database's clock, the host's, or both step while mail flows: nothing expires, is charged or is dropped for it."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

import pytest

from tests.support import fresh_database
from tests.support.database_checks import database_faults
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.server_process import ServerProcess, environment
from tests.support.service import Tenant
from tests.support.service_processes import ServiceProcesses, prepare_processes
from tools.private_postgres import PrivatePostgres

FAKETIME: Final = next(iter(Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)
DEFERRED: Final = 30
HOUR: Final = 3_600
DAY: Final = 86_400
SMALL, LARGE = (1, 60), (HOUR, 4 * DAY, 40 * DAY)


@dataclass(frozen=True, slots=True)
class FakedClock:
    """The clock of a program, ahead of the true time by the amount in the file."""

    file: Path

    def step(self, seconds: int) -> None:
        # Replaced as a whole: the program reads it at any moment.
        written = self.file.with_suffix(".new")
        written.write_text(f"{seconds:+d}\n")
        written.chmod(0o644)
        written.replace(self.file)

    def __enter__(self) -> Self:
        self.step(0)
        return self

    def __exit__(self, *failure: object) -> None:
        # Programs take their time to stop.
        self.step(0)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self.file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }


@dataclass(slots=True)
class FakedProcess(ServerProcess):
    faked: FakedClock | None = None

    def spawn(self, processes: int = 1) -> None:
        assert self.faked is not None
        assert processes == 1
        given = environment(self.database_url, HTTP__PORT=str(self.port), **self.settings)
        with self.log.open("ab") as written:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "posthouse", "run", *self.words],
                env={**given, **self.faked.environment},
                cwd=self.log.parent,
                stdout=written,
                stderr=written,
                start_new_session=True,
            )


@dataclass(slots=True)
class Scene:
    processes: ServiceProcesses
    database_clock: FakedClock
    host_clock: FakedClock
    tenant: Tenant
    key: str

    async def value(self, query: str, *arguments: object) -> Any:
        return await self.processes.service.value(query, *arguments)

    async def service_time(self) -> datetime:
        found: datetime = await self.value("SELECT service_time FROM service_clock")
        return found

    async def step(self, clock: str, seconds: int) -> None:
        """Step the clock, and wait until the service has read it."""
        if clock in ("database", "both"):
            self.database_clock.step(seconds)
        if clock in ("host", "both"):
            self.host_clock.step(seconds)
        for _ in range(2):
            await eventually(self.service_time, (await self.service_time()).__lt__)

    async def check(self, label: str) -> None:
        """Service time is right, mail is delivered, and waiting recipients still wait."""
        assert abs(await self.service_time() - datetime.now(UTC)) < timedelta(seconds=20), label
        sent = await self.tenant.send(self.tenant.mail(to=["ada@prompt.example.net"]), authorization=self.key)
        assert sent.status == 202, (label, sent.body)
        (message,) = await self.processes.wait_until_final(self.tenant, [sent.body["id"]], seconds=60)
        assert message["status"] == "delivered", (label, message)
        statuses = await self.processes.service.sql("SELECT status FROM recipients WHERE email LIKE '450-%'")
        assert [row["status"] for row in statuses] == ["deferred"] * DEFERRED, label

    async def partitions(self) -> int:
        found: int = await self.value("SELECT count(*) FROM pg_inherits")
        return found

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """On another machine, whose clock is right."""
        given = environment(self.processes.database_url, **self.processes.settings)
        command = [sys.executable, "-m", "posthouse", *words]
        return subprocess.run(
            command,
            env=given,
            cwd=self.processes.directory,
            check=False,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
        )


@contextmanager
def readable_directory() -> Iterator[Path]:
    """Unlike those of pytest, one that PostgreSQL's user can read."""
    with TemporaryDirectory(prefix="posthouse-clocks-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@asynccontextmanager
async def running_scene(directory: Path) -> AsyncIterator[Scene]:
    with (
        readable_directory() as readable,
        FakedClock(readable / "database") as database_clock,
        FakedClock(readable / "host") as host_clock,
        PrivatePostgres.start(environment=database_clock.environment) as cluster,
    ):
        url = await asyncio.to_thread(fresh_database.create, cluster, "clocks")
        retries = json.dumps([600] * 9)
        async with prepare_processes(url, directory, stream="memory", DELIVERY__RETRY_MINUTES=retries) as processes:
            words = ("http", "dispatch", "delivery", "maintenance")
            part = FakedProcess(url, directory / "service.log", processes.settings, words=words, faked=host_clock)
            part.spawn()
            processes.parts.append(part)
            await part.ready()
            processes.clients.append(await part.open_client())
            tenant = await processes.service.account(credits=10_000)
            key = await tenant.key()
            expires_at = datetime.now(UTC) + timedelta(days=2)
            await processes.service.sql("UPDATE api_keys SET expires_at = $1", expires_at)
            processes.destination("prompt.example.net")
            processes.destination("later.example.net")
            scene = Scene(processes, database_clock, host_clock, tenant, key)
            recipients = [f"450-rcpt+{number}@later.example.net" for number in range(DEFERRED)]
            assert (await tenant.send(tenant.mail(to=recipients))).status == 202

            async def deferred() -> int:
                found: int = await scene.value("SELECT count(*) FROM recipients WHERE status = 'deferred'")
                return found

            await eventually(deferred, lambda count: count == DEFERRED)
            yield scene


async def play(scene: Scene, clock: str, steps: Sequence[int]) -> None:
    partitions = await scene.partitions()
    for seconds in steps:
        label = f"{clock} {seconds:+d} s"
        await scene.step(clock, seconds)
        await scene.check(label)
        if abs(seconds) >= 60 and clock != "host":
            doctor = await asyncio.to_thread(scene.command, "doctor")
            assert doctor.returncode == 1, (label, doctor.stdout)
            assert "posthouse clock accept" in doctor.stdout, label
        maintenance = await asyncio.to_thread(scene.command, "maintenance", "--force")
        assert maintenance.returncode == 0, (label, maintenance.stderr)
        assert await scene.partitions() == partitions, label
        await scene.step(clock, 0)
        await scene.check(f"after {label}")
    assert await database_faults(scene.processes.database_url) == {}
    available = await scene.value("SELECT available FROM accounts WHERE id = $1", scene.tenant.id)
    assert available == 10_000 - DEFERRED - 2 * len(steps)


pytestmark = pytest.mark.skipif(
    FAKETIME is None and "CI" not in os.environ, reason="needs libfaketime: `apt install faketime`"
)


@pytest.mark.nightly
@pytest.mark.parametrize("clock", ["database", "host", "both"])
@pytest.mark.parametrize("sign", [1, -1])
async def test_no_step_of_a_clock_costs_anything(tmp_path: Path, clock: str, sign: int) -> None:
    async with running_scene(tmp_path) as scene:
        await play(scene, clock, [sign * seconds for seconds in (*SMALL, *LARGE)])


@pytest.mark.nightly
async def test_the_operator_accepts_a_step_that_is_right(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        await scene.step("both", 4 * DAY)
        accepted = await asyncio.to_thread(scene.command, "clock", "accept")
        assert accepted.returncode == 0, accepted.stderr
        await eventually(scene.service_time, lambda time: time > datetime.now(UTC) + timedelta(days=3))
        doctor = await asyncio.to_thread(scene.command, "doctor")
        assert "posthouse clock accept" not in doctor.stdout
