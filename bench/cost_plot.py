"""Draws what a signed message costs, part by part, next to the limit of each part, from the figures in RESULTS.md.

    make plot-costs                               (or: python bench/cost_plot.py)

A part is what `make bench-deliver` measured; its limit is what the least possible for the same work was measured to
cost, where a benchmark measures that. Nothing is measured here.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import report
from bench.report import BLUE, RED

OUTPUT: Final = Path(__file__).resolve().parents[1] / "docs" / "assets" / "plots" / "mail-costs.svg"
SIGNED: Final = "Posthouse, with DKIM"
UNSIGNED: Final = "Posthouse, without DKIM"

_NUMBER: Final = r"([\d,]+)"
_SIGNATURES: Final = re.compile(rf"^- A (?:mail|message)'s two signatures.*: {_NUMBER} µs", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Part:
    """Microseconds per message; `limit` says in words what `limit_us` was measured with."""

    name: str
    us: float
    limit_us: float | None = None
    limit: str = ""


def parts_of(page: str) -> list[Part]:
    """The parts of a signed message, as the page of results has them."""
    deliver, accept = _section(page, "deliver"), _section(page, "accept")
    signed, unsigned = _costs(deliver, SIGNED), _costs(deliver, UNSIGNED)
    signatures = _SIGNATURES.search(deliver)
    return [
        Part(
            "accept over HTTP", signed["http"], _cell(accept, "raw ASGI", "CPU µs: Python"), "the same without any rule"
        ),
        Part("dispatch", signed["dispatch"]),
        Part("NATS", signed["NATS"]),
        Part(
            "PostgreSQL, the whole way",
            signed["PostgreSQL"],
            _cell(accept, "bare, 100 messages a transaction", "PostgreSQL"),
            "accepting alone, in batches of 100",
        ),
        Part("deliver over SMTP", unsigned["delivery"], _cell(deliver, "bare:", "load"), "smtp-source, in C"),
        Part(
            "two signatures",
            signed["delivery"] - unsigned["delivery"],
            None if signatures is None else _microseconds(signatures[1]),
            "nothing but signing",
        ),
    ]


def draw(pyplot: Any, parts: Sequence[Part]) -> Any:
    figure, axes = pyplot.subplots(figsize=(9, 0.9 + 0.5 * len(parts)), layout="constrained")
    widest = max(part.us for part in parts)
    for place, part in zip(range(len(parts) - 1, -1, -1), parts, strict=True):
        axes.barh(place, part.us, color=BLUE, height=0.62)
        text = f"{part.us:,.0f}"
        if part.limit_us is not None:
            axes.plot([part.limit_us] * 2, [place - 0.4, place + 0.4], color=RED, linewidth=2)
            text += f"; limit {part.limit_us:,.0f}: {part.limit}"
        axes.text(max(part.us, part.limit_us or 0) + widest * 0.012, place, text, va="center", fontsize=9)
    axes.set_xlim(0, widest * 1.6)
    axes.set_yticks(range(len(parts) - 1, -1, -1), [part.name for part in parts], fontsize=9)
    axes.set_title(
        f"Processor time of a signed message, µs: {sum(part.us for part in parts):,.0f}", fontsize=10, loc="left"
    )
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    report.plain(axes, grid_axis="x")
    return figure


def _section(page: str, name: str) -> str:
    return page.partition(f"<!-- {name}:start -->")[2].partition(f"<!-- {name}:end -->")[0]


def _costs(section: str, relay: str) -> dict[str, float]:
    """Of a line such as `- Posthouse, with DKIM: of 4,264 µs per message, http 725, dispatch 13; …`."""
    found = re.search(
        rf"^- {re.escape(relay)}: of {_NUMBER} µs (?:a mail|per message), (.*?)[;.]", section, re.MULTILINE
    )
    if found is None:
        raise SystemExit(f"RESULTS.md has no costs of {relay}: run `make bench-deliver` first")
    return {name: _microseconds(cost) for name, cost in re.findall(rf"(\w+) {_NUMBER}", found[2])}


def _cell(section: str, row: str, column: str) -> float | None:
    """A number of the section's first table."""
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    names = [name.strip() for name in rows[0]] if rows else []
    for cells in rows:
        if cells[0].strip().startswith(row) and column in names:
            return _microseconds(cells[names.index(column)].strip())
    return None


def _microseconds(text: str) -> float:
    return float(text.replace(",", ""))


def main() -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    # The same figures give the same file, with its text as text.
    mpl.rcParams.update({"svg.hashsalt": "posthouse", "svg.fonttype": "none", "font.family": "sans-serif"})
    from matplotlib import pyplot

    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    draw(pyplot, parts_of((Path(__file__).parent / report.RESULTS).read_text())).savefig(
        OUTPUT, metadata={"Date": None}
    )
    print(f"written: {OUTPUT}")


if __name__ == "__main__":
    main()
