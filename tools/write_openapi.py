"""Writes docs/reference/openapi.json from what the service declares."""

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

from posthouse.entrypoints.http import api_reference
from posthouse.entrypoints.http.app import create_router

FILE: Final = Path(__file__).parents[1] / "docs" / "reference" / "openapi.json"


@cache
def document() -> dict[str, Any]:
    """The document as /openapi.json serves it."""
    return api_reference.document(create_router())


def resolved(part: dict[str, Any], content: dict[str, Any] | None = None) -> dict[str, Any]:
    """The shared component of the document, or of this one, that a part of it refers to; otherwise the part itself."""
    if "$ref" not in part:
        return part
    _, _, kind, name = part["$ref"].split("/")
    found: dict[str, Any] = (content or document())["components"][kind][name]
    return found


def written(content: dict[str, Any]) -> str:
    """In the order in which it is served, a line for each thing, so that a change reads well."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    FILE.write_text(written(document()), encoding="utf-8")
    print(f"{FILE.relative_to(Path.cwd()) if FILE.is_relative_to(Path.cwd()) else FILE} is written.")


if __name__ == "__main__":
    main()
