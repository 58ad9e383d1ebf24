"""Hashes under several peppers."""

import pytest

from posthouse.rules.credential import secret_hash
from posthouse.rules.pepper import FIRST, Pepper, Peppers

OLD = Pepper(FIRST, b"the first pepper")
NEW = Pepper("2027", b"the pepper of 2027")


@pytest.mark.parametrize(
    ("secret", "pepper", "same"),
    [
        ("right", b"pepper", True),
        ("wrong", b"pepper", False),
        ("", b"pepper", False),
        ("right\ud800", b"pepper", False),
        ("right", b"another pepper", False),
    ],
)
def test_a_secret_matches_only_its_own_hash(secret: str, pepper: bytes, same: bool) -> None:
    assert Peppers(Pepper(FIRST, pepper)).matches(secret, secret_hash("right", b"pepper")) is same


def test_the_first_peppers_hash_is_as_it_was_before_peppers_had_ids() -> None:
    assert OLD.hash("secret") == secret_hash("secret", OLD.key)
    assert NEW.hash("secret") == b"2027:" + secret_hash("secret", NEW.key)


def test_each_known_pepper_recognises_its_own_hash_and_the_active_one_makes_new_ones() -> None:
    before, known, active, after = Peppers(OLD), Peppers(OLD, (NEW,)), Peppers(NEW, (OLD,)), Peppers(NEW)
    old, new = before.hash("secret"), active.hash("secret")
    assert known.hash("secret") == old
    assert [peppers.matches("secret", old) for peppers in (before, known, active, after)] == [True, True, True, False]
    assert [peppers.matches("secret", new) for peppers in (before, known, active, after)] == [False, True, True, True]
    assert active.hashes("secret") == (new, old)


def test_a_hash_of_an_old_pepper_is_replaced_and_one_of_the_active_pepper_is_not() -> None:
    active = Peppers(NEW, (OLD,))
    assert active.rehashed("secret", OLD.hash("secret")) == NEW.hash("secret")
    assert active.rehashed("secret", NEW.hash("secret")) is None


def test_a_pepper_under_the_id_of_another_recognises_nothing() -> None:
    assert not Peppers(Pepper("2027", OLD.key)).matches("secret", OLD.hash("secret"))
