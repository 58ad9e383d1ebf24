"""The pages of rules match the tests: no rule without a test, no test of an unknown rule."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
TESTS = HERE.parent
REFERENCE = HERE.parents[1] / "docs" / "reference"
PAGES = sorted(REFERENCE.glob("*.md"))
RULE = re.compile(r"^- \*\*([A-Z]+-\d{2})\*\* ", re.MULTILINE)


def rules_of_the_pages() -> list[str]:
    return [rule for page in PAGES for rule in RULE.findall(page.read_text())]


def _marks(decorators: list[ast.expr]) -> Iterator[str]:
    for decorator in decorators:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.rule":
            for argument in decorator.args:
                assert isinstance(argument, ast.Constant), "a rule's id is written out"
                yield str(argument.value)


@cache
def rules_by_test(folder: Path) -> dict[str, list[str]]:
    """A rule is shown at the cheapest layer that can show it, so its test may be in any folder."""
    found = {}
    for path in sorted(folder.rglob("test_*.py")):
        source = path.read_text()
        if folder == HERE or "mark.rule" in source:
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                    found[f"{path.relative_to(TESTS)}::{node.name}"] = list(_marks(node.decorator_list))
    return found


def test_every_rule_has_a_test() -> None:
    shown = {rule for rules in rules_by_test(TESTS).values() for rule in rules}
    assert [rule for rule in rules_of_the_pages() if rule not in shown] == []


def test_no_test_names_an_unknown_rule() -> None:
    known = set(rules_of_the_pages())
    assert {test: rules for test, rules in rules_by_test(TESTS).items() if set(rules) - known} == {}


def test_no_rule_is_twice_in_the_pages() -> None:
    assert [rule for rule, count in Counter(rules_of_the_pages()).items() if count > 1] == []


def test_every_test_shows_a_rule() -> None:
    here = str(Path(__file__).relative_to(TESTS))
    assert [test for test, rules in rules_by_test(HERE).items() if not rules and not test.startswith(here)] == []
