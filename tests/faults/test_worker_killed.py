"""Delivery workers that are killed or stopped: no mail is lost, and none is duplicated without a record."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.eventually import eventually
from tests.support.service import Tenant
from tests.support.service_processes import Senders, ServiceProcesses, prepare_processes

pytestmark = pytest.mark.long

# A slow server, so that there are always open sessions.
SLOW = "127.0.0.2"
BEHAVIOURS = {SLOW: "delay-50"}
# With two, a worker that sent twice under one claim went unnoticed in five runs of five.
KILLS = 3


async def load(processes: ServiceProcesses) -> Senders:
    domains = [processes.destination(f"d{number}.example.net", SLOW) for number in range(8)]
    tenant: Tenant = await processes.service.account(credits=1_000_000)
    return Senders(processes, tenant, domains)


async def is_busy(processes: ServiceProcesses, worker_id: object) -> None:
    """That it works, and is busy right now."""

    async def under_way() -> int:
        number: int = await processes.service.value(
            "SELECT count(*) FROM attempts WHERE worker_id = $1 AND finished_at IS NULL", worker_id
        )
        return number

    await eventually(under_way, lambda number: number >= 5)


@pytest_asyncio.fixture
async def processes(database_url: str, tmp_path: Path) -> AsyncIterator[ServiceProcesses]:
    """HTTP and dispatch, without a worker yet."""
    async with prepare_processes(database_url, tmp_path, behaviours=BEHAVIOURS, keeps_mail=False) as processes:
        await processes.start_http()
        processes.start("dispatch")
        yield processes


async def test_a_killed_workers_orphans_are_recorded_and_another_finishes(processes: ServiceProcesses) -> None:
    workers = [await processes.start_worker(), await processes.start_worker()]
    posting = await load(processes)
    killed = []
    async with posting.sending():
        for _ in range(KILLS):
            part, worker_id = workers.pop(0)
            await is_busy(processes, worker_id)
            await asyncio.to_thread(part.kill)
            killed.append(worker_id)
            workers.append(await processes.start_worker())
        await posting.accepts(50)
    # Until PostgreSQL notices that a worker is dead, it may hold an account's row: a sender gets 503.
    assert set(posting.answers) <= {202, 503}
    assert posting.answers[202] > 0

    seconds = await processes.wait_until_all_final()
    orphans, duplicates = await processes.orphans(), await processes.duplicates()
    of_the_killed = sum([await processes.orphans(worker_id) for worker_id in killed])
    print(
        f"{posting.answers.total()} messages; all final {seconds:.1f} s after the last was accepted; {KILLS} kills "
        f"left {orphans} orphans, {duplicates} duplicates"
    )
    assert 0 < orphans == of_the_killed
    assert duplicates <= orphans
    assert await processes.broken_promises() == {}


async def test_a_stopped_worker_ends_in_order_and_another_takes_over(processes: ServiceProcesses) -> None:
    leaving, leaving_id = await processes.start_worker()
    await processes.start_worker()
    posting = await load(processes)
    async with posting.sending():
        await is_busy(processes, leaving_id)
        assert await leaving.terminate() == 0, leaving.said()
        assert await processes.orphans(leaving_id) == 0
        claimed = await processes.service.value(
            "SELECT count(*) FROM delivery_schedule WHERE worker_id = $1", leaving_id
        )
        assert claimed == 0
        await posting.accepts(50)

    await processes.wait_until_all_final()
    assert await processes.broken_promises() == {}
    assert (await processes.orphans(), await processes.duplicates()) == (0, 0)
    # Waiting mail was released without using up attempts.
    odd = await processes.service.sql(
        "SELECT email, status, attempt_count FROM recipients WHERE email LIKE 'taken+%' AND attempt_count <> 1"
    )
    assert [dict(row) for row in odd] == []
