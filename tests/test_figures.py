"""Figures that pages quote are those of the last runs, and constants that pages quote are those of the code."""

import json
import re
from pathlib import Path

import pytest

from bench import figures
from posthouse.rules import limits

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_quoted = re.compile(r"([\d.,]*)<!--([\w.]+)-->")
_constant = re.compile(r"limits\.([A-Z_]+)")
_number = re.compile(r"(?<![\w.,/#-])\d[\d.,]*\d")
# Where all figures are quoted: a page, and where its part begins and ends.
SECTIONS = {
    "README.md": ("## Proof", "The same [audit]"),
    "docs/index.md": ("- **0 lost**", "## Where to go"),
    "docs/comparison.md": ("## Speed", "## Sources"),
    "docs/internals/performance.md": ("| What | Measured |", "## What an email costs"),
}
# Replies, goals and amounts that a benchmark was given.
NOT_MEASURED = {
    "202",
    "250",
    "500",
    "503",
    "1.2",
    "1.7",
    "2.5",
    "2.7",
    "10",
    "20",
    "30",
    "50",
    "100",
    "200",
    "10,000",
    "20,000",
    "1,000,000",
}


_FIGURES: dict[str, str] = json.loads(figures.FILE.read_text())


def _known(name: str) -> str | None:
    if constant := _constant.fullmatch(name):
        return f"{getattr(limits, constant[1], None)}"
    return _FIGURES.get(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_quotes_the_figures_of_the_last_runs(page: Path) -> None:
    quoted = {(shown, name) for shown, name in _quoted.findall(page.read_text()) if shown != _known(name)}
    assert {f"{name}: {shown} is {_known(name)}" for shown, name in quoted} == set()


# Rounded figures, and what they are rounded from.
_PRICES = (ROOT / "docs/internals/scaling.md").read_text()
_A_MONTH, _SES = (
    int(re.findall(pattern, _PRICES)[0]) for pattern in (r"machine, (\d+) USD", r"\*\*(\d+) USD a million")
)
_KILOBYTES = 30 * 4.0 + 4 * float(_FIGURES["bodies.stored"])
ROUNDED = {
    ("README.md", r"fewer than some ([\d,]+) emails a month"): _A_MONTH / _SES * 1e6,
    ("docs/internals/scaling.md", r"equal at [\d,]+ to ([\d,]+) emails a month"): _A_MONTH / _SES * 1e6,
    ("docs/internals/scaling.md", r"an email a day takes (\d+) KB of disk"): _KILOBYTES,
    ("docs/howto/first-server.md", r"a million of 30 KB a day take\s+\[(\d+) GB\]"): _KILOBYTES,
    ("docs/howto/several-machines.md", r"about (\d+) signed emails a second per core"): 1e6
    / float(_FIGURES["deliver.delivery"].replace(",", "")),
    ("docs/howto/several-machines.md", r"about ([\d,]+) messages a second per core"): 1e6
    / float(_FIGURES["deliver.http"].replace(",", "")),
}


@pytest.mark.parametrize(("page", "pattern"), ROUNDED)
def test_a_rounded_figure_is_near_what_was_measured(page: str, pattern: str) -> None:
    (shown,) = re.findall(pattern, (ROOT / page).read_text())
    assert float(shown.replace(",", "")) == pytest.approx(ROUNDED[page, pattern], rel=0.1)


def test_a_page_that_compares_with_bare_postgresql_gives_both_figures() -> None:
    quoted = [{name for _, name in _quoted.findall(page.read_text())} for page in PAGES]
    assert ["accept.of_bare" in names for names in quoted] == ["accept.of_bare_batches" in names for names in quoted]


def test_the_file_of_figures_is_that_of_the_reports() -> None:
    assert figures.read() == _FIGURES, "run `make figures`"


def test_every_figure_in_the_file_is_quoted() -> None:
    quoted = {name for page in PAGES for _, name in _quoted.findall(page.read_text())}
    assert set(figures.read()) == {name for name in quoted if not _constant.fullmatch(name)}


@pytest.mark.parametrize("page", SECTIONS)
def test_every_figure_of_proof_and_comparison_names_its_source(page: str) -> None:
    start, end = SECTIONS[page]
    text = (ROOT / page).read_text()
    section = text[text.index(start) : text.index(end)]
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)|\[\d+\]", "", _quoted.sub("", section))
    assert set(_number.findall(prose)) - NOT_MEASURED == set()


def test_a_section_is_replaced_and_the_others_stay() -> None:
    page = figures.replaced(figures.replaced("# Results\n", "first", "one\n"), "second", "two\n")
    assert figures.replaced(page, "first", "three\n") == page.replace("one", "three")
