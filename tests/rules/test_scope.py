"""Scopes: what a key may have, by its mode and its domains."""

import pytest

from posthouse.rules import scope
from posthouse.rules.credential import Mode, Scope
from posthouse.rules.refusal import Refusal


@pytest.mark.parametrize(
    ("mode", "scopes", "domains", "is_allowed"),
    [
        (Mode.LIVE, [Scope.SEND, Scope.EVENTS], [], True),
        (Mode.LIVE, [Scope.SEND, Scope.READ], ["shop.example"], True),
        (Mode.TEST, [Scope.SEND, Scope.READ], ["shop.example"], True),
        (Mode.TEST, [Scope.EVENTS], [], False),
        (Mode.LIVE, [Scope.MESSAGES], ["shop.example"], False),
    ],
)
def test_a_key_sees_no_more_than_its_mode_and_domains(
    mode: Mode, scopes: list[Scope], domains: list[str], is_allowed: bool
) -> None:
    if is_allowed:
        return scope.require_combination(mode, scopes, domains)
    with pytest.raises(Refusal):
        scope.require_combination(mode, scopes, domains)
    return None


def test_domains_are_stored_once_and_as_a_labels() -> None:
    assert scope.sender_domains(["B\u00fccher.example", "xn--bcher-kva.example.", "shop.example"]) == (
        "xn--bcher-kva.example",
        "shop.example",
    )
    assert scope.sender_domains(None) == ()
