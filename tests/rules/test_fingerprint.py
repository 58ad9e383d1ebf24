"""Bodies are recognised while the key of their fingerprints is replaced."""

from posthouse.rules import message
from posthouse.rules.message import Fingerprint

OLD, NEW = b"o" * 32, b"n" * 32


def test_a_body_is_recognised_by_its_stored_fingerprint_under_any_known_key() -> None:
    before, rotating, after = Fingerprint((OLD,)), Fingerprint((NEW, OLD)), Fingerprint((NEW,))
    stored = message.stored_fingerprint(before(b"body"))
    assert message.is_same_body(rotating(b"body"), stored)
    assert not message.is_same_body(rotating(b"another"), stored)
    assert not message.is_same_body(after(b"body"), stored)
    assert message.stored_fingerprint(rotating(b"body")) == after(b"body")


def test_test_mail_is_never_the_mail_itself() -> None:
    rotating = Fingerprint((NEW, OLD))
    in_test_mode = message.fingerprint_of_test_mode(rotating(b"body"))
    assert message.is_same_body(
        in_test_mode, message.stored_fingerprint(message.fingerprint_of_test_mode(Fingerprint((OLD,))(b"body")))
    )
    assert not message.is_same_body(in_test_mode, message.stored_fingerprint(rotating(b"body")))
