"""Measures idle SMTP sessions: what they cost the server, and whether new clients are served as well as without them.

    make bench-idle                                      (or: python bench/idle_sessions.py)
    python bench/idle_sessions.py --sessions 500 --seconds 2 --output /tmp/bench

The server is the real one in a process of its own, on a private PostgreSQL. The idle come from several addresses of the
loopback: first in the clear, greeted and no more; then, on a new server, within TLS and with their password checked.
New clients come before them, beside them and after them, each for a session and a mail. Exits with 1 when one of the
idle was lost, a mail was not taken, or one over the limit was let in.
"""

import asyncio
import contextlib
import gc
import ssl
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import harness, idle_report, letter
from bench.harness import Run
from bench.idle_report import Findings, Visit
from bench.isolation import TEMPLATE, migrate
from bench.load import LoadError
from bench.report import Report
from tests.support.idle_clients import PER_SOURCE, Cost, IdleClient, may_open, open_clients, reset
from tests.support.service import Tenant
from tests.support.service_processes import prepare_processes
from tests.support.smtp_listeners import HOST, NAME, SmtpListeners, plain, submit
from tests.support.smtp_listeners import raw_mail as written
from tests.support.smtp_service import SmtpConnection
from tools.private_postgres import PrivatePostgres

SESSIONS: Final = 10_000
SECONDS: Final = 10.0
# Room for those who come while the idle are there; the others are too many.
ROOM: Final = 10
TOO_MANY: Final = 100
VISITS: Final = 100
VISITS_FEW: Final = 20
# The first look up what the server then knows.
WARM_VISITS: Final = 10
GONE_SECONDS_MAX: Final = 30.0
EHLO: Final = "EHLO idle.example"


@dataclass(frozen=True, slots=True)
class Visitors:
    """Clients that come one after the other, each for a session and a mail, all within TLS."""

    listeners: SmtpListeners
    tenant: Tenant
    context: ssl.SSLContext

    async def come(self, count: int) -> list[Visit]:
        return [await self._visit() for _ in range(count)]

    async def _visit(self) -> Visit:
        content = written(self.tenant, letter.SUBJECT, body=letter.TEXT.replace("\n", "\r\n"))
        begun = time.monotonic()
        async with self.line(self.listeners.tls_port, self.context) as line:
            await line.reply()
            *_, reply = await line.say("EHLO new.example", plain(self.tenant.username, self.tenant.password))
            assert reply.startswith("235 "), f"a new client was not let in: {reply or 'hung up'}"
            admitted = time.monotonic()
            reply = await submit(line, content, ["ada@example.org"], sender=f"news@{self.tenant.domain}")
            assert reply.startswith("250 "), f"a new client's mail was not taken: {reply or 'hung up'}"
            return Visit(admitted - begun, time.monotonic() - admitted)

    async def turned_away(self, count: int, *, is_secure: bool) -> list[str]:
        """The reply to each; none within TLS from the first byte on: a handshake would cost what is short."""
        replies = []
        for _ in range(count):
            try:
                port = self.listeners.tls_port if is_secure else self.listeners.port
                async with self.line(port, self.context if is_secure else None) as line:
                    replies.append(await line.reply() or "hung up")
            except OSError:
                replies.append("hung up")
        return replies

    @contextlib.asynccontextmanager
    async def line(self, port: int, context: ssl.SSLContext | None) -> AsyncIterator[SmtpConnection]:
        reader, writer = await asyncio.open_connection(
            HOST, port, ssl=context, server_hostname=None if context is None else NAME
        )
        try:
            yield SmtpConnection(reader, writer)
        finally:
            writer.transport.abort()


