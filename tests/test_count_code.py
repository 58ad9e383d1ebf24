"""A circle of imports between modules is refused, also within a package."""

import ast

import pytest

from tools.count_code import import_circle

BASE = "from posthouse.store import rows\n"


def circle(**modules: str) -> list[str]:
    return import_circle({f"posthouse.store.{name}": ast.parse(text) for name, text in modules.items()})


def test_modules_that_import_one_another_are_a_circle() -> None:
    found = circle(rows="from posthouse.store.pages import Page", pages=BASE)
    assert sorted(found[1:]) == ["posthouse.store.pages", "posthouse.store.rows"]
    assert found[0] == found[-1]


@pytest.mark.parametrize(
    "text",
    [
        "import posthouse.store.pages",
        "try:\n    import posthouse.store.pages\nexcept ImportError:\n    pass",
        "try:\n    import posthouse\nexcept ImportError:\n    import posthouse.store.pages",
        "class Row:\n    from posthouse.store.pages import Page",
        "if TYPE_CHECKING:\n    pass\nelse:\n    import posthouse.store.pages",
    ],
)
def test_whatever_runs_when_a_module_is_loaded_counts(text: str) -> None:
    assert circle(rows=text, pages=BASE)


def test_a_circle_is_found_through_a_third_module() -> None:
    assert len(circle(rows="import posthouse.store.ids", ids="import posthouse.store.pages", pages=BASE)) == 4


@pytest.mark.parametrize(
    "text",
    [
        "def page():\n    from posthouse.store.pages import Page",
        "class Row:\n    async def page(self):\n        from posthouse.store.pages import Page",
        "if TYPE_CHECKING:\n    from posthouse.store.pages import Page",
        "import posthouse.store.ids",
    ],
)
def test_what_a_function_or_the_type_checker_imports_is_no_circle(text: str) -> None:
    assert not circle(rows=text, pages=BASE, ids="import asyncio")
