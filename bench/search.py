"""Measures reading: the list of messages with every filter, on first pages and deep ones; and a message by its id.

    make bench-search                                       (or: python bench/search.py)
    python bench/search.py --keep /var/tmp/archive          (the archive stays there, and is used again)
    python bench/search.py --keep /var/tmp/archive --compare-only --rounds 7 --seconds 3
    python bench/search.py --keep /var/tmp/archive --only metadata --memory-gib 4
    python bench/search.py --rows 20000 --quick --output /tmp/bench

An archive of one large account and some small ones is made in a private cluster, over thirty days; then the HTTP
server, in two processes, answers eight clients. Rounds of all searches in turn, pairs of filters in the first of them
only; medians over the rounds. Then the same reads are made on a small archive and on the large one, in turn, with
PostgreSQL's plans.
"""

import json
import os
import random
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import harness, page_plans, report, search_dataset, wrk_load
from bench.harness import Run
from bench.page_plans import Plan
from bench.processes import BenchError, Measured, Pace
from bench.report import Goal, Report, Rows, Runs, goal, middle
from bench.search_dataset import Archive
from bench.search_queries import PAGES, Queries, Search
from bench.wrk_load import HttpServer
from posthouse.flows.account.message_search import DAYS_EXAMINED_MAX
from tools.private_postgres import PrivatePostgres

ROWS: Final = 10_000_000
ROUNDS: Final = 3
SECONDS: Final = 4
CLIENTS: Final = 8
PROCESSES: Final = 2
# What the large archive is compared with, over as many days.
SMALL_ROWS: Final = 10_000
WARM_SECONDS: Final = 5
LISTEN_SECONDS_MAX: Final = 10.0
UNAVAILABLE: Final = 503
# Of the processors, by the machine's host during a run that counts; and how often a run is made for that.
STOLEN_MAX: Final = 0.002
TRIES_MAX: Final = 6
BYTES_READ_A_MESSAGE: Final = 1_400

P99_MS_MAX: Final = 50.0
# Processor time of a read on the large archive to that of the same on the small one.
FLAT_MAX: Final = 1.2
# Their plans are shown whole; of the others only what they opened and read.
SHOWN: Final = ("GET /emails/{id}", "GET /v1/messages, first page")

CLUSTER_SETTINGS: Final = {
    "max_wal_size": "4GB",
    "checkpoint_timeout": "1h",
    # What is made in its own transaction need not be logged.
    "wal_level": "minimal",
    "max_wal_senders": "0",
}


class Pair(NamedTuple):
    """The same read on both archives, one after the other."""

    small: Measured
    large: Measured


@dataclass(frozen=True, slots=True)
class Compared:
    """Reads on a small archive and on the large one, by their names; and how their statements were run."""

    pairs: Mapping[str, Sequence[Pair]]
    small_plans: Mapping[str, Sequence[Plan]]
    large_plans: Mapping[str, Sequence[Plan]]


@dataclass(frozen=True, slots=True)
class Readers:
    """Clients of one archive's server, with the token of a login."""

    archive: Archive
    server: HttpServer
    token: str
    tries_max: int

    def warm(self, searches: Sequence[Search]) -> None:
        """Connections are opened, and statements planned, before anything counts."""
        pages = zip(*(search.pages[:PAGES] for search in searches), strict=True)
        mixed = tuple(page for some in pages for page in some)
        self.read(Search("warm", mixed[: PAGES * 4]), WARM_SECONDS)

    def read(self, search: Search, seconds: int, first: int = 0) -> Measured:
        """Page after page from the given one; raises unless every page was answered with 200.

        A run that the machine's host disturbed is made again, a few times; the least disturbed run counts.
        """
        requests = [wrk_load.get(page, self.token, self.server.port) for page in search.pages]
        postgres = self.archive.data.cluster.pid
        runs: list[Measured] = []
        while not runs or (_stolen(runs[-1]) > STOLEN_MAX and len(runs) < self.tries_max):
            runs.append(
                wrk_load.measure(
                    self.server, postgres, requests, seconds=seconds, connections=CLIENTS, name=search.name, first=first
                )
            )
        return min(runs, key=_stolen)

    def ask(self, page: str) -> bool:
        """A page, once; whether it was answered, which a machine that is busy elsewhere may fail to do in time."""
        headers = {"Authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.server.port}{page}", headers=headers)
        try:
            with urllib.request.urlopen(request) as answer:
                answer.read()
        except urllib.error.HTTPError as error:
            if error.code != UNAVAILABLE:
                raise BenchError(f"{page} was answered with {error}") from error
            return False
        return True


