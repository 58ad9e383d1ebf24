"""PostgreSQL away or restarted while mail comes in: 451, and quickly; then all is well again, and no 250 is lost."""

import asyncio
import random
import re
import shutil
import smtplib
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio

from posthouse.store.schema import migrate
from tests.conftest import _make_partitions
from tests.support.books import faults_in_the_books
from tests.support.doors import HOST, Doors, hand_in, letter, message_id, plain
from tests.support.postoffice import PostOffice, furnished
from tests.support.returns import bounce
from tests.support.server import USUAL_PATIENCE
from tests.support.service import Service, Tenant, eventually
from tests.support.smtp_load import SmtpLoad
from tools.private_postgres import PrivatePostgres

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.alone]

SENDERS = 8
REFUSED_SECONDS_MAX = 2.0
RECOVERY_SECONDS_MAX = 10.0
TO = ["ada@one.example.net"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[PrivatePostgres]:
    """This module's own, in a directory that outlives a stop."""
    directory = Path(tempfile.mkdtemp(prefix="posthouse-submission-"))
    running = PrivatePostgres.start(directory)
    try:
        running.create_database("submission")
        migrate(running.url("submission"))
        asyncio.run(_make_partitions(running.url("submission")))
        yield running
    finally:
        running.stop("immediate")
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Doors:
    return Doors.make(tmp_path_factory.mktemp("doors"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def office(
    cluster: PrivatePostgres, doors: Doors, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[PostOffice]:
    """One process for all of it."""
    directory = tmp_path_factory.mktemp("away")
    settings = {**doors.settings, **USUAL_PATIENCE}
    async with furnished(cluster.url("submission"), directory, stream="memory", keeps=True, **settings) as office:
        office.destination("one.example.net")
        part = await office.start_http("dispatch", "delivery", "submission", "inbound")
        await doors.open(part, doors.port, doors.tls_port, doors.inbound_port)
        yield office


@pytest_asyncio.fixture(loop_scope="module")
async def tenant(office: PostOffice) -> Tenant:
    async def make() -> Tenant | None:
        try:
            return await office.service.account(credits=100_000)
        except (asyncpg.PostgresError, OSError):
            return None

    made = await eventually(make, lambda tenant: tenant is not None)
    assert made is not None
    return made


async def reachable(service: Service) -> None:
    """Our own connections have noticed as well."""

    async def ask() -> bool:
        try:
            return bool(await service.value("SELECT true"))
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            return False

    await eventually(ask, bool)


async def test_a_restart_in_mid_load_is_told_as_451_and_loses_no_250(
    cluster: PrivatePostgres, office: PostOffice, doors: Doors, tenant: Tenant
) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    load = SmtpLoad(doors, [tenant], seed)
    sending = asyncio.create_task(load.run(SENDERS))
    for away in (cluster.stop, cluster.kill):
        await asyncio.sleep(0.7)
        await asyncio.to_thread(away)
        await asyncio.sleep(0.3)
        await asyncio.to_thread(cluster.restart)
        before = load.answers["250 2.0.0"]

        async def goes_on(before: int = before) -> bool:
            return load.answers["250 2.0.0"] > before + SENDERS

        await eventually(goes_on, bool, within=RECOVERY_SECONDS_MAX)
    load.stop()
    await sending
    await reachable(office.service)
    print(f"{len(load.accepted)} accepted; {dict(load.answers)}; told to nobody: {await load.in_doubt(office.service)}")
    assert load.answers["451 4.3.0"] > 0, "no restart hit a transaction"
    # Nobody lost its connection, and nobody was told that it was his own fault.
    assert set(load.answers) <= {"250 2.0.0", "451 4.3.0", "login 235", "login 454"}
    assert await load.faults(office.service) == []
    await office.wait_until_all_final(60)
    assert await faults_in_the_books(office.database_url) == {}


async def test_without_postgresql_both_servers_say_451_at_once_and_go_on_when_it_is_back(
    cluster: PrivatePostgres, office: PostOffice, doors: Doors, tenant: Tenant
) -> None:
    async with doors.session(tenant) as line:
        sent = message_id(await hand_in(line, letter(tenant, "Before"), TO, sender="news@example.com"))
        await office.wait_until_final(tenant, [sent], 30)
        return_path = office.receiver.accepted[-1].sender
        report = bounce(TO[0], to=return_path)

        def report_again() -> int:
            with smtplib.SMTP(HOST, doors.inbound_port, timeout=20) as client:
                client.ehlo("mx.example.org")
                client.mail("")
                assert client.rcpt(return_path)[0] == 250, "who may be written to is known without a database"
                return client.data(report)[0]

        await asyncio.to_thread(cluster.stop, "immediate")
        try:
            for _ in range(3):
                started = time.monotonic()
                reply = await hand_in(line, letter(tenant, "Meanwhile"), TO, sender="news@example.com")
                assert reply.startswith("451 4.3.0 "), reply
                assert "asyncpg" not in reply
                assert "127.0.0.1" not in reply
                assert await asyncio.to_thread(report_again) == 451
                assert time.monotonic() - started < 2 * REFUSED_SECONDS_MAX
            async with doors.line(source="127.0.0.5") as other:
                replies = await other.say("EHLO client.example", plain("smtp_unknown", "unknown"))
                assert replies[1].startswith("454 4.7.0 "), replies
            # The client isn't told why, and the operator is.
            assert re.search(r'"cause": "(?!None).*"login_unavailable"', office.parts[0].said())
        finally:
            await asyncio.to_thread(cluster.restart)

        async def accepted() -> str:
            return await hand_in(line, letter(tenant, "Afterwards"), TO, sender="news@example.com")

        reply = await eventually(accepted, lambda reply: reply.startswith("250 "), within=RECOVERY_SECONDS_MAX)
    assert message_id(reply)
    await reachable(office.service)
    assert await asyncio.to_thread(report_again) == 250
    assert await office.service.value("SELECT reason FROM suppressions WHERE account_id = $1", tenant.id) == "bounce"
    rows = await office.service.sql("SELECT subject FROM messages WHERE account_id = $1 ORDER BY 1", tenant.id)
    assert [row["subject"] for row in rows] == ["Afterwards", "Before"]
