"""The commands that a text names."""

import re
from pathlib import Path
from typing import Final

_REFERENCE: Final = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
_KNOWN: Final = frozenset(re.findall(r"^##+ (posthouse .*)$", _REFERENCE.read_text(), re.MULTILINE))


def commands_in(text: str) -> set[str]:
    named = re.findall(r"`(posthouse [a-z][a-z-]*(?: [a-z][a-z-]*)?)", text)
    # The parts of `run` are not commands.
    return {re.sub(r" run \w+$", " run", words) for words in named}


def unknown_commands(text: str) -> list[str]:
    return sorted(commands_in(text) - _KNOWN)
