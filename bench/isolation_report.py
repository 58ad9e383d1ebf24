"""What the isolation benchmark found: how long mails took, dead and alive; as a table, a page, a plot."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.table import Table

from bench.report import Bar, columned, put_section
from tests.support.delivery_isolation import FairShares, OthersMail, Wait, percentile

PLOT: Final = "isolation.png"
START: Final = "<!-- isolation:start -->"
END: Final = "<!-- isolation:end -->"

RATIO_MAX: Final = 1.5
SMALL_SECONDS_MAX: Final = 5.0

_COLUMNS: Final = ("Whose mail", "mails", "p50 ms", "p99 ms", "most, ms", "p99 of 202, ms")
_MILLI: Final = 1e3


@dataclass(frozen=True, slots=True)
class Sizes:
    domains: int
    senders: int
    capacity_mails: int
    backlog: int
    small_mails: int
    lane_per_second: int


@dataclass(frozen=True, slots=True)
class Findings:
    sizes: Sizes
    capacity: float
    per_second: float
    seconds: int
    alive: Sequence[OthersMail]
    dead: Sequence[OthersMail]
    turns: FairShares

    def ratio(self, part: float) -> float:
        """Dead to alive, within each round, and of those the median."""
        return median(
            dead.percentile(part) / alive.percentile(part) for dead, alive in zip(self.dead, self.alive, strict=True)
        )


def bars(findings: Findings) -> list[Bar]:
    ratio, small = findings.ratio(0.99), findings.turns.percentile(0.99)
    return [
        Bar(
            f"{_verdict(ratio <= RATIO_MAX)}: the others' p99 at {RATIO_MAX}× or less when the one is dead: "
            f"{ratio:.2f}× (p50 {findings.ratio(0.5):.2f}×)",
            ratio <= RATIO_MAX,
        ),
        Bar(
            f"{_verdict(small < SMALL_SECONDS_MAX)}: beside a backlog, another account's p99 under "
            f"{SMALL_SECONDS_MAX:.0f} s: {small:.2f} s",
            small < SMALL_SECONDS_MAX,
        ),
    ]


def _verdict(is_reached: bool) -> str:
    return "reached" if is_reached else "missed"


def _rows(findings: Findings) -> list[tuple[str, ...]]:
    turns = findings.turns
    rows = [
        _others_row(f"{findings.sizes.domains:,} destinations, the one alive", findings.alive),
        _others_row(f"{findings.sizes.domains:,} destinations, the one dead", findings.dead),
    ]
    for name, waits in (
        ("slow lane: the account with a mail a second", turns.waits),
        ("slow lane: the backlog, as far as delivered", turns.backlog_waits),
    ):
        rows.append(
            (name, f"{len(waits):,}", *(_ms(percentile(_seconds(waits), part)) for part in (0.5, 0.99, 1)), "–")
        )
    return rows


def _others_row(name: str, rounds: Sequence[OthersMail]) -> tuple[str, ...]:
    medians = [median(one.percentile(part) for one in rounds) for part in (0.5, 0.99)]
    most = max(one.percentile(1) for one in rounds)
    accepted = median(percentile(one.accepted.waits, 0.99) for one in rounds)
    return name, f"{sum(len(one.waits) for one in rounds):,}", *(_ms(value) for value in (*medians, most, accepted))


def _seconds(waits: Sequence[Wait]) -> list[float]:
    return [wait.seconds for wait in waits]


def _ms(seconds: float) -> str:
    return f"{seconds * _MILLI:,.0f}"


def table(findings: Findings) -> Table:
    drawn = columned("Isolation: from acceptance to delivery", _COLUMNS)
    for row in _rows(findings):
        drawn.add_row(*row)
    return drawn


def write(directory: Path, findings: Findings, machine: str) -> None:
    put_section(directory, START, END, _section(findings, machine))


def _section(findings: Findings, machine: str) -> str:
    head = " | ".join(_COLUMNS)
    rule = "|".join(["---", *["---:"] * (len(_COLUMNS) - 1)])
    rows = "\n".join(f"| {' | '.join(row)} |" for row in _rows(findings))
    sizes, turns, rounds = findings.sizes, findings.turns, len(findings.alive)
    ratios = ", ".join(
        f"{dead.percentile(0.99) / alive.percentile(0.99):.2f}"
        for dead, alive in zip(findings.dead, findings.alive, strict=True)
    )
    repeated = f"{rounds} interleaved rounds" if rounds > 1 else "One round"
    mails, backlog = f"{sizes.capacity_mails:,}", f"{sizes.backlog:,}"
    return f"""\
