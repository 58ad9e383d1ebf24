"""Alerts: thresholds, when an alert is raised and cleared, and the email about it."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from posthouse.rules import alert
from posthouse.rules.alert import WHOLE_ACCOUNT, AlertKind, AlertNotice, Change, Reading
from posthouse.rules.alert import alert_text as text_of
from posthouse.rules.refusal import Code, Refusal

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def states(kind: AlertKind, threshold: float, values: list[float]) -> str:
    """One mark for each value in turn: R raised now, C cleared now, a dot for no change."""
    raised: dict[str, str] = {}
    marks = ""
    for value in values:
        found = alert.changes(kind, threshold, raised, [Reading(value)])
        marks += "".join("R" if change.is_raised else "C" for change in found) or "."
        for change in found:
            raised = {change.subject: change.label} if change.is_raised else {}
    return marks


@pytest.mark.parametrize(
    ("kind", "threshold", "values", "expected"),
    [
        # High values are the trouble: raised at the threshold, cleared a fifth below it.
        (AlertKind.BOUNCE_SHARE, 5, [4.99, 5, 6, 4.99, 5, 4, 3.99, 4.5, 5], ".R....C.R"),
        (AlertKind.COMPLAINT_SHARE, 0.1, [0.05, 0.1, 0.09, 0.1, 0.07], ".R..C"),
        (AlertKind.OLDEST_WAITING, 240, [0, 239, 240, 4_000, 200, 191], "..R..C"),
        # Low values are: raised at the threshold, cleared a fifth above it.
        (AlertKind.CREDITS_LEFT, 1_000, [1_001, 1_000, 0, -5, 1_001, 1_200, 1_201, 999], ".R....CR"),
        (AlertKind.DAYS_LEFT, 7, [8, 7, 8.4, 8.41], ".R.C"),
        (AlertKind.KEY_EXPIRING, 14, [15, 14, 0.1, 365], ".R.C"),
        # Facts.
        (AlertKind.WEBHOOK_FAILING, 1, [1, 1, 0, 0, 1], "R.C.R"),
        (AlertKind.RECORDS_MISSING, 1, [1, 0], "RC"),
    ],
)
def test_an_alert_is_raised_once_and_cleared_once(
    kind: AlertKind, threshold: float, values: list[float], expected: str
) -> None:
    assert states(kind, threshold, values) == expected


def test_what_is_gone_is_cleared_and_what_is_unknown_stays() -> None:
    kind = AlertKind.RECORDS_MISSING
    raised = {"a.example": "a.example", "b.example": "b.example"}
    readings = [Reading(None, "a.example", "a.example"), Reading(1, "c.example", "c.example")]
    assert alert.changes(kind, 1, raised, readings) == [
        Change(True, "c.example", "c.example", 1),
        Change(False, "b.example", "b.example", None),
    ]
    assert alert.changes(AlertKind.BOUNCE_SHARE, 5, {WHOLE_ACCOUNT: ""}, []) == [Change(False, "", "", None)]
    assert alert.changes(AlertKind.BOUNCE_SHARE, 5, {}, []) == []


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (AlertKind.BOUNCE_SHARE, None, 5),
        (AlertKind.BOUNCE_SHARE, 0.1, 0.1),
        (AlertKind.CREDITS_LEFT, 10**9, 10**9),
        (AlertKind.WEBHOOK_FAILING, None, 1),
        (AlertKind.BOUNCE_SHARE, 0, "0.1 to 100 percent"),
        (AlertKind.BOUNCE_SHARE, float("nan"), "0.1 to 100 percent"),
        (AlertKind.OLDEST_WAITING, float("inf"), "5 to 4320 minutes"),
        (AlertKind.CREDITS_LEFT, -1, "1 to 1e+09 credits"),
        (AlertKind.WEBHOOK_FAILING, 1, "leave it out"),
    ],
)
def test_thresholds_have_bounds_and_defaults(kind: AlertKind, given: float | None, expected: float | str) -> None:
    if not isinstance(expected, str):
        assert alert.threshold_of(kind, given) == expected
        return
    with pytest.raises(Refusal, match=re.escape(expected)) as refused:
        alert.threshold_of(kind, given)
    assert refused.value.code is Code.INVALID_REQUEST


def test_few_results_make_no_share() -> None:
    assert alert.bounce_share(89, 10, 0) == []
    assert alert.bounce_share(85, 10, 5) == [Reading(10)]
    assert alert.complaint_share(99, 50) == []
    assert alert.complaint_share(1_000, 2) == []
    assert alert.complaint_share(1_000, 3) == [Reading(0.3)]


def test_credits_last_as_long_as_at_the_pace_of_a_week() -> None:
    assert alert.days_left(1_000, 700) == [Reading(10)]
    assert alert.days_left(0, 700) == [Reading(0)]
    assert alert.days_left(1_000, 0) == []


def test_the_age_of_the_oldest_mail_is_in_minutes() -> None:
    assert alert.oldest_waiting(NOW - timedelta(hours=2), NOW) == [Reading(120)]
    assert alert.oldest_waiting(NOW + timedelta(seconds=1), NOW) == [Reading(0)]


@pytest.mark.parametrize("kind", AlertKind)
@pytest.mark.parametrize("value", [1.0, None])
def test_every_alert_has_an_email_that_names_account_and_subject(kind: AlertKind, value: float | None) -> None:
    raised = text_of(AlertNotice(kind, True, "Acme", "shop.example", value, 5))
    cleared = text_of(AlertNotice(kind, False, "Acme", "shop.example", value, 5))
    assert raised.subject.startswith("Alert: Acme: ")
    assert cleared.subject.startswith("Cleared: Acme: ")
    assert "What to do: " in raised.text
    assert "What to do: " not in cleared.text
    if kind in {AlertKind.RECORDS_MISSING, AlertKind.KEY_EXPIRING}:
        assert "shop.example" in raised.subject
        assert "shop.example" in cleared.subject
    assert len(text_of(AlertNotice(kind, True, "A" * 600, "b" * 600, value, 5)).subject) <= 500