def _stolen(run: Measured) -> float:
    return run.figures["stolen"]


def _tries_max(rounds: int) -> int:
    """A single round is meant to be quick."""
    return TRIES_MAX if rounds > 1 else 1


@contextmanager
def open_readers(archive: Archive, tries_max: int = 1) -> Iterator[Readers]:
    with wrk_load.http_server(archive.data.environment, archive.data.workplace, PROCESSES) as server:
        yield Readers(archive, server, login(server.port), tries_max)


def login(port: int) -> str:
    body = json.dumps({"email": search_dataset.EMAIL, "password": search_dataset.PASSWORD}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/auth/login", body, {"Content-Type": "application/json"}
    )
    deadline = time.monotonic() + LISTEN_SECONDS_MAX
    while True:
        try:
            with urllib.request.urlopen(request) as answer:
                token: str = json.load(answer)["token"]
            return token
        except urllib.error.URLError as error:
            # It logs that it is ready a moment before it listens, and may be slow with its first connection.
            if time.monotonic() > deadline:
                raise BenchError(f"the login failed: {error}") from error
            time.sleep(0.1)


def measure(archive: Archive, searches: Sequence[Search], seconds: int, run: Run) -> dict[str, list[Measured]]:
    rows: dict[str, list[Measured]] = {search.name: [] for search in searches}
    with open_readers(archive, _tries_max(run.rounds)) as readers:
        readers.warm(searches)
        for number in range(run.rounds):
            for search in searches:
                if number == 0 or not search.is_pair:
                    rows[search.name].append(readers.read(search, seconds, number * PAGES // run.rounds))
                    run.say(f"{number + 1}/{run.rounds} {search.name}: {rows[search.name][-1]}")
    return rows


def compare(large: Archive, seconds: int, run: Run) -> Compared:
    directory = run.workplace / "small"
    directory.mkdir()
    with PrivatePostgres.start(settings=_settings(SMALL_ROWS)) as cluster:
        small = search_dataset.open_archive(cluster, directory, SMALL_ROWS, lambda _: None)
        search_dataset.warm(small)
        searches = [Queries(archive, random.Random(7)).reads() for archive in (small, large)]
        pairs = _read_both(small, large, searches, seconds, run)
        plans = []
        for archive, some in zip((small, large), searches, strict=True):
            with open_readers(page_plans.explained(archive)) as readers:
                pages = {search.name: search.pages[0] for search in some}
                plans.append(page_plans.plans(archive.data.cluster.log, readers.ask, pages))
        return Compared(pairs, *plans)


def _read_both(
    small: Archive, large: Archive, searches: Sequence[Sequence[Search]], seconds: int, run: Run
) -> dict[str, list[Pair]]:
    pairs: dict[str, list[Pair]] = {}
    tries = _tries_max(run.rounds)
    with open_readers(small, tries) as few, open_readers(large, tries) as many:
        for readers, some in zip((few, many), searches, strict=True):
            readers.warm(some)
        for number in range(run.rounds):
            for less, more in zip(*searches, strict=True):
                both = [(few, less), (many, more)]
                # Every other round runs backwards, so that a machine that slows down favours neither.
                backwards = number % 2 == 1
                runs = [
                    readers.read(search, seconds, number) for readers, search in (both[::-1] if backwards else both)
                ]
                pair = Pair(*(reversed(runs) if backwards else runs))
                pairs.setdefault(less.name, []).append(pair)
                run.say(f"{number + 1}/{run.rounds} {less.name}: small {pair.small}; large {pair.large}")
    return pairs


def _settings(rows: int, memory_gib: float | None = None) -> dict[str, str]:
    """What is read of a large archive must be in PostgreSQL's memory, or the disk would be measured."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    share = min(memory * 0.55 if memory_gib is None else memory_gib * 2**30, rows * BYTES_READ_A_MESSAGE)
    return CLUSTER_SETTINGS | {"shared_buffers": f"{max(128, int(share / 2**20))}MB"}


def report_of(run: Run) -> Report | None:
    seconds = 1 if run.is_quick else max(1, run.options.seconds)
    rows = max(1_000, run.options.rows)
    with PrivatePostgres.start(run.options.keep, settings=_settings(rows, run.options.memory_gib)) as cluster:
        archive = search_dataset.open_archive(cluster, run.workplace, rows, run.say)
        if run.options.make_only:
            return None
        run.say(f"in memory: {search_dataset.warm(archive) / 2**30:.1f} GiB")
        if run.options.compare_only:
            run.console.print(_compared_table(compare(archive, seconds, run)).terminal())
            return None
        searches = Queries(archive, random.Random(6)).searches()
        if run.options.only:
            searches = [search for search in searches if run.options.only in search.name]
            measured = measure(archive, searches, seconds, run)
            run.console.print(_table(measured, _missed(measured)).terminal())
            return None
        if run.is_quick:  # only the first of a kind
            kinds = {re.split("[,:]", search.name)[0]: search for search in reversed(searches) if not search.is_pair}
            searches = list(kinds.values())
        pace = Pace.start()
        measured = measure(archive, searches, seconds, run)
        compared = compare(archive, seconds, run)
        run.console.print(_compared_table(compared).terminal())
    missed = _missed(measured)
    slowest = max(measured, key=lambda name: _p99_ms(measured[name]))
    verdict = f"missed by {', '.join(missed)}" if missed else "reached by every search"
    slowest_text = f"the slowest is {slowest} with {_p99_ms(measured[slowest]):.1f} ms"
    return Report(
        name="search",
        title="The list of messages",
        target="bench-search",
        machine=report.machine(),
        state=pace.text(),
        tables=[_table(measured, missed)],
        goals=[],
        more=[f"p99 under {P99_MS_MAX:.0f} ms: {verdict}; {slowest_text}"],
        notes=report.notes(
            "search",
            repeated=report.repeated(run.rounds),
            seconds=seconds,
            stolen_max=f"{STOLEN_MAX:.1%}",
            tries=_tries_max(run.rounds),
            clients=CLIENTS,
            rows=f"{archive.rows:,}",
            days_examined=DAYS_EXAMINED_MAX,
            small_rows=f"{SMALL_ROWS:,}",
            table=_compared_table(compared).markdown(),
            goals="\n".join(f"- {each.text}." for each in flat(compared)),
            plan_table=_plan_table(compared).markdown(),
            plans=_shown_plans(compared),
        ),
    )


def _missed(measured: Runs) -> list[str]:
    return [name for name, runs in measured.items() if _p99_ms(runs) >= P99_MS_MAX]


def _p99_ms(runs: Sequence[Measured]) -> float:
    return median(run.p99_ms for run in runs)


def _table(rows: Runs, missed: Sequence[str]) -> Rows:
    columns = [
        ("pages/s", middle("{:,.0f}", lambda run: run.per_second)),
        ("p50 ms", middle("{:.1f}", lambda run: run.p50_ms)),
        ("p99 ms", middle("{:.1f}", lambda run: run.p99_ms)),
        ("worst p99", lambda runs: f"{max(run.p99_ms for run in runs):.1f}"),
        ("CPU µs: Python", middle("{:,.0f}", lambda run: run.server_us["Python"])),
        ("PostgreSQL", middle("{:,.0f}", lambda run: run.server_us["PostgreSQL"])),
        ("stolen", lambda runs: f"{max(map(_stolen, runs)):.1%}"),
    ]
    title = "The list of messages: medians of interleaved rounds"
    return report.table(title, "Search", rows, columns, missed, "bold red")


def _ratio(pairs: Sequence[Pair], read: Callable[[Measured], float]) -> float:
    return median(read(pair.large) / read(pair.small) for pair in pairs)


def flat(compared: Compared) -> list[Goal]:
    """Whether a read costs on the large archive what it costs on the small one."""
    found = []
    for name, pairs in compared.pairs.items():
        ratio = _ratio(pairs, lambda run: run.cpu_us)
        text = f"{name} at {FLAT_MAX}× the processor time on the small archive or less: {ratio:.2f}×"
        found.append(goal(ratio <= FLAT_MAX, text))
    return found


def _compared_table(compared: Compared) -> Rows:
    def both(pairs: Sequence[Pair], read: Callable[[Measured], float], form: str) -> str:
        return " / ".join(format(median(read(pair[side]) for pair in pairs), form) for side in (0, 1))

    rows = [
        [
            name,
            both(pairs, lambda run: run.per_second, ",.0f"),
            both(pairs, lambda run: run.p50_ms, ".1f"),
            f"{_ratio(pairs, lambda run: run.p50_ms):.2f}",
            both(pairs, lambda run: run.p99_ms, ".1f"),
            both(pairs, lambda run: run.server_us["Python"], ",.0f"),
            both(pairs, lambda run: run.server_us["PostgreSQL"], ",.0f"),
            f"{_ratio(pairs, lambda run: run.cpu_us):.2f}",
        ]
        for name, pairs in compared.pairs.items()
    ]
    columns = ("Read", "reads/s", "p50 ms", "×", "p99 ms", "CPU µs: Python", "PostgreSQL", "×")
    styles = [None if each.is_reached else "bold red" for each in flat(compared)]
    return Rows("Reads on a small archive and on the large one", columns, rows, styles)


def _plan_table(compared: Compared) -> Rows:
    def numbers(plan: Plan | None) -> tuple[object, object, object]:
        return ("–", "–", "–") if plan is None else (plan.opened, plan.read, plan.pages)

    rows = []
    for name, plans in compared.large_plans.items():
        small = {plan.tables: plan for plan in compared.small_plans[name]}
        for large in plans:
            both = zip(numbers(small.get(large.tables)), numbers(large), strict=True)
            rows.append([name, ", ".join(large.tables), *(f"{few} / {many}" for few, many in both)])
    return Rows("", ("Statement of", "tables", "partitions opened", "read", "pages"), rows)


def _shown_plans(compared: Compared) -> str:
    return "\n\n".join(
        f"{name}: {', '.join(plan.tables)}\n{plan.text}" for name in SHOWN for plan in compared.large_plans[name]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = harness.parser(__doc__, rounds=ROUNDS, seconds=SECONDS)
    parser.add_argument("--rows", type=int, default=ROWS, help=f"messages in the archive ({ROWS:,})")
    parser.add_argument("--keep", type=Path, help="directory in which the archive stays, and is found again")
    parser.add_argument("--make-only", action="store_true", help="make the archive, and measure nothing")
    parser.add_argument("--only", help="only searches with this in their names; prints the table, and writes nothing")
    parser.add_argument("--memory-gib", type=float, help="of PostgreSQL's buffers (half of the machine's memory)")
    parser.add_argument("--compare-only", action="store_true", help="only what should cost the same at any size")
    return harness.main(parser.parse_args(arguments), report_of, wrk_load.missing)


if __name__ == "__main__":
    sys.exit(main())
