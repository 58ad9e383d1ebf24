"""An operator pauses lanes of several delivery processes: each stops within seconds, and restarts change nothing."""

import asyncio
import time
from pathlib import Path

import pytest

from tests.support import preloaded
from tests.support.eventually import eventually
from tests.support.server_process import environment
from tests.support.service_processes import Senders, ServiceProcesses, run_processes

pytestmark = pytest.mark.long

WORKERS = 3
DOMAINS = 12
# The command promises 5; a slow machine may stand still meanwhile.
IN_FORCE_SECONDS_MAX = 20.0
OBSERVED_SECONDS = 5.0
WITHIN_SECONDS = 90.0
# By which worker mail of a domain was sent last.
SENT_BY = """
SELECT DISTINCT ON (1) split_part(r.email, '@', 2) AS domain, a.worker_id
FROM attempts a JOIN recipients r USING (account_id, message_id, position)
WHERE a.outcome = 'delivered' ORDER BY 1, a.started_at DESC
"""


async def test_lanes_are_paused_in_every_worker_within_seconds(database_url: str, tmp_path: Path) -> None:
    async with run_processes(database_url, tmp_path, workers=WORKERS, keeps_mail=False) as processes:
        domains = [processes.destination(f"d{number}.example.net") for number in range(DOMAINS)]
        tenant = await processes.service.account(credits=1_000_000)
        senders = Senders(processes, tenant, domains, behaviours=("taken",), pause_seconds=0.1)
        async with senders.sending(2):
            lanes = await eventually(lambda: _one_of_each_worker(processes), lambda found: len(found) == WORKERS)
            for lane in lanes:
                await _command(processes, "lane", "pause", lane)
            paused_at = time.time()
            # Mail for the others continues, and none for these comes for some seconds.
            await eventually(
                lambda: _quiet_since(processes, lanes),
                lambda last: time.time() - max(last, paused_at) > OBSERVED_SECONDS,
            )
            assert _quiet_since(processes, lanes) - paused_at < IN_FORCE_SECONDS_MAX
            assert time.time() - _quiet_since(processes, set(domains) - lanes) < OBSERVED_SECONDS
            print(f"in force within {max(0.0, _quiet_since(processes, lanes) - paused_at):.1f} s")
            for worker in [part for part in processes.parts if part.words == ("delivery",)]:
                await worker.terminate()
                worker.spawn()
            restarted_at = time.time()
            await eventually(
                lambda: _quiet_since(processes, set(domains) - lanes),
                lambda last: last > restarted_at + OBSERVED_SECONDS,
            )
            assert _quiet_since(processes, lanes) < restarted_at, "the pause ended with the process"
        for lane in lanes:
            await _command(processes, "lane", "resume", lane)
        await processes.wait_until_all_final(WITHIN_SECONDS)
        assert await processes.broken_promises() == {}


async def _one_of_each_worker(processes: ServiceProcesses) -> set[str]:
    by_worker = {row["worker_id"]: row["domain"] for row in await processes.service.sql(SENT_BY)}
    return set(by_worker.values())


def _quiet_since(processes: ServiceProcesses, domains: set[str]) -> float:
    """When mail for one of these last arrived."""
    return max(
        (line["time"] for line in processes.lines() if line["recipient"].partition("@")[2] in domains), default=0.0
    )


async def _command(processes: ServiceProcesses, *words: str) -> None:
    done = await asyncio.to_thread(
        preloaded.run,
        *words,
        environment=environment(processes.database_url, **processes.settings),
        directory=processes.directory,
    )
    assert done.returncode == 0, done.stderr
