"""Metadata: pairs that a sender attaches to a message for itself; they are never in the mail."""

import json
import re
from collections.abc import Mapping
from typing import Final

from posthouse.rules import limits
from posthouse.rules.refusal import invalid

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
# As in subjects and tags.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def check(given: Mapping[str, str]) -> Mapping[str, str]:
    """The pairs, if all of them may be stored."""
    if len(given) > limits.METADATA_MAX:
        raise invalid(f"`metadata` has {len(given)} pairs: at most {limits.METADATA_MAX} are allowed.")
    for name, value in given.items():
        check_pair(name, value)
    return given


def check_pair(name: str, value: str) -> None:
    if not _NAME.match(name):
        raise invalid(f"`metadata`: the name {name[:100]!r} is not 1 to 64 letters, digits or any of _ . -")
    if len(value) > limits.METADATA_VALUE_CHARACTERS_MAX:
        raise invalid(
            f"`metadata.{name}` has {len(value)} characters: "
            f"at most {limits.METADATA_VALUE_CHARACTERS_MAX} are allowed."
        )
    if _CONTROL.search(value):
        raise invalid(f"`metadata.{name}` holds a line break or another control character: remove it.")


def stored(given: Mapping[str, str]) -> str | None:
    """As a column holds them, in their order; None for none."""
    return json.dumps(given, ensure_ascii=False, separators=(",", ":")) if given else None


def read(column: str | None) -> dict[str, str]:
    """The pairs of a stored column."""
    pairs: dict[str, str] = {} if column is None else json.loads(column)
    return pairs
