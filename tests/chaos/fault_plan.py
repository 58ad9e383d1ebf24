"""Chaos: the whole service under steady load, with seeded faults in every part of it.

`make chaos SEED=1 MINUTES=30`: a fault every few seconds; then the service finishes its work, and the audit runs. The
seed determines the faults; what each of them interrupts depends on the machine.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import uvloop
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tests.support.audit_report import audit_result, is_failed, show, write
from tests.support.eventually import HANG_SECONDS
from tests.support.fresh_database import fresh_database
from tests.support.nats import PrivateNats
from tests.support.tcp_proxy import TcpProxy
from tests.support.whole_service import PARTS, WholeService, log_directory, start_whole_service
from tools.private_postgres import PrivatePostgres, StopMode

IDLE_SECONDS_MAX: Final = 3 * HANG_SECONDS
PROGRESS_SECONDS: Final = 15.0
# Only a long delay of the database should cost a worker its lease. After a death its claims wait this long.
WORKER_LEASE_SECONDS: Final = "6"
# The stream's volume, if it can be mounted: as large as the streams may grow, and small enough to fill.
VOLUME_BYTES: Final = 3 * 1024**3


@dataclass(slots=True)
class FaultPlan:
    """The faults. Each ends on its own, and the service can recover from it."""

    whole_service: WholeService
    postgres: PrivatePostgres
    nats: PrivateNats
    to_postgres: TcpProxy
    to_nats: TcpProxy
    volume: Path | None
    randomness: random.Random
    injected: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    last: str = ""

    @property
    def faults(self) -> dict[str, Callable[[], Awaitable[None]]]:
        named: dict[str, Callable[[], Awaitable[None]]] = {f"kill {name}": self._killing(name) for name in PARTS}
        named |= {
            "PostgreSQL restarted": lambda: self._restart_postgres("fast"),
            "PostgreSQL crashed": lambda: self._restart_postgres("immediate"),
            "NATS restarted": lambda: asyncio.to_thread(self.nats.restart),
            "NATS killed, its data lost": self._lose_stream,
            "PostgreSQL is slow": lambda: self._slow(self.to_postgres),
            "NATS is slow": lambda: self._slow(self.to_nats),
            "PostgreSQL is unreachable": lambda: self._pause(self.to_postgres),
            "NATS is unreachable": lambda: self._pause(self.to_nats),
            "connections to PostgreSQL are reset": lambda: self._reset(self.to_postgres),
            "connections to NATS are reset": lambda: self._reset(self.to_nats),
            "receivers close connections": self._close_receivers,
            "NATS has no disk space": self._fill,
        }
        return named

    async def inject(self) -> None:
        """One fault, from its beginning to its end."""
        name = self.randomness.choice([*self.faults, *[fault for fault in self.faults if fault.startswith("kill ")]])
        self.last = name
        await self.faults[name]()
        self.injected[name] += 1

    def _killing(self, name: str) -> Callable[[], Awaitable[None]]:
        async def kill() -> None:
            await self.whole_service.kill(name)
            self.kills += 1
            await asyncio.sleep(self.randomness.uniform(0, 1))
            self.whole_service.start(name)

        return kill

    async def _restart_postgres(self, how: StopMode) -> None:
        await self.whole_service.in_flight.note_database_loss()
        await asyncio.to_thread(self.postgres.restart, how)

    async def _lose_stream(self) -> None:
        await asyncio.to_thread(self.nats.kill)
        self.nats.wipe()
        await asyncio.to_thread(self.nats.start)

    async def _slow(self, proxy: TcpProxy) -> None:
        await self._note_database_loss(proxy)
        proxy.delay_seconds = self.randomness.uniform(0.01, 0.2)
        await asyncio.sleep(self.randomness.uniform(1, 4))
        proxy.delay_seconds = 0.0

    async def _pause(self, proxy: TcpProxy) -> None:
        proxy.pause()
        await self._note_database_loss(proxy)
        await asyncio.sleep(self.randomness.uniform(0.5, 6))
        proxy.resume()

    async def _reset(self, proxy: TcpProxy) -> None:
        proxy.reset()
        await self._note_database_loss(proxy)

    async def _note_database_loss(self, proxy: TcpProxy) -> None:
        if proxy is self.to_postgres:
            await self.whole_service.in_flight.note_database_loss()

    async def _close_receivers(self) -> None:
        for conversation in list(self.whole_service.processes.receiver.conversations):
            conversation.cut()

    async def _fill(self) -> None:
        if self.volume is None:
            return
        filler = self.volume / "filler"
        await asyncio.to_thread(_fill_volume, filler)
        await asyncio.sleep(self.randomness.uniform(2, 5))
        filler.unlink()
        await asyncio.to_thread(self.nats.restart)


def _fill_volume(filler: Path) -> None:
    """To the last byte, including what is freed meanwhile."""
    capacity = os.statvfs(filler.parent)
    with contextlib.suppress(OSError), filler.open("wb") as written:
        os.posix_fallocate(written.fileno(), 0, capacity.f_bavail * capacity.f_frsize)
        written.seek(0, os.SEEK_END)
        while True:
            written.write(bytes(4096))


def _view(plan: FaultPlan, seconds: float, of: float) -> Table:
    whole_service = plan.whole_service
    table = Table(title=f"Chaos: {seconds:.0f} of {of:.0f} s", min_width=60)
    table.add_column("what")
    table.add_column("how many", justify="right")
    table.add_row("messages accepted", f"{whole_service.accepted:,}")
    table.add_row("recipients that wait", f"{whole_service.waiting[0]:,}")
    table.add_row("webhooks that wait", f"{whole_service.waiting[1]:,}")
    table.add_row("faults", f"{plan.injected.total():,}")
    table.add_row("processes killed", f"{plan.kills:,}")
    table.add_row("now", plan.last)
    return table


@contextlib.contextmanager
def _volume(directory: Path) -> Iterator[Path | None]:
    """A small volume for the stream, where mounting is permitted."""
    place = directory / "stream"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={VOLUME_BYTES}", "tmpfs", str(place)]
    is_mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
    try:
        yield place if is_mounted else None
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(place)], check=False)


async def run_chaos(
    postgres: PrivatePostgres,
    url: str,
    directory: Path,
    *,
    seed: int,
    seconds: float,
    every_seconds: float,
    clients: int,
    per_second: float,
    console: Console,
) -> dict[str, Any]:
    randomness = random.Random(seed)
    async with AsyncExitStack() as stack:
        volume = stack.enter_context(_volume(directory))
        nats = await asyncio.to_thread(stack.enter_context, PrivateNats(directory=volume))
        port = urlsplit(url).port
        assert port is not None
        to_postgres = await stack.enter_async_context(TcpProxy(port))
        to_nats = await stack.enter_async_context(TcpProxy(nats.port))
        whole_service = await stack.enter_async_context(
            start_whole_service(
                url,
                directory,
                seed,
                stream="memory",
                WORKERS__LEASE_SECONDS=WORKER_LEASE_SECONDS,
                STREAM__SERVERS=f"nats://127.0.0.1:{to_nats.port}",
                DATABASE__URL=url.replace(f":{port}/", f":{to_postgres.port}/"),
            )
        )
        plan = FaultPlan(whole_service, postgres, nats, to_postgres, to_nats, volume, randomness)
        started = time.monotonic()
        live = stack.enter_context(Live(console=console, refresh_per_second=2, transient=True))
        printed_at = started
        async with whole_service.busy(clients, max(1, clients // 3), per_second, later=max(1, clients // 3)):
            while (passed := time.monotonic() - started) < seconds:
                await plan.inject()
                live.update(_view(plan, passed, seconds))
                if not console.is_terminal and time.monotonic() - printed_at > PROGRESS_SECONDS:
                    printed_at = time.monotonic()
                    console.print(_progress(plan, passed), highlight=False)
                left = seconds - (time.monotonic() - started)
                await asyncio.sleep(max(0.0, min(left, randomness.expovariate(1 / every_seconds))))
        live.stop()
        console.print(
            f"{_progress(plan, time.monotonic() - started)}; waiting until the service is idle", highlight=False
        )
        for name in PARTS:
            if whole_service.running[name].running.poll() is not None:
                whole_service.start(name)
        idle_after = await whole_service.wait_until_idle(IDLE_SECONDS_MAX)
        console.print(f"idle after {idle_after:.1f} s; now the audit", highlight=False)
        report = await audit_result(whole_service)
        report["faults"] = dict(plan.injected)
        report["kills"] = plan.kills
        report["idle_seconds"] = round(idle_after, 1)
        return report


def _progress(plan: FaultPlan, seconds: float) -> str:
    whole_service = plan.whole_service
    rate = whole_service.accepted / max(seconds, 1)
    return (
        f"{seconds:6.0f} s: {whole_service.accepted:,} messages ({rate:.0f}/s), {plan.injected.total()} faults,"
        f" {whole_service.waiting[0]} recipients and {whole_service.waiting[1]} webhooks wait"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="The whole service under load, with seeded faults; then the audit.")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--every", type=float, default=3.0, help="seconds between two faults, on average")
    parser.add_argument("--rate", type=float, default=65.0, help="messages a second, on average over all faults")
    parser.add_argument("--clients", type=int, default=24, help="over HTTP; a third of that over SMTP, and for later")
    parser.add_argument("--report", type=Path, help="write the tables here as Markdown, too")
    asked = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(f"seed {asked.seed}")
    # Queries of this process fail with the database, and are repeated.
    logging.getLogger("asyncpg").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(dir=log_directory()) as directory, fresh_database("chaos") as (cluster, url):
        report = uvloop.run(
            run_chaos(
                cluster,
                url,
                Path(directory),
                seed=asked.seed,
                seconds=asked.minutes * 60,
                every_seconds=asked.every,
                clients=asked.clients,
                per_second=asked.rate,
                console=console,
            )
        )
    show(report, console)
    if asked.report is not None:
        title = f"Chaos for {asked.minutes:g} minutes, seed {asked.seed}"
        command = f"make chaos SEED={asked.seed} MINUTES={asked.minutes:g}"
        how = f"`{command}`; all work was finished {report['idle_seconds']:.0f} s after the last fault."
        write(report, "chaos", title, how, asked.report)
    console.print(f"idle after {report['idle_seconds']} s; seed {asked.seed}")
    return int(is_failed(report))


if __name__ == "__main__":
    sys.exit(main())
