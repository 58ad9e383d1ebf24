"""What the submission benchmark found: medians, ratios, which bars are reached; as a table, a page, a plot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from rich.table import Table

from bench.reception import Taken
from bench.report import Bar, columned, put_section

PLOT: Final = "submission.png"
START: Final = "<!-- submission:start -->"
END: Final = "<!-- submission:end -->"

POSTFIX: Final = "Postfix"
HARAKA: Final = "Haraka"
ONE_PROCESS: Final = "Posthouse, one process"
TWO_PROCESSES: Final = "Posthouse, two processes"

RATIO_MIN: Final = 2.0

_SHADES: Final = {"submission": "#2f6fb0", "PostgreSQL": "#7aa6d6"}
_COLUMNS: Final = (
    "Server",
    "mails/s",
    "× Postfix",
    "× Haraka",
    "p50 ms",
    "p99 ms",
    "CPU µs: server",
    "× less than Postfix",
    "load",
    "mails",
)


class Shape(NamedTuple):
    name: str
    mails: int


@dataclass(frozen=True, slots=True)
class Idle:
    sessions: int
    before_bytes: int
    after_bytes: int

    @property
    def text(self) -> str:
        each = (self.after_bytes - self.before_bytes) / self.sessions
        return (
            f"{self.sessions:,} sessions of ours that have authenticated and say nothing: {each / 1024:.0f} KB each "
            f"({self.before_bytes / 2**20:.0f} MB resident before, {self.after_bytes / 2**20:.0f} MB with them)"
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """A server's medians; ratios are taken within a round, then their median. None: that peer was left out."""

    shape: Shape
    name: str
    per_second: float
    to_postfix: float | None
    to_haraka: float | None
    postfix_cost: float | None
    p50_ms: float
    p99_ms: float
    server_cpu_us: Mapping[str, float]
    load_cpu_us: float
    mails: int
    others_share: float
    protocol: str
    rates: tuple[float, ...]

    @property
    def is_ours(self) -> bool:
        return self.name in (ONE_PROCESS, TWO_PROCESSES)

    @property
    def cpu_us(self) -> float:
        return sum(self.server_cpu_us.values())


def find(found: Mapping[Shape, Mapping[str, Sequence[Taken]]]) -> list[Finding]:
    return [
        Finding(
            shape=shape,
            name=name,
            per_second=median(one.per_second for one in measured),
            to_postfix=_ratio(measured, servers.get(POSTFIX)),
            to_haraka=_ratio(measured, servers.get(HARAKA)),
            postfix_cost=_cost(measured, servers.get(POSTFIX)),
            p50_ms=median(one.p50_ms for one in measured),
            p99_ms=median(one.p99_ms for one in measured),
            server_cpu_us={
                family: median(one.server_cpu_us[family] for one in measured) for family in measured[0].server_cpu_us
            },
            load_cpu_us=median(one.load_cpu_us for one in measured),
            mails=measured[0].mails,
            others_share=max(one.others_share for one in measured),
            protocol=measured[0].protocol,
            rates=tuple(one.per_second for one in measured),
        )
        for shape, servers in found.items()
        for name, measured in servers.items()
    ]


def _ratio(measured: Sequence[Taken], peer: Sequence[Taken] | None) -> float | None:
    if peer is None:
        return None
    return median(one.per_second / other.per_second for one, other in zip(measured, peer, strict=True))


def _cost(measured: Sequence[Taken], peer: Sequence[Taken] | None) -> float | None:
    """How many times the peer's processor time is."""
    if peer is None:
        return None
    return median(other.cpu_us / one.cpu_us for one, other in zip(measured, peer, strict=True))