async def measure(
    visitors: Visitors, process: int, sessions: int, seconds: float, visits: int, *, is_secure: bool
) -> Findings:
    tenant = visitors.tenant
    words = [EHLO, plain(tenant.username, tenant.password)] if is_secure else [EHLO]
    context = visitors.context if is_secure else None
    port = visitors.listeners.tls_port if is_secure else visitors.listeners.port

    async def come(count: int) -> list[IdleClient]:
        return await open_clients(count, port, [f"{word}\r\n".encode() for word in words], context=context)

    await visitors.come(WARM_VISITS)
    visits_before = await visitors.come(visits)
    before = Cost.of(process)
    started = time.monotonic()
    clients = await come(sessions)
    opening_seconds = time.monotonic() - started
    # What they are made of here is not to be looked through while new clients are timed.
    gc.collect()
    gc.freeze()
    idle = Cost.of(process)
    await asyncio.sleep(seconds)
    after = Cost.of(process)
    visits_beside = await visitors.come(visits)
    # The server may still be busy with the visitors' leaving, and then has not the room that it should.
    await _left(process, after.descriptors)
    further = await come(ROOM)
    replies = await visitors.turned_away(TOO_MANY, is_secure=is_secure)
    full = Cost.of(process)
    lost = sum(client.closed_at is not None for client in (*clients, *further))
    assert not lost, f"{lost} of {sessions + ROOM} sessions were hung up on"
    for client in (*clients, *further):
        reset(client)
    gc.unfreeze()
    left = await _left(process, before.descriptors)
    return Findings(
        kind="TLS, authenticated" if is_secure else "in the clear, greeted",
        sessions=sessions,
        sessions_max=sessions + ROOM,
        opening_seconds=opening_seconds,
        before_bytes=before.resident_bytes,
        idle_bytes=after.resident_bytes,
        left_bytes=left.resident_bytes,
        processor_part=(after.processor_seconds - idle.processor_seconds) / seconds,
        before_descriptors=before.descriptors,
        full_descriptors=full.descriptors,
        left_descriptors=left.descriptors,
        descriptors_max=_descriptors_max(process),
        visits_before=visits_before,
        visits_beside=visits_beside,
        visits_after=await visitors.come(visits),
        replies=replies,
    )


async def _left(process: int, descriptors: int) -> Cost:
    """What the server has once those who were there have left, or when it has had time enough to see it."""
    deadline = time.monotonic() + GONE_SECONDS_MAX
    while (cost := Cost.of(process)).descriptors > descriptors and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.2)
    return cost


def _descriptors_max(process: int) -> int:
    (line,) = [
        one for one in Path(f"/proc/{process}/limits").read_text().splitlines() if one.startswith("Max open files")
    ]
    return int(line.split()[3])


async def measure_both(
    url: str, workplace: Path, sessions: int, seconds: float, visits: int = VISITS_FEW
) -> list[Findings]:
    listeners = SmtpListeners.make(workplace)
    settings = {
        **listeners.settings,
        "SMTP__CONNECTIONS_MAX": str(sessions + ROOM),
        "SMTP__CONNECTIONS_PER_ADDRESS_MAX": str(PER_SOURCE + ROOM),
    }
    async with prepare_processes(url, workplace, stream="memory", **settings) as processes:
        found = []
        for is_secure in (False, True):
            part = processes.start("submission")
            await listeners.open(part)
            processes.clients.append(await part.open_client())
            visitors = Visitors(listeners, await processes.clients[-1].account(), listeners.trusting())
            found.append(await measure(visitors, part.running.pid, sessions, seconds, visits, is_secure=is_secure))
            part.kill()
        return found


def is_bounded(found: Sequence[Findings]) -> bool:
    """Whether no client over the limit was let in, and descriptors are bounded and given back."""
    in_the_clear, secure = found
    return (
        all(reply.startswith("421 ") for reply in in_the_clear.replies)
        and all(reply == "hung up" for reply in secure.replies)
        and all(one.has_bounded_descriptors for one in found)
    )


def report_of(run: Run) -> Report:
    options = run.options
    may_open(options.sessions)
    with PrivatePostgres.start() as cluster:
        migrate(cluster, run.workplace)
        url = cluster.url(TEMPLATE)
        found = asyncio.run(measure_both(url, run.workplace, options.sessions, options.seconds, options.visits))
    made = idle_report.made(found, options.seconds)
    if not is_bounded(found):
        made.show(run.console)
        raise LoadError("a client over the limit was let in, or descriptors were not given back")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    parser = harness.parser(__doc__, rounds=1, seconds=SECONDS)
    parser.add_argument("--sessions", type=int, default=SESSIONS, help=f"how many ({SESSIONS:,})")
    parser.add_argument("--visits", type=int, default=VISITS, help=f"new clients each time ({VISITS})")
    return harness.main(parser.parse_args(arguments), report_of)


if __name__ == "__main__":
    sys.exit(main())
