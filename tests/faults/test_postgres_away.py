"""PostgreSQL away, restarted, killed or hanging: 503 meanwhile, then recovery, and nothing is lost."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.faults.http_load import HttpLoad
from tests.faults.load import when_back
from tests.support.bad_input import new_seed
from tests.support.database_checks import database_faults
from tests.support.eventually import eventually
from tests.support.fresh_database import stoppable_cluster
from tests.support.server_process import USUAL_PATIENCE, ServerProcess
from tests.support.service import Service, Tenant, uuid
from tools.private_postgres import PrivatePostgres

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.long]


@pytest.fixture(scope="module")
def cluster() -> Iterator[PrivatePostgres]:
    with stoppable_cluster("away") as running:
        yield running


@pytest.fixture(scope="module")
def database_url(cluster: PrivatePostgres) -> str:
    return cluster.url("away")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerProcess]:
    running = ServerProcess(database_url, tmp_path_factory.mktemp("away") / "server.log")
    await running.start()
    yield running
    running.kill()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(server: ServerProcess) -> AsyncIterator[Service]:
    client = await server.open_client()
    yield client
    await client.close()


@pytest_asyncio.fixture(loop_scope="module")
async def tenant(service: Service) -> Tenant:
    return await when_back(lambda: service.account(credits=100_000))


async def is_unavailable(service: Service, tenant: Tenant, message_id: str) -> None:
    """POST and GET say 503 while PostgreSQL is away, together and one after the other; the process is alive."""
    for _ in range(2):
        answers = await asyncio.gather(
            *(tenant.send(service=service) for _ in range(5)),
            *(
                service.request("GET", f"/emails/{message_id}", headers={"Authorization": tenant.basic})
                for _ in range(5)
            ),
        )
        for answer in answers:
            assert answer.status == 503, answer.raw
            assert answer.code in {"service_unavailable", "temporary_failure"}
            assert int(answer.headers["Retry-After"]) >= 1
        assert (await service.request("GET", "/healthz")).status == 200


async def accepts(tenant: Tenant, service: Service) -> str:
    """The id of a message, as soon as one is accepted."""
    answer = await eventually(lambda: tenant.send(service=service), lambda answer: answer.status == 202)
    return str(answer.body["id"])


async def comes_back(tenant: Tenant) -> None:
    await eventually(tenant.send, lambda answer: answer.status == 202)


async def are_found(tenant: Tenant, message_ids: list[str]) -> None:
    for message_id in message_ids:
        answer = await eventually(partial(tenant.get, message_id), lambda answer: answer.status != 503)
        assert answer.status == 200, answer.raw


def served_by(server: ServerProcess, service: Service) -> Service:
    """A client of this server, with that one's connections."""
    return Service(
        server.database_url, server.port, server.log, server.running, service.client, service.operator, service.pool
    )


def family(pid: int) -> list[int]:
    """The process and those that it started."""
    found = [pid]
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


@asynccontextmanager
async def hanging(cluster: PrivatePostgres) -> AsyncIterator[None]:
    """PostgreSQL is there, takes connections, and says nothing."""
    stopped = family(cluster.pid)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(stopped):
            os.kill(pid, signal.SIGCONT)


def by_kill(cluster: PrivatePostgres) -> None:
    cluster.kill()


def by_fast_stop(cluster: PrivatePostgres) -> None:
    cluster.stop("fast")


def by_immediate_stop(cluster: PrivatePostgres) -> None:
    cluster.stop("immediate")


@pytest.mark.parametrize("away", [by_fast_stop, pytest.param(by_immediate_stop, marks=pytest.mark.nightly), by_kill])
async def test_without_postgresql_every_answer_is_503_until_it_is_back(
    cluster: PrivatePostgres, service: Service, tenant: Tenant, away: Callable[[PrivatePostgres], None]
) -> None:
    kept = [(await tenant.accepts())["id"] for _ in range(5)]
    await asyncio.to_thread(away, cluster)
    try:
        await is_unavailable(service, tenant, kept[0])
    finally:
        await asyncio.to_thread(cluster.restart)
    await comes_back(tenant)
    await are_found(tenant, kept)
    assert await database_faults(service.database_url) == {}


