"""The table of the noisy-neighbour suite in a page of the documentation: a row for each scene."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.attacks.processor_load import ProcessorUse
from tests.attacks.victim import ACTIONS, Times

BEGIN: Final = "<!-- noisy neighbours: written by make attacks-table -->\n"
END: Final = "<!-- end of noisy neighbours -->\n"
HEAD: Final = ("Shared", "The attack", "Installation", *ACTIONS, "Refused", "Processors")


def percentile(seconds: Sequence[float], part: float) -> float:
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


@dataclass(slots=True)
class Measured:
    """The victim's times in each window, without and during the attack."""

    alone: list[Times] = field(default_factory=list)
    attacked: list[Times] = field(default_factory=list)
    load: ProcessorUse = field(default_factory=ProcessorUse)

    def medians(self, action: str, part: float = 0.99) -> tuple[float, float]:
        """The medians of the windows' percentiles."""
        alone, attacked = (
            statistics.median(percentile(times.seconds[action], part) for times in windows)
            for windows in (self.alone, self.attacked)
        )
        return alone, attacked

    @property
    def refused(self) -> Counter[str]:
        return sum((times.refused for times in self.attacked), Counter())


def write_row(page: Path, resource: str, worst: str, measured: Measured, *, is_fleet: bool) -> None:
    """Replace the scene's row, or add it; other rows stay."""
    before, _, rest = page.read_text().partition(BEGIN)
    table, _, after = rest.partition(END)
    name = [resource, worst, "fleet" if is_fleet else "single"]
    cells = [_cell(measured, action) for action in ACTIONS]
    new = _line([*name, *cells, str(measured.refused.total()), _processors(measured.load)])
    rows = [row for row in table.splitlines(keepends=True)[2:] if not row.startswith(f"| {' | '.join(name)} |")]
    rows = sorted([*rows, new])
    page.write_text(before + BEGIN + _line(HEAD) + _line(["---"] * len(HEAD)) + "".join(rows) + END + after)


def _cell(measured: Measured, action: str) -> str:
    (p50_alone, p50), (p99_alone, p99) = measured.medians(action, 0.5), measured.medians(action)
    alone, attacked = (f"{low * 1e3:.0f}/{high * 1e3:.0f}" for low, high in ((p50_alone, p99_alone), (p50, p99)))
    return f"{alone}→{attacked} (×{p99 / p99_alone:.1f})"


def _processors(load: ProcessorUse) -> str:
    """How busy they were, then the parts in their order; the page names them."""
    return f"{load.busy:.0%}: {'/'.join(f'{used * 100:.0f}' for used in load.parts.values())}"


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |\n"
