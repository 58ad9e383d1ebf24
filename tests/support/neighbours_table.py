"""The table of the noisy-neighbour suite in a page of the documentation: a row for each scene."""

from pathlib import Path
from typing import Final

from tests.support.neighbours import percentile
from tests.support.victim import ACTIONS, Times

BEGIN: Final = "<!-- noisy neighbours: written by make attacks-table -->\n"
END: Final = "<!-- end of noisy neighbours -->\n"
HEAD: Final = ("Shared", "The attack", *ACTIONS, "Refused", "Processors")


def write_row(page: Path, resource: str, worst: str, load: str, alone: Times, beside: Times) -> None:
    """Replace the scene's row, or add it; other rows stay."""
    before, _, rest = page.read_text().partition(BEGIN)
    table, _, after = rest.partition(END)
    cells = [_cell(alone.seconds[action], beside.seconds[action]) for action in ACTIONS]
    new = _line([resource, worst, *cells, str(beside.refused.total()), load])
    rows = [row for row in table.splitlines(keepends=True)[2:] if f"| {worst} |" not in row]
    rows = sorted([*rows, new])
    page.write_text(before + BEGIN + _line(HEAD) + _line(["---"] * len(HEAD)) + "".join(rows) + END + after)


def _cell(alone: list[float], beside: list[float]) -> str:
    before, during = percentile(alone, 0.99), percentile(beside, 0.99)
    medians = f"{percentile(alone, 0.5) * 1e3:.0f}/{before * 1e3:.0f} → {percentile(beside, 0.5) * 1e3:.0f}"
    return f"{medians}/{during * 1e3:.0f} (×{during / before:.1f})"


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |\n"
