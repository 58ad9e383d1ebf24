"""The report on isolation: how long mails took with one destination dead or alive, and beside a backlog."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from bench import report
from bench.report import BLUE, GREY, RED, Goal, Plot, Report, Rows, goal
from tests.support.delivery_isolation import FairShares, OthersMail, Wait, percentile

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


def goals(findings: Findings) -> list[Goal]:
    ratio, small = findings.ratio(0.99), findings.turns.percentile(0.99)
    return [
        goal(
            ratio <= RATIO_MAX,
            f"the others' p99 at {RATIO_MAX}× or less when the one is dead: {ratio:.2f}× "
            f"(p50 {findings.ratio(0.5):.2f}×)",
        ),
        goal(
            small < SMALL_SECONDS_MAX,
            f"beside a backlog, another account's p99 under {SMALL_SECONDS_MAX:.0f} s: {small:.2f} s",
        ),
    ]


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
    medians = [median(others.percentile(part) for others in rounds) for part in (0.5, 0.99)]
    most = max(others.percentile(1) for others in rounds)
    accepted = median(percentile(others.accepted.waits, 0.99) for others in rounds)
    return (
        name,
        f"{sum(len(others.waits) for others in rounds):,}",
        *(_ms(value) for value in (*medians, most, accepted)),
    )


def _seconds(waits: Sequence[Wait]) -> list[float]:
    return [wait.seconds for wait in waits]


def _ms(seconds: float) -> str:
    return f"{seconds * _MILLI:,.0f}"


def made(findings: Findings) -> Report:
    return Report(
        name="isolation",
        title="Isolation",
        target="bench-isolation",
        machine=report.machine(),
        tables=[Rows("Isolation: from acceptance to delivery", _COLUMNS, _rows(findings))],
        goals=goals(findings),
        notes=_notes(findings),
        plot=Plot(
            "isolation.png",
            "How long mails took, the one dead and alive; and beside a backlog",
            lambda pyplot: _plot(pyplot, findings),
        ),
    )


def _notes(findings: Findings) -> str:
    sizes, turns, rounds = findings.sizes, findings.turns, len(findings.alive)
    ratios = ", ".join(
        f"{dead.percentile(0.99) / alive.percentile(0.99):.2f}"
        for dead, alive in zip(findings.dead, findings.alive, strict=True)
    )
    repeated = f"{rounds} interleaved rounds" if rounds > 1 else "One round"
    mails, backlog = f"{sizes.capacity_mails:,}", f"{sizes.backlog:,}"
    return f"""\
What was measured: the time from a message's acceptance to its delivery, both as recorded.

- *A dead destination.* {repeated} of {findings.seconds} s each, dead and alive.
  Mail for {sizes.domains:,} destinations, a lane each, and for one more, which gets every fifth mail, sent by the
  clock at {findings.per_second:,.0f} a second: half of the {findings.capacity:,.0f} a second at which {mails} mails
  went through before, in the same run. Dead means that a connection waits for the time-out of 30 s: the
  server's queue of connections is full, and the kernel answers no further one. Only the others' mail is counted,
  all of it delivered, or there is no result. The ratios are taken within a round: {ratios} for the p99.
  The last column is the time from the moment when a request was due to its 202.
- *A backlog in a slow lane.* A destination may get {sizes.lane_per_second} mails a second. One account posts {backlog}
  mails for it, as fast as they are accepted, in {turns.backlog_posted_seconds:.1f} s; another one, from the same moment
  on, a mail a second, {sizes.small_mails} of them. Meanwhile the lane carried {turns.lane_per_second:.1f} a second.
- `posthouse run http`, `run dispatch` and `run delivery`, one of each, on PostgreSQL with `fsync` on and on NATS, with
  the settings that they have by default but for the lanes named here (that of the one may carry all of its mail), mail
  signed with DKIM; the receiver syncs each mail to the disk before it
  says that it has it. All of them, and the load, share the machine."""


def _plot(pyplot: Any, findings: Findings) -> Any:
    figure, (shares, moments) = pyplot.subplots(1, 2, figsize=(12, 4.4), width_ratios=(1, 1), layout="constrained")
    for name, rounds, colour in (("the one alive", findings.alive, GREY), ("the one dead", findings.dead, BLUE)):
        for number, others in enumerate(rounds):
            ordered = sorted(_seconds(others.waits))
            longer = [1 - place / len(ordered) for place in range(len(ordered))]
            shares.plot(ordered, longer, color=colour, linewidth=1.6, label=None if number else name)
    report.limit_line(shares, y=0.01)
    shares.text(1, 0.0105, "p99 ", transform=shares.get_yaxis_transform(), fontsize=8, ha="right", color="#52606d")
    shares.set(xscale="log", yscale="log", xlabel="seconds from acceptance to delivery")
    shares.set_title(
        f"Share of the other {findings.sizes.domains:,} destinations' mail that took longer", fontsize=10, loc="left"
    )
    shares.legend(fontsize=8, frameon=False)
    turns = findings.turns
    for name, waits, colour, size in (
        (f"the backlog of {findings.sizes.backlog:,}", turns.backlog_waits, GREY, 2),
        ("another account's mail, one a second", turns.waits, BLUE, 14),
    ):
        moments.scatter(
            [wait.at + wait.seconds for wait in waits], _seconds(waits), s=size, color=colour, label=name, linewidths=0
        )
    report.limit_line(moments, y=SMALL_SECONDS_MAX, colour=RED)
    moments.set(yscale="log", xlabel="seconds from the start, when it was delivered")
    moments.set_title(
        f"Seconds from acceptance to delivery in a lane of {findings.sizes.lane_per_second} a second",
        fontsize=10,
        loc="left",
    )
    moments.legend(fontsize=8, frameon=False)
    for axes in (shares, moments):
        report.plain(axes)
    return figure
