"""Failover by Patroni: `deploy/patroni` with a real etcd on the loopback, the service under load, its primary lost.

`make test-patroni PATRONI=/opt/patroni/bin/patroni`: once killed, once frozen, each with its Patroni. It says how long
the service was away, and looks for every id that a sender was given.
"""

import argparse
import asyncio
import logging
import os
import pwd
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import asyncpg
import uvloop
import yaml
from rich.console import Console

from tests.failover.failover_rounds import DATABASE, IDLE_SECONDS_MAX, back_after, follow_primary, lost_ids
from tests.failover.replicated_postgres import signal_to
from tests.support.audit_report import audit_result, is_failed, show
from tests.support.eventually import eventually
from tests.support.fresh_database import prepare
from tests.support.whole_service import WholeService, log_directory, start_whole_service
from tools.private_postgres import find_binaries, free_port

FILES: Final = Path(__file__).parents[2] / "deploy" / "patroni"
PASSWORD: Final = "on-the-loopback-only"
NAMES: Final = ("one", "two", "three")
BACK_SECONDS_MAX: Final = 90.0
STEADY_SECONDS: Final = 5.0
# Not for the service: three servers share this machine.
SMALL: Final = {"shared_buffers": "64MB"}


def _as_server_user() -> list[str]:
    if os.geteuid() != 0:
        return []
    user = pwd.getpwnam("postgres")
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


