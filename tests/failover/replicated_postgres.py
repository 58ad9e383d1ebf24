"""A primary and its two standbys, of which each commit waits for one; the primary can fail, and a standby take over.

A *way* is a process that copies bytes to a node: clients and standbys use it where a test cuts a node off.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

import asyncpg

from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.fresh_database import create
from tools.private_postgres import PrivatePostgres, find_binaries, free_port

ANY_ONE: Final = "ANY 1 (*)"
_AWAIT_ONE: Final = f"ALTER SYSTEM SET synchronous_standby_names = '{ANY_ONE}'"
CONNECT_SECONDS_MAX: Final = 10.0
# Small, because three servers share a machine; a standby looks for its new primary at once.
NODE_SETTINGS: Final = {
    "shared_buffers": "64MB",
    "wal_level": "replica",
    "max_wal_senders": "10",
    "wal_retrieve_retry_interval": "100ms",
    "wal_keep_size": "256MB",
}


@dataclass(slots=True)
class Node:
    number: int
    directory: Path
    port: int = field(default_factory=free_port)
    server: PrivatePostgres | None = None
    way: "Way | None" = None
    # Another node took over from it.
    has_failed: bool = False
    frozen: list[int] = field(default_factory=list)

    @property
    def address_port(self) -> int:
        """The port for clients and standbys."""
        return self.port if self.way is None else self.way.port

    @property
    def running(self) -> PrivatePostgres:
        assert self.server is not None, f"node {self.number} does not run"
        return self.server

    def start(self) -> None:
        self.server = PrivatePostgres.start(self.directory, self.port, NODE_SETTINGS)

    def freeze(self) -> None:
        """Connections stay open, new ones are accepted by the kernel, nothing is answered."""
        os.kill(self.running.pid, signal.SIGSTOP)  # first, so that it starts no more processes
        self.frozen = [self.running.pid, *_children(self.running.pid)]
        for pid in self.frozen:
            signal_to(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in reversed(self.frozen):
            signal_to(pid, signal.SIGCONT)
        self.frozen = []

    def kill(self) -> None:
        """SIGKILL to the server and all its processes."""
        if self.server is None or self.server.has_ended:
            return
        os.kill(self.server.pid, signal.SIGSTOP)
        for pid in _children(self.server.pid):
            signal_to(pid, signal.SIGKILL)
        self.server.kill()
        self.frozen = []

    async def execute(self, *statements: str) -> None:
        connection = await asyncpg.connect(self.running.url(), timeout=HANG_SECONDS)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    async def rows(self, database: str, query: str, *arguments: object) -> Sequence[Any]:
        connection = await asyncpg.connect(self.running.url(database), timeout=HANG_SECONDS)
        try:
            rows: Sequence[Any] = await connection.fetch(query, *arguments)
        finally:
            await connection.close()
        return rows

    async def value(self, query: str) -> Any:
        return (await self.rows("postgres", query))[0][0]


@dataclass(slots=True)
class Way:
    """A TCP proxy in its own process, which costs the test's event loop nothing."""

    server_port: int
    port: int = field(default_factory=free_port)
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.support.tcp_proxy", str(self.port), str(self.server_port)]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def cut(self) -> None:
        """Nothing is copied; the kernel accepts connections, without an answer."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def restore(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@dataclass(slots=True)
class ReplicatedPostgres:
    directory: Path
    nodes: list[Node]
    primary: Node

    def url(self, database: str) -> str:
        """Of all nodes, in an order that does not reveal which is the primary."""
        hosts = ",".join(f"127.0.0.1:{node.address_port}" for node in self.nodes)
        return f"postgresql://postgres@{hosts}/{database}"

    @property
    def standbys(self) -> list[Node]:
        return [node for node in self.nodes if node is not self.primary and not node.has_failed]

    async def promote(self) -> float:
        """Promotes the standby that received most, and the other follows it; returns when it accepted writes.

        They stop receiving first: a commit that the old primary still gets confirmed is then at one that was compared.
        """
        standbys = self.standbys
        await asyncio.gather(*(_stop_receiving(node) for node in standbys))
        received = [await node.value("SELECT pg_last_wal_receive_lsn() - '0/0'::pg_lsn") for node in standbys]
        new = standbys[received.index(max(received))]
        await new.execute("SELECT pg_promote(true, 30)")
        promoted_at = time.monotonic()
        self.primary.has_failed = True
        self.primary = new
        for node in standbys:
            if node is not new:
                await node.execute(*_follow(new))
        return promoted_at

    async def add_standby(self, node: Node) -> None:
        """The node, whose server has ended, starts with a copy of the primary's data."""
        await asyncio.to_thread(self._copy_primary, node)
        await asyncio.to_thread(node.start)
        node.has_failed = False
        await self.wait_for_standbys(sum(standby.server is not None for standby in self.standbys))

    async def wait_for_standbys(self, count: int) -> None:
        async def following() -> int:
            number: int = await self.primary.value("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'")
            return number

        await eventually(following, lambda number: number >= count)

    def _copy_primary(self, node: Node) -> None:
        shutil.rmtree(node.directory, ignore_errors=True)
        node.directory.mkdir(parents=True)
        command = [
            str(find_binaries() / "pg_basebackup"),
            f"--pgdata={node.directory / 'data'}",
            f"--dbname=host=127.0.0.1 port={self.primary.port} user=postgres",
            "--checkpoint=fast",
            "--no-sync",
            "--write-recovery-conf",
        ]
        subprocess.run(command, check=True, capture_output=True)
        with (node.directory / "data" / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"primary_conninfo = '{_conninfo(self.primary)}'\n")
        if os.geteuid() == 0:
            owner = self.primary.directory.stat()
            for path in [node.directory, *node.directory.rglob("*")]:
                os.chown(path, owner.st_uid, owner.st_gid)


