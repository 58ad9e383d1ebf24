"""Posthouse as a submission server: `posthouse run submission`, once or several times on one port."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg

from bench.ground import DATABASE, BooksError, Ground
from bench.load import LoadError
from bench.reception import Reception, Terms, greets
from bench.relay import Process, part_running
from posthouse.rules import ids
from tools.private_postgres import free_port

START_SECONDS_MAX: Final = 60.0
# Too many to be what is measured: the load comes from one address.
CONNECTIONS_MAX: Final = 4_000

# Every mail with its one recipient, its body, what was reserved for it, and its place in the calendar.
_KEPT: Final = """
SELECT (SELECT count(*) FROM messages WHERE source = 'smtp') AS messages,
       (SELECT count(*) FROM recipients) AS recipients,
       (SELECT count(*) FROM bodies) AS bodies,
       (SELECT count(*) FROM ledger WHERE kind = 'reserve') AS reserved,
       (SELECT count(*) FROM schedule) AS scheduled
"""
_KNOWN: Final = "SELECT count(*) FROM messages WHERE id = ANY($1::uuid[])"


@contextmanager
def running(ground: Ground, terms: Terms, *, processes: int) -> Iterator[Reception]:
    ground.clear()
    port = free_port()
    settings = {
        # On one machine, as the peers' processes talk to each other.
        "DATABASE__URL": f"postgresql://postgres@/{DATABASE}?host={ground.cluster.directory}&port={ground.cluster.port}",
        "SMTP__TLS_CERTIFICATE_FILE": str(terms.certificate_file),
        "SMTP__TLS_KEY_FILE": str(terms.key_file),
        "SUBMISSION__PORT": "0",
        "SUBMISSION__TLS_PORT": str(port),
        "SMTP__CONNECTIONS_MAX": str(CONNECTIONS_MAX),
        "SMTP__CONNECTIONS_PER_ADDRESS_MAX": str(CONNECTIONS_MAX),
        "SERVICE__HOSTNAME": "mail.posthouse.example",
    }
    environment = {**ground.environment, **{f"POSTHOUSE_{name}": value for name, value in settings.items()}}
    with ExitStack() as started:
        servers = [
            started.enter_context(part_running(["submission"], environment, _log(ground.workplace, number)))
            for number in range(processes)
        ]
        _wait_until_listening(ground.workplace, servers, port)
        yield Reception(
            port=port,
            families={"submission": [one.pid for one in servers], "PostgreSQL": [ground.cluster.pid]},
            require_kept=lambda answers: _require_kept(ground, answers),
        )


def _log(workplace: Path, number: int) -> Path:
    return workplace / f"submission-{number}.log"


def _wait_until_listening(workplace: Path, servers: Sequence[Process], port: int) -> None:
    """Every process, not the first that answers: the kernel hands connections to all that listen."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while _listeners(port) < len(servers) or not greets(port):
        for number, server in enumerate(servers):
            if server.poll() is not None or time.monotonic() > deadline:
                end = _log(workplace, number).read_text(errors="replace")[-3000:]
                raise LoadError(f"the server did not start:\n{end}")
        time.sleep(0.05)


def _listeners(port: int) -> int:
    """How many sockets listen there, as the kernel tells."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


def _require_kept(ground: Ground, answers: Sequence[str]) -> None:
    named = {ids.parse(ids.MESSAGE, answer.rpartition(" ")[2]) for answer in answers}

    async def look() -> tuple[dict[str, int], Any]:
        connection = await asyncpg.connect(ground.url)
        try:
            return dict(await connection.fetchrow(_KEPT)), await connection.fetchval(_KNOWN, list(named))
        finally:
            await connection.close()

    kept, known = asyncio.run(look())
    if {len(named), known, *kept.values()} != {len(answers)}:
        raise BooksError(
            f"{len(answers):,} mails were answered with 250, naming {len(named):,}, of which {known:,} are on the "
            f"books, which say: {kept}"
        )