def bars(findings: Sequence[Finding]) -> list[Bar]:
    """Whether the goals are reached, by the faster of ours, as far as was measured what they are about."""
    told = []
    for shape in dict.fromkeys(finding.shape for finding in findings):
        ours = [finding for finding in findings if finding.shape == shape and finding.is_ours]
        if not ours:
            continue
        best = max(ours, key=lambda finding: finding.per_second)
        for peer, ratio in ((POSTFIX, best.to_postfix), (HARAKA, best.to_haraka)):
            if ratio is not None:
                verdict = "reached" if ratio >= RATIO_MIN else "missed"
                text = f"{verdict}: {shape.name}, {best.name}, at {RATIO_MIN:.1f}× {peer} or more: {ratio:.2f}×"
                told.append(Bar(text, ratio >= RATIO_MIN))
    return told


def table(findings: Sequence[Finding]) -> Table:
    drawn = columned("Submission: medians of interleaved rounds", _COLUMNS)
    for finding in findings:
        drawn.add_row(*_cells(finding), style="bold" if finding.is_ours else None)
    return drawn


def _cells(finding: Finding) -> list[str]:
    return [
        f"{finding.name}, {finding.shape.name}",
        f"{finding.per_second:,.0f}",
        *("–" if ratio is None else f"{ratio:.2f}" for ratio in (finding.to_postfix, finding.to_haraka)),
        f"{finding.p50_ms:.0f}",
        f"{finding.p99_ms:.0f}",
        f"{finding.cpu_us:,.0f}",
        "–" if finding.postfix_cost is None else f"{finding.postfix_cost:.2f}",
        f"{finding.load_cpu_us:,.0f}",
        f"{finding.mails:,}",
    ]


def write(
    directory: Path, findings: Sequence[Finding], machine: str, rounds: int, size_bytes: int, resting: Idle | None
) -> None:
    put_section(directory, START, END, _section(findings, machine, rounds, size_bytes, resting))


def _section(findings: Sequence[Finding], machine: str, rounds: int, size_bytes: int, resting: Idle | None) -> str:
    head = " | ".join(_COLUMNS)
    rule = "|".join(["---", *["---:"] * (len(_COLUMNS) - 1)])
    rows = "\n".join(f"| {' | '.join(_cells(finding))} |" for finding in findings)
    widest = max(findings, key=_spread)
    repeated = f"medians of {rounds} interleaved rounds" if rounds > 1 else "a single round"
    protocols = " or ".join(sorted({finding.protocol for finding in findings}))
    others = max(finding.others_share for finding in findings)
    told = [f"- {bar.text}." for bar in bars(findings)]
    told += [f"- {_parts(finding)}" for finding in findings if finding.is_ours]
    if resting is not None:
        told.append(f"- {resting.text}.")
    return f"""\
## Submission

{machine}. Rerun with `make bench-submission`.

| {head} |
|{rule}|
{rows}

![Mails taken a second and processor time a mail]({PLOT})

{chr(10).join(told)}

What was measured: {repeated}, each from the load's first connection to its last 250. The ratios
are to the peer in the same round. The same server varied by up to {_spread(widest):.2f}× between rounds
({widest.name}, {widest.shape.name}), so compare ratios and processor time rather than rates. The load has
one processor to itself, and each server in its turn, with all its processes, the others: here that is one as well.
Programs that are no part of this had up to {others:.0%} of the processors meanwhile. The less, the better: one
process beside them gets a smaller share than forty do.

- Every session is a new TLS handshake ({protocols}, never resumed) with the same certificate (ECDSA, P-256), within
  TLS from the first byte on, then EHLO and AUTH PLAIN, ten accounts in turn. Then mails of {size_bytes:,} bytes, text
  and HTML, to one recipient. The load sends MAIL, RCPT and DATA together, waits for a mail's answer before the next
  one, and keeps 40 sessions open.
- Every server answers 250 when the mail is on its disk, as strace shows: *Postfix* gives its queue file its last name
  and syncs it, *Haraka* syncs its queue file and then gives it its name (a power cut can undo that, and it removes
  unnamed ones when it starts); neither syncs the directory. *Posthouse* has committed to PostgreSQL with `fsync` on;
  mails that come together share a transaction. Nothing is delivered: Postfix holds the mail, Haraka's delivery may
  open no connection, Posthouse runs no worker.
- *Postfix* checks passwords by Cyrus SASL in its own processes (sasldb), and asks no DNS; *Haraka* checks them against
  a list in memory, in one process. Their settings, made for speed, are in `bench/peers/`. Postfix' log goes to a
  syslog that nobody keeps, Haraka logs errors only. *Posthouse* is `posthouse run submission`, one process, with all
  that it does for a customer: rate limit, warm-up and credits (with numbers too high
  to refuse), the sender's domain, the mail's header read and checked.
- Afterwards every mail that was answered with 250 must be there, by its name in PostgreSQL (with its recipient, its
  body, its reserved credit and its place in the calendar) and in Postfix' queue, by number in Haraka's; and nothing
  else, or there is no result.
- Processor time is user and system time a mail, of all processes of the server (PostgreSQL is ours), and of the load.
"""


