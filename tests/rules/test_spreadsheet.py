"""Cells of CSV files: whatever a stranger wrote, no spreadsheet runs it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.rules.spreadsheet import guarded, unguarded


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20", "'"])
def test_what_could_begin_a_formula_is_quoted(first: str) -> None:
    assert guarded(f"{first}cmd|' /C calc'!A1") == f"'{first}cmd|' /C calc'!A1"


@pytest.mark.parametrize("cell", ["", "ada@example.org", "a=b", "1+1", "#1", '"=1"'])
def test_other_cells_stay_as_they_are(cell: str) -> None:
    assert guarded(cell) == cell


@given(st.text(max_size=10))
def test_a_guarded_cell_is_no_formula_and_can_be_read_back(cell: str) -> None:
    shown = guarded(cell)
    assert shown[:1] not in ("=", "+", "-", "@", "\t", "\r")
    assert unguarded(shown) == cell
