"""The report on webhooks: events a second beside a bare loop, and waits beside an endpoint that hangs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from bench import report
from bench.report import BLUE, GREY, PALE_BLUE, RED, Bar, Goal, Plot, Report, Rows, goal
from tests.support.webhook_isolation import Waits

RATIO_MIN: Final = 0.5
P99_SECONDS_MAX: Final = 2.0
BARE: Final = "bare loop: sign, post"
OURS: Final = "Posthouse: claim, sign, post, record"

_COLUMNS: Final = ("Who calls", "events/s", "of bare", "caller µs", "PostgreSQL µs", "stream µs", "receiver µs")


@dataclass(frozen=True, slots=True)
class Measured:
    """Processor time in microseconds an event."""

    events: int
    per_second: float
    caller_us: float
    receiver_us: float


@dataclass(frozen=True, slots=True)
class Ours:
    """`others_us` are dispatch, PostgreSQL and NATS."""

    run: Measured
    others_us: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Findings:
    """Either part may be missing."""

    ours: Sequence[Ours]
    bare: Sequence[Measured]
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


def goals(findings: Findings) -> list[Goal]:
    found = []
    if findings.ours:
        ratio = median(findings.ratios)
        each = ", ".join(f"{ratio:.0%}" for ratio in findings.ratios)
        found.append(
            goal(ratio >= RATIO_MIN, f"at least {RATIO_MIN:.0%} of the bare loop: {ratio:.0%} (round by round: {each})")
        )
    if findings.waits is not None:
        p50, p99, most = (findings.waits.percentile(part) for part in (0.5, 0.99, 1))
        found.append(
            goal(
                p99 < P99_SECONDS_MAX,
                f"one of {findings.receivers} endpoints hangs, the others' p99 under {P99_SECONDS_MAX:.0f} s from the "
                f"final result: {p99:.3f} s (p50 {p50:.3f}, most {most:.3f} s)",
            )
        )
    return found


def _stream_us(findings: Findings) -> float:
    """Processor time of NATS and dispatch."""
    return median(
        sum(used for name, used in sender.others_us.items() if name != "PostgreSQL") for sender in findings.ours
    )


def _rows(findings: Findings) -> list[tuple[str, ...]]:
    if not findings.ours:
        return []
    ours = [one.run for one in findings.ours]
    stream = _stream_us(findings)
    postgres = median(one.others_us["PostgreSQL"] for one in findings.ours)
    return [
        (BARE, _median(findings.bare, "per_second"), "100 %", _median(findings.bare, "caller_us"), "–", "–",
         _median(findings.bare, "receiver_us")),
        (OURS, _median(ours, "per_second"), f"{median(findings.ratios) * 100:.0f} %", _median(ours, "caller_us"),
         f"{postgres:,.0f}", f"{stream:,.0f}", _median(ours, "receiver_us")),
    ]  # fmt: skip


def _median(runs: Sequence[Measured], name: str) -> str:
    return f"{median(getattr(run, name) for run in runs):,.0f}"


def made(findings: Findings) -> Report:
    return Report(
        name="webhooks",
        title="Webhooks",
        target="bench-webhooks",
        machine=report.machine(),
        state=(
            f"its load average before this began was {findings.load:.1f}; other programs slow both down, so compare "
            "ratios and processor time rather than rates"
        ),
        tables=[Rows("Webhooks: events a second", _COLUMNS, _rows(findings))],
        goals=goals(findings),
        notes=_notes(findings) if findings.waits is not None and findings.ours else "",
        plot=Plot(
            "webhooks.png",
            "Events a second, what they cost, and how long events took while one endpoint hung",
            lambda pyplot: _plot(pyplot, findings),
        ),
    )


def _notes(findings: Findings) -> str:
    assert findings.waits is not None
    rounds, waits = len(findings.ours), findings.waits
    repeated = f"Medians of {rounds} interleaved rounds" if rounds > 1 else "One round"
    return f"""\
What was measured:

- *The rate.* {repeated} of {findings.ours[0].run.events:,} events of {findings.senders} accounts,
  {findings.calls} calls at a time, from the first tenth that came, by when connections are open, to the last; their
  processor time is that of all. The bare loop is aiohttp that signs each
  event and posts it; ours is one process of `posthouse run notification` with aiohttp inside, which takes tickets from
  NATS, claims each event in PostgreSQL (`fsync` on), checks its address, signs it, posts it and records the
  response, beside one `run dispatch`. The receiver and its TLS are the same for both, connections are kept by both, and
  all of them share the machine: all their processor time is in the table. Stream is NATS and dispatch.
- *One that hangs.* {len(waits.others) + waits.hanging_events:,} events for {findings.receivers} endpoints in turn, from
  real mail to the simulator, {findings.per_second:g} a second in messages of ten recipients; one endpoint takes every
  call and never answers. `run http`, `dispatch`, `delivery` and `notification`, one process each. Waits are from the
  event's `created_at`, which is the moment of the final result, to its arrival at the receiver; the one that hung was
  called {waits.hanging_calls} times about its {waits.hanging_events} events.
- Every event came exactly once to every endpoint that answered, and every signature was good, or there is no result."""


def _plot(pyplot: Any, findings: Findings) -> Any:
    assert findings.waits is not None
    figure, (rates, costs, moments) = pyplot.subplots(1, 3, figsize=(14, 3.8), layout="constrained")
    ours = median(sender.run.per_second for sender in findings.ours)
    bare = median(run.per_second for run in findings.bare)
    colours = {"caller": BLUE, "PostgreSQL": PALE_BLUE, "dispatch, NATS": "#c3d7ee"}
    report.bar_panel(
        rates,
        "Events a second (dashed: half of bare)",
        [
            Bar("bare loop", {"rate": bare}, f"{bare:,.0f}"),
            Bar("Posthouse", {"rate": ours}, f"{ours:,.0f} {median(findings.ratios):.0%}", BLUE),
        ],
        {},
    )
    report.limit_line(rates, x=bare * RATIO_MIN, colour=RED)
    parts = {
        "caller": median(sender.run.caller_us for sender in findings.ours),
        "PostgreSQL": median(sender.others_us["PostgreSQL"] for sender in findings.ours),
        "dispatch, NATS": _stream_us(findings),
    }
    loop_us = median(run.caller_us for run in findings.bare)
    report.bar_panel(
        costs,
        "Processor time an event, µs",
        [
            Bar("bare loop", {"loop": loop_us}, f"{loop_us:,.0f}", GREY),
            Bar("Posthouse", parts, f"{sum(parts.values()):,.0f}"),
        ],
        colours,
    )
    moments.scatter(
        [at for at, _ in findings.waits.others], [wait for _, wait in findings.waits.others],
        s=2, color=BLUE, linewidths=0,
    )  # fmt: skip
    report.limit_line(moments, y=P99_SECONDS_MAX, colour=RED)
    moments.set(yscale="log", xlabel="seconds from the start")
    moments.set_title(f"Seconds to {findings.receivers - 1} endpoints while one more hangs", fontsize=10, loc="left")
    report.plain(moments)
    report.legend(figure, colours)
    return figure
