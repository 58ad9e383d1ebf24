"""Three NATS servers, three copies of each ticket: each of them may die under load, and mail is still delivered."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from urllib.request import urlopen

import nats
import pytest

from posthouse.wire.stream.leases import BUCKET, LeaseSettings, ShardLeases
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.nats import PrivateNats
from tests.support.service_processes import Senders, ServiceProcesses, prepare_processes
from tools.private_postgres import free_port

# Tickets on their way to a worker from a server that dies are sent again: dispatch publishes no others in this time.
TICKET_LEASE_SECONDS = 3600
SENDERS = 2


class ClusterServer(PrivateNats):
    """One of the three servers."""

    def __init__(self, directory: Path, *options: str) -> None:
        super().__init__(directory)
        self._monitor_port = free_port()
        self.options = (*PrivateNats.options, *options, "--http_port", str(self._monitor_port))

    def is_healthy(self) -> bool:
        """Whether its copies of all streams and consumers are those of their leaders."""
        try:
            with urlopen(f"http://127.0.0.1:{self._monitor_port}/healthz", timeout=HANG_SECONDS) as answer:
                is_ok: bool = json.load(answer) == {"status": "ok"}
                return is_ok
        except OSError:
            return False


def are_healthy(servers: Sequence[ClusterServer]) -> bool:
    return all(server.is_healthy() for server in servers)


@asynccontextmanager
async def nats_cluster(directory: Path) -> AsyncIterator[list[ClusterServer]]:
    ports = [free_port() for _ in range(3)]
    routes = ",".join(f"nats://127.0.0.1:{port}" for port in ports)
    servers = []
    with ExitStack() as stack:
        for number, port in enumerate(ports):
            own = ("--name", f"n{number}", "--cluster_name", "three", "--cluster", f"nats://127.0.0.1:{port}")
            server = ClusterServer(directory / f"nats{number}", *own, "--routes", routes)
            await asyncio.to_thread(stack.enter_context, server)
            servers.append(server)
        yield servers


@asynccontextmanager
async def running(url: str, directory: Path, servers: list[ClusterServer]) -> AsyncIterator[ServiceProcesses]:
    async with prepare_processes(
        url,
        directory,
        stream="memory",
        keeps_mail=False,
        STREAM__SERVERS=",".join(server.url for server in servers),
        STREAM__REPLICAS="3",
        WORKERS__TICKET_LEASE_SECONDS=str(TICKET_LEASE_SECONDS),
    ) as processes:
        for part in ("dispatch", "delivery", "delivery"):
            processes.start(part)
        await processes.start_http()
        yield processes


@pytest.mark.long
async def test_each_of_three_servers_may_die_under_load(database_url: str, tmp_path: Path) -> None:
    async with nats_cluster(tmp_path) as servers, running(database_url, tmp_path, servers) as processes:
        domains = [processes.destination(f"d{number}.example.net") for number in range(8)]
        tenant = await processes.service.account(credits=1_000_000)
        posting = Senders(processes, tenant, domains, behaviours=("taken",), recipients=1)
        async with posting.sending(SENDERS):
            await processes.delivers(20)
            for server in servers:
                # Two of three at a time would be too many, and so would one of three that have not met yet.
                await eventually(lambda: asyncio.to_thread(are_healthy, servers))
                await asyncio.to_thread(server.kill)
                await processes.delivers(40)
                await asyncio.to_thread(server.start)
        accepted = posting.answers.total()
        assert dict(posting.answers) == {202: accepted}, "accepting failed while a server was away"
        seconds = await processes.wait_until_all_final(2 * HANG_SECONDS)
        print(f"{accepted} messages, all final {seconds:.1f} s later")
        assert await processes.broken_promises() == {}
        assert (await processes.orphans(), await processes.duplicates()) == (0, 0)


@pytest.mark.long
async def test_the_leases_get_their_copies_when_one_server_becomes_three(tmp_path: Path) -> None:
    async with nats_cluster(tmp_path) as servers:
        urls = [server.url for server in servers]
        for name, replicas in (("before", 1), ("after", 3)):
            leases = await ShardLeases.open(urls, name, 4, LeaseSettings(lease_seconds=2, replicas=replicas))
            await eventually(leases.held, lambda held: len(held) == 4)
            await leases.close()
        client = await nats.connect(urls)
        info = await client.jetstream().stream_info(f"KV_{BUCKET}")
        await client.close()
        assert info.config.num_replicas == 3
