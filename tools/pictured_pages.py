"""What the pictures of the documentation were taken of: the dashboard's navigation, and the operations of the API.

`tests/test_pictures.py` refuses pictures that were taken before either changed.
"""

import json
import re
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
TAKEN: Final = ROOT / "docs" / "assets" / "screenshots"
RECORD: Final = TAKEN / "taken-of.json"
BYTES_MAX: Final = 90_000
_SOURCES: Final = ROOT / "dashboard" / "src"
_ENTRY: Final = re.compile(r"\{ path: '[^']+', label: pageNames\.(\w+), icon: \w+, group: '(\w+)'")
_NAME: Final = re.compile(r"^  (\w+): '([^']+)',$", re.MULTILINE)


def now() -> dict[str, Any]:
    """As the sources have them today."""
    document = json.loads((ROOT / "docs" / "reference" / "openapi.json").read_text(encoding="utf-8"))
    operations = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    return {"navigation": _navigation(), "operations": sorted(operations)}


def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def record() -> None:
    RECORD.write_text(json.dumps(now(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _navigation() -> dict[str, list[str]]:
    words = (_SOURCES / "words" / "shell.ts").read_text(encoding="utf-8")
    names = dict(_NAME.findall(words[words.index("export const pageNames") :]))
    entries: dict[str, list[str]] = {}
    for name, group in _ENTRY.findall((_SOURCES / "pages" / "table.ts").read_text(encoding="utf-8")):
        entries.setdefault(group, []).append(names[name])
    return entries
