"""Measures reading: the list of messages with every filter, on first pages and deep ones; and one message by its id.

    make bench-search                                       (or: python bench/search.py)
    python bench/search.py --keep /var/tmp/archive          (the archive stays there, and is used again)
    python bench/search.py --keep /var/tmp/archive --compare-only --rounds 7 --seconds 3
    python bench/search.py --rows 20000 --quick --output /tmp/bench

An archive of one large account and some small ones is made in a private cluster, over thirty days; then the HTTP
server, in two processes, answers eight clients. Rounds of all searches in turn, pairs of filters in the first of them
only; medians over the rounds. Then the same reads are made on a small archive and on the large one, in turn, with
PostgreSQL's plans.
"""

import itertools
import os
import random
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import harness, search_ground, search_load, search_plans, search_report, served
from bench.harness import Run
from bench.processes import Pace
from bench.report import Report
from bench.search_ground import Archive
from bench.search_load import CLIENTS, Measured, Search, tries_max
from bench.search_report import Compared, Pair
from posthouse.rules import ids, search
from posthouse.rules.search import SearchFilters
from tools.private_postgres import PrivatePostgres

ROWS: Final = 10_000_000
ROUNDS: Final = 3
SECONDS: Final = 4
PAGES: Final = 400
# What the large archive is compared with, over as many days, and how many of its messages are asked for.
SMALL_ROWS: Final = 10_000
IDS: Final = 4_000
WARM_SECONDS: Final = 5
BYTES_READ_A_MESSAGE: Final = 1_400

CLUSTER_SETTINGS: Final = {
    "max_wal_size": "4GB",
    "checkpoint_timeout": "1h",
    # What is made in a transaction of its own need not be logged.
    "wal_level": "minimal",
    "max_wal_senders": "0",
}


@dataclass(frozen=True, slots=True)
class Values:
    """What a filter is asked for: values that many messages have, few, and none."""

    common: tuple[str, ...]
    rare: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


def filters(archive: Archive, chance: random.Random) -> dict[str, Values]:
    def some(count: int, text: Any) -> tuple[str, ...]:
        return tuple(text(chance.randrange(count)) for _ in range(PAGES))

    credentials = [ids.text(ids.CREDENTIAL, one) for one in search_ground.CREDENTIALS]
    return {
        "status": Values(("delivered",), ("failed", "partial", "queued")),
        "recipient": Values(
            tuple(search_ground.recipient(number) for number in range(20)),
            some(search_ground.RECIPIENTS, search_ground.recipient),
            ("nobody@example.org",),
        ),
        "sender": Values(
            tuple(f"{name}@shop0.example" for name in search_ground.SENDERS),
            some(search_ground.RARE_SENDERS, "rare{}@shop0.example".format),
            ("nobody@shop0.example",),
        ),
        "subject": Values(
            ("order", "your", "shipped", "invoice", "welcome", "backup"),
            some(search_ground.ORDERS, search_ground.order),
            ("nonesuch",),
        ),
        "tag": Values(search_ground.TAGS, some(search_ground.RARE_TAGS, search_ground.rare_tag), ("nonesuch",)),
        "template": Values(search_ground.TEMPLATES, (), ("nonesuch",)),
        "source": Values(("api", "smtp"), ("test",)),
        "credential_id": Values(
            tuple(credentials[:3]), (credentials[3],), (ids.text(ids.CREDENTIAL, ids.lowest_id(archive.end)),)
        ),
    }