@asynccontextmanager
async def replicated_postgres(
    database: str, *, ways: bool = False, is_synchronous: bool = True
) -> AsyncIterator[ReplicatedPostgres]:
    """Three nodes and a migrated database; the first is the primary, the others follow it."""
    directory = Path(mkdtemp(prefix="posthouse-replicated-"))
    os.chmod(directory, 0o755)  # PostgreSQL runs as another user
    nodes = [Node(number, directory / f"node{number}") for number in range(3)]
    cluster = ReplicatedPostgres(directory, nodes, nodes[0])
    try:
        for node in nodes if ways else ():
            node.way = Way(node.port)
            node.way.start()
        await asyncio.to_thread(_start_primary, nodes[0], database)
        await nodes[0].execute("SELECT pg_reload_conf()")
        for node in nodes[1:]:
            await cluster.add_standby(node)
        if is_synchronous:
            for node in nodes:  # the standbys need it too: each may become the primary
                await node.execute(_AWAIT_ONE, "SELECT pg_reload_conf()")
        yield cluster
    finally:
        for node in nodes:
            await asyncio.to_thread(node.kill)
            if node.way is not None:
                node.way.stop()
        shutil.rmtree(directory, ignore_errors=True)


def _start_primary(node: Node, database: str) -> None:
    node.start()
    with (node.directory / "data" / "pg_hba.conf").open("a") as access:
        access.write("host replication all 127.0.0.1/32 trust\n")
    create(node.running, database)


async def _stop_receiving(node: Node) -> None:
    await node.execute("ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")

    async def receivers() -> int:
        number: int = await node.value("SELECT count(*) FROM pg_stat_wal_receiver")
        return number

    await eventually(receivers, lambda number: number == 0)


def _conninfo(primary: Node) -> str:
    return f"host=127.0.0.1 port={primary.address_port} user=postgres"


def _follow(primary: Node) -> Iterable[str]:
    return f"ALTER SYSTEM SET primary_conninfo = '{_conninfo(primary)}'", "SELECT pg_reload_conf()"


def signal_to(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in tasks.read_text().split()]
