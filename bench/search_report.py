"""The report on reading messages: every search, the same reads on a small and a large archive, and their plans."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

from bench import report
from bench.report import Goal, Report, Rows, goal
from bench.search_load import STOLEN_MAX, Measured, tries_max
from bench.search_plans import Plan
from posthouse.flows.account.message_search import DAYS_EXAMINED_MAX

P99_MS_MAX: Final = 50.0
# Processor time of a read on the large archive to that of the same on the small one.
FLAT_MAX: Final = 1.2
# Their plans are shown whole; of the others only what they opened and read.
SHOWN: Final = ("GET /emails/{id}", "GET /v1/messages, first page")

_COLUMNS: Final = ("Search", "pages/s", "p50 ms", "p99 ms", "worst p99", "CPU µs: Python", "PostgreSQL", "stolen")
_READ_COLUMNS: Final = ("Read", "reads/s", "p50 ms", "×", "p99 ms", "CPU µs: Python", "PostgreSQL", "×")
_PLAN_COLUMNS: Final = ("Statement of", "tables", "partitions opened", "read", "pages")


class Pair(NamedTuple):
    """The same read on both archives, one after the other."""

    small: Measured
    large: Measured


@dataclass(frozen=True, slots=True)
class Compared:
    """Reads on a small archive and on the large one, by their names; and how their statements were run."""

    small_rows: int
    pairs: Mapping[str, Sequence[Pair]]
    small_plans: Mapping[str, Sequence[Plan]]
    large_plans: Mapping[str, Sequence[Plan]]


def _cells(name: str, runs: Sequence[Measured]) -> list[str]:
    return [
        name,
        f"{median(one.per_second for one in runs):,.0f}",
        f"{median(one.p50_ms for one in runs):.1f}",
        f"{median(one.p99_ms for one in runs):.1f}",
        f"{max(one.p99_ms for one in runs):.1f}",
        f"{median(one.server_us for one in runs):,.0f}",
        f"{median(one.postgres_us for one in runs):,.0f}",
        f"{max(one.stolen for one in runs):.1%}",
    ]


def table(measured: Mapping[str, Sequence[Measured]]) -> Rows:
    rows = [_cells(name, runs) for name, runs in measured.items()]
    styles = [None if _p99_ms(runs) < P99_MS_MAX else "bold red" for runs in measured.values()]
    return Rows("The list of messages: medians of interleaved rounds", _COLUMNS, rows, styles)


def _p99_ms(runs: Sequence[Measured]) -> float:
    return median(run.p99_ms for run in runs)


def flat(compared: Compared) -> list[Goal]:
    """Whether a read costs on the large archive what it costs on the small one."""
    return [
        goal(
            _ratio(pairs, _processor_us) <= FLAT_MAX,
            f"{name} at {FLAT_MAX}× the processor time on the small archive or less: "
            f"{_ratio(pairs, _processor_us):.2f}×",
        )
        for name, pairs in compared.pairs.items()
    ]


def _processor_us(one: Measured) -> float:
    return one.server_us + one.postgres_us


def _ratio(pairs: Sequence[Pair], value: Callable[[Measured], float]) -> float:
    return median(value(one.large) / value(one.small) for one in pairs)


def compared_table(compared: Compared) -> Rows:
    rows = [_read_cells(name, pairs) for name, pairs in compared.pairs.items()]
    styles = [None if each.is_reached else "bold red" for each in flat(compared)]
    return Rows("Reads on a small archive and on the large one", _READ_COLUMNS, rows, styles)


def _read_cells(name: str, pairs: Sequence[Pair]) -> list[str]:
    def both(value: Callable[[Measured], float], form: str) -> str:
        return " / ".join(format(median(value(one[side]) for one in pairs), form) for side in (0, 1))

    return [
        name,
        both(lambda one: one.per_second, ",.0f"),
        both(lambda one: one.p50_ms, ".1f"),
        f"{_ratio(pairs, lambda one: one.p50_ms):.2f}",
        both(lambda one: one.p99_ms, ".1f"),
        both(lambda one: one.server_us, ",.0f"),
        both(lambda one: one.postgres_us, ",.0f"),
        f"{_ratio(pairs, _processor_us):.2f}",
    ]


def _plan_rows(compared: Compared) -> list[list[str]]:
    rows = []
    for name, plans in compared.large_plans.items():
        small = {one.tables: one for one in compared.small_plans[name]}
        for large in plans:
            both = zip(_numbers(small.get(large.tables)), _numbers(large), strict=True)
            rows.append([name, ", ".join(large.tables), *(f"{one} / {other}" for one, other in both)])
    return rows


def _numbers(plan: Plan | None) -> tuple[object, object, object]:
    return ("–", "–", "–") if plan is None else (plan.opened, plan.read, plan.pages)


def _flat_text(compared: Compared, rows: int, clients: int) -> str:
    plans = "\n\n".join(
        f"{name}: {', '.join(plan.tables)}\n{plan.text}" for name in SHOWN for plan in compared.large_plans[name]
    )
    return f"""\
