"""Processes of a whole service under load, replaced one after the other."""

import asyncio
import signal
from typing import Final

import aiohttp

from tests.support.eventually import eventually
from tests.support.server_process import ServerProcess
from tests.support.whole_service import WholeService
from tools.private_postgres import free_port

BESIDE_SECONDS: Final = 3.0
# Workers first; old and new ones run at the same time on one machine.
BESIDE: Final = ("delivery", "notification", "dispatch", "inbound", "submission")
# Two machines that take requests.
HTTP: Final = ("http", "second http")

# A slow machine is no reason to lose a lease.
LONG_LEASES: Final = {"WORKERS__LEASE_SECONDS": "30", "WORKERS__TICKET_LEASE_SECONDS": "10"}


async def start_second_http(whole_service: WholeService) -> None:
    whole_service.running[HTTP[1]] = await whole_service.processes.start_http()


async def replace_all(whole_service: WholeService) -> None:
    """Each process is replaced by one with the current settings."""
    for name in BESIDE:
        await replace_overlapping(whole_service, name)
    for name in HTTP:
        await replace_one_by_one(whole_service, name)
    whole_service.processes.check()


async def replace_overlapping(whole_service: WholeService, name: str) -> None:
    """The new process starts at the same ports before the old one gets SIGTERM."""
    old = whole_service.running[name]
    new = whole_service.running[name] = _start(whole_service, name)
    await _ready(new)
    await asyncio.sleep(BESIDE_SECONDS)
    await _stop(whole_service, old)


async def _stop(whole_service: WholeService, old: ServerProcess) -> None:
    # The signal ends the HTTP server after it has answered all requests.
    assert await old.terminate() in (0, -signal.SIGTERM), old.said()
    whole_service.processes.parts.remove(old)


async def replace_one_by_one(whole_service: WholeService, name: str) -> None:
    """The other machine takes the requests meanwhile."""
    old = whole_service.running[name]
    await _stop(whole_service, old)
    new = whole_service.running[name] = _start(whole_service, "http", old.port)
    await _ready(new)
    # As the page on upgrades says: a request that found this one stopped must not find the next one stopped.
    await asyncio.sleep(BESIDE_SECONDS)


def _start(whole_service: WholeService, part: str, port: int | None = None) -> ServerProcess:
    processes = whole_service.processes
    log = processes.directory / f"{len(processes.parts)}-new-{part}.log"
    settings = {**processes.settings, "MONITORING__PORT": str(free_port())}
    new = ServerProcess(processes.database_url, log, settings, port=port or free_port(), words=(part,))
    new.spawn()
    processes.parts.append(new)
    return new


async def _ready(new: ServerProcess) -> None:
    async with aiohttp.ClientSession() as client:

        async def is_ready() -> bool:
            assert new.running.poll() is None, new.said()
            try:
                async with client.get(f"http://127.0.0.1:{new.settings['MONITORING__PORT']}/readyz") as answer:
                    return answer.status == 200
            except aiohttp.ClientError:
                return False

        await eventually(is_ready, every=0.1, or_say=new.said)
