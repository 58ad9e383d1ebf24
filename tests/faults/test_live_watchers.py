"""Many streams of hints at once: what they cost while nothing happens, and how soon a commit is named."""

import asyncio
import os
import statistics
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest

from posthouse.rules import token
from posthouse.rules.credential import Role
from posthouse.rules.ids import AccountId, SessionId, UserId
from tests.support.accept_flow import new_id
from tests.support.live_stream import LiveStream, open_stream
from tests.support.server_process import start_service
from tests.support.service import JWT_SECRET, Service, Tenant

pytestmark = pytest.mark.nightly

WATCHERS: Final = 500
USERS: Final = 50
IDLE_SECONDS: Final = 30.0
CORE_PART_MAX: Final = 0.10
MESSAGES: Final = 40
HINT_SECONDS_MAX: Final = 2.0


def processor_seconds(pid: int) -> float:
    """Of the process with all its threads."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:  # a connection that was closed meanwhile
        return 0.0
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def postgres_seconds(service: Service) -> float:
    """Of the backends that the service has connected to its database."""
    rows = await service.sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'posthouse'")
    return sum(processor_seconds(pid) for (pid,) in rows)


async def tokens(service: Service) -> list[str]:
    """For as many accounts as there are watchers, each with its own session; a user watches ten of them."""
    now = datetime.now(UTC)
    until = now.replace(microsecond=0) + timedelta(hours=1)
    users = [UserId(new_id(now)) for _ in range(USERS)]
    for user_id in users:
        await service.sql("INSERT INTO users VALUES ($1, $2, '', $3)", user_id, f"{user_id}@example.net", now)
    made = []
    for number in range(WATCHERS):
        account_id = AccountId((await service.operator.create_account(f"watched-{number}")).id)
        user_id, session_id = users[number % USERS], SessionId(new_id(now))
        await service.sql("INSERT INTO memberships VALUES ($1, $2, 'viewer', $3)", account_id, user_id, now)
        await service.sql(
            "INSERT INTO sessions VALUES ($1, $2, $3, $4, $5)", session_id, user_id, account_id, now, until
        )
        jwt = token.issue(
            account_id=account_id,
            user_id=user_id,
            role=Role.VIEWER,
            session_id=session_id,
            expires_at=until,
            token_id=str(UUID(int=number)),
            secret=JWT_SECRET,
            now=now,
        )
        made.append(f"Bearer {jwt}")
    return made


async def test_five_hundred_idle_watchers_take_a_tenth_of_a_core(database_url: str, tmp_path: Path) -> None:
    service = await start_service(database_url, tmp_path / "server.log")
    try:
        sender = await service.account()
        async with AsyncExitStack() as stack:
            opened = [open_stream(service, watcher) for watcher in await tokens(service)]
            streams = [await stack.enter_async_context(stream) for stream in opened]
            await asyncio.gather(*[stream.ready() for stream in streams])
            began, used, postgres = (
                time.monotonic(),
                processor_seconds(service.process.pid),
                await postgres_seconds(service),
            )
            await asyncio.sleep(IDLE_SECONDS)
            seconds = time.monotonic() - began
            used = processor_seconds(service.process.pid) - used
            postgres = await postgres_seconds(service) - postgres
            print(f"{WATCHERS} idle watchers, {seconds:.0f} s: {used:.2f} s of CPU, PostgreSQL {postgres:.2f} s")
            watched = await stack.enter_async_context(open_stream(service, await sender.jwt("viewer")))
            await watched.ready()
            waits = [await waited(sender, watched) for _ in range(MESSAGES)]
        p95 = statistics.quantiles(waits, n=20)[-1]
        print(f"commit to hint, {MESSAGES} messages meanwhile: p50 {statistics.median(waits):.2f} s, p95 {p95:.2f} s")
        assert used <= CORE_PART_MAX * seconds
        assert p95 <= HINT_SECONDS_MAX
    finally:
        await service.stop()


async def waited(sender: Tenant, stream: LiveStream) -> float:
    """Seconds from the 202, which comes after the commit, to the hint."""
    sent = (await sender.accepts())["id"]
    committed = time.monotonic()
    assert await stream.event() == ("accepted", {"message_ids": [sent]})
    return time.monotonic() - committed