async def test_a_hanging_postgresql_is_answered_503_and_recovers(
    cluster: PrivatePostgres, tenant: Tenant, tmp_path: Path
) -> None:
    # With the service's own timeouts, which end while PostgreSQL still hangs.
    impatient = ServerProcess(tenant.service.database_url, tmp_path / "impatient.log", dict(USUAL_PATIENCE))
    try:
        await impatient.start()
        client = served_by(impatient, tenant.service)
        # Connections that are open and used, so that statements hang in them too.
        kept = await asyncio.gather(*(accepts(tenant, client) for _ in range(20)))
        async with hanging(cluster):
            await is_unavailable(client, tenant, kept[0])
        await accepts(tenant, client)
    finally:
        impatient.kill()
    await comes_back(tenant)
    await are_found(tenant, kept)
    assert await database_faults(tenant.service.database_url) == {}


@pytest.mark.parametrize("mode", ["fast", pytest.param("immediate", marks=pytest.mark.nightly), "kill"])
async def test_a_restart_under_load_loses_no_202(
    cluster: PrivatePostgres, service: Service, tenant: Tenant, mode: Any
) -> None:
    seed = new_seed()
    load = HttpLoad([service], [tenant], seed)
    sending = asyncio.create_task(load.run(8))
    await load.accepts(50)
    if mode == "kill":
        await asyncio.to_thread(cluster.kill)
        await asyncio.to_thread(cluster.restart)
    else:
        await asyncio.to_thread(cluster.restart, mode)
    await comes_back(tenant)
    await load.accepts(20)
    load.stop()
    await sending
    accepted = [request for request in load.requests if request.message_id]
    print(f"{len(accepted)} accepted, {load.answers}")
    assert set(load.answers) <= {"202", "503", "409"}, "a restart of PostgreSQL cost a client its connection"
    rows = await service.sql("SELECT subject, id FROM messages WHERE account_id = $1", tenant.id)
    there = {row["subject"]: row["id"] for row in rows}
    assert [request.key for request in accepted if there.get(request.key) != uuid(request.message_id or "")] == []
    for request in load.requests:
        if request.is_open:
            before = there.get(request.key)
            await load.settle(request, service)
            assert before in (None, uuid(request.message_id or ""))
    assert await database_faults(service.database_url) == {}


async def test_a_server_that_starts_without_postgresql_serves_once_it_is_there(
    cluster: PrivatePostgres, service: Service, tenant: Tenant, tmp_path: Path
) -> None:
    late = ServerProcess(service.database_url, tmp_path / "late.log")
    await asyncio.to_thread(cluster.stop, "fast")
    try:
        try:
            await late.start()
            client = served_by(late, service)
            assert (await tenant.send(service=client)).is_refusal(503, "service_unavailable")
        finally:
            await asyncio.to_thread(cluster.restart)
        await accepts(tenant, client)
    finally:
        late.kill()


async def test_sigterm_under_load_ends_in_order_and_leaves_nothing_half_written(
    service: Service, tenant: Tenant, tmp_path: Path
) -> None:
    seed = new_seed()
    leaving = ServerProcess(service.database_url, tmp_path / "leaving.log")
    try:
        await leaving.start()
        load = HttpLoad([served_by(leaving, service)], [tenant], seed)
        sending = asyncio.create_task(load.run(16))
        await load.accepts(50)
        status = await leaving.terminate()
        load.stop()
        await sending
    finally:
        leaving.kill()
    print(f"ended with {status}; {load.answers}")
    # A stopped server may end with that signal.
    assert status in {0, -signal.SIGTERM}
    rows = await service.sql("SELECT subject, id FROM messages WHERE account_id = $1", tenant.id)
    there = {row["subject"]: row["id"] for row in rows}
    accepted = [request for request in load.requests if request.message_id]
    assert accepted
    assert [request.key for request in accepted if there.get(request.key) != uuid(request.message_id or "")] == []
    # A request that was being accepted was answered: everything stored was acknowledged.
    assert set(there) == {request.key for request in accepted}
    assert await database_faults(service.database_url) == {}
