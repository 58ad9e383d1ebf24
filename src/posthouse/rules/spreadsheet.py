"""Cells of CSV files that people open in a spreadsheet: whatever they contain, none is a formula."""

from typing import Final

# What a spreadsheet takes for the beginning of a formula, also in full width or behind a blank that it drops; and our
# own mark, so that it can be taken away again.
_GUARDED: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠", "'")


def guarded(cell: str) -> str:
    """The cell, quoted so that no spreadsheet reads it as a formula."""
    return f"'{cell}" if cell.startswith(_GUARDED) else cell


def unguarded(cell: str) -> str:
    return cell[1:] if cell[:1] == "'" and cell[1:].startswith(_GUARDED) else cell
