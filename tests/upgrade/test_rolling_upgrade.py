"""The processes of the newest release on this version's tables, and both at the same time, under load.

`make test-upgrade`. The release's own wheel makes its tables and runs every part. Under load the tables are migrated,
then each part is replaced: the new process starts at the same ports, both work, the old one gets SIGTERM. At the end
the audit compares what senders, receivers and webhooks logged with the record.
"""

import asyncio
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from posthouse.store.schema import applied_revision as applied
from tests.support import preloaded
from tests.support.audit_report import audit_result, is_failed
from tests.support.bad_input import new_seed
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.released_version import ReleaseError, installed, newest_release
from tests.support.rolling_restart import (
    BESIDE,
    HTTP,
    LONG_LEASES,
    replace_one_by_one,
    replace_overlapping,
    start_second_http,
)
from tests.support.server_process import environment
from tests.support.whole_service import WholeService, start_whole_service
from tools.private_postgres import PrivatePostgres

pytestmark = pytest.mark.nightly

STEADY_SECONDS = 5.0
IDLE_SECONDS_MAX = 5 * HANG_SECONDS
PER_SECOND = 20.0
MIGRATE_SECONDS_MAX = 5 * HANG_SECONDS


@pytest.fixture(scope="module")
def old_program() -> Path:
    """The release's `posthouse`."""
    try:
        release = newest_release()
        print(f"\nThe release is {release.name}, {release.commit[:12]}.")
        return installed(release)
    except ReleaseError as reason:
        pytest.skip(f"no release to upgrade from: {reason}")


@pytest.fixture
def old_tables(old_program: Path, tmp_path: Path) -> Iterator[str]:
    """A database with the release's tables."""
    with PrivatePostgres.start(settings={"max_connections": "200"}) as cluster:
        cluster.create_database("upgrade")
        url = cluster.url("upgrade")
        subprocess.run([old_program, "migrate"], env=environment(url), cwd=tmp_path, check=True)
        yield url


async def test_every_part_is_replaced_under_load_without_a_failed_request(
    old_program: Path, old_tables: str, tmp_path: Path
) -> None:
    seed = new_seed()
    async with start_whole_service(old_tables, tmp_path, seed, program=old_program, **LONG_LEASES) as whole_service:
        processes = whole_service.processes
        whole_service.batch_share = 0.0
        await start_second_http(whole_service)
        async with whole_service.busy(8, 4, PER_SECOND):
            await _show(whole_service, "old processes, old tables")
            await _migrate(old_tables, tmp_path)
            await _show(whole_service, "old processes, new tables")
            processes.program = None
            for name in BESIDE:
                await replace_overlapping(whole_service, name)
                await _show(whole_service, f"new {name}")
            for name in HTTP:
                await replace_one_by_one(whole_service, name)
                await _show(whole_service, f"new {name}")
        await whole_service.wait_until_idle(IDLE_SECONDS_MAX)
        report = await audit_result(whole_service)
        print(report["answers"], "tries:", dict(whole_service.tries), "copies:", report["copies"])
        assert not is_failed(report), report["findings"]
        assert report["copies"]["unexplained"] == 0
        assert max(map(len, whole_service.tries)) <= 2, "a message needed more than one retry"
        assert whole_service.answers["http: 500"] == 0
        assert await processes.broken_promises() == {}


async def _migrate(url: str, directory: Path) -> None:
    before, started = await _revision(url), time.monotonic()
    done = await asyncio.to_thread(
        preloaded.run, "migrate", environment=environment(url), directory=directory, seconds_max=MIGRATE_SECONDS_MAX
    )
    assert done.returncode == 0, done.stderr
    print(f"migrated from {before} to {await _revision(url)} in {time.monotonic() - started:.1f} s")


async def _revision(url: str) -> str:
    connection = await asyncpg.connect(url)
    try:
        return str(await applied(connection))
    finally:
        await connection.close()


async def _show(whole_service: WholeService, stage: str) -> None:
    """Some seconds under load, in which mail was accepted over both protocols, delivered, and reported by webhooks."""
    whole_service.processes.check()
    before = await _counts(whole_service)
    await asyncio.sleep(STEADY_SECONDS)
    after = await eventually(
        lambda: _counts(whole_service),
        lambda now: all(now[what] > before[what] for what in before),
        or_say=lambda: f"{stage}: {before}",
    )
    print(stage, {what: after[what] - before[what] for what in after}, "tries:", dict(whole_service.tries))
    whole_service.processes.check()


async def _counts(whole_service: WholeService) -> dict[str, int]:
    (row,) = await whole_service.processes.service.sql(
        """SELECT (SELECT count(*) FROM recipients WHERE status = 'delivered') AS delivered,
                  (SELECT count(*) FROM webhook_deliveries WHERE status = 'succeeded') AS webhooks"""
    )
    return {**row, "http": whole_service.answers["http: 202"], "smtp": whole_service.answers["smtp: 250"]}
