"""Cells of CSV files that people open in a spreadsheet: whatever they contain, none is a formula.

A spreadsheet of another language, or one that is told so, separates cells by semicolons or tabs, whatever the quotes
say: what follows one of them inside of a cell is a cell to it.
"""

import re
from typing import Final

# Blanks and quotes that a spreadsheet may drop, what it takes for the beginning of a formula, also in full width, and
# at the beginning our own mark, so that it can be taken away again.
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