## Isolation

{machine}. Rerun with `make bench-isolation`.

| {head} |
|{rule}|
{rows}

![How long mails took, the one dead and alive; and beside a backlog]({PLOT})

{chr(10).join(f"- {bar.text}." for bar in bars(findings))}

What was measured: the time from a message's acceptance to its delivery, both as the books have them.

- *A dead destination.* {repeated} of {findings.seconds} s each, dead and alive.
  Mail for {sizes.domains:,} destinations, a lane each, and for one more, which gets every fifth mail, sent by the
  clock at {findings.per_second:,.0f} a second: half of the {findings.capacity:,.0f} a second at which {mails} mails
  went through before, in the same run. Dead means that whoever connects waits for the time-out of 30 s: the
  server's queue of connections is full, and the kernel answers no further one. Only the others' mail is counted,
  all of it delivered, or there is no result. The ratios are taken within a round: {ratios} for the p99.
  The last column is the time from the moment when a request was due to its 202.
- *A backlog in a slow lane.* A destination may get {sizes.lane_per_second} mails a second. One account posts {backlog}
  mails for it, as fast as they are taken, in {turns.backlog_posted_seconds:.1f} s; another one, from the same moment
  on, a mail a second, {sizes.small_mails} of them. Meanwhile the lane carried {turns.lane_per_second:.1f} a second.
- `posthouse run http`, `run dispatch` and `run delivery`, one of each, on PostgreSQL with `fsync` on and on NATS, with
  the settings that they have by default but for the lanes named here (that of the one may carry all of its mail), mail
  signed with DKIM; the receiver syncs each mail to the disk before it
  says that it has it. All of them, and the load, share the machine.
"""


def plot(file: Path, findings: Findings) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    grey, blue, red = "#9aa5b1", "#2f6fb0", "#c2543d"
    figure, (shares, moments) = pyplot.subplots(1, 2, figsize=(12, 4.4), width_ratios=(1, 1), layout="constrained")
    for name, rounds, colour in (("the one alive", findings.alive, grey), ("the one dead", findings.dead, blue)):
        for number, one in enumerate(rounds):
            ordered = sorted(_seconds(one.waits))
            longer = [1 - place / len(ordered) for place in range(len(ordered))]
            shares.plot(ordered, longer, color=colour, linewidth=1.6, label=None if number else name)
    shares.axhline(0.01, color="#52606d", linewidth=1, linestyle=(0, (4, 3)))
    shares.text(1, 0.0105, "p99 ", transform=shares.get_yaxis_transform(), fontsize=8, ha="right", color="#52606d")
    shares.set(xscale="log", yscale="log", xlabel="seconds from acceptance to delivery")
    shares.set_title(
        f"Share of the other {findings.sizes.domains:,} destinations' mail that took longer", fontsize=10, loc="left"
    )
    shares.legend(fontsize=8, frameon=False)
    turns = findings.turns
    for name, waits, colour, size in (
        (f"the backlog of {findings.sizes.backlog:,}", turns.backlog_waits, grey, 2),
        ("another account's mail, one a second", turns.waits, blue, 14),
    ):
        moments.scatter(
            [wait.at + wait.seconds for wait in waits], _seconds(waits), s=size, color=colour, label=name, linewidths=0
        )
    moments.axhline(SMALL_SECONDS_MAX, color=red, linewidth=1, linestyle=(0, (4, 3)))
    moments.set(yscale="log", xlabel="seconds from the begin, when it was delivered")
    moments.set_title(
        f"Seconds from acceptance to delivery in a lane of {findings.sizes.lane_per_second} a second",
        fontsize=10,
        loc="left",
    )
    moments.legend(fontsize=8, frameon=False)
    for axes in (shares, moments):
        _plain(axes)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


def _plain(axes: Any) -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(labelsize=8, colors="#52606d")
    axes.xaxis.label.set_size(8)
    axes.xaxis.label.set_color("#52606d")
    axes.set_axisbelow(True)
    axes.grid(color="#e4e7eb", linewidth=0.8)
