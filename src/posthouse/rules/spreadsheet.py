"""Cells of CSV files that people open in a spreadsheet: whatever they contain, none is a formula.

A spreadsheet in another language, or with other settings, separates cells at semicolons or tabs, even inside quotes: it
treats the text after one of them as a new cell.
"""

import re
from typing import Final

# Blanks and quotes that a spreadsheet may drop, characters that begin a formula, also in full width, and at the
# beginning our own mark, so that it can be removed again.
_BLANKS: Final = r"[ \x0b\x0c\xa0\u1680\u2000-\u200b\u202f\u205f\u3000\ufeff\"']*"
_FORMULA: Final = rf"(?={_BLANKS}[=+\-@＝＋－＠\t\r\n])"
_BEGINNING: Final = r"(?:^|(?<=[;\t\r\n]))"
_unguarded: Final = re.compile(rf"{_BEGINNING}{_FORMULA}|^(?=')")
_guarded: Final = re.compile(rf"{_BEGINNING}'{_FORMULA}|^'(?=')")


def guarded(cell: str) -> str:
    """The cell, quoted so that no spreadsheet reads it, or a part of it, as a formula."""
    return _unguarded.sub("'", cell)


def unguarded(cell: str) -> str:
    return _guarded.sub("", cell)
