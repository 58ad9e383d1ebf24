"""Which hosts take a domain's mail, and in which order."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as some

from posthouse.mail.mx_host import EXCHANGES_MAX, MxHost, MxRecord, NullMx, mx_hosts


def hosts(records: list[MxRecord], random: bytes = b"seed") -> list[str]:
    found = mx_hosts("example.com", records, random)
    assert isinstance(found, tuple)
    return [mx_host.host for mx_host in found]


@pytest.mark.parametrize("domain", ["example.com", "Example.COM", "example.com."])
def test_without_an_mx_the_domain_itself_accepts_its_mail(domain: str) -> None:
    assert mx_hosts(domain, [], b"seed") == (MxHost("example.com", 0, is_implicit=True),)


@pytest.mark.parametrize(
    "records", [[MxRecord(0, ".")], [MxRecord(0, "")], [MxRecord(10, ".")], [MxRecord(0, "."), MxRecord(5, ".")]]
)
def test_a_null_mx_accepts_no_mail(records: list[MxRecord]) -> None:
    assert mx_hosts("example.com", records, b"seed") == NullMx()


def test_a_null_mx_next_to_real_hosts_is_a_mistake() -> None:
    assert hosts([MxRecord(0, "."), MxRecord(10, "mx.example")]) == ["mx.example"]


def test_a_host_is_tried_once_in_the_order_of_the_lowest_preference() -> None:
    records = [MxRecord(20, "mx.example."), MxRecord(10, "MX.example"), MxRecord(15, "other.example")]
    assert mx_hosts("example.com", records, b"") == (MxHost("mx.example", 10), MxHost("other.example", 15))


def test_only_the_most_preferred_hosts_are_tried() -> None:
    records = [MxRecord(number, f"mx{number}.example") for number in range(50, 0, -1)]
    assert hosts(records) == [f"mx{number}.example" for number in range(1, EXCHANGES_MAX + 1)]


def test_hosts_of_equal_preference_share_the_mail() -> None:
    records = [MxRecord(10, f"{letter}.example") for letter in "abc"] + [MxRecord(20, "spare.example")]
    firsts: Counter[str] = Counter()
    for seed in range(600):
        order = hosts(records, seed.to_bytes(8, "big"))
        assert order[-1] == "spare.example"
        firsts[order[0]] += 1
    assert set(firsts) == {"a.example", "b.example", "c.example"}
    assert min(firsts.values()) > 150


records_of_any_kind = some.lists(
    some.builds(MxRecord, some.integers(0, 3), some.sampled_from([".", "a.example", "B.example.", "c.example", "é"])),
    max_size=8,
)


@given(records_of_any_kind, some.binary(max_size=64), some.randoms(use_true_random=False))
def test_the_order_of_the_answer_is_irrelevant(records: list[MxRecord], random: bytes, dealer: Random) -> None:
    shuffled = list(records)
    dealer.shuffle(shuffled)
    found = mx_hosts("example.com", records, random)
    assert mx_hosts("example.com", shuffled, random) == found
    if isinstance(found, tuple):
        assert [host.preference for host in found] == sorted(host.preference for host in found)
        assert len({host.host for host in found}) == len(found) > 0
