"""Remembered sessions: when they end, and the secret that renews them."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as some

from posthouse.rules import login
from posthouse.rules.login import UNKNOWN_LOCATION, SecretUse, login_location

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


# Where from


CHROME = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/131.0.0.0 Safari/537.36"
SAFARI = (
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 14_4) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/17.4 Safari/605.1"
)


@pytest.mark.parametrize(
    ("peer", "network"),
    [
        ("192.0.2.1", "192.0.2.0/24"),
        ("192.0.2.255", "192.0.2.0/24"),
        ("192.0.3.1", "192.0.3.0/24"),
        ("::ffff:192.0.2.1", "192.0.2.0/24"),
        ("2001:db8:1:2::3", "2001:db8:1::/48"),
        ("2001:db8:1:ffff::9", "2001:db8:1::/48"),
        ("2001:db8:2::3", "2001:db8:2::/48"),
        ("::1", "::/48"),
        ("", UNKNOWN_LOCATION),
        ("no address", UNKNOWN_LOCATION),
    ],
)
def test_an_address_belongs_to_a_network(peer: str, network: str) -> None:
    assert login_location(peer, "").network == network


@pytest.mark.parametrize(
    ("user_agent", "program"),
    [
        (CHROME, "Chrome"),
        (CHROME.replace("131", "132"), "Chrome"),
        (f"{CHROME} Edg/131.0.0.0", "Edge"),
        (f"{CHROME} OPR/117.0.0.0", "Opera"),
        (SAFARI, "Safari"),
        (SAFARI.replace("Version", "CriOS"), "Chrome"),
        ("Mozilla/5.0 (X11; Linux x86_64; rv:133.0) Gecko/20100101 Firefox/133.0", "Firefox"),
        ("curl/8.10.1", "curl"),
        ("python-requests/2.32", "python-requests"),
        ("Python/3.11 aiohttp/3.10", "Python"),
        ("posthouse", "posthouse"),
        ("", UNKNOWN_LOCATION),
        ("\x1b[31m", UNKNOWN_LOCATION),
        ("a" * 10_000, "a" * 32),
    ],
)
def test_a_user_agent_belongs_to_a_family(user_agent: str, program: str) -> None:
    assert login_location("192.0.2.1", user_agent).program == program


@given(some.text(), some.text())
def test_any_text_gives_a_short_plain_place(peer: str, user_agent: str) -> None:
    network, program = login_location(peer, user_agent)
    assert (len(network) <= 49, len(program) <= 32) == (True, True)
    assert re.fullmatch("[ -~]*", network + program)
