"""What the delivery benchmark found: medians, ratios, which bars are reached; as a table, a page, a plot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from rich.table import Table

from bench.deliver_letter import written
from bench.relay import Relayed
from bench.report import Bar, columned, put_section

PLOT: Final = "deliver.png"
START: Final = "<!-- deliver:start -->"
END: Final = "<!-- deliver:end -->"

BARE: Final = "bare: smtp-source to smtp-sink"
POSTFIX: Final = "Postfix"
HARAKA: Final = "Haraka"
SIGNED: Final = "Posthouse, with DKIM"
UNSIGNED: Final = "Posthouse, without DKIM"

POSTFIX_MIN: Final = 1.5
HARAKA_MIN: Final = 2.0

_SHADES: Final = {
    "http": "#1d4e80",
    "dispatch": "#4f89c4",
    "delivery": "#2f6fb0",
    "PostgreSQL": "#7aa6d6",
    "NATS": "#b5cfea",
}

_COLUMNS: Final = ("Relay", "mails/s", "× Postfix", "× Haraka", "CPU µs: relay", "sink", "load", "mails", "seconds")


@dataclass(frozen=True, slots=True)
class Finding:
    """A relay's medians; ratios are taken within a round, then their median. None: that peer was left out."""

    name: str
    per_second: float
    to_postfix: float | None
    to_haraka: float | None
    relay_cpu_us: Mapping[str, float]
    sink_cpu_us: float
    load_cpu_us: float
    mails: int
    seconds: float
    finished_seconds: float
    rates: tuple[float, ...]

    @property
    def is_ours(self) -> bool:
        return self.name in (SIGNED, UNSIGNED)

    @property
    def cpu_us(self) -> float:
        return sum(self.relay_cpu_us.values())


def find(rounds: Mapping[str, Sequence[Relayed]]) -> list[Finding]:
    return [
        Finding(
            name=name,
            per_second=median(one.per_second for one in measured),
            to_postfix=_ratio(measured, rounds.get(POSTFIX)),
            to_haraka=_ratio(measured, rounds.get(HARAKA)),
            relay_cpu_us={
                family: median(one.relay_cpu_us[family] for one in measured) for family in measured[0].relay_cpu_us
            },
            sink_cpu_us=median(one.sink_cpu_us for one in measured),
            load_cpu_us=median(one.load_cpu_us for one in measured),
            mails=measured[0].mails,
            seconds=median(one.seconds for one in measured),
            finished_seconds=median(one.finished_seconds for one in measured),
            rates=tuple(one.per_second for one in measured),
        )
        for name, measured in rounds.items()
    ]


def _ratio(measured: Sequence[Relayed], peer: Sequence[Relayed] | None) -> float | None:
    if peer is None:
        return None
    return median(one.per_second / other.per_second for one, other in zip(measured, peer, strict=True))


def bars(findings: Sequence[Finding]) -> list[Bar]:
    """Whether the goals are reached, as far as was measured what they are about."""
    told = []
    for ours in findings:
        if ours.name != SIGNED:
            continue
        for peer, ratio, least in ((POSTFIX, ours.to_postfix, POSTFIX_MIN), (HARAKA, ours.to_haraka, HARAKA_MIN)):
            if ratio is not None:
                verdict = "reached" if ratio >= least else "missed"
                text = f"{verdict}: {SIGNED}, end to end, at {least:.1f}× {peer} or more: {ratio:.2f}×"
                told.append(Bar(text, ratio >= least))
    return told


def table(findings: Sequence[Finding]) -> Table:
    drawn = columned("The delivery path: medians of interleaved rounds", _COLUMNS)
    for finding in findings:
        drawn.add_row(*_cells(finding), style="bold" if finding.is_ours else None)
    return drawn


def _cells(finding: Finding) -> list[str]:
    return [
        finding.name,
        f"{finding.per_second:,.0f}",
        *("–" if ratio is None else f"{ratio:.2f}" for ratio in (finding.to_postfix, finding.to_haraka)),
        f"{finding.cpu_us:,.0f}" if finding.relay_cpu_us else "–",
        f"{finding.sink_cpu_us:,.0f}",
        f"{finding.load_cpu_us:,.0f}",
        f"{finding.mails:,}",
        f"{finding.seconds:.1f}",
    ]


def write(directory: Path, findings: Sequence[Finding], machine: str, rounds: int, signing_us: Sequence[float]) -> None:
    put_section(directory, START, END, _section(findings, machine, rounds, signing_us))


