"""What an operator may write about accounts, domains, credentials and users."""

from collections.abc import Callable
from ipaddress import ip_network

import pytest

from posthouse.rules import input_checks
from posthouse.rules.refusal import Refusal


@pytest.mark.parametrize(
    ("given", "expected"), [("Acme", "Acme"), ("  Café Zoë 东京 ", "Café Zoë 东京"), ("x" * 200, "x" * 200)]
)
def test_a_name_is_stripped(given: str, expected: str) -> None:
    assert input_checks.name("A name", given) == expected


@pytest.mark.parametrize(
    "given", ["", "   ", "x" * 201, "a\nb", "a\x00b", "a\u2028b", "a\ud800", "Acme\u202emoc", "a\u2066b"]
)
def test_a_name_that_would_break_or_turn_a_line_is_refused(given: str) -> None:
    with pytest.raises(Refusal, match="invalid_request: "):
        input_checks.name("A name", given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [("example.com", "example.com"), (" Example.COM. ", "example.com"), ("bücher.example", "xn--bcher-kva.example")],
)
def test_a_domain_is_stored_in_a_labels(given: str, expected: str) -> None:
    assert input_checks.domain_name(given) == expected


@pytest.mark.parametrize("given", ["", "localhost", "a..example", "user@example.com", "exa mple.com", "-a.example"])
def test_an_invalid_domain_is_refused(given: str) -> None:
    with pytest.raises(Refusal, match="invalid_request: "):
        input_checks.domain_name(given)


def test_networks_and_single_addresses_are_accepted() -> None:
    given = ["192.0.2.0/24", " 2001:db8::/32", "198.51.100.7", "::1"]
    expected = ("192.0.2.0/24", "2001:db8::/32", "198.51.100.7/32", "::1/128")
    assert input_checks.networks(given) == tuple(map(ip_network, expected))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["192.0.2.5/24"], "write 192.0.2.0/24"),
        (["2001:db8::1/32"], "write 2001:db8::/32"),
        (["office"], "not a network"),
        (["192.0.2.0/33"], "not a network"),
        (["192.0.2.1"] * 101, "at most 100 networks"),
    ],
)
def test_a_mistaken_network_is_explained(given: list[str], said: str) -> None:
    with pytest.raises(Refusal) as caught:
        input_checks.networks(given)
    assert said in caught.value.text


def test_a_users_address_is_bare_and_stored_in_lower_case() -> None:
    assert input_checks.user_address("Ada@Example.com") == "ada@example.com"


@pytest.mark.parametrize(
    ("check", "refused", "said"),
    [
        (input_checks.user_address, ["ada", "Ada <ada@example.com>", "ada@localhost", ""], "invalid_request"),
        (input_checks.reason, ["", "x" * 501, "a\rb"], "`reason` has"),
        (input_checks.check_password, ["x" * length for length in (0, 11, 257)], "12 to 256"),
    ],
)
def test_what_is_too_short_too_long_or_in_another_form_is_refused(
    check: Callable[[str], object], refused: list[str], said: str
) -> None:
    for given in refused:
        with pytest.raises(Refusal, match=said):
            check(given)
