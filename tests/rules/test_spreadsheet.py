"""Cells of CSV files: whatever anyone wrote, no spreadsheet runs it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.rules.spreadsheet import guarded, unguarded


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20", "'"])
def test_what_could_begin_a_formula_is_quoted(first: str) -> None:
    assert guarded(f"{first}cmd|' /C calc'!A1") == f"'{first}cmd|' /C calc'!A1"


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("x;=1+cmd|' /C calc'!A0;y", "x;'=1+cmd|' /C calc'!A0;y"),
        ("x\t=1", "x\t'=1"),
        ('x;"=1";+2', "x;'\"=1\";'+2"),
        (" =1", "' =1"),
        ("\xa0\u3000=1", "'\xa0\u3000=1"),
        ('"=1"', '\'"=1"'),
        ("x; '=1", "x;' '=1"),
    ],
)
def test_what_a_spreadsheet_may_take_for_a_separate_cell_is_quoted_too(cell: str, shown: str) -> None:
    assert guarded(cell) == shown
    assert unguarded(shown) == cell


@pytest.mark.parametrize("cell", ["", "ada@example.org", "a=b", "1+1", "#1", "Hello, -50 %", "fish; chips", " a = b"])
def test_other_cells_stay_as_they_are(cell: str) -> None:
    assert guarded(cell) == cell


@given(st.text(max_size=10) | st.text(alphabet="a=-@ ;\t\r'\"", max_size=10))
def test_a_guarded_cell_is_no_formula_and_can_be_read_back(cell: str) -> None:
    shown = guarded(cell)
    assert not any(part.lstrip(" \"'")[:1] in tuple("=+-@") for part in re.split("[;\t\r\n]", shown) if part[:1] != "'")
    assert unguarded(shown) == cell