def _section(findings: Sequence[Finding], machine: str, rounds: int, signing_us: Sequence[float]) -> str:
    head = " | ".join(_COLUMNS)
    rule = "|".join(["---", *["---:"] * (len(_COLUMNS) - 1)])
    rows = "\n".join(f"| {' | '.join(_cells(finding))} |" for finding in findings)
    widest = max(findings, key=_spread)
    repeated = f"medians of {rounds} interleaved rounds" if rounds > 1 else "a single round"
    told = [f"- {bar.text}." for bar in bars(findings)]
    told += [f"- {_parts(finding)}" for finding in findings if finding.is_ours]
    if signing_us:
        told.append(
            f"- A letter's two signatures by themselves, made one after the other: {median(signing_us):,.0f} µs."
        )
    return f"""\
## The delivery path

{machine}. Rerun with `make bench-deliver`.

| {head} |
|{rule}|
{rows}

![Mails a second and processor time a mail]({PLOT})

{chr(10).join(told)}

What was measured: {repeated}, each from the start of the load to the moment at which the sink
had counted its last mail. The sink is one `smtp-sink -c` for all of them and for the whole run. The ratios
are to the peer in the same round. The same relay varied by up to {_spread(widest):.2f}× between rounds ({widest.name}),
so compare ratios and processor time rather than rates.

- Every mail is the same letter, text and HTML, {len(written()):,} bytes before a relay adds its own lines; the
  load sends it as fast as it is taken, and has no part in what happens then.
- *bare* has no relay in between: what the load and the sink can do with connections that are kept.
- *Postfix* and *Haraka* get the letter from `smtp-source`, over connections that it keeps, and hand it to one
  next hop, so that they ask no DNS; they sign nothing. Each was given the settings with which it was fastest
  here, in `bench/peers/`. Both sync a mail's file to the disk before they answer, as they do by default.
  Postfix' log goes to a syslog that nobody keeps, Haraka logs errors only.
- *Posthouse* is `posthouse run http`, `run dispatch` and `run delivery` on PostgreSQL with `fsync` on and on NATS.
  `wrk` sends the letter to `POST /emails`, with authentication and a new Idempotency-Key each time, for ten accounts
  in turn, each with its own domain, to sixteen destinations, which are looked up in DNS. With DKIM, every mail
  bears two signatures, RSA with 2048 bits and Ed25519. Afterwards every mail must be on the books as delivered at
  its first attempt, with its event, and settled, or there is no result.
- Processor time is user and system time a mail, of all processes of the relay (PostgreSQL and NATS are ours), of the
  sink, and of the load, which share the cores. It is read after the relay has finished what it does after the last
  mail.
"""


def _parts(finding: Finding) -> str:
    parts = ", ".join(f"{name} {cost:,.0f}" for name, cost in finding.relay_cpu_us.items())
    return (
        f"{finding.name}: of {finding.cpu_us:,.0f} µs a mail, {parts}; the last outcome was on the books "
        f"{finding.finished_seconds:.2f} s after the sink's last mail."
    )


def _spread(finding: Finding) -> float:
    return max(finding.rates) / min(finding.rates)


def plot(file: Path, findings: Sequence[Finding]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    peer, own = "#9aa5b1", "#2f6fb0"
    # The bare rate is not a relay's; drawn to scale it would leave no room for theirs.
    shown = [finding for finding in reversed(findings) if finding.relay_cpu_us]
    bare = next((finding for finding in findings if not finding.relay_cpu_us), None)
    places = range(len(shown))
    figure, (rates, costs) = pyplot.subplots(
        1, 2, figsize=(12, 1.6 + 0.6 * len(shown)), sharey=True, width_ratios=(1.2, 1), layout="constrained"
    )
    colours = [own if one.is_ours else peer for one in shown]
    rates.barh(places, [one.per_second for one in shown], color=colours, height=0.62)
    widest = max((one.per_second for one in shown), default=1.0)
    for place, one in zip(places, shown, strict=True):
        said = f"{one.per_second:,.0f}"
        if one.is_ours and one.to_postfix is not None:
            said += f" ({one.to_postfix:.1f}× {POSTFIX})"
        rates.text(one.per_second + widest * 0.012, place, said, va="center", fontsize=9, color="#323f4b")
    rates.set_xlim(0, widest * 1.3)
    rates.set_yticks(places, [one.name for one in shown], fontsize=9)
    without = f"\n(without a relay: {bare.per_second:,.0f})" if bare else "\n"
    rates.set_title(f"Mails relayed a second{without}", fontsize=10, loc="left")
    dearest = max((one.cpu_us for one in shown), default=1.0)
    for place, one in zip(places, shown, strict=True):
        left = 0.0
        for family, cost in one.relay_cpu_us.items():
            costs.barh(place, cost, left=left, color=_SHADES.get(family, peer), height=0.62)
            left += cost
        costs.text(left + dearest * 0.012, place, f"{left:,.0f}", va="center", fontsize=9, color="#323f4b")
    costs.set_xlim(0, dearest * 1.2)
    costs.set_title("Processor time a mail, µs\n", fontsize=10, loc="left")
    if any(one.is_ours for one in shown):
        keys = [Patch(color=shade, label=family) for family, shade in _SHADES.items()]
        figure.legend(handles=keys, fontsize=8, frameon=False, loc="outside lower right", ncols=len(keys))
    for axes in (rates, costs):
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.tick_params(axis="x", labelsize=8, colors="#52606d")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_axisbelow(True)
        axes.grid(axis="x", color="#e4e7eb", linewidth=0.8)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)
