"""Low disk space: new data is refused without a trace, and earlier promises are still kept."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from structlog.testing import capture_logs

from posthouse.clock import DatabaseClock
from posthouse.flows.account.suppressions import BATCH, Suppressions
from posthouse.flows.inbound.reports import Reports
from posthouse.flows.shared.disk_space import DiskSpace, Gauge, server_volume, size, volume
from posthouse.mail.address import parse_mailbox
from posthouse.randomness import SystemRandomness
from posthouse.rules.credential import OPERATOR
from posthouse.rules.disk_space import FreeMark, no_capacity
from posthouse.rules.ids import AccountId, RequestId
from posthouse.rules.refusal import Code, Refusal
from posthouse.store.postgres import Database, as_refusal
from tests.support.accept_flow import AcceptFlow, Sender, new_id, new_sender, open_accept_flow
from tests.support.context import context
from tests.support.feedback_loop import complaint_check
from tests.support.inbound_reports import bounce
from tests.support.operator_client import Operator
from tests.support.service import service_settings
from tools.private_postgres import PrivatePostgres

RAW = b"From: news@acme.example.com\r\nTo: ada@example.org\r\nSubject: Hello\r\n\r\nGood morning.\r\n"


class Disk:
    """A simulated volume; `held` is what is free."""

    def __init__(self) -> None:
        self.held: int | Exception = 5_000
        self.storage = DiskSpace([Gauge("disk", FreeMark(1_000), self._measure)])

    async def _measure(self) -> int:
        if isinstance(self.held, Exception):
            raise self.held
        return self.held

    async def fall_to(self, held: int | Exception) -> bool:
        self.held = held
        await self.storage.check()
        return self.storage.is_low


async def measured(gauge: Gauge) -> int:
    found = await gauge.measure()
    assert found is not None
    return found


@pytest.fixture
def disk() -> Disk:
    return Disk()


@asynccontextmanager
async def refused() -> AsyncIterator[None]:
    with pytest.raises(Refusal) as caught:
        yield
    assert caught.value == no_capacity()


async def adopt(accept_flow: AcceptFlow, sender: Sender) -> Any:
    request_id = RequestId(new_id(accept_flow.clock.now()))
    return await accept_flow.intake.adopt(
        sender.principal(), RAW, [parse_mailbox("ada@example.org")], "news@acme.example.com", request_id
    )


async def left_behind(database: Database) -> list[Any]:
    async with database.connection() as connection:
        return [
            await connection.fetch(f"SELECT * FROM {table} ORDER BY 1, 2")
            for table in ("accounts", "messages", "ledger", "idempotency", "templates", "suppressions", "audit_log")
        ]


async def test_space_is_low_at_the_mark_and_enough_again_above_it(disk: Disk) -> None:
    without_gauges = DiskSpace()
    await without_gauges.check()
    without_gauges.require()
    assert not await disk.fall_to(1_001)
    disk.storage.require()
    assert await disk.fall_to(1_000)
    with pytest.raises(Refusal):
        disk.storage.require()
    assert await disk.fall_to(1_100)
    assert not await disk.fall_to(1_250)
    disk.storage.require()


@pytest.mark.parametrize("fault", [OSError("gone"), Refusal(Code.SERVICE_UNAVAILABLE, "away")])
async def test_a_failed_check_keeps_the_last_verdict(disk: Disk, fault: Exception) -> None:
    assert not await disk.fall_to(fault)
    assert await disk.fall_to(10)
    assert await disk.fall_to(fault)
    assert not await disk.fall_to(5_000)


async def test_all_gauges_need_space(disk: Disk) -> None:
    other = Disk()
    both = DiskSpace([*disk.storage.gauges, other.storage.gauges[0]._replace(name="other")])
    disk.held = 10
    await both.check()
    assert both.is_low
    disk.held, other.held = OSError("gone"), 5_000
    await both.check()
    assert both.is_low
    disk.held, other.held = 5_000, 10
    await both.check()
    assert both.is_low
    other.held = 5_000
    await both.check()
    assert not both.is_low


async def test_the_volume_is_measured_as_postgresql_sees_it(tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)
    free_bytes = await measured(volume(str(tmp_path), 1))
    assert 0 < free_bytes <= found.f_blocks * found.f_frsize
    with pytest.raises(FileNotFoundError):
        await volume(str(tmp_path / "absent"), 1).measure()


async def test_a_database_that_grows_is_low_and_has_space_again_when_it_shrinks(database: Database) -> None:
    before = await measured(size(database, 1))
    storage = DiskSpace([size(database, before + before // 5)])
    await storage.check()
    assert not storage.is_low
    async with database.transaction() as tx:
        await tx.execute("CREATE TABLE filler (content text)")
        await tx.execute("ALTER TABLE filler ALTER content SET STORAGE EXTERNAL")
        await tx.execute("INSERT INTO filler VALUES (repeat('x', $1))", before // 4)
    await storage.check()
    assert storage.is_low
    async with database.transaction() as tx:
        await tx.execute("DROP TABLE filler")
    await storage.check()
    assert not storage.is_low


async def test_mail_is_refused_and_costs_nothing_and_a_replay_is_answered(
    database_url: str, operator: Operator, disk: Disk
) -> None:
    sender = await new_sender(operator, "acme")
    async with open_accept_flow(database_url, DatabaseClock(), storage=disk.storage) as accept_flow:
        first = await accept_flow.accept(sender, "one")
        before = await left_behind(accept_flow.database)
        await disk.fall_to(10)
        async with refused():
            await accept_flow.accept(sender, "two")
        async with refused():
            await adopt(accept_flow, sender)
        again = await accept_flow.accept(sender, "one")
        assert (again.is_replay, again.message_id) == (True, first.message_id)
        with pytest.raises(Refusal) as caught:
            await accept_flow.accept(sender, "one", body=b"another body")
        assert caught.value.code is Code.IDEMPOTENCY_CONFLICT
        assert await left_behind(accept_flow.database) == before
        await disk.fall_to(5_000)
        # Only accepted requests are remembered, so the key is free.
        assert not (await accept_flow.accept(sender, "two")).is_replay
        await adopt(accept_flow, sender)


async def test_imports_and_reports_are_refused_without_a_trace(
    database_url: str, database: Database, operator: Operator, disk: Disk
) -> None:
    account_id = AccountId((await operator.create_account("acme")).id)
    clock, randomness = DatabaseClock(), SystemRandomness()
    suppression = Suppressions(context(database, clock, randomness), disk_space=disk.storage)
    feedback = Reports(
        context(database, clock, randomness, return_path=[b"k"]),
        return_path_domain="b.example",
        complaint_check=complaint_check(),
        disk_space=disk.storage,
    )
    before = await left_behind(database)
    await disk.fall_to(10)
    async with refused():
        await suppression.begin_import(account_id, OPERATOR)
    async with refused():
        await feedback.receive(bounce("ada@example.org"), [], "192.0.2.1")
    async with refused():
        await feedback.keep(RAW, recipient="postmaster@b.example", sender="", peer="192.0.2.1")
    assert await left_behind(database) == before


async def test_a_running_import_ends_at_the_mark_with_whole_batches(
    database: Database, operator: Operator, disk: Disk
) -> None:
    account_id = AccountId((await operator.create_account("acme")).id)
    suppression = Suppressions(context(database, DatabaseClock()), disk_space=disk.storage)

    async def file() -> AsyncIterator[bytes]:
        lines = [b"r%06d@example.org\n" % number for number in range(3 * BATCH)]
        yield b"".join(lines[:BATCH])
        await disk.fall_to(10)
        yield b"".join(lines[BATCH:])

    importing = await suppression.begin_import(account_id, OPERATOR)
    async with refused(), aclosing(suppression.bring_in(importing, file())) as brought_in:
        async for _ in brought_in:
            pass
    async with database.connection() as connection:
        assert await connection.fetchval("SELECT count(*) FROM suppressions") == importing.progress.added
    await disk.fall_to(5_000)
    await suppression.begin_import(account_id, OPERATOR)


def test_a_disk_that_is_full_anyway_is_refused_alike() -> None:
    assert as_refusal(asyncpg.DiskFullError("could not extend file")) == no_capacity()


async def test_postgresqls_volume_is_found_without_a_setting(database: Database, postgres: PrivatePostgres) -> None:
    found = await measured(server_volume(database, 1))
    assert found == pytest.approx(shutil.disk_usage(postgres.directory).free, rel=0.2)


async def test_a_volume_that_is_not_here_is_not_measured_and_nothing_is_refused() -> None:
    async def absent() -> None:
        return None

    disk_space = DiskSpace([Gauge("remote", FreeMark(1), absent)])
    with capture_logs() as logs:
        await disk_space.check()
        await disk_space.check()
    assert not disk_space.is_low
    assert [entry["event"] for entry in logs] == ["storage_not_checked"]


@pytest.mark.parametrize(
    ("url", "is_here"),
    [
        ("postgresql:///posthouse", True),
        ("postgresql://posthouse@localhost:5432/posthouse", True),
        ("postgresql://posthouse@[::1]/posthouse", True),
        ("postgresql:///posthouse?host=/run/postgresql", True),
        ("postgresql://db.example.com/posthouse", False),
        ("postgresql:///posthouse?host=10.0.0.5", False),
    ],
)
def test_the_volume_is_looked_for_only_with_a_postgresql_on_this_machine(url: str, is_here: bool) -> None:
    assert service_settings(url).database.is_on_this_machine is is_here
