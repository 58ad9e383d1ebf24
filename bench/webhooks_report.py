"""What the webhook benchmark found: events a second beside a bare loop, and waits beside one that hangs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.table import Table

from bench.report import Bar, columned, put_section
from tests.support.webhook_isolation import Waits

PLOT: Final = "webhooks.png"
START: Final = "<!-- webhooks:start -->"
END: Final = "<!-- webhooks:end -->"

RATIO_MIN: Final = 0.5
P99_SECONDS_MAX: Final = 2.0
BARE: Final = "bare loop: sign, post"
OURS: Final = "Posthouse: claim, sign, post, record"

_COLUMNS: Final = ("Who calls", "events/s", "of bare", "caller µs", "PostgreSQL µs", "stream µs", "receiver µs")


@dataclass(frozen=True, slots=True)
class Run:
    """Processor time in microseconds an event."""

    events: int
    per_second: float
    caller_us: float
    receiver_us: float


@dataclass(frozen=True, slots=True)
class Ours:
    """`others_us` are dispatch, PostgreSQL and NATS."""

    run: Run
    others_us: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Findings:
    """Either part may be missing."""

    ours: Sequence[Ours]
    bare: Sequence[Run]
    calls: int
    senders: int
    receivers: int
    per_second: float
    waits: Waits | None
    # Of the minute before it began: what else the machine had to do.
    load: float

    @property
    def ratios(self) -> list[float]:
        """Within each round."""
        return [one.run.per_second / bare.per_second for one, bare in zip(self.ours, self.bare, strict=True)]


def bars(findings: Findings) -> list[Bar]:
    found = []
    if findings.ours:
        ratio = median(findings.ratios)
        each = ", ".join(f"{one:.0%}" for one in findings.ratios)
        found.append(
            Bar(
                f"{_verdict(ratio >= RATIO_MIN)}: at least {RATIO_MIN:.0%} of the bare loop: {ratio:.0%} "
                f"(round by round: {each})",
                ratio >= RATIO_MIN,
            )
        )
    if findings.waits is not None:
        p50, p99, most = (findings.waits.percentile(part) for part in (0.5, 0.99, 1))
        found.append(
            Bar(
                f"{_verdict(p99 < P99_SECONDS_MAX)}: one of {findings.receivers} endpoints hangs, the others' p99 "
                f"under {P99_SECONDS_MAX:.0f} s from the final result: {p99:.3f} s (p50 {p50:.3f}, most {most:.3f} s)",
                p99 < P99_SECONDS_MAX,
            )
        )
    return found


def _verdict(is_reached: bool) -> str:
    return "reached" if is_reached else "missed"


def _rows(findings: Findings) -> list[tuple[str, ...]]:
    if not findings.ours:
        return []
    ours = [one.run for one in findings.ours]
    stream = median(sum(used for name, used in one.others_us.items() if name != "PostgreSQL") for one in findings.ours)
    postgres = median(one.others_us["PostgreSQL"] for one in findings.ours)
    return [
        (BARE, _median(findings.bare, "per_second"), "100 %", _median(findings.bare, "caller_us"), "–", "–",
         _median(findings.bare, "receiver_us")),
        (OURS, _median(ours, "per_second"), f"{median(findings.ratios) * 100:.0f} %", _median(ours, "caller_us"),
         f"{postgres:,.0f}", f"{stream:,.0f}", _median(ours, "receiver_us")),
    ]  # fmt: skip


def _median(runs: Sequence[Run], name: str) -> str:
    return f"{median(getattr(run, name) for run in runs):,.0f}"


def table(findings: Findings) -> Table:
    drawn = columned("Webhooks: events a second", _COLUMNS)
    for row in _rows(findings):
        drawn.add_row(*row)
    return drawn


def write(directory: Path, findings: Findings, machine: str) -> None:
    put_section(directory, START, END, _section(findings, machine))


def _section(findings: Findings, machine: str) -> str:
    assert findings.waits is not None
    head = " | ".join(_COLUMNS)
    rule = "|".join(["---", *["---:"] * (len(_COLUMNS) - 1)])
    rows = "\n".join(f"| {' | '.join(row)} |" for row in _rows(findings))
    rounds, waits = len(findings.ours), findings.waits
    repeated = f"Medians of {rounds} interleaved rounds" if rounds > 1 else "One round"
    return f"""\
## Webhooks

