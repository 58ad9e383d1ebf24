"""A primary that is killed or freezes, and its standbys: no accepted mail is lost, and service resumes automatically.

In short; `make test-failover` does it many times, over HTTP and SMTP, with an audit of the whole service.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg
import pytest
import pytest_asyncio

from posthouse.rules import ids
from posthouse.rules.refusal import Code, Refusal
from posthouse.store.postgres import Database
from tests.failover.replicated_postgres import ANY_ONE, Node, ReplicatedPostgres, replicated_postgres
from tests.faults.http_load import HttpLoad
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.http_answer import Answer
from tests.support.server_process import USUAL_PATIENCE, ServerProcess
from tests.support.service import Service, Tenant

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.long]

DATABASE = "failover"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[ReplicatedPostgres]:
    async with replicated_postgres(DATABASE) as running:
        yield running


@asynccontextmanager
async def serving(url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerProcess]:
    log = tmp_path_factory.mktemp("failover") / "server.log"
    server = ServerProcess(url, log, {**USUAL_PATIENCE, "DATABASE__STANDBYS": "1"})
    await server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(cluster: ReplicatedPostgres, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    async with serving(cluster.url(DATABASE), tmp_path_factory) as server:
        client = await server.open_client(cluster.primary.running.url(DATABASE))
        yield client
        await client.client.close()
        await client.operator.close()
        client.pool.terminate()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tenant(service: Service) -> Tenant:
    return await service.account(credits=1_000_000)


async def until_accepted(send: Callable[[], Awaitable[Answer]]) -> Answer:
    return await eventually(send, lambda answer: answer.status == 202)


async def test_a_primary_that_waits_for_no_standby_is_refused(cluster: ReplicatedPostgres, tenant: Tenant) -> None:
    await until_accepted(tenant.send)
    await cluster.primary.execute("ALTER SYSTEM SET synchronous_standby_names = ''", "SELECT pg_reload_conf()")
    await eventually(tenant.send, lambda answer: (answer.status, answer.code) == (503, "service_unavailable"))
    for _ in range(5):
        assert (await tenant.send()).status == 503
    await cluster.primary.execute(
        f"ALTER SYSTEM SET synchronous_standby_names = '{ANY_ONE}'", "SELECT pg_reload_conf()"
    )
    await until_accepted(tenant.send)


async def changed_locally(node: Node, change: str, tenant: Tenant) -> None:
    """Changes the account's rows without waiting for a standby; caches are notified."""
    connection = await asyncpg.connect(
        node.running.url(DATABASE), server_settings={"synchronous_commit": "local"}, timeout=HANG_SECONDS
    )
    async with connection.transaction():
        await connection.execute(change, tenant.id)
        await connection.execute("UPDATE accounts SET changed_at = now() WHERE id = $1", tenant.id)
    await connection.close()


async def test_without_a_standby_nothing_is_accepted_replays_included(
    cluster: ReplicatedPostgres, tenant: Tenant
) -> None:
    """Each kind of replay: the group commit, a request concurrent with another of its key, and one that is refused."""
    key, body = tenant.new_key(), tenant.mail()
    unverify = "UPDATE domains SET verified_at = NULL WHERE account_id = $1"
    verify = "UPDATE domains SET verified_at = now() WHERE account_id = $1"
    for node in cluster.standbys:
        node.freeze()
    try:
        first = await tenant.send(body, key=key)
        assert first.status == 503, first.raw
        # It was committed locally when the wait for a standby was given up.
        count = "SELECT count(*) FROM idempotency WHERE key = $1"
        await eventually(lambda: tenant.service.value(count, key), lambda number: number == 1)
        replays = await asyncio.gather(*(tenant.send(body, key=key) for _ in range(3)))
        replays += [await tenant.send(body, key=key)]
        assert {answer.status for answer in replays} <= {409, 503}, [answer.raw for answer in replays]
        await changed_locally(cluster.primary, unverify, tenant)
        await eventually(tenant.send, lambda answer: answer.status == 403)
        refused = await tenant.send(body, key=key)
        assert refused.status == 503, refused.raw
        await changed_locally(cluster.primary, verify, tenant)
    finally:
        for node in cluster.standbys:
            node.thaw()
    again = await until_accepted(lambda: tenant.send(body, key=key))
    assert again.headers["Idempotent-Replayed"] == "true"


async def frozen(cluster: ReplicatedPostgres) -> None:
    cluster.primary.freeze()


async def killed(cluster: ReplicatedPostgres) -> None:
    await asyncio.to_thread(cluster.primary.kill)


async def lost(node: Node, load: HttpLoad) -> list[str]:
    """Accepted by the sender's log, and not on record."""
    accepted = {request.message_id for request in load.requests if request.message_id is not None}
    known = await node.rows(DATABASE, "SELECT id FROM messages")
    return sorted(accepted - {ids.text(ids.MESSAGE, row["id"]) for row in known})


async def test_statements_at_a_frozen_primary_end_once_another_server_took_over(cluster: ReplicatedPostgres) -> None:
    old = cluster.primary
    database = await Database.open(cluster.url(DATABASE))

    async def ask(begun: asyncio.Event) -> None:
        async with database.connection() as connection:
            begun.set()
            await connection.fetchval("SELECT pg_sleep(600)", timeout=600)

    begun = asyncio.Event()
    asking = asyncio.create_task(ask(begun))
    await begun.wait()
    await frozen(cluster)
    await cluster.promote()
    async with database.connection() as connection:
        assert await connection.fetchval("SELECT NOT pg_is_in_recovery()")
        with pytest.raises(Refusal, match=Code.SERVICE_UNAVAILABLE):
            await asyncio.wait_for(asking, HANG_SECONDS)
    await database.close()
    await asyncio.to_thread(old.kill)
    await cluster.add_standby(old)


@pytest.mark.parametrize("fail", [frozen, pytest.param(killed, marks=pytest.mark.nightly)])
async def test_a_standby_takes_over_without_a_lost_message_or_a_restart(
    cluster: ReplicatedPostgres,
    service: Service,
    tenant: Tenant,
    tmp_path_factory: pytest.TempPathFactory,
    fail: Callable[[ReplicatedPostgres], Awaitable[None]],
) -> None:
    old = cluster.primary
    load = HttpLoad([service], [tenant], seed=22)
    running = asyncio.create_task(load.run(4))
    try:
        await load.accepts(40)
        await fail(cluster)
        await cluster.promote()
        await load.accepts(1)
        old.thaw()
        await load.accepts(40)
    finally:
        load.stop()
        await running
    assert await lost(cluster.primary, load) == []
    if fail is frozen:
        async with serving(old.running.url(DATABASE), tmp_path_factory) as misled:
            client = await misled.open_client()
            known = next(request for request in load.requests if request.message_id is not None)
            for answer in await asyncio.gather(
                tenant.send(service=client), tenant.send(known.body, key=known.key, service=client)
            ):
                assert answer.status == 503, answer.raw
            await client.close()
    await asyncio.to_thread(old.kill)
    await cluster.add_standby(old)
