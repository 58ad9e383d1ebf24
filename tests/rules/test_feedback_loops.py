"""Which reports are a mailbox provider's: the signer is listed, and is the author's domain or above it."""

from ipaddress import ip_network

import pytest

from posthouse.mail.address import parse_mailbox
from posthouse.rules.feedback_loops import FeedbackLoops

LOOPS = FeedbackLoops(
    frozenset({"fbl.example", "arf.mail.provider.example", "staff@public.example"}),
    (ip_network("192.0.2.0/28"), ip_network("2001:db8::/48")),
)


@pytest.mark.parametrize(
    ("author", "signer", "expected"),
    [
        ("a@fbl.example", "fbl.example", True),
        ("a@yandex.fbl.example", "fbl.example", True),
        ("a@yandex.fbl.example", "yandex.fbl.example", True),
        ("feedback@arf.mail.provider.example", "arf.mail.provider.example", True),
        # A customer of the provider signs with the provider's domain, which is not listed.
        ("feedback@arf.mail.provider.example", "provider.example", False),
        ("mallory@provider.example", "provider.example", False),
        ("Staff@public.example", "public.example", True),
        ("mallory@public.example", "public.example", False),
        ("staff@mail.public.example", "public.example", False),
        ("staff@public.example", "mail.public.example", False),
        # Not aligned.
        ("a@elsewhere.example", "fbl.example", False),
        ("a@fbl.example", "yandex.fbl.example", False),
        ("a@notfbl.example", "fbl.example", False),
        ("a@fbl.example", "example", False),
        ("a@fbl.example.evil.example", "evil.example", False),
        ("a@evil.example", "evil.example", False),
    ],
)
def test_the_signer_is_listed_and_aligned(author: str, signer: str, expected: bool) -> None:
    assert LOOPS.trusts(parse_mailbox(author), signer) is expected


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        ("192.0.2.1", True),
        ("192.0.2.16", False),
        ("2001:db8::1", True),
        ("2001:db9::1", False),
        ("::ffff:192.0.2.1", True),
        ("", False),
        ("mx.example.org", False),
    ],
)
def test_trusted_networks(peer: str, expected: bool) -> None:
    assert LOOPS.trusts_peer(peer) is expected


def test_without_settings_no_network_is_trusted() -> None:
    assert not FeedbackLoops().trusts_peer("127.0.0.1")
    assert FeedbackLoops().trusts(parse_mailbox("feedback@arf.mail.yahoo.com"), "arf.mail.yahoo.com")
    assert not FeedbackLoops().trusts(parse_mailbox("mallory@yahoo.com"), "yahoo.com")
