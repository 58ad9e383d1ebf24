"""One tenant's mail goes to hundreds of domains whose servers stay silent: the others' mail is still delivered."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Final

import pytest

from tests.support.eventually import eventually
from tests.support.service import Tenant
from tests.support.service_processes import ServiceProcesses, run_processes

SILENT_ADDRESSES: Final = [f"127.0.3.{number}" for number in range(1, 7)]
DOMAINS: Final = 600
MESSAGES: Final = 10
SILENT_SESSIONS_MIN: Final = 150
# Without shares the victim's mail waited for silent sessions to end: 107 s, or more than 400 s with six addresses each.
SECONDS_MAX: Final = 40.0


async def victims_seconds(processes: ServiceProcesses, victim: Tenant, part: str) -> list[float]:
    """How long each of the victim's messages took: half to known destinations, half to new ones."""
    waits = []
    for number in range(MESSAGES):
        domain = "known.example.net" if number % 2 else processes.destination(f"{part}{number}.example.net")
        began = time.monotonic()
        sent = await victim.send(victim.mail(to=[f"v{number}@{domain}"]))
        await processes.wait_until_final(victim, [sent.body["id"]])
        waits.append(time.monotonic() - began)
    return waits


@pytest.mark.nightly
@pytest.mark.parametrize("addresses", [1, 6])
async def test_silent_servers_take_no_sessions_from_another_tenant(
    new_database: Callable[[], str], tmp_path: Path, addresses: int
) -> None:
    url = await asyncio.to_thread(new_database)
    silent = dict.fromkeys(SILENT_ADDRESSES, "hang-connect")
    async with run_processes(url, tmp_path, behaviours=silent) as processes:
        attacker = await processes.service.account(credits=10_000)
        victim = await processes.service.account(credits=10_000)
        processes.destination("known.example.net")
        without = await victims_seconds(processes, victim, "before")
        domains = [f"d{number}.silent.example.net" for number in range(DOMAINS)]
        for domain in domains:
            processes.destination(domain)
            processes.nameserver.records[f"mx.{domain}", "A"] = SILENT_ADDRESSES[:addresses]
        for start in range(0, DOMAINS, 50):
            sent = await attacker.send(attacker.mail(to=[f"u@{domain}" for domain in domains[start : start + 50]]))
            assert sent.status == 202, sent.body

        async def silent_sessions() -> int:
            return len(processes.receiver.conversations)

        await eventually(silent_sessions, lambda count: count >= SILENT_SESSIONS_MIN)
        during = await victims_seconds(processes, victim, "during")
        print(
            f"{addresses} addresses: without p50 {median(without):.2f} s, max {max(without):.2f} s; "
            f"during p50 {median(during):.2f} s, max {max(during):.2f} s; "
            f"{len(processes.receiver.conversations)} silent sessions"
        )
        assert max(during) < SECONDS_MAX
