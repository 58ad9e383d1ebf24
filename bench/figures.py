"""The figures that pages quote, read from the reports of benchmarks and long runs into `figures.json`.

A page writes a figure as text, with its name in a comment behind it, which no reader sees: `317<!--deliver.rate-->`.
`tests/test_figures.py` refuses a page with another number. To quote one more, name it here and run `make figures`;
a benchmark and a long run with a report in the repository write the file themselves.
"""

import json
import re
from collections.abc import Callable, Mapping
from math import ceil
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
FILE: Final = ROOT / "bench/figures.json"
RESULTS: Final = ROOT / "bench/RESULTS.md"
RELIABILITY: Final = ROOT / "docs/internals/reliability.md"
REPORTS: Final = (RESULTS, RELIABILITY)

_NUMBER: Final = re.compile(r"[\d.,]*\d")


class Cell(NamedTuple):
    """A cell of a table, by the beginning of its row and the name of its column."""

    section: str
    row: str
    column: str


class Words(NamedTuple):
    """A number within a section's text: the first group of the pattern."""

    section: str
    pattern: str


def _seconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.1f}"


def _whole(number: float) -> str:
    return f"{number:.0f}"


def _million_an_hour(a_second: float) -> str:
    return f"{a_second * 3600 / 1_000_000:.2f}"


_HTTP: Final = "HTTP, 2 processes, 1,000 accounts"
_SIGNED: Final = "Posthouse, with DKIM"
_UNSIGNED: Final = "Posthouse, without DKIM"
_SESSION: Final = "Posthouse, one process, 20 messages a session"
_SINGLE: Final = "Posthouse, one process, one message a session"

Place = Cell | Words | tuple[Cell | Words, Callable[[float], str]]

