"""SPF records: what their terms say, and which addresses they contain."""

from ipaddress import ip_address

import pytest

from posthouse.rules.spf import BadSpf, SpfKind, SpfTerm, contains, read, records_among


def test_only_records_of_version_1_count() -> None:
    assert records_among(["v=spf1 -all", "V=SPF1", "v=spf10 -all", "spf1", "v=DMARC1"]) == ["v=spf1 -all", "V=SPF1"]


@pytest.mark.parametrize(
    ("record", "terms"),
    [
        ("v=spf1", []),
        (
            "v=spf1 ip4:192.0.2.0/24 -all",
            [SpfTerm(SpfKind.IP4, value="192.0.2.0/24"), SpfTerm(SpfKind.ALL, allows=False)],
        ),
        (
            "v=spf1 +A MX/24//64 ~all",
            [
                SpfTerm(SpfKind.A),
                SpfTerm(SpfKind.MX, prefix=(24, 64)),
                SpfTerm(SpfKind.ALL, allows=False),
            ],
        ),
        ("v=spf1 a:mail.example.com/28", [SpfTerm(SpfKind.A, value="mail.example.com", prefix=(28, 128))]),
        ("v=spf1 include:_spf.example.com ?all", [SpfTerm(SpfKind.INCLUDE, value="_spf.example.com"),
                                                   SpfTerm(SpfKind.ALL, allows=False)]),
        ("v=spf1 redirect=_spf.example.com", [SpfTerm(SpfKind.REDIRECT, value="_spf.example.com")]),
        ("v=spf1 redirect=_spf.example.com -all", [SpfTerm(SpfKind.ALL, allows=False)]),
        # Modifiers that are not known are ignored.
        ("v=spf1 exp=why.example.com unknown=x ip6:2001:db8::/32", [SpfTerm(SpfKind.IP6, value="2001:db8::/32")]),
        ("v=spf1 exists:%{i}.example.com", [SpfTerm(SpfKind.EXISTS, value="%{i}.example.com")]),
    ],
)  # fmt: skip
def test_a_record_is_read(record: str, terms: list[SpfTerm]) -> None:
    assert read(record) == tuple(terms)


@pytest.mark.parametrize(
    "record",
    [
        "v=spf1 ipv4:192.0.2.1", "v=spf1 ip4:2001:db8::1", "v=spf1 ip4:example.com", "v=spf1 ip4", "v=spf1 a/33",
        "v=spf1 a/x", "v=spf1 include", "v=spf1 redirect=a redirect=b", "v=spf1 redirect:a",
    ],
)  # fmt: skip
def test_a_record_with_a_wrong_term_is_void(record: str) -> None:
    assert isinstance(read(record), BadSpf)


@pytest.mark.parametrize(
    ("term", "ip", "found", "expected"),
    [
        ("ip4:192.0.2.1", "192.0.2.1", [], True),
        ("ip4:192.0.2.0/24", "192.0.2.9", [], True),
        ("ip4:192.0.2.1", "192.0.2.2", [], False),
        ("ip4:192.0.2.1", "2001:db8::1", [], False),
        ("ip6:2001:db8::/32", "2001:db8::1", [], True),
        ("all", "192.0.2.1", [], True),
        ("a", "192.0.2.1", ["192.0.2.1"], True),
        ("a", "192.0.2.1", ["192.0.2.2", "2001:db8::1"], False),
        ("mx/24", "192.0.2.1", ["192.0.2.200"], True),
        ("a/24", "2001:db8::1", ["2001:db8::2"], False),
        ("a//64", "2001:db8::1", ["2001:db8::2"], True),
        ("ptr", "192.0.2.1", [], False),
    ],
)
def test_which_addresses_a_term_contains(term: str, ip: str, found: list[str], expected: bool) -> None:
    (read_term,) = read(f"v=spf1 {term}")  # type: ignore[misc]
    assert contains(read_term, ip_address(ip), [ip_address(each) for each in found]) is expected