def searches(archive: Archive) -> list[Search]:
    chance = random.Random(6)
    known = filters(archive, chance)
    found = [_search(archive, chance, "no filter", [{}]), _search(archive, chance, "no filter", [{}], is_deep=True)]
    found.append(Search("time: an hour, a day, a week", tuple(_page(_times(archive, chance)) for _ in range(PAGES))))
    for name, values in known.items():
        for kind, given in (("common", values.common), ("rare", values.rare), ("absent", values.absent)):
            if given:
                asked = [{name: value} for value in given]
                found.append(_search(archive, chance, f"{name}: {kind}", asked))
                if kind != "absent":
                    found.append(_search(archive, chance, f"{name}: {kind}", asked, is_deep=True))
    words = known["subject"]
    for name, groups in (
        ("subject: two common words", [words.common, words.common]),
        ("subject: a common and a rare word", [words.common, words.rare]),
        ("subject: three common words", [("your",), ("order",), ("shipped", "confirmed", "how")]),
        ("subject: five words", [("your",), ("order",), ("has",), ("shipped",), words.rare]),
    ):
        asked = [{"subject": " ".join(chance.choice(group) for group in groups)} for _ in range(PAGES)]
        found.append(_search(archive, chance, name, asked))
        found.append(_search(archive, chance, name, asked, is_deep=True))
    for one, other in itertools.combinations(known, 2):
        found.append(_pair(archive, chance, (one, known[one].common), (other, known[other].common), "both common"))
        first, rare = (one, other) if known[other].rare else (other, one)
        if known[rare].rare:
            named = f"{rare} rare"
            found.append(_pair(archive, chance, (first, known[first].common), (rare, known[rare].rare), named))
    everything = {name: values.common[0] for name, values in known.items()}
    found.append(_search(archive, chance, "all filters at once, common values", [everything]))
    return found


def _search(
    archive: Archive, chance: random.Random, name: str, asked: Sequence[Mapping[str, str]], *, is_deep: bool = False
) -> Search:
    pages = [_page(asked[number % len(asked)], archive, chance, is_deep=is_deep) for number in range(PAGES)]
    return Search(f"{name}, {'deep' if is_deep else 'first'} page", tuple(pages))


def _pair(
    archive: Archive, chance: random.Random, one: tuple[str, Sequence[str]], other: tuple[str, Sequence[str]], kind: str
) -> Search:
    asked = [{name: chance.choice(values) for name, values in (one, other)} for _ in range(PAGES)]
    pages = [_page(given, archive, chance, is_deep=number % 2 == 0) for number, given in enumerate(asked)]
    return Search(f"{one[0]} + {other[0]}: {kind}", tuple(pages), is_pair=True)


def _page(
    asked: Mapping[str, str],
    archive: Archive | None = None,
    chance: random.Random | None = None,
    *,
    is_deep: bool = False,
) -> str:
    """A page's path and query; a deep one begins anywhere, which is where a reader would be after very many pages."""
    parameters = dict(asked)
    if is_deep and archive is not None and chance is not None:
        position = ids.lowest_id(_some_time(archive, chance))
        parameters["cursor"] = search.search_query(SearchFilters(**asked)).cursor(position)
    return f"/v1/messages?{urlencode(parameters)}"


def _some_time(archive: Archive, chance: random.Random) -> datetime:
    return archive.start + (archive.end - archive.start) * chance.random()


def _times(archive: Archive, chance: random.Random) -> dict[str, str]:
    after = _some_time(archive, chance)
    before = after + (archive.end - archive.start) * chance.choice((1 / 720, 1 / 30, 7 / 30))
    return {"after": after.strftime("%Y-%m-%dT%H:%M:%SZ"), "before": before.strftime("%Y-%m-%dT%H:%M:%SZ")}