### The same reads on {compared.small_rows:,} messages and on {rows:,}

{compared_table(compared).markdown()}

{chr(10).join(f"- {each.text}." for each in flat(compared))}

Numbers of the small archive are before the stroke, those of the large one after it; × is large to small, the median
of the rounds' own ratios, the last one of the processor time of both. Each archive is over thirty days and has a
PostgreSQL and a server of its own. {clients} clients read them in turn: messages of the large account from anywhere in
the thirty days, and pages of its list. Messages, recipients and the search index are there; attempts, events, webhook
deliveries and bodies have empty partitions: `GET /v1/messages/{{id}}` finds none.

{Rows("", _PLAN_COLUMNS, _plan_rows(compared)).markdown()}

That is how PostgreSQL ran those statements of one such read that go to partitioned tables, as shown by its
`auto_explain` on the service's connections. Plans are made once, without the values; when a statement begins, the
partitions that its values rule out are not opened, and of the opened ones not all are read. A page is 8 KB. The plans
on the large archive, without what was never run:

```
{plans}
```
"""


def made(
    measured: Mapping[str, Sequence[Measured]], compared: Compared, state: str, rows: int, clients: int, seconds: int
) -> Report:
    missed = [name for name, runs in measured.items() if _p99_ms(runs) >= P99_MS_MAX]
    slowest = max(measured, key=lambda name: _p99_ms(measured[name]))
    verdict = f"missed by {', '.join(missed)}" if missed else "reached by every search"
    slowest_text = f"the slowest is {slowest} with {_p99_ms(measured[slowest]):.1f} ms"
    return Report(
        name="search",
        title="The list of messages",
        target="bench-search",
        machine=report.machine(),
        state=state,
        tables=[table(measured)],
        goals=[],
        more=[f"p99 under {P99_MS_MAX:.0f} ms: {verdict}; {slowest_text}"],
        notes=_notes(measured, compared, rows, clients, seconds),
    )


def _notes(
    measured: Mapping[str, Sequence[Measured]], compared: Compared, rows: int, clients: int, seconds: int
) -> str:
    rounds = max(map(len, measured.values()))
    repeated = f"medians of {rounds} interleaved rounds" if rounds > 1 else "a single round"
    return f"""\
What was measured: {repeated} of {seconds} s each, of two filters together only one; *worst p99* is that of the worst
round. A run during which the machine's host kept more than {STOLEN_MAX:.1%} of the processors to itself was made again,
with {tries_max(rounds)} tries at most, and the least disturbed one counts; *stolen* is what it still kept, in
the worst round.

`GET /v1/messages` with the default `limit` of 50, two processes of `posthouse run http` under `wrk` with {clients}
keep-alive clients, each with the token of a login, on a private PostgreSQL that has read its tables and keys into
memory before. It holds {rows:,} messages over thirty daily partitions, 95 % of them one account's, whose they all ask
for; 1.2 recipients and about 12 terms each. A *common* value is on every message to every hundredth or so, a *rare* one
on some dozens of them, an *absent* one on none; the values of a row are drawn anew for each page. A *deep* page begins
anywhere in the thirty days. With two filters, every second page is a deep one. A page examines
{DAYS_EXAMINED_MAX} days at most, and ends then, be it full or not. Processor time is user and system time a page, of
the server and of all of PostgreSQL; the load generator shares the cores with them.

{_flat_text(compared, rows, clients)}"""