QUOTED: Final[dict[str, Place]] = {
    "accept.rate": Cell("accept", _HTTP, "messages/s"),
    "accept.of_bare": Cell("accept", _HTTP, "of bare"),
    "accept.batch_rate": Cell("accept", "HTTP, 1 process, 100 emails a request", "messages/s"),
    "accept.batch_cost": Words("accept", r"of their processor time alone: (\d+)%"),
    "accept.python_one": Cell("accept", "HTTP, 1 process, 1,000 accounts", "CPU µs: Python"),
    "accept.python_two": Cell("accept", _HTTP, "CPU µs: Python"),
    "accept.postgresql_one": Cell("accept", "HTTP, 1 process, 1,000 accounts", "PostgreSQL"),
    "accept.postgresql_two": Cell("accept", _HTTP, "PostgreSQL"),
    "accept.of_bare_batches": Words("accept", r"in batches of 50, two processes reach (\d+)%"),
    "accept.median_second": Words("accept", r"a 202 took ([\d.]+) ms"),
    "accept.slowest_second": Words("accept", r"there, ([\d.]+) ms in the slowest"),
    "accept.times_asgi": Words("accept", r"raw ASGI per message: ([\d.]+) times"),
    "submission.rate": Cell("submission", _SESSION, "messages/s"),
    "submission.cost": Cell("submission", _SESSION, "CPU µs: server"),
    "submission.postfix": Cell("submission", _SESSION, "× Postfix"),
    "submission.haraka": Cell("submission", _SESSION, "× Haraka"),
    "submission.postfix_single": Cell("submission", _SINGLE, "× Postfix"),
    "deliver.rate": Cell("deliver", _SIGNED, "messages/s"),
    "deliver.an_hour": (Cell("deliver", _SIGNED, "messages/s"), _million_an_hour),
    "deliver.cost": Cell("deliver", _SIGNED, "CPU µs: relay"),
    "deliver.rspamd": Cell("deliver", _SIGNED, "× Postfix + rspamd"),
    "deliver.opendkim": Cell("deliver", _SIGNED, "× Postfix + OpenDKIM"),
    "deliver.rsa_rspamd": Words("deliver", r"rspamd, signing takes .*: ([\d.]+)×"),
    "deliver.rsa_opendkim": Words("deliver", r"OpenDKIM, signing takes .*: ([\d.]+)×"),
    "deliver.beyond": Words("deliver", r"beyond the two signatures: (\d+) µs"),
    "deliver.unsigned": Cell("deliver", _UNSIGNED, "messages/s"),
    "deliver.unsigned_cost": Cell("deliver", _UNSIGNED, "CPU µs: relay"),
    "deliver.unsigned_postfix": Cell("deliver", _UNSIGNED, "× Postfix"),
    "deliver.unsigned_haraka": Cell("deliver", _UNSIGNED, "× Haraka"),
    "deliver.http": Words("deliver", rf"{_SIGNED}: of .* http ([\d,]+),"),
    "deliver.dispatch": Words("deliver", rf"{_SIGNED}: of .* dispatch ([\d,]+),"),
    "deliver.delivery": Words("deliver", rf"{_SIGNED}: of .* delivery ([\d,]+),"),
    "deliver.postgresql": Words("deliver", rf"{_SIGNED}: of .* PostgreSQL ([\d,]+),"),
    "deliver.nats": Words("deliver", rf"{_SIGNED}: of .* NATS ([\d,]+);"),
    "deliver.signatures": Words("deliver", r"two signatures alone, made one after the other: ([\d,]+) µs"),
    "deliver.rspamd_cost": Words("deliver", r"Postfix [\d,]+, rspamd ([\d,]+)\."),
    "overload.offered": Cell("overload", "2 × capacity", "a second"),
    "overload.accepted": Cell("overload", "2 × capacity", "202 a second"),
    "overload.p99": Words("overload", r"what is accepted at most 1,000 ms: (\d+) ms"),
    "overload.refused_p99": Words("overload", r"the refusals at most 250 ms: (\d+) ms"),
    "webhooks.caller": Cell("webhooks", "Posthouse: claim, sign, post, record", "caller µs"),
    "webhooks.postgresql": Cell("webhooks", "Posthouse: claim, sign, post, record", "PostgreSQL µs"),
    "webhooks.stream": Cell("webhooks", "Posthouse: claim, sign, post, record", "stream µs"),
    "webhooks.rate": Cell("webhooks", "Posthouse: claim, sign, post, record", "events/s"),
    "webhooks.of_bare": Cell("webhooks", "Posthouse: claim, sign, post, record", "of bare"),
    "isolation.dead": (Cell("isolation", "1,000 destinations, the one dead", "p99 ms"), _seconds),
    "isolation.alive": (Cell("isolation", "1,000 destinations, the one alive", "p99 ms"), _seconds),
    "isolation.ratio": Words("isolation", r"when the one is dead: ([\d.]+)×"),
    "isolation.backlog": (Cell("isolation", "slow lane: the account with one message a second", "p99 ms"), _seconds),
    "backlog.rate": Cell("backlog", "some due, most later | dispatch | 1,000,000", "rows/s"),
    "backlog.ratio": Cell("backlog", "some due, most later | dispatch | 1,000,000", "of smallest"),
    "search.page": (Cell("search", "no filter, first page", "p50 ms"), _whole),
    "search.ratio": Words("search", r"GET /v1/messages, first page at 1\.2× .*: ([\d.]+)×"),
    "low_load.postgresql": Cell("low-load", "30 messages/s, per message", "PostgreSQL µs"),
    "metrics.accepted": Words("metrics", r"a message accepted costs \+([\d.]+)% .* with metrics"),
    "metrics.delivered": Words("metrics", r"accepted and delivered costs \+([\d.]+)% .* with metrics"),
    "bodies.stored": Cell("bodies", "30 KB of HTML, lz4", "stored KB"),
    "chaos.minutes": Words("chaos", r"Chaos for (\d+) minutes"),
    "chaos.faults": Words("chaos", r"(\d+) faults, "),
    "chaos.kills": Words("chaos", r"faults, (\d+) of them kills"),
    "chaos.recipients": Cell("chaos", "recipients", "how many"),
    "chaos.requests": Cell("chaos", "2 | one key, one message", "checked"),
    "chaos.deaths": Cell("chaos", "deaths of a delivery worker", "how many"),
    "chaos.copies_of_deaths": Words("chaos", r"\*\*([\d,]+) ≤"),
    "chaos.copies_of_servers": Words("chaos", r"closed the connection \| ([\d,]+) \|"),
    "crash.points": Words("crash", r"### (\d+) crash points"),
    "crash.recipients": Cell("crash", "recipients", "how many"),
    "restore.accepted": Cell("restore", "messages accepted before the loss", "held (the default)"),
    "restore.lost": Cell("restore", "of them lost: accepted after the point", "held (the default)"),
    "restore.held": Cell("restore", "recipients held", "held (the default)"),
    "restore.released": Cell("restore", "second copies after", "held (the default)"),
    "restore.unheld": Cell(
        "restore", "**second copies without an operator's release**", "`hold_after_restore = false`"
    ),
    "rotation.accepted": Cell("rotation", "messages accepted", "Figure"),
}

