"""docs/reference/openapi.json, written anew from what the service declares."""

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

from posthouse.entrypoints.http import openapi
from posthouse.entrypoints.http.app import create_router
from posthouse.entrypoints.http.request_body import BodyReader
from posthouse.entrypoints.http.send_email import SendEndpoint

FILE: Final = Path(__file__).parents[1] / "docs" / "reference" / "openapi.json"


@cache
def document() -> dict[str, Any]:
    """The document as /openapi.json serves it."""
    return openapi.openapi(create_router(SendEndpoint(BodyReader())))


def written(content: dict[str, Any]) -> str:
    """In the order in which it is served, a line for each thing, so that a change reads well."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    FILE.write_text(written(document()), encoding="utf-8")
    print(f"{FILE.relative_to(Path.cwd()) if FILE.is_relative_to(Path.cwd()) else FILE} is written.")


if __name__ == "__main__":
    main()
