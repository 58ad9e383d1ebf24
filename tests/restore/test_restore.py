"""A real cluster is restored to a point in time: nothing of its schedule is sent again, and no id is given twice.

In short; `make test-restore` does it with the whole service under load.
"""

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from posthouse.rules import ids
from tests.restore.archived_postgres import ArchivedPostgres, archived_postgres
from tests.support.eventually import eventually
from tests.support.service_processes import ServiceProcesses, prepare_processes

pytestmark = pytest.mark.long


async def test_a_restored_database_sends_nothing_again_and_gives_no_id_twice(tmp_path: Path) -> None:
    with ExitStack() as stack:
        postgres = await asyncio.to_thread(stack.enter_context, archived_postgres("restored", with_pgbackrest=False))
        async with prepare_processes(postgres.url, tmp_path, stream="memory") as processes:
            await _restore_and_compare(postgres, processes)


async def _restore_and_compare(postgres: ArchivedPostgres, processes: ServiceProcesses) -> None:
    domain = processes.destination("d1.example.net")
    first, second = f"taken+1@{domain}", f"taken+2@{domain}"
    http = await processes.start_http()
    tenant = await processes.service.account(credits=1000)
    await asyncio.to_thread(postgres.back_up)
    # The first waits at the point, and is delivered after it; the second is accepted after it.
    kept = (await tenant.accepts(tenant.mail(to=[first]), key="kept"))["id"]
    point = await postgres.value("SELECT clock_timestamp()")
    workers = processes.start("dispatch", "delivery")
    lost = (await tenant.accepts(tenant.mail(to=[second]), key="lost"))["id"]
    both_delivered = "SELECT count(*) FROM recipients WHERE status = 'delivered'"
    await eventually(lambda: postgres.value(both_delivered), lambda number: number == 2)
    before = await _issued(postgres)
    http.kill()
    workers.kill()
    await postgres.archived_to_now()
    await asyncio.to_thread(postgres.kill)

    await asyncio.to_thread(postgres.restore, point)
    await postgres.start_restored()
    http.spawn()
    workers.spawn()
    await http.ready()
    held = "SELECT count(*) FROM delivery_schedule WHERE held_by = 'restore'"
    await eventually(lambda: postgres.value(held), lambda number: number == 1)
    # A key that is there replays; one that is lost makes a new message, with another id, which is sent.
    assert (await tenant.accepts(tenant.mail(to=[first]), key="kept"))["id"] == kept
    assert (await tenant.accepts(tenant.mail(to=[second]), key="lost"))["id"] != lost
    one_delivered = both_delivered
    await eventually(lambda: postgres.value(one_delivered), lambda number: number == 1)
    assert processes.copies() == {first: 1, second: 2}
    # Of messages and events, only what was there at the point is known by the same id.
    assert before & await _issued(postgres) == {kept}
    processes.check(but=[http, workers])


async def _issued(postgres: ArchivedPostgres) -> set[str]:
    messages = await postgres.value("SELECT array_agg(id) FROM messages")
    events = await postgres.value("SELECT coalesce(array_agg(id), '{}') FROM events")
    return {ids.text(ids.MESSAGE, each) for each in messages} | {ids.text(ids.EVENT, each) for each in events}