ASSUMED: Final[dict[str, str]] = {
    "sizing.peak": "2.5",
    "sizing.busy": "70",
    "sizing.rows": "4.0",
    "sizing.wal_rows": "5.2",
    "sizing.restore": "500",
    "sizing.free": "25",
    "sizing.system": "20",
    "sizing.core_usd": "10",
    "sizing.gb_usd": "0.10",
}
"""What the calculator of `docs/howto/sizing.md` needs and no report has: measured once (`rows` and `wal_rows`, in KB a
message), the others assumed. That page and `docs/internals/scaling.md` explain them."""
_PEAK: Final = float(ASSUMED["sizing.peak"]) / (float(ASSUMED["sizing.busy"]) / 100)
"""Processors to buy for each that is busy on average."""
_LARGE_US: Final = 860
"""What an email costs more in a large installation, by the estimates of that page."""


def _busy(emails_a_day: float, microseconds: float) -> float:
    return emails_a_day / 86_400 * microseconds / 1_000_000


COMPUTED: Final[dict[str, Callable[[Mapping[str, float]], float]]] = {
    "scaling.delivery": lambda known: known["deliver.delivery"] - known["deliver.signatures"],
    "scaling.webhook": lambda known: sum(known[f"webhooks.{part}"] for part in ("caller", "postgresql", "stream")),
    "scaling.half_webhook": lambda known: known["scaling.webhook"] / 2,
    "scaling.sum": lambda known: (
        sum(known[f"deliver.{part}"] for part in ("http", "dispatch", "delivery", "postgresql", "nats"))
        + known["scaling.half_webhook"]
    ),
    "sizing.unsigned": lambda known: known["scaling.sum"] - known["deliver.signatures"],
    "sizing.process": lambda known: 1e6 / known["deliver.delivery"],
    "sizing.process_unsigned": lambda known: 1e6 / known["scaling.delivery"],
    "scaling.cores_1": lambda known: ceil(_busy(1e6, known["scaling.sum"]) * _PEAK),
    "scaling.cores_10": lambda known: ceil(_busy(1e7, known["scaling.sum"]) * _PEAK),
    "scaling.cores_25": lambda known: ceil(_busy(2.5e7, known["scaling.sum"]) * _PEAK),
    "scaling.cores_45": lambda known: ceil(_busy(4.5e7, known["scaling.sum"]) * _PEAK),
    "scaling.cores_100": lambda known: ceil(_busy(1e8, known["scaling.sum"]) * _PEAK),
    "scaling.busy_1000": lambda known: _busy(1e9, known["scaling.sum"] + _LARGE_US),
    "scaling.cores_1000": lambda known: known["scaling.busy_1000"] * _PEAK,
}
"""Figures that follow from others, in this order."""


def sections() -> dict[str, str]:
    """The parts of the reports between `<!-- name:start -->` and `<!-- name:end -->`."""
    pattern = re.compile(r"<!-- ([\w-]+):start -->\n(.*?)<!-- \1:end -->", re.DOTALL)
    return {name: text for report in REPORTS for name, text in pattern.findall(report.read_text())}


def read() -> dict[str, str]:
    """Every quoted figure, as its reports have it today."""
    texts = sections()
    found = {name: _figure(texts, place) for name, place in QUOTED.items()}
    known = {name: float(shown.replace(",", "")) for name, shown in found.items()}
    for name, compute in COMPUTED.items():
        known[name] = compute(known)
        found[name] = f"{known[name]:,.0f}"
    return found | ASSUMED


def write() -> None:
    FILE.write_text(json.dumps(read(), indent=2, ensure_ascii=False) + "\n")


def replaced(page: str, name: str, text: str) -> str:
    """The page with this text as its section, at the end if it has none of that name."""
    start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
    section = f"{start}\n{text}{end}"
    if start in page and end in page:
        before, _, rest = page.partition(start)
        return before + section + rest.partition(end)[2]
    return f"{page.rstrip()}\n\n{section}\n"


def _figure(texts: dict[str, str], place: Place) -> str:
    if not isinstance(place, (Cell, Words)):
        source, shown = place
        return shown(float(_figure(texts, source).replace(",", "")))
    text = texts[place.section]
    if isinstance(place, Words):
        found = re.search(place.pattern, text)
        words = found[1] if found else ""
    else:
        words = _cell(text, place)
    number = _NUMBER.search(words)
    if number is None:
        raise LookupError(f"no report has {place}")
    return number[0]


def _cell(text: str, place: Cell) -> str:
    columns: list[str] = []
    for line in text.splitlines():
        cells = line.strip("|").split("|") if line.startswith("|") else []
        if place.column in (names := [cell.strip() for cell in cells]):
            columns = names
        elif columns and line.startswith(f"| {place.row}"):
            return cells[columns.index(place.column)]
    return ""


if __name__ == "__main__":
    write()
