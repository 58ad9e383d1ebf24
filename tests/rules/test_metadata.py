"""Metadata: which pairs are taken, and that they are stored as they were given."""

import pytest

from posthouse.rules.message import check_metadata, read_metadata, stored_metadata
from posthouse.rules.refusal import Code, Refusal


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"order": "1001", "a.b-c_D9": "", "x" * 64: "y" * 500},
        {f"n{number}": "ü💌" for number in range(20)},
        {"__proto__": "x", "..": "-"},
    ],
)
def test_pairs_are_stored_as_given(given: dict[str, str]) -> None:
    assert list(read_metadata(stored_metadata(check_metadata(given))).items()) == list(given.items())


def test_nothing_is_stored_of_none() -> None:
    assert stored_metadata({}) is None


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({f"n{number}": "" for number in range(21)}, "21 pairs"),
        ({"": "x"}, "name"),
        ({"x" * 65: "x"}, "name"),
        ({"a b": "x"}, "'a b'"),
        ({"ä": "x"}, "name"),
        ({"a\n": "x"}, "name"),
        ({"a": "x" * 501}, "501"),
        ({"a": "x\ny"}, "`metadata.a`"),
        ({"a": "\0"}, "`metadata.a`"),
        ({"a": "\u2028"}, "`metadata.a`"),
    ],
)
def test_other_pairs_are_refused_and_named(given: dict[str, str], named: str) -> None:
    with pytest.raises(Refusal) as caught:
        check_metadata(given)
    assert caught.value.code is Code.INVALID_REQUEST
    assert named in caught.value.text
