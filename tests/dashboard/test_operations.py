"""Every operation of /v1 is used by the dashboard, or listed here as not for people."""

import json
import re
from pathlib import Path
from typing import Final

import pytest

from tests.support.dashboard_pages import SOURCES

pytestmark = pytest.mark.rare

DOCUMENT: Final = json.loads((Path(__file__).parents[2] / "docs" / "reference" / "openapi.json").read_text())
# For programs, with the reason.
NOT_FOR_PEOPLE: Final = {
    "waitForMessage": "test suites wait with it for the mail that they caused",
}
_METHOD: Final = re.compile(r"\.(GET|POST|PUT|PATCH|DELETE)\(\s*'(/v1/[^']+)'")


def used() -> set[tuple[str, str]]:
    """Method and path, as the document writes them."""
    text = "\n".join(path.read_text() for path in SOURCES.rglob("*.ts*") if path.name != "schema.d.ts")
    return set(_METHOD.findall(text))


def operations() -> dict[str, tuple[str, str]]:
    return {
        operation["operationId"]: (method.upper(), path)
        for path, methods in DOCUMENT["paths"].items()
        if path.startswith("/v1/")
        for method, operation in methods.items()
    }


def test_every_operation_is_used_or_not_for_people() -> None:
    named = used()
    unused = {name for name, operation in operations().items() if operation not in named}
    assert unused == set(NOT_FOR_PEOPLE)


def test_no_operation_is_used_that_there_is_not() -> None:
    assert used() - set(operations().values()) == set()
