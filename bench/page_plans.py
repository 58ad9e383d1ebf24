"""How PostgreSQL ran the statements that a page takes: as the service sends them, on its own connections.

The service is started again with PostgreSQL's `auto_explain` on its connections; what that writes into the server's log
are the very plans that were used, with the partitions that they opened and the pages that they read.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from bench.processes import BenchError
from bench.search_dataset import Archive
from posthouse.store import partitions

# The first times a connection looks up what it then knows.
ASKED_BEFORE: Final = 3
ASKED_MAX: Final = 10
CHARACTERS_SHOWN_MAX: Final = 140
_EXPLAINED: Final = {
    "session_preload_libraries": "auto_explain",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_buffers": "on",
    "auto_explain.log_timing": "off",
}
_LOGGED: Final = re.compile(r"  plan:\n((?:\t.*\n)+)")
_COST: Final = re.compile(r" \(cost=[^)]*\)")
_PARTITION: Final = re.compile(rf" on (?:\w+\.)?(({'|'.join(partitions.TABLES)})_\d{{8}})\b")
_PAGES: Final = re.compile(r"Buffers: shared(?: hit=(\d+))?(?: read=(\d+))?")


@dataclass(frozen=True, slots=True)
class Plan:
    """Of one statement: `text` leaves out what was never run."""

    tables: tuple[str, ...]
    opened: int
    read: int
    pages: int
    text: str


def explained(archive: Archive) -> Archive:
    """The archive for a server whose statements PostgreSQL explains in its log."""
    url = f"{archive.data.environment['POSTHOUSE_DATABASE__URL']}?{urlencode(_EXPLAINED)}"
    environment = archive.data.with_settings({"DATABASE__URL": url})
    return replace(archive, data=replace(archive.data, environment=environment))


def plans(log: Path, ask: Callable[[str], bool], pages: Mapping[str, str]) -> dict[str, list[Plan]]:
    """By the name of each page, its statements that read partitioned tables, in their order.

    `ask` reads a page, and returns whether it was answered; `log` is PostgreSQL's.
    """

    def logged(page: str) -> str:
        with log.open() as written:
            written.seek(0, 2)
            return written.read() if ask(page) else ""

    found = {}
    for name, page in pages.items():
        for _ in range(ASKED_BEFORE):
            ask(page)
        text = next(filter(None, (logged(page) for _ in range(ASKED_MAX))), "")
        found[name] = [_plan(plan) for plan in _LOGGED.findall(text) if _PARTITION.search(plan)]
        if not found[name]:
            raise BenchError(f"{name}: PostgreSQL's log {log} has no plan of it")
    return found


def _plan(logged: str) -> Plan:
    lines = [_COST.sub("", line.removeprefix("\t")) for line in logged.splitlines()]
    # Before it is the statement.
    lines = lines[next(number for number, line in enumerate(lines) if "(actual " in line) :]
    run = _without_the_never_run(lines)
    opened, read = ([found for line in some if (found := _PARTITION.search(line))] for some in (lines, run))
    pages = next((found for line in run if (found := _PAGES.search(line))), None)
    return Plan(
        tables=tuple(dict.fromkeys(match[2] for match in opened)),
        opened=len({match[1] for match in opened}),
        read=len({match[1] for match in read}),
        pages=0 if pages is None else sum(int(number or 0) for number in pages.groups()),
        text="\n".join(line[:CHARACTERS_SHOWN_MAX].rstrip() for line in run),
    )


def _without_the_never_run(lines: list[str]) -> list[str]:
    kept = []
    left_out = None
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if left_out is not None and indent > left_out:
            continue
        left_out = indent if "(never executed)" in line else None
        if left_out is None:
            kept.append(line)
    return kept
