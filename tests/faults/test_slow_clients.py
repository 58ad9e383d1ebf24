"""Hundreds of slow clients: they cost little, block no other client, and are disconnected."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.faults.idle_clients import Cost, IdleClient, may_open, open_clients, reset
from tests.support import faster
from tests.support.eventually import HANG_SECONDS, eventually
from tests.support.service_processes import prepare_processes
from tests.support.smtp_service import SmtpConnection

ROOT: Final = Path(__file__).resolve().parents[2]
EACH: Final = 100
DRIP_SECONDS: Final = 0.5
# A connection has its buffers and a request its task.
BYTES_EACH_MAX: Final = 100_000


@contextlib.asynccontextmanager
async def dripping(groups: dict[str, list[IdleClient]], drops: dict[str, bytes]) -> AsyncIterator[None]:
    """A few bytes from every client, now and then, until the server hangs up."""

    async def drip() -> None:
        while True:
            for name, clients in groups.items():
                for client in clients:
                    client.drip(drops[name])
            await asyncio.sleep(DRIP_SECONDS)

    task = asyncio.create_task(drip())
    try:
        yield
    finally:
        task.cancel()
        for client in (client for clients in groups.values() for client in clients):
            reset(client)


def gone(clients: Sequence[IdleClient]) -> bool:
    return all(client.closed_at is not None for client in clients)


class Reader(IdleClient):
    """Ready at once, whatever it hears."""

    def data_received(self, data: bytes) -> None:
        self.heard += data


@pytest.mark.long
async def test_slow_requests_end_in_time_and_others_are_served_meanwhile(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_open(6 * EACH)
    monkeypatch.setenv(faster.SHORT_DEADLINES, "1")
    async with prepare_processes(database_url, tmp_path, stream="memory") as processes:
        part = await processes.start_http()
        tenant = await processes.service.account()
        await tenant.accepts()
        before = Cost.of(part.running.pid)

        post = f"POST /emails HTTP/1.1\r\nHost: x\r\nAuthorization: {tenant.basic}\r\nIdempotency-Key: k%d\r\n"
        post += "Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
        starts = {
            "silent": b"",
            "head": b"POST /emails HTTP/1.1\r\nHost: x\r\n",
            "unknown": post.replace(tenant.basic, "Basic eDp4").encode(),
            "body": post.encode() + b'{"text":"',
            "no body": post.encode(),
        }
        drops = {"silent": b"", "head": b"X-A: b\r\n", "unknown": b"a", "body": b"a", "no body": b""}
        groups: dict[str, list[IdleClient]] = {}
        for name, start in starts.items():
            groups[name] = await open_clients(EACH, part.port, client=Reader)
            for number, client in enumerate(groups[name]):
                client.drip(start.replace(b"k%d", f"{name}-{number}".replace(" ", "").encode()))

        async with dripping(groups, drops):
            during = Cost.of(part.running.pid)
            for _ in range(10):
                await tenant.accepts()
                await asyncio.sleep(0.2)  # the time over which their cost is measured

            left = [*groups["silent"], *groups["head"], *groups["unknown"]]
            await eventually(lambda: gone(left), every=0.1)
            assert all(b" 401 " in client.heard[:20] for client in groups["unknown"])
            answered = [*groups["body"], *groups["no body"]]
            await eventually(
                lambda: [bytes(client.heard[:100]) for client in answered if b" 400 " not in client.heard[:20]][:3],
                lambda others: others == [],
                every=0.1,
            )
            assert b"send it faster" in answered[0].heard

        after = Cost.of(part.running.pid)
        assert during.descriptors - before.descriptors <= len(starts) * EACH + 20
        assert during.resident_bytes - before.resident_bytes < len(starts) * EACH * BYTES_EACH_MAX
        await eventually(
            lambda: Cost.of(part.running.pid).descriptors,
            lambda number: number <= before.descriptors + 20,
        )
        assert after.resident_bytes - before.resident_bytes < len(starts) * EACH * BYTES_EACH_MAX
        await tenant.accepts()


@pytest.fixture
def hurried() -> Iterator[tuple[int, int]]:
    """An SMTP server whose deadlines are short: its process and its port."""
    command = [sys.executable, "-m", "tests.faults.short_deadline_server"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.kill()


@pytest.mark.long
async def test_slow_sessions_end_in_time_and_others_are_served_meanwhile(hurried: tuple[int, int]) -> None:
    process, port = hurried
    may_open(6 * EACH)
    before = Cost.of(process)
    opening = [b"EHLO slow.example\r\n", b"MAIL FROM:<a@example.com>\r\n", b"RCPT TO:<b@example.com>\r\n", b"DATA\r\n"]
    words: dict[str, list[bytes]] = {"silent": [], "command": opening[:1], "data": opening, "line": opening}
    drops = {"silent": b"", "command": b"N", "data": b"a\r\n", "line": b"a"}
    groups = {name: await open_clients(EACH, port, said) for name, said in words.items()}

    async with dripping(groups, drops):
        during = Cost.of(process)
        for _ in range(5):
            async with asyncio.timeout(HANG_SECONDS), SmtpConnection.to(port) as line:
                replies = await line.say(*(word.decode().strip() for word in opening))
                assert [reply[:3] for reply in replies] == ["250", "250", "250", "354"]
                assert (await line.say(b"Subject: a\r\n\r\nb\r\n.\r\n", replies=1))[0].startswith("250 ")
        await eventually(lambda: all(map(gone, groups.values())), every=0.1)
        for name, clients in groups.items():
            assert all(client.heard.splitlines()[-1].startswith(b"421 ") for client in clients), name

    assert during.descriptors - before.descriptors <= len(words) * EACH + 10
    assert during.resident_bytes - before.resident_bytes < len(words) * EACH * BYTES_EACH_MAX
    await eventually(
        lambda: Cost.of(process).descriptors,
        lambda number: number <= before.descriptors + 10,
    )
