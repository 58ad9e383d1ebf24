"""The report of a benchmark: tables and goals on the terminal, a section of RESULTS.md, a plot."""

import os
import platform
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.table import Table

from tools.private_postgres import find_binaries

RESULTS: Final = "RESULTS.md"

GREY: Final = "#9aa5b1"
LIGHT_GREY: Final = "#cbd2d9"
BLUE: Final = "#2f6fb0"
PALE_BLUE: Final = "#7aa6d6"
RED: Final = "#c2543d"
_TEXT: Final = "#323f4b"
_AXIS: Final = "#52606d"
_GRID: Final = "#e4e7eb"
_DASHED: Final = (0, (4, 3))


class Goal(NamedTuple):
    text: str
    is_reached: bool


def goal(is_reached: bool, text: str) -> Goal:
    return Goal(f"{'reached' if is_reached else 'missed'}: {text}", is_reached)


@dataclass(frozen=True, slots=True)
class Rows:
    """A table: the first columns are text, the others numbers. `styles` are of the terminal, by row."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    styles: Sequence[str | None] = ()
    text_columns: int = 1

    def terminal(self) -> Table:
        table = Table(title=self.title)
        for number, name in enumerate(self.columns):
            table.add_column(name, justify="left" if number < self.text_columns else "right", no_wrap=True)
        styles = self.styles or [None] * len(self.rows)
        for row, style in zip(self.rows, styles, strict=True):
            table.add_row(*row, style=style)
        return table

    def markdown(self) -> str:
        rule = "|".join(["---"] * self.text_columns + ["---:"] * (len(self.columns) - self.text_columns))
        lines = (f"| {' | '.join(row)} |" for row in (self.columns, *self.rows))
        head, *rest = lines
        return "\n".join([head, f"|{rule}|", *rest])


@dataclass(frozen=True, slots=True)
class Plot:
    file: str
    alt: str
    draw: Callable[[Any], Any]
    """Draws on `pyplot` and returns the figure."""


@dataclass(frozen=True, slots=True)
class Report:
    """`name` marks the section in the page and is the make target's; `more` stands after the goals, line by line."""

    name: str
    title: str
    target: str
    machine: str
    tables: Sequence[Rows]
    goals: Sequence[Goal]
    notes: str
    plot: Plot | None = None
    more: Sequence[str] = ()
    state: str = ""
    """How fast the machine was while this was measured."""

    def show(self, console: Console) -> None:
        for table in self.tables:
            console.print(table.terminal())
        for each in self.goals:
            console.print(each.text, style="green" if each.is_reached else "yellow", highlight=False)

    def write(self, directory: Path) -> list[Path]:
        """Replaces this benchmark's section of the page, keeps the others; the files written."""
        directory.mkdir(parents=True, exist_ok=True)
        page = directory / RESULTS
        page.write_text(
            _replaced(page.read_text() if page.exists() else "# Benchmark results\n", self.name, self.text())
        )
        if self.plot is None:
            return [page]
        _draw(directory / self.plot.file, self.plot)
        return [page, directory / self.plot.file]

    def text(self) -> str:
        pace = f"\nHow fast the machine was: {self.state}." if self.state else ""
        parts = [f"## {self.title}", f"{self.machine}. Rerun with `make {self.target}`.{pace}"]
        parts += [table.markdown() for table in self.tables]
        if self.plot is not None:
            parts.append(f"![{self.plot.alt}]({self.plot.file})")
        lines = [f"- {text}." for text in (*(each.text for each in self.goals), *self.more)]
        if lines:
            parts.append("\n".join(lines))
        return "\n\n".join([*parts, self.notes.strip()]) + "\n"


def _replaced(page: str, name: str, text: str) -> str:
    start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
    section = f"{start}\n{text}{end}"
    if start in page and end in page:
        before, _, rest = page.partition(start)
        return before + section + rest.partition(end)[2]
    return f"{page.rstrip()}\n\n{section}\n"


def machine(*programs: str) -> str:
    """One line that names the machine and the programs that ran on it."""
    processor = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    postgres = subprocess.run([find_binaries() / "postgres", "--version"], capture_output=True, text=True, check=True)
    version = postgres.stdout.removeprefix("postgres (PostgreSQL) ").split()[0]
    parts = [
        f"{datetime.now(UTC):%Y-%m-%d}: {processor[1] if processor else platform.machine()}",
        f"{os.cpu_count()} cores",
        f"{memory_gib:.0f} GiB",
        f"Linux {platform.release()}",
        f"PostgreSQL {version}",
        f"Python {platform.python_version()}",
        *programs,
    ]
    return ", ".join(parts)