def _parts(finding: Finding) -> str:
    parts = ", ".join(f"{name} {cost:,.0f}" for name, cost in finding.server_cpu_us.items())
    return f"{finding.name}, {finding.shape.name}: of {finding.cpu_us:,.0f} µs a mail, {parts}."


def _spread(finding: Finding) -> float:
    return max(finding.rates) / min(finding.rates)


def plot(file: Path, findings: Sequence[Finding]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    peer, own = "#9aa5b1", "#2f6fb0"
    shapes = list(dict.fromkeys(finding.shape for finding in findings))
    servers = len(dict.fromkeys(finding.name for finding in findings))
    figure, grid = pyplot.subplots(
        len(shapes),
        2,
        figsize=(12, 1.0 + len(shapes) * (0.9 + 0.45 * servers)),
        width_ratios=(1.2, 1),
        layout="constrained",
        squeeze=False,
    )
    for shape, (rates, costs) in zip(shapes, grid, strict=True):
        shown = [finding for finding in reversed(findings) if finding.shape == shape]
        places = range(len(shown))
        rates.barh(
            places,
            [one.per_second for one in shown],
            color=[own if one.is_ours else peer for one in shown],
            height=0.62,
        )
        widest = max(one.per_second for one in shown)
        dearest = max(one.cpu_us for one in shown)
        for place, one in zip(places, shown, strict=True):
            said = f"{one.per_second:,.0f}"
            if one.is_ours and one.to_postfix is not None:
                said += f" ({one.to_postfix:.1f}× {POSTFIX})"
            rates.text(one.per_second + widest * 0.012, place, said, va="center", fontsize=9, color="#323f4b")
            left = 0.0
            for family, cost in one.server_cpu_us.items():
                costs.barh(place, cost, left=left, color=_SHADES.get(family, peer), height=0.62)
                left += cost
            costs.text(left + dearest * 0.012, place, f"{left:,.0f}", va="center", fontsize=9, color="#323f4b")
        rates.set_xlim(0, widest * 1.3)
        rates.set_yticks(places, [one.name for one in shown], fontsize=9)
        rates.set_title(f"Mails taken a second, {shape.name}", fontsize=10, loc="left")
        costs.set_xlim(0, dearest * 1.2)
        costs.set_yticks(places, [""] * len(shown))
        costs.set_title("Processor time a mail, µs", fontsize=10, loc="left")
        for axes in (rates, costs):
            axes.spines[["top", "right", "left"]].set_visible(False)
            axes.tick_params(axis="y", length=0)
            axes.tick_params(axis="x", labelsize=8, colors="#52606d")
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            axes.set_axisbelow(True)
            axes.grid(axis="x", color="#e4e7eb", linewidth=0.8)
    if any(finding.is_ours for finding in findings):
        keys = [Patch(color=shade, label=family) for family, shade in _SHADES.items()]
        figure.legend(handles=keys, fontsize=8, frameon=False, loc="outside lower right", ncols=len(keys))
    figure.savefig(file, dpi=150)
    pyplot.close(figure)
