"""PostgreSQL away or restarted while mail comes in: 451 meanwhile, then recovery; no mail answered with 250 is lost."""

import asyncio
import re
import smtplib
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.faults.load import when_back
from tests.faults.smtp_load import DEFERRED, QUEUED, SmtpLoad
from tests.support.bad_input import new_seed
from tests.support.database_checks import database_faults
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.fresh_database import stoppable_cluster
from tests.support.inbound_reports import bounce
from tests.support.server_process import USUAL_PATIENCE
from tests.support.service import Tenant
from tests.support.service_processes import ServiceProcesses, prepare_processes
from tests.support.smtp_listeners import HOST, SmtpListeners, plain, queued_id, raw_mail, submit
from tools.private_postgres import PrivatePostgres

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.long]

SENDERS = 8
TO = ["ada@one.example.net"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[PrivatePostgres]:
    with stoppable_cluster("submission") as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def processes(
    cluster: PrivatePostgres, listeners: SmtpListeners, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServiceProcesses]:
    """One process for all parts."""
    directory = tmp_path_factory.mktemp("away")
    async with prepare_processes(
        cluster.url("submission"), directory, stream="memory", **(listeners.settings | USUAL_PATIENCE)
    ) as processes:
        processes.destination("one.example.net")
        part = await processes.start_http("dispatch", "delivery", "submission", "inbound")
        await listeners.open(part, listeners.port, listeners.tls_port, listeners.inbound_port)
        yield processes


@pytest_asyncio.fixture(loop_scope="module")
async def tenant(processes: ServiceProcesses) -> Tenant:
    return await when_back(lambda: processes.service.account(credits=100_000))


async def test_a_restart_in_mid_load_is_answered_451_and_loses_no_250(
    cluster: PrivatePostgres, processes: ServiceProcesses, listeners: SmtpListeners, tenant: Tenant
) -> None:
    seed = new_seed()
    load = SmtpLoad(listeners, [tenant], seed)
    sending = asyncio.create_task(load.run(SENDERS))
    for away in (cluster.stop, cluster.kill):
        await load.answered(QUEUED, SENDERS)
        await asyncio.to_thread(away)
        await load.answered(DEFERRED, 1)
        await asyncio.to_thread(cluster.restart)
        await load.answered(QUEUED, SENDERS + 1)
    load.stop()
    await sending
    await when_back(lambda: processes.service.value("SELECT true"))
    in_doubt = await load.in_doubt(processes.service)
    print(f"{len(load.accepted)} accepted; {dict(load.answers)}; stored without a 250: {in_doubt}")
    assert load.answers[DEFERRED] > 0, "no restart hit a transaction"
    # No client lost its connection, and none got a permanent error.
    assert set(load.answers) <= {"250 2.0.0", "451 4.3.0", "login 235", "login 454"}
    assert await load.faults(processes.service) == []
    await processes.wait_until_all_final()
    assert await database_faults(processes.database_url) == {}


async def test_without_postgresql_both_servers_answer_451_and_recover(
    cluster: PrivatePostgres, processes: ServiceProcesses, listeners: SmtpListeners, tenant: Tenant
) -> None:
    async with listeners.session(tenant) as line:
        sent = queued_id(await submit(line, raw_mail(tenant, "Before"), TO, sender="news@example.com"))
        await processes.wait_until_final(tenant, [sent])
        return_path = processes.receiver.accepted[-1].sender
        report = bounce(TO[0], to=return_path)

        def report_again() -> int:
            with smtplib.SMTP(HOST, listeners.inbound_port, timeout=HANG_SECONDS) as client:
                client.ehlo("mx.example.org")
                client.mail("")
                assert client.rcpt(return_path)[0] == 250, "who may be written to is known without a database"
                return client.data(report)[0]

        await asyncio.to_thread(cluster.stop, "immediate")
        try:
            for _ in range(3):
                reply = await submit(line, raw_mail(tenant, "Meanwhile"), TO, sender="news@example.com")
                assert reply.startswith("451 4.3.0 "), reply
                assert "asyncpg" not in reply
                assert "127.0.0.1" not in reply
                assert await asyncio.to_thread(report_again) == 451
            async with listeners.line(source="127.0.0.5") as other:
                replies = await other.say("EHLO client.example", plain("smtp_unknown", "unknown"))
                assert replies[1].startswith("454 4.7.0 "), replies
            # The reply gives no reason; the log does.
            assert re.search(r'"cause": "(?!None).*"login_unavailable"', processes.parts[0].said())
        finally:
            await asyncio.to_thread(cluster.restart)

        async def accepted() -> str:
            return await submit(line, raw_mail(tenant, "Afterwards"), TO, sender="news@example.com")

        reply = await eventually(accepted, lambda reply: reply.startswith("250 "))
    assert queued_id(reply)
    await when_back(lambda: processes.service.value("SELECT true"))
    assert await asyncio.to_thread(report_again) == 250
    assert await processes.service.value("SELECT reason FROM suppressions WHERE account_id = $1", tenant.id) == "bounce"
    rows = await processes.service.sql("SELECT subject FROM messages WHERE account_id = $1 ORDER BY 1", tenant.id)
    assert [row["subject"] for row in rows] == ["Afterwards", "Before"]