def measure(archive: Archive, asked: Sequence[Search], seconds: int, run: Run) -> dict[str, list[Measured]]:
    rounds = run.rounds
    measured: dict[str, list[Measured]] = {one.name: [] for one in asked}
    with search_load.reading(archive, tries_max(rounds)) as readers:
        # Connections are opened, and statements planned, before anything counts.
        mixed = tuple(page for pages in zip(*(one.pages for one in asked), strict=True) for page in pages)
        readers.read(Search("warm", mixed[: PAGES * 4]), WARM_SECONDS)
        for number in range(rounds):
            for one in [one for one in asked if number == 0 or not one.is_pair]:
                measured[one.name].append(readers.read(one, seconds, number * PAGES // rounds))
                run.say(f"{number + 1}/{rounds} {one.name}: {measured[one.name][-1]}")
    return measured


def reads(archive: Archive) -> list[Search]:
    """What should cost the same whatever the archive's size, each for messages anywhere in the thirty days."""
    chance = random.Random(7)
    some = search_ground.some_messages(archive, [_some_time(archive, chance) for _ in range(IDS)])
    return [
        Search("GET /emails/{id}", tuple(f"/emails/{one}" for one in some)),
        Search("GET /v1/messages/{id}", tuple(f"/v1/messages/{one}" for one in some)),
        _search(archive, chance, "GET /v1/messages", [{}]),
        _search(archive, chance, "GET /v1/messages", [{}], is_deep=True),
    ]


def compare(small: Archive, large: Archive, seconds: int, run: Run) -> Compared:
    rounds = run.rounds
    pairs: dict[str, list[Pair]] = {}
    asked = [reads(archive) for archive in (small, large)]
    tries = tries_max(rounds)
    with search_load.reading(small, tries) as few, search_load.reading(large, tries) as many:
        for readers, some in zip((few, many), asked, strict=True):
            mixed = tuple(one.pages[number] for number in range(PAGES) for one in some)
            readers.read(Search("warm", mixed), WARM_SECONDS)
        for number in range(rounds):
            for less, more in zip(*asked, strict=True):
                # Every other round the other way round, so that a machine that slows down favours neither.
                if number % 2 == 0:
                    pair = Pair(few.read(less, seconds, number), many.read(more, seconds, number))
                else:
                    later = many.read(more, seconds, number)
                    pair = Pair(few.read(less, seconds, number), later)
                pairs.setdefault(less.name, []).append(pair)
                run.say(f"{number + 1}/{rounds} {less.name}: small {pair.small}; large {pair.large}")
    plans = [
        search_plans.plans(archive, {one.name: one.pages[0] for one in some})
        for archive, some in zip((small, large), asked, strict=True)
    ]
    return Compared(small.rows, pairs, *plans)


def _settings(rows: int) -> dict[str, str]:
    """All of a large archive that is read is to be in PostgreSQL's memory, or the disk would be what is measured."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    share = min(memory * 0.55, rows * BYTES_READ_A_MESSAGE)
    return CLUSTER_SETTINGS | {"shared_buffers": f"{max(128, int(share / 2**20))}MB"}


def _compared(archive: Archive, seconds: int, run: Run) -> Compared:
    directory = run.workplace / "small"
    directory.mkdir()
    with PrivatePostgres.start(settings=_settings(SMALL_ROWS)) as cluster:
        small = search_ground.open_archive(cluster, directory, SMALL_ROWS, lambda _: None)
        search_ground.warm(small)
        return compare(small, archive, seconds, run)


def report_of(run: Run) -> Report | None:
    seconds = 1 if run.is_quick else max(1, run.options.seconds)
    rows = max(1_000, run.options.rows)
    with PrivatePostgres.start(run.options.keep, settings=_settings(rows)) as cluster:
        archive = search_ground.open_archive(cluster, run.workplace, rows, run.say)
        if run.options.make_only:
            return None
        run.say(f"in memory: {search_ground.warm(archive) / 2**30:.1f} GiB")
        if run.options.compare_only:
            run.console.print(search_report.compared_table(_compared(archive, seconds, run)).terminal())
            return None
        asked = searches(archive)
        if run.is_quick:  # one of a kind
            asked = list(
                {re.split("[,:]", each.name)[0]: each for each in reversed(asked) if not each.is_pair}.values()
            )
        pace = Pace.start()
        measured = measure(archive, asked, seconds, run)
        compared = _compared(archive, seconds, run)
        run.console.print(search_report.compared_table(compared).terminal())
        return search_report.made(measured, compared, pace.text(), archive.rows, CLIENTS, seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = harness.parser(__doc__, rounds=ROUNDS, seconds=SECONDS)
    parser.add_argument("--rows", type=int, default=ROWS, help=f"messages in the archive ({ROWS:,})")
    parser.add_argument("--keep", type=Path, help="directory in which the archive stays, and is found again")
    parser.add_argument("--make-only", action="store_true", help="make the archive, and measure nothing")
    parser.add_argument("--compare-only", action="store_true", help="only what should cost the same at any size")
    return harness.main(parser.parse_args(arguments), report_of, served.missing)


if __name__ == "__main__":
    sys.exit(main())
