"""What receivers check of a sending address."""

from ipaddress import ip_address

import pytest

from posthouse.rules.outside_check import is_listed, list_name, names_finding, reverse_name

FOUR, SIX = ip_address("192.0.2.7"), ip_address("2001:db8::1")
NIBBLES = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2"


def test_names_in_dns() -> None:
    assert reverse_name(FOUR) == "7.2.0.192.in-addr.arpa"
    assert list_name(FOUR, "list.example") == "7.2.0.192.list.example"
    assert list_name(SIX, "list.example") == f"{NIBBLES}.list.example"


@pytest.mark.parametrize(
    ("answers", "listed"),
    [
        ([], False),
        (["127.0.0.2"], True),
        (["127.0.1.255", "127.0.0.10"], True),
        # The list refuses to answer; that lists nothing.
        (["127.255.255.254"], None),
        (["127.255.255.252", "127.0.0.2"], True),
        # A list that ended, and whose name leads elsewhere.
        (["192.0.2.80"], None),
    ],
)
def test_what_a_list_answers(answers: list[str], listed: bool | None) -> None:
    assert is_listed([ip_address(answer) for answer in answers]) is listed


@pytest.mark.parametrize(
    ("names", "addresses", "finding"),
    [
        (["mta7.example.com."], ["192.0.2.7"], None),
        (["other.example.com.", "MTA7.example.com."], ["192.0.2.8", "192.0.2.7"], None),
        ([], ["192.0.2.7"], "no PTR record"),
        (["other.example.com."], ["192.0.2.7"], "names other.example.com"),
        (["mta7.example.com."], [], "does not resolve to"),
        (["mta7.example.com."], ["192.0.2.8"], "publish an A record"),
    ],
)
def test_an_address_has_a_name_that_resolves_to_it(names: list[str], addresses: list[str], finding: str | None) -> None:
    found = names_finding(FOUR, "mta7.example.com", names, [ip_address(each) for each in addresses])
    assert (found is None) if finding is None else (found is not None and finding in found)
