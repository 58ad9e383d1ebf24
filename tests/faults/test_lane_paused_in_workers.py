"""An operator pauses lanes of several delivery processes: each stops, and restarts change nothing."""

import asyncio
import itertools
from pathlib import Path

import pytest

from tests.support import preloaded
from tests.support.eventually import eventually
from tests.support.server_process import environment
from tests.support.service_processes import Senders, ServiceProcesses, run_processes

pytestmark = pytest.mark.long

WORKERS = 3
DOMAINS = 12
# So many messages for the other lanes mean that one for a paused lane would have come, a quarter of them all.
OBSERVED = 60
# By which worker mail of a domain was sent last.
SENT_BY = """
SELECT DISTINCT ON (1) split_part(r.email, '@', 2) AS domain, a.worker_id
FROM attempts a JOIN recipients r USING (account_id, message_id, position)
WHERE a.outcome = 'delivered' ORDER BY 1, a.started_at DESC
"""


async def test_lanes_are_paused_in_every_worker(database_url: str, tmp_path: Path) -> None:
    async with run_processes(database_url, tmp_path, workers=WORKERS, keeps_mail=False) as processes:
        domains = [processes.destination(f"d{number}.example.net") for number in range(DOMAINS)]
        tenant = await processes.service.account(credits=1_000_000)
        senders = Senders(processes, tenant, domains, behaviours=("taken",))
        async with senders.sending(2):
            lanes = await eventually(lambda: _one_of_each_worker(processes), lambda found: len(found) == WORKERS)
            await asyncio.gather(*(_command(processes, "lane", "pause", lane) for lane in lanes))
            # Mail for the others continues, and none for these comes any more.
            await eventually(lambda: _others_since(processes, lanes), lambda number: number > OBSERVED)
            carried = _carried(processes, lanes)
            workers = [part for part in processes.parts if part.words == ("delivery",)]
            await asyncio.gather(*(worker.terminate() for worker in workers))
            for worker in workers:
                worker.spawn()
            before = _carried(processes, set(domains) - lanes)
            await eventually(
                lambda: _carried(processes, set(domains) - lanes), lambda number: number > before + OBSERVED
            )
            assert _carried(processes, lanes) == carried, "the pause ended with the process"
        await asyncio.gather(*(_command(processes, "lane", "resume", lane) for lane in lanes))
        await processes.wait_until_all_final()
        assert await processes.broken_promises() == {}


async def _one_of_each_worker(processes: ServiceProcesses) -> set[str]:
    by_worker = {row["worker_id"]: row["domain"] for row in await processes.service.sql(SENT_BY)}
    return set(by_worker.values())


def _domains(processes: ServiceProcesses) -> list[str]:
    """Of the recipients that arrived, in their order."""
    return [line["recipient"].partition("@")[2] for line in processes.lines()]


def _carried(processes: ServiceProcesses, domains: set[str]) -> int:
    return sum(domain in domains for domain in _domains(processes))


def _others_since(processes: ServiceProcesses, lanes: set[str]) -> int:
    """How many recipients of other lanes arrived after the last of these."""
    return sum(1 for _ in itertools.takewhile(lambda domain: domain not in lanes, reversed(_domains(processes))))


async def _command(processes: ServiceProcesses, *words: str) -> None:
    done = await asyncio.to_thread(
        preloaded.run,
        *words,
        environment=environment(processes.database_url, **processes.settings),
        directory=processes.directory,
    )
    assert done.returncode == 0, done.stderr
