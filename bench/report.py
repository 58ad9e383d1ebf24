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
from string import Template
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.table import Table

from bench import figures
from bench.processes import Measured
from tools.private_postgres import find_binaries

RESULTS: Final = "RESULTS.md"
NOTES: Final = Path(__file__).parent / "notes"

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


Runs = Mapping[str, Sequence[Measured]]
"""By name, a run for each round."""
Cell = Callable[[Sequence[Measured]], str]


def middle(form: str, read: Callable[[Measured], float]) -> Cell:
    """The median of the runs, in that form."""
    return lambda runs: form.format(median(read(run) for run in runs))


def table(
    title: str,
    first: str,
    rows: Runs,
    columns: Sequence[tuple[str, Cell]],
    marked: Sequence[str] = (),
    style: str = "bold",
) -> Rows:
    """A row for each name, its cells made from its runs; the marked ones have that style."""
    return Rows(
        title,
        (first, *(name for name, _ in columns)),
        [[name, *(cell(runs) for _, cell in columns)] for name, runs in rows.items()],
        [style if name in marked else None for name in rows],
    )


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
        before = page.read_text() if page.exists() else "# Benchmark results\n"
        page.write_text(figures.replaced(before, self.name, self.text()))
        written = [page]
        if self.plot is not None:
            written.append(directory / self.plot.file)
            _draw(written[-1], self.plot)
        if page == figures.RESULTS:
            figures.write()
        return written

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


def notes(name: str, **values: object) -> str:
    """What was measured, in words: the benchmark's file in `bench/notes`, with the values filled in."""
    return Template((NOTES / f"{name}.md").read_text()).substitute(values)


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


def ratio(
    measured: Sequence[Measured],
    peer: Sequence[Measured] | None,
    read: Callable[[Measured], float] = lambda run: run.per_second,
) -> float | None:
    """The median of the ratios within each round; None where the peer was not measured."""
    if peer is None:
        return None
    return median(read(run) / read(other) for run, other in zip(measured, peer, strict=True))


def times(found: float | None) -> str:
    """A ratio in a table."""
    return "–" if found is None else f"{found:.2f}"


def rate(runs: Sequence[Measured]) -> float:
    return median(run.per_second for run in runs)


def costs(runs: Sequence[Measured]) -> dict[str, float]:
    """The median processor time of each part."""
    return {part: median(run.server_us[part] for run in runs) for part in runs[0].server_us}


def costs_text(name: str, runs: Sequence[Measured]) -> str:
    parts = costs(runs)
    listed = ", ".join(f"{part} {cost:,.0f}" for part, cost in parts.items())
    return f"{name}: of {sum(parts.values()):,.0f} µs per message, {listed}"


def repeated(rounds: int) -> str:
    return f"medians of {rounds} interleaved rounds" if rounds > 1 else "a single round"


def variation(rows: Runs) -> str:
    """How much the same thing varied between rounds, in words."""

    def spread(name: str) -> float:
        rates = [run.per_second for run in rows[name]]
        return max(rates) / min(rates)

    name = max(rows, key=spread)
    return (
        f"The same phase varied by up to {spread(name):.2f}× between rounds ({name}): compare ratios and processor "
        "time rather than rates."
    )


# Plots


@dataclass(frozen=True, slots=True)
class RateAndCost:
    """A row of two panels: its rate, with a note at its end, and its processor time by part."""

    name: str
    runs: Sequence[Measured]
    note: str = ""
    colour: str = GREY


def rates_and_costs(
    panels: tuple[Any, Any], titles: tuple[str, str], rows: Sequence[RateAndCost], colours: dict[str, str]
) -> None:
    """A panel of rates next to a panel of processor time, whose parts have these colours, or else the row's."""
    rates = [({"rate": rate(row.runs)}, row.note) for row in rows]
    _bars(panels[0], titles[0], rows, rates, {})
    _bars(panels[1], titles[1], rows, [(costs(row.runs), "") for row in rows], colours)


def _bars(
    axes: Any,
    title: str,
    rows: Sequence[RateAndCost],
    bars: Sequence[tuple[dict[str, float], str]],
    colours: dict[str, str],
) -> None:
    """Horizontal bars of stacked parts, from top to bottom in their order, each with its sum and note at the end."""
    places = range(len(rows) - 1, -1, -1)
    widest = max((sum(parts.values()) for parts, _ in bars), default=1.0)
    for place, row, (parts, note) in zip(places, rows, bars, strict=True):
        left = 0.0
        for part, length in parts.items():
            axes.barh(place, length, left=left, color=colours.get(part, row.colour), height=0.62)
            left += length
        axes.text(left + widest * 0.012, place, f"{left:,.0f}{note}", va="center", fontsize=9, color=_TEXT)
    axes.set_xlim(0, widest * 1.3)
    axes.set_yticks(list(places), [row.name for row in rows], fontsize=9)
    axes.set_title(title, fontsize=10, loc="left")
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    plain(axes, grid_axis="x")


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
