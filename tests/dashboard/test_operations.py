"""Every operation of /v1 is used by the dashboard, or listed here as not for people."""

import re
from collections.abc import Iterator
from typing import Final

from posthouse.rules.credential import Role
from tests.support.dashboard_pages import SOURCES, operations
from tests.support.declared_access import FOR_OPERATORS, NEEDED

# For programs, with the reason.
NOT_FOR_PEOPLE: Final = {
    "listEvents": "programs that missed webhooks catch up with it; a message's page shows its events",
    "waitForMessage": "test suites wait with it for the mail that they caused",
}
# Calls of the typed client, whose paths are the document's, and of the functions that take any path.
_TYPED: Final = re.compile(r"\.(GET|POST|PUT|PATCH|DELETE)\(\s*'(/v1/[^']+)'")
_UNTYPED: Final = re.compile(r"(?:\b(post|upload)\b(?:<\w+>)?\()?(['`])(/v1/(?:(?!\2).)+)\2")
_VALUE: Final = re.compile(r"\$\{(?:[^{}]|\{[^{}]*\})*\}")
_PARAMETER: Final = re.compile(r"\{\w+\}")
# A control, a page or a condition that names the operation.
_NAMED: Final = re.compile(r"""(?:\bto=["']|\boperation=["']|\buse(?:May|Reason)\('|\bneeds: ')(\w+)["']""")


def texts() -> Iterator[str]:
    for path in SOURCES.rglob("*.ts*"):
        if path.name != "schema.d.ts" and ".test." not in path.name and path.parent.name not in {"rules", "words"}:
            yield path.read_text()


def used() -> set[tuple[str, str]]:
    """Method and path; parts of the path that vary are `{}`."""
    found = set()
    for text in texts():
        found |= {(method, _PARAMETER.sub("{}", path)) for method, path in _TYPED.findall(text)}
        for sends, _, path in _UNTYPED.findall(_TYPED.sub("", text)):
            found.add(("POST" if sends else "GET", _untyped_path(path)))
    return found


def _untyped_path(path: str) -> str:
    """The last value of `…/export${query}` is no part of the path."""
    filled = _VALUE.sub("{}", path)
    return filled if filled.endswith("/{}") else filled.removesuffix("{}")


def known() -> dict[str, tuple[str, str]]:
    return {name: (method, _PARAMETER.sub("{}", path)) for name, (method, path) in operations().items()}


def test_every_operation_is_used_or_not_for_people() -> None:
    named = used()
    assert {name for name, operation in known().items() if operation not in named} == set(NOT_FOR_PEOPLE)


def test_no_operation_is_used_that_does_not_exist() -> None:
    assert used() - set(known().values()) == set()


def test_changes_that_not_every_role_may_make_have_a_control_that_names_them() -> None:
    named = {operation for text in texts() for operation in _NAMED.findall(text)}
    changes = {name for name, (method, _) in operations().items() if method != "GET"}
    guarded = {name for name in changes if NEEDED.get(name, Role.VIEWER) is not Role.VIEWER}
    assert (guarded | changes & FOR_OPERATORS) - named == set()
    assert named <= set(NEEDED) | FOR_OPERATORS
