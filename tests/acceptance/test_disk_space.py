"""A database at its size limit: mail is refused at no cost, and accepted again once there is space."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from tests.support.disk_shortage import check_disk_shortage
from tests.support.service_processes import LONG_LEASE, prepare_processes
from tests.support.smtp_listeners import SmtpListeners


@pytest.mark.rule("CODE-17", "SUB-22", "INB-07")
async def test_at_the_disk_limit_only_new_mail_is_refused(new_database: Callable[[], str], tmp_path: Path) -> None:
    database_url = await asyncio.to_thread(new_database)
    connection = await asyncpg.connect(database_url)
    used: int = await connection.fetchval("SELECT pg_database_size(current_database())")

    async def use_up() -> None:
        await connection.execute("CREATE TABLE filler (content text)")
        await connection.execute("ALTER TABLE filler ALTER content SET STORAGE EXTERNAL")
        await connection.execute("INSERT INTO filler VALUES (repeat('x', $1))", used // 2)

    async def give_back() -> None:
        await connection.execute("DROP TABLE filler")

    listeners = SmtpListeners.make(tmp_path)
    settings = {**listeners.settings, "DISK_SPACE__DATABASE_BYTES_MAX": str(used * 14 // 10)}
    try:
        async with prepare_processes(database_url, tmp_path, stream="memory", **settings, **LONG_LEASE) as processes:
            await check_disk_shortage(processes, listeners, use_up, give_back)
    finally:
        await connection.close()
