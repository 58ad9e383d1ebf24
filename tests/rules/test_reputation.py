"""Reputation: the bounds are exact, and few results are no reason."""

from datetime import UTC, datetime, timedelta

import pytest

from posthouse.rules.reputation import (
    FINALS_MIN,
    WINDOW,
    ReputationFigures,
    ReputationVerdict,
    can_be_bad,
    counted_since,
    described,
    judge,
)

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("finals", "unknown", "complaints", "expected"),
    [
        (0, 0, 0, ReputationVerdict.WELL),
        (199, 199, 199, ReputationVerdict.WELL),
        (200, 0, 0, ReputationVerdict.WELL),
        (200, 9, 0, ReputationVerdict.WELL),
        (200, 10, 0, ReputationVerdict.WARN),
        (200, 19, 0, ReputationVerdict.WARN),
        (200, 20, 0, ReputationVerdict.SUSPEND),
        (200, 200, 0, ReputationVerdict.SUSPEND),
        (200, 0, 2, ReputationVerdict.WELL),
        (200, 0, 3, ReputationVerdict.WARN),
        (200, 0, 9, ReputationVerdict.WARN),
        (200, 0, 10, ReputationVerdict.SUSPEND),
        (2_000, 0, 10, ReputationVerdict.SUSPEND),
        (2_001, 0, 10, ReputationVerdict.WARN),
        (3_000, 0, 3, ReputationVerdict.WARN),
        (3_001, 0, 3, ReputationVerdict.WELL),
        (10_000, 499, 9, ReputationVerdict.WELL),
        (10_000, 500, 9, ReputationVerdict.WARN),
        (10_000, 999, 49, ReputationVerdict.WARN),
        (10_000, 1_000, 0, ReputationVerdict.SUSPEND),
        (10_000, 0, 50, ReputationVerdict.SUSPEND),
    ],
)
def test_the_limits_are_exact(finals: int, unknown: int, complaints: int, expected: ReputationVerdict) -> None:
    assert judge(finals, unknown, complaints) is expected


def test_more_deliveries_never_worsen_reputation() -> None:
    rank = list(ReputationVerdict)
    for bad in range(0, 60, 3):
        for complaints in (0, 1, 3, 12):
            verdicts = [rank.index(judge(finals, bad, complaints)) for finals in range(FINALS_MIN, 3_000, 50)]
            assert verdicts == sorted(verdicts, reverse=True)


def test_counting_starts_with_the_window_or_the_end_of_the_suspension() -> None:
    assert counted_since(None, NOW) == NOW - WINDOW
    assert counted_since(NOW - timedelta(hours=1), NOW) == NOW - timedelta(hours=1)
    assert counted_since(NOW - timedelta(days=9), NOW) == NOW - WINDOW


def test_the_reason_has_both_percentages() -> None:
    text = described(ReputationFigures(400, 50, 1))
    assert "of the latest 400 results 12.5 % were unknown addresses" in text
    assert "0.25 % were complained about" in text
    assert ReputationFigures(0, 0, 0).unknown_percent == 0


def test_accounts_below_the_limits_need_no_count() -> None:
    for unknown in range(30):
        for complaints in range(12):
            worst = judge(FINALS_MIN, unknown, complaints)
            assert can_be_bad(unknown, complaints) is (worst is not ReputationVerdict.WELL)
