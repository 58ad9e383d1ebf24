"""Storage is low at its mark, and has space again only at some distance from it."""

import pytest

from posthouse.rules.disk_space import FreeMark, Mark, UsedMark, no_capacity
from posthouse.rules.refusal import Code

FREE = FreeMark(1_000)
USED = UsedMark(1_000)


@pytest.mark.parametrize(
    ("mark", "measured", "was_low", "is_low"),
    [
        (FREE, 1_001, False, False),
        (FREE, 1_000, False, True),
        (FREE, 0, False, True),
        (FREE, 1_001, True, True),
        (FREE, 1_249, True, True),
        (FREE, 1_250, True, False),
        (FREE, 10_000, True, False),
        (FreeMark(1), 1, True, True),
        (FreeMark(1), 2, True, False),
        (USED, 999, False, False),
        (USED, 1_000, False, True),
        (USED, 5_000, False, True),
        (USED, 999, True, True),
        (USED, 951, True, True),
        (USED, 950, True, False),
        (USED, 0, True, False),
        (UsedMark(1), 0, True, False),
    ],
)
def test_the_two_marks_differ(mark: Mark, measured: int, was_low: bool, is_low: bool) -> None:
    assert mark.is_low(measured, was_low=was_low) is is_low


def test_the_refusal_has_a_retry_time() -> None:
    refusal = no_capacity()
    assert (refusal.code, refusal.retry_after_seconds, refusal.lacks_capacity) == (Code.SERVICE_UNAVAILABLE, 30, True)
    assert "try again later" in refusal.text
