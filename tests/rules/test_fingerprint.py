"""Bodies are recognised while the key of their fingerprints is replaced."""

from posthouse.rules import fingerprint
from posthouse.rules.fingerprint import Fingerprint

OLD, NEW = b"o" * 32, b"n" * 32


def test_a_body_is_recognised_by_its_stored_fingerprint_under_any_known_key() -> None:
    before, rotating, after = Fingerprint((OLD,)), Fingerprint((NEW, OLD)), Fingerprint((NEW,))
    stored = fingerprint.stored(before(b"body"))
    assert fingerprint.is_same(rotating(b"body"), stored)
    assert not fingerprint.is_same(rotating(b"another"), stored)
    assert not fingerprint.is_same(after(b"body"), stored)
    assert fingerprint.stored(rotating(b"body")) == after(b"body")


def test_test_mail_is_never_the_mail_itself() -> None:
    rotating = Fingerprint((NEW, OLD))
    rehearsed = fingerprint.of_rehearsal(rotating(b"body"))
    assert fingerprint.is_same(rehearsed, fingerprint.stored(fingerprint.of_rehearsal(Fingerprint((OLD,))(b"body"))))
    assert not fingerprint.is_same(rehearsed, fingerprint.stored(rotating(b"body")))
