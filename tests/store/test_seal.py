"""Sealed values open with the right key for the right purpose, and otherwise not at all."""

import pytest

from posthouse.store.seal import Sealer, SealError, sealing_key_id

OLD = b"o" * 32
NEW = b"n" * 32


def test_what_was_sealed_opens_for_the_same_purpose_and_nowhere_else() -> None:
    sealer = Sealer({"2026": NEW}, "2026")
    sealed = sealer.seal(b"private", b"dkim:one")
    assert b"private" not in sealed
    assert sealer.open(sealed, b"dkim:one") == b"private"
    assert sealer.seal(b"private", b"dkim:one") != sealed
    with pytest.raises(SealError, match="belongs elsewhere"):
        sealer.open(sealed, b"dkim:two")


def test_after_rotation_the_old_key_still_opens_and_the_new_one_seals() -> None:
    before = Sealer({"2025": OLD}, "2025").seal(b"private", b"p")
    rotated = Sealer({"2025": OLD, "2026": NEW}, "2026")
    assert rotated.open(before, b"p") == b"private"
    assert sealing_key_id(rotated.seal(b"private", b"p")) == "2026"
    assert rotated.key_ids == {"2025", "2026"}


def test_a_dropped_key_is_named_so_that_it_can_be_put_back() -> None:
    sealed = Sealer({"2025": OLD}, "2025").seal(b"private", b"p")
    with pytest.raises(SealError, match="'2025', which is not configured"):
        Sealer({"2026": NEW}, "2026").open(sealed, b"p")


def test_another_key_under_the_same_id_does_not_open() -> None:
    sealed = Sealer({"k": OLD}, "k").seal(b"private", b"p")
    with pytest.raises(SealError, match="different key"):
        Sealer({"k": NEW}, "k").open(sealed, b"p")


@pytest.mark.parametrize("position", [0, 1, 2, 3, 10, -1])
def test_any_changed_byte_is_noticed(position: int) -> None:
    sealer = Sealer({"2026": NEW}, "2026")
    sealed = bytearray(sealer.seal(b"private", b"p"))
    sealed[position] ^= 1
    with pytest.raises(SealError):
        sealer.open(bytes(sealed), b"p")


@pytest.mark.parametrize(
    "sealed", [b"", b"\x01", b"\x01\x00", b"\x02\x01k", b"\x01\x05k", b"\x01\x01\xff", b"\x01\x01k"]
)
def test_rubbish_is_refused_without_a_crash(sealed: bytes) -> None:
    with pytest.raises(SealError):
        Sealer({"k": NEW}, "k").open(sealed, b"p")


@pytest.mark.parametrize(
    ("keys", "active", "said"),
    [
        ({"k": b"short"}, "k", "5 bytes instead of 32"),
        ({"": NEW}, "", "1 to 255 bytes"),
        ({"k": NEW}, "other", "not among the seal keys"),
    ],
)
def test_unusable_keys_are_refused_at_start(keys: dict[str, bytes], active: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Sealer(keys, active)