@dataclass(slots=True)
class Member:
    """A server of the cluster: Patroni and its PostgreSQL."""

    name: str
    directory: Path
    etcd_port: int
    port: int = field(default_factory=free_port)
    rest_port: int = field(default_factory=free_port)
    process: "subprocess.Popen[bytes] | None" = None
    frozen: list[int] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"postgresql://postgres:{PASSWORD}@127.0.0.1:{self.port}/{DATABASE}"

    def start(self, patroni: str, configuration: Path) -> None:
        own = {
            "PATRONI_NAME": self.name,
            "PATRONI_RESTAPI_LISTEN": f"127.0.0.1:{self.rest_port}",
            "PATRONI_RESTAPI_CONNECT_ADDRESS": f"127.0.0.1:{self.rest_port}",
            "PATRONI_POSTGRESQL_LISTEN": f"127.0.0.1:{self.port}",
            "PATRONI_POSTGRESQL_CONNECT_ADDRESS": f"127.0.0.1:{self.port}",
            "PATRONI_POSTGRESQL_DATA_DIR": str(self.directory / "data"),
            "PATRONI_POSTGRESQL_BIN_DIR": str(find_binaries()),
            "PATRONI_ETCD3_HOSTS": f"127.0.0.1:{self.etcd_port}",
            "PATRONI_SUPERUSER_USERNAME": "postgres",
            "PATRONI_SUPERUSER_PASSWORD": PASSWORD,
            "PATRONI_REPLICATION_USERNAME": "replicator",
            "PATRONI_REPLICATION_PASSWORD": PASSWORD,
            "HOME": str(self.directory),
        }
        with (self.directory / "patroni.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*_as_server_user(), patroni, str(configuration)],
                env={**os.environ, **own},
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _processes(self) -> list[int]:
        """Patroni, PostgreSQL and all below them."""
        file = self.directory / "data" / "postmaster.pid"
        roots = [self.process.pid] if self.process and self.process.poll() is None else []
        if file.exists():
            roots.append(int(file.read_text().split()[0]))
        return [pid for root in roots for pid in _family(root)]

    def kill(self) -> None:
        for pid in [*self._processes(), *self.frozen]:
            signal_to(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def freeze(self) -> None:
        self.frozen = self._processes()
        for pid in self.frozen:
            signal_to(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in reversed(self.frozen):
            signal_to(pid, signal.SIGCONT)
        self.frozen = []

    async def role(self, client: aiohttp.ClientSession) -> dict[str, Any]:
        """What Patroni says of its server; empty when it says nothing."""
        try:
            async with client.get(f"http://127.0.0.1:{self.rest_port}/patroni") as answer:
                said: dict[str, Any] = await answer.json()
                return said
        except (aiohttp.ClientError, TimeoutError):
            return {}


def _family(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []
    return [pid, *(below for child in children for below in _family(int(child)))]


@dataclass(slots=True)
class PatroniCluster:
    members: list[Member]
    patroni: str
    configuration: Path
    client: aiohttp.ClientSession

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{member.port}" for member in self.members)
        return f"postgresql://postgres:{PASSWORD}@{hosts}/{DATABASE}"

    async def primary(self, but: Member | None = None) -> Member | None:
        for member in self.members:
            said = await member.role(self.client) if member is not but else {}
            if said.get("role") in ("primary", "master") and said.get("state") == "running":
                return member
        return None

    async def formed(self) -> Member:
        """The primary, once two standbys follow it and each commit waits for one of them."""

        async def found() -> Member | None:
            primary = await self.primary()
            if primary is None:
                return None
            said = await primary.role(self.client)
            streaming = [one for one in said.get("replication", []) if one["state"] == "streaming"]
            are_awaited = sum(one["sync_state"] == "quorum" for one in streaming)
            return primary if len(streaming) == 2 and are_awaited == 2 else None

        made: Member | None = await eventually(found, lambda one: one is not None, every=0.5, or_say=self._logs)
        assert made is not None
        return made

    def _logs(self) -> str:
        return "\n".join((member.directory / "patroni.log").read_text()[-2000:] for member in self.members)


@asynccontextmanager
async def patroni_cluster(patroni: str) -> AsyncIterator[PatroniCluster]:
    directory = Path(tempfile.mkdtemp(prefix="posthouse-patroni-"))
    etcd_port, peer_port = free_port(), free_port()
    etcd = await asyncio.to_thread(_start_etcd, directory, etcd_port, peer_port)
    configuration = await asyncio.to_thread(_write_configuration, directory)
    members = [Member(name, directory / name, etcd_port) for name in NAMES]
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as client:
            for member in members:
                await asyncio.to_thread(_make_home, member.directory)
                member.start(patroni, configuration)
            cluster = PatroniCluster(members, patroni, configuration, client)
            await cluster.formed()
            yield cluster
    finally:
        for member in members:
            await asyncio.to_thread(member.kill)
        etcd.kill()
        etcd.wait()
        shutil.rmtree(directory, ignore_errors=True)


def _make_home(directory: Path) -> None:
    directory.mkdir()
    if os.geteuid() == 0:
        shutil.chown(directory, "postgres", "postgres")


def _start_etcd(directory: Path, port: int, peer_port: int) -> "subprocess.Popen[bytes]":
    directory.chmod(0o755)
    client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
    command = ["etcd", "--data-dir", str(directory / "etcd"), "--listen-client-urls", client]
    command += ["--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
    command += ["--initial-cluster", f"default={peer}"]
    with (directory / "etcd.log").open("ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


def _write_configuration(directory: Path) -> Path:
    """The file of `deploy/patroni`, with smaller buffers and without local sockets."""
    given: dict[str, Any] = yaml.safe_load((FILES / "patroni.yml").read_text())
    given["postgresql"]["parameters"] |= {**SMALL, "unix_socket_directories": ""}
    given["watchdog"]["mode"] = "off"
    configuration = directory / "patroni.yml"
    configuration.write_text(yaml.safe_dump(given))
    configuration.chmod(0o644)
    return configuration


async def _lose(cluster: PatroniCluster, whole_service: WholeService, how: str, console: Console) -> None:
    old = await cluster.formed()
    await asyncio.sleep(STEADY_SECONDS)
    await whole_service.in_flight.note_database_loss()
    lost_at = time.monotonic()
    await asyncio.to_thread(old.kill if how == "killed" else old.freeze)
    await asyncio.sleep(1.0)  # answers that were under way
    before = dict(whole_service.answers)
    promoted = asyncio.create_task(_promoted(cluster, old, lost_at))
    http, smtp = await back_after(whole_service, before, lost_at)
    promoted_after = await promoted
    console.print(
        f"primary {old.name} {how}: Patroni promoted after {promoted_after:.1f} s; 202 after {http:.1f} s, 250 after"
        f" {smtp:.1f} s",
        highlight=False,
    )
    if how == "frozen":
        old.thaw()
    else:
        old.start(cluster.patroni, cluster.configuration)
    await cluster.formed()


async def _promoted(cluster: PatroniCluster, old: Member, lost_at: float) -> float:
    await eventually(lambda: cluster.primary(but=old), lambda found: found is not None, every=0.05)
    return time.monotonic() - lost_at


async def run(patroni: str, directory: Path, *, seed: int, per_second: float, console: Console) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(patroni_cluster(patroni))
        primary = await cluster.formed()
        connection = await asyncpg.connect(primary.url.replace(f"/{DATABASE}", "/postgres"))
        await connection.execute(f"CREATE DATABASE {DATABASE}")
        await connection.close()
        await asyncio.to_thread(prepare, primary.url)
        whole_service = await stack.enter_async_context(
            start_whole_service(
                primary.url,
                directory,
                seed,
                DATABASE__URL=cluster.url,
                DATABASE__STANDBYS="1",
                WORKERS__LEASE_SECONDS="30",
                WORKERS__TICKET_LEASE_SECONDS="10",
            )
        )
        await stack.enter_async_context(follow_primary(whole_service, cluster.url))
        async with whole_service.busy(12, 4, per_second):
            for how in ("killed", "frozen"):
                await _lose(cluster, whole_service, how, console)
            await asyncio.sleep(STEADY_SECONDS)
        await whole_service.wait_until_idle(IDLE_SECONDS_MAX)
        whole_service.processes.database_url = (await cluster.formed()).url
        report = await audit_result(whole_service)
        report["lost"] = await lost_ids(whole_service.processes.service.pool, Path(whole_service.sender_log.name))
        console.print(f"{whole_service.accepted:,} accepted, {len(report['lost'])} lost", highlight=False)
        return report


def main() -> int:
    parser = argparse.ArgumentParser(description="deploy/patroni with a real etcd, and its primary lost under load.")
    parser.add_argument("--patroni", default=shutil.which("patroni") or "patroni")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--rate", type=float, default=30.0)
    asked = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(f"seed {asked.seed}")
    logging.getLogger("asyncpg").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(dir=log_directory()) as directory:
        report = uvloop.run(
            run(asked.patroni, Path(directory), seed=asked.seed, per_second=asked.rate, console=console)
        )
    show(report, console)
    return int(bool(is_failed(report) or report["lost"]))


if __name__ == "__main__":
    sys.exit(main())
