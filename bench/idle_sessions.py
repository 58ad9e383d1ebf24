"""Measures idle SMTP sessions: what each costs the server in memory and time, and whether new clients are still served.

    python bench/idle_sessions.py                        (10,000 sessions, each greeted; then as many with TLS)
    python bench/idle_sessions.py --sessions 500 --seconds 2

The server is the real one in a process of its own, on a private PostgreSQL. The sessions come from several addresses of
the loopback, say EHLO and then nothing. Exits with 1 when a session was lost, a new client was not served, or one over
the limit was not told 421.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from bench.isolation import TEMPLATE, migrate
from tests.support.doors import Doors
from tests.support.idle import PER_SOURCE, Cost, may_open, opened, reset
from tests.support.postoffice import furnished
from tools.private_postgres import PrivatePostgres

SESSIONS: Final = 10_000
SECONDS: Final = 10.0
# Room for those who come while the idle are there.
ROOM: Final = 10
NEW_CLIENTS: Final = 20
EHLO: Final = b"EHLO idle.example\r\n"


@dataclass(frozen=True, slots=True)
class Findings:
    kind: str
    sessions: int
    opening_seconds: float
    bytes_each: float
    processor_part: float
    descriptors: int
    answer_seconds: list[float]
    over: str


async def measure(doors: Doors, process: int, sessions: int, seconds: float, *, is_secure: bool) -> Findings:
    port = doors.tls_port if is_secure else doors.port
    context = doors.trusting() if is_secure else None
    # The first costs what all share.
    for one in await opened(1, port, [EHLO], context=context):
        one.leave()
    before = Cost.of(process)
    started = time.monotonic()
    clients = await opened(sessions, port, [EHLO], context=context)
    opening_seconds = time.monotonic() - started
    idle = Cost.of(process)
    await asyncio.sleep(seconds)
    after = Cost.of(process)
    answers = [await _served(doors, is_secure=is_secure) for _ in range(NEW_CLIENTS)]
    lost = sum(client.hung_up_at is not None for client in clients)
    assert not lost, f"{lost} of {sessions} sessions were hung up on"
    further = await opened(ROOM, port, [EHLO], context=context)
    over = await _one_more(doors, is_secure=is_secure)
    for client in (*clients, *further):
        reset(client)
    return Findings(
        "TLS" if is_secure else "plain",
        sessions,
        opening_seconds,
        (after.resident_bytes - before.resident_bytes) / sessions,
        (after.processor_seconds - idle.processor_seconds) / seconds,
        after.descriptors,
        answers,
        over,
    )


async def _served(doors: Doors, *, is_secure: bool) -> float:
    started = time.monotonic()
    async with doors.line(is_secure=is_secure) as line:
        (reply,) = await line.say("EHLO new.example")
        assert reply.startswith("250 "), reply
    return time.monotonic() - started


async def _one_more(doors: Doors, *, is_secure: bool) -> str:
    """What it is told. With TLS from the first byte it isn't told anything: a handshake would cost what is short."""
    try:
        async with doors.line(is_secure=is_secure):
            return "let in"
    except AssertionError as refused:
        return str(refused)
    except (OSError, EOFError):
        return "hung up"


def table(found: Sequence[Findings]) -> Table:
    drawn = Table(title="Idle SMTP sessions in one process")
    for name in ("sessions", "opened in", "KB each", "processor", "descriptors", "new client, median", "most", "over"):
        drawn.add_column(name, justify="right")
    for one in found:
        drawn.add_row(
            f"{one.sessions:,} {one.kind}",
            f"{one.opening_seconds:.1f} s",
            f"{one.bytes_each / 1024:.1f}",
            f"{one.processor_part:.1%}",
            f"{one.descriptors:,}",
            f"{statistics.median(one.answer_seconds) * 1e3:.0f} ms",
            f"{max(one.answer_seconds) * 1e3:.0f} ms",
            one.over[:3] if one.over[:3].isdigit() else one.over,
        )
    return drawn


async def run(url: str, workplace: Path, sessions: int, seconds: float) -> list[Findings]:
    doors = Doors.make(workplace)
    settings = {
        **doors.settings,
        "SMTP_CONNECTIONS_MAX": str(sessions + ROOM),
        "SMTP_CONNECTIONS_PER_ADDRESS_MAX": str(PER_SOURCE + ROOM),
    }
    async with furnished(url, workplace, stream="memory", **settings) as office:
        found = []
        for is_secure in (False, True):
            part = office.start("submission")
            await doors.open(part)
            found.append(await measure(doors, part.running.pid, sessions, seconds, is_secure=is_secure))
            part.kill()
        return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=SESSIONS, help=f"how many ({SESSIONS:,})")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"how long they are looked at ({SECONDS:.0f})")
    given = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 140)
    may_open(given.sessions)
    with (
        tempfile.TemporaryDirectory(prefix="posthouse-bench-") as directory,
        PrivatePostgres.start() as cluster,
    ):
        workplace = Path(directory)
        migrate(cluster, workplace)
        try:
            found = asyncio.run(run(cluster.url(TEMPLATE), workplace, given.sessions, given.seconds))
        except AssertionError as error:
            console.print(f"[bold red]failed:[/] {error}", highlight=False)
            return 1
    console.print(table(found))
    return 0 if is_bounded(found) else 1


def is_bounded(found: Sequence[Findings]) -> bool:
    plain, secure = found
    return plain.over.startswith("421 ") and secure.over == "hung up"


if __name__ == "__main__":
    sys.exit(main())