def ratio(measured: Sequence[Any], peer: Sequence[Any] | None, of: str = "per_second") -> float | None:
    """The median of the ratios within each round; None where the peer was not measured."""
    if peer is None:
        return None
    return float(median(getattr(own, of) / getattr(other, of) for own, other in zip(measured, peer, strict=True)))


def medians(measured: Sequence[Any], name: str) -> float:
    return float(median(getattr(run, name) for run in measured))


def median_of_each(measured: Sequence[Any], name: str) -> dict[str, float]:
    """Of an attribute that is a mapping: the median of each of its values."""
    return {key: median(getattr(run, name)[key] for run in measured) for key in getattr(measured[0], name)}


def spread(rates: Sequence[float]) -> float:
    return max(rates) / min(rates)


def variation(rates: Mapping[str, Sequence[float]], rounds: int) -> tuple[str, str]:
    """How often it was repeated, and how much the same thing varied between rounds, in words."""
    name = max(rates, key=lambda each: spread(rates[each]))
    repeated = f"medians of {rounds} interleaved rounds" if rounds > 1 else "a single round"
    return repeated, f"The same phase varied by up to {spread(rates[name]):.2f}× between rounds ({name})"


# Plots


@dataclass(frozen=True, slots=True)
class Bar:
    """A horizontal bar: parts that are stacked, by name, and what is written at its end."""

    name: str
    parts: dict[str, float]
    label: str
    colour: str = GREY

    @property
    def length(self) -> float:
        return sum(self.parts.values())


def bar_panel(axes: Any, title: str, bars: Sequence[Bar], colours: dict[str, str]) -> None:
    """Bars from top to bottom in their order; `colours` are of the parts, else the bar's own."""
    places = range(len(bars) - 1, -1, -1)
    widest = max((bar.length for bar in bars), default=1.0)
    for place, bar in zip(places, bars, strict=True):
        left = 0.0
        for part, length in bar.parts.items():
            axes.barh(place, length, left=left, color=colours.get(part, bar.colour), height=0.62)
            left += length
        axes.text(left + widest * 0.012, place, bar.label, va="center", fontsize=9, color=_TEXT)
    axes.set_xlim(0, widest * 1.3)
    axes.set_yticks(list(places), [bar.name for bar in bars], fontsize=9)
    axes.set_title(title, fontsize=10, loc="left")
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    plain(axes, grid_axis="x")


@dataclass(frozen=True, slots=True)
class RateAndCost:
    """One row of two panels: its rate, and its processor time by part."""

    name: str
    rate: float
    costs: dict[str, float]
    note: str = ""
    is_ours: bool = False


def rates_and_costs(
    panels: tuple[Any, Any], titles: tuple[str, str], rows: Sequence[RateAndCost], colours: dict[str, str]
) -> None:
    """A panel of rates beside a panel of processor time."""
    speed = [
        Bar(
            row.name,
            {"rate": row.rate},
            f"{row.rate:,.0f}{row.note if row.is_ours else ''}",
            BLUE if row.is_ours else GREY,
        )
        for row in rows
    ]
    cost = [Bar(row.name, row.costs, f"{sum(row.costs.values()):,.0f}") for row in rows]
    bar_panel(panels[0], titles[0], speed, {})
    bar_panel(panels[1], titles[1], cost, colours)


def plain(axes: Any, grid_axis: str = "both") -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="x", labelsize=8, colors=_AXIS)
    axes.xaxis.label.set_size(8)
    axes.xaxis.label.set_color(_AXIS)
    axes.set_axisbelow(True)
    axes.grid(axis=grid_axis, color=_GRID, linewidth=0.8)


def limit_line(axes: Any, *, x: float | None = None, y: float | None = None, colour: str = _AXIS) -> None:
    if x is not None:
        axes.axvline(x, color=colour, linewidth=1, linestyle=_DASHED)
    if y is not None:
        axes.axhline(y, color=colour, linewidth=1, linestyle=_DASHED)


def legend(figure: Any, colours: dict[str, str]) -> None:
    from matplotlib.patches import Patch

    keys = [Patch(color=colour, label=name) for name, colour in colours.items()]
    figure.legend(handles=keys, fontsize=8, frameon=False, loc="outside lower right", ncols=len(keys))


def _draw(file: Path, plot: Plot) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure = plot.draw(pyplot)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)
