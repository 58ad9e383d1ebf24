"""The documentation names what exists: files, decisions, and the functions of the roads."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
_path = re.compile(r"`((?:src|tests|bench|tools|docs|sdks)/[\w./-]+\.\w+)`")
_symbol = re.compile(r"`([a-z_]+(?:\.[a-z_]+)*):([A-Za-z_][\w.]*)`")
READ_THE_CODE = ROOT / "docs/internals/read-the-code.md"


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_file_that_is_named_exists(page: Path) -> None:
    assert [path for path in _path.findall(page.read_text()) if not (ROOT / path).exists()] == []


def _symbols() -> Iterator[tuple[str, str]]:
    yield from _symbol.findall(READ_THE_CODE.read_text())


def test_every_function_of_the_roads_exists() -> None:
    missing = []
    for module, name in _symbols():
        found: object = importlib.import_module(f"posthouse.{module}")
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is None:
            missing.append(f"{module}:{name}")
    assert missing == []
    assert len(list(_symbols())) > 30, "the roads are lists of `module:function`"


def test_every_decision_is_in_the_index() -> None:
    index = (ROOT / "docs/index.md").read_text()
    assert [page.name for page in sorted((ROOT / "docs/decisions").glob("*.md")) if page.name not in index] == []
