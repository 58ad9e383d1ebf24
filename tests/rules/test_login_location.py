"""The place of a login: the network of its address, and the family of its program."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from posthouse.rules.login import UNKNOWN_LOCATION, login_location

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
    assert len(network) <= 49
    assert len(program) <= 32
    assert (network + program).isascii()
    assert (network + program).isprintable()