{machine}. Rerun with `make bench-webhooks`. The machine's load average before it began was
{findings.load:.1f}: whatever else ran on it slowed both down, so compare ratios and processor time rather than rates.

| {head} |
|{rule}|
{rows}

![Events a second, what they cost, and how long events took while one endpoint hung]({PLOT})

{chr(10).join(f"- {bar.text}." for bar in bars(findings))}

What was measured:

- *The rate.* {repeated} of {findings.ours[0].run.events:,} events of {findings.senders} accounts,
  {findings.calls} calls at a time, from the first tenth that came, by when connections are open, to the last; their
  processor time is that of all. The bare loop is aiohttp that signs each
  event and posts it; ours is one process of `posthouse run notification` with aiohttp inside, which takes tickets from
  NATS, claims each event in PostgreSQL (`fsync` on), judges its address, signs it, posts it and records what came
  back, beside one `run dispatch`. The receiver and its TLS are the same for both, connections are kept by both, and
  all of them share the machine: the processor time of everyone is in the table. Stream is NATS and dispatch.
- *One that hangs.* {len(waits.others) + waits.hanging_events:,} events for {findings.receivers} endpoints in turn, from
  real mail to the simulator, {findings.per_second:g} a second in messages of ten recipients; one endpoint takes every
  call and never answers. `run http`, `dispatch`, `delivery` and `notification`, one process each. Waits are from the
  event's `created_at`, which is the moment of the final result, to its arrival at the receiver; the one that hung was
  called {waits.hanging_calls} times about its {waits.hanging_events} events.
- Every event came exactly once to everyone who answered, and every signature was found good, or there is no result.
"""


def plot(file: Path, findings: Findings) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    assert findings.waits is not None
    grey, blue, pale, light, red = "#9aa5b1", "#2f6fb0", "#7aa6d6", "#c3d7ee", "#c2543d"
    figure, (rates, costs, moments) = pyplot.subplots(1, 3, figsize=(14, 3.8), layout="constrained")
    ours = median(one.run.per_second for one in findings.ours)
    bare = median(one.per_second for one in findings.bare)
    names = ["Posthouse", "bare loop"]
    rates.barh([0, 1], [ours, bare], color=[blue, grey], height=0.55)
    rates.axvline(bare * RATIO_MIN, color=red, linewidth=1, linestyle=(0, (4, 3)))
    for place, (value, said) in enumerate([(ours, f"{median(findings.ratios):.0%}"), (bare, "")]):
        rates.text(value, place, f" {value:,.0f} {said}", va="center", fontsize=9, color="#323f4b")
    rates.set_xlim(0, max(ours, bare) * 1.25)
    rates.set_title("Events a second (dashed: half of bare)", fontsize=10, loc="left")
    left = 0.0
    stacked = [
        ("caller", median(one.run.caller_us for one in findings.ours), blue),
        ("PostgreSQL", median(one.others_us["PostgreSQL"] for one in findings.ours), pale),
        (
            "dispatch, NATS",
            median(sum(used for name, used in one.others_us.items() if name != "PostgreSQL") for one in findings.ours),
            light,
        ),
    ]
    for name, used, colour in stacked:
        costs.barh([0], [used], left=[left], color=colour, height=0.55, label=name)
        left += used
    costs.barh([1], [median(one.caller_us for one in findings.bare)], color=grey, height=0.55)
    costs.set_title("Processor time an event, µs", fontsize=10, loc="left")
    costs.legend(fontsize=8, frameon=False, loc="upper right")
    for axes in (rates, costs):
        axes.set_yticks([0, 1], names, fontsize=9)
    moments.scatter(
        [at for at, _ in findings.waits.others], [wait for _, wait in findings.waits.others],
        s=2, color=blue, linewidths=0,
    )  # fmt: skip
    moments.axhline(P99_SECONDS_MAX, color=red, linewidth=1, linestyle=(0, (4, 3)))
    moments.set(yscale="log", xlabel="seconds from the begin")
    moments.set_title(f"Seconds to {findings.receivers - 1} customers while one more hangs", fontsize=10, loc="left")
    for axes in (rates, costs, moments):
        _plain(axes)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


def _plain(axes: Any) -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(labelsize=8, colors="#52606d")
    axes.xaxis.label.set_size(8)
    axes.xaxis.label.set_color("#52606d")
    axes.set_axisbelow(True)
    axes.grid(axis="x", color="#e4e7eb", linewidth=0.8)
