"""Remembered sessions: when they end, and the secret that renews them."""

from datetime import UTC, datetime, timedelta

import pytest

from posthouse.rules import login
from posthouse.rules.login import SecretUse

NOW = datetime(2026, 3, 1, 12, 0, 0, 500_000, tzinfo=UTC)
WHOLE = NOW.replace(microsecond=0)
KEY = b"key"


@pytest.mark.parametrize(
    ("is_current", "seconds_ago", "use"),
    [
        (True, None, SecretUse.FIRST),
        (True, 5_000_000, SecretUse.FIRST),
        (False, 0, SecretUse.AGAIN),
        (False, 60, SecretUse.AGAIN),
        (False, 60.1, SecretUse.TOO_LATE),
        # The clocks of two processes differ a little.
        (False, -1, SecretUse.AGAIN),
        (False, None, SecretUse.TOO_LATE),
    ],
)
def test_a_replaced_secret_is_valid_for_a_minute(is_current: bool, seconds_ago: float | None, use: SecretUse) -> None:
    renewed_at = None if seconds_ago is None else NOW - timedelta(seconds=seconds_ago)
    assert login.judge_secret(is_current=is_current, renewed_at=renewed_at, now=NOW) is use


@pytest.mark.parametrize(("days_old", "days_left"), [(0, 7), (10, 7), (23, 7), (25, 5), (30, 0)])
def test_a_remembered_session_ends_after_7_days_idle_and_30_in_all(days_old: int, days_left: int) -> None:
    assert login.renewed_session_end(NOW - timedelta(days=days_old), NOW) == WHOLE + timedelta(days=days_left)


def test_a_token_of_a_remembered_session_lasts_15_minutes_and_never_longer_than_it() -> None:
    assert login.end_of_token(WHOLE + timedelta(days=7), NOW) == WHOLE + timedelta(minutes=15)
    assert login.end_of_token(WHOLE + timedelta(minutes=2), NOW) == WHOLE + timedelta(minutes=2)


def test_the_next_secret_depends_on_secret_salt_and_key() -> None:
    first = login.next_secret("a", b"salt", KEY)
    assert first == login.next_secret("a", b"salt", KEY)
    others = {
        login.next_secret("b", b"salt", KEY),
        login.next_secret("a", b"pepper", KEY),
        login.next_secret("a", b"salt", b"another"),
    }
    assert len(others | {first, "a"}) == 5
    assert login.next_secret("\ud800", b"salt", KEY) != first
