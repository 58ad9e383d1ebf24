"""What a tag may be."""

from typing import Final

from posthouse.rules import limits

TAG_SHAPE: Final = f"1 to {limits.TAG_CHARACTERS_MAX} printable characters"


def is_tag(text: str) -> bool:
    return 1 <= len(text) <= limits.TAG_CHARACTERS_MAX and text.isprintable()
