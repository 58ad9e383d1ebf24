"""Scopes: which operations an API key may call is one table, which the reference repeats word for word."""

import re
from pathlib import Path

import pytest

from posthouse.rules import role, scope
from posthouse.rules.credential import Mode, Scope
from posthouse.rules.refusal import Refusal

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "credentials.md"


def test_the_reference_has_the_same_table() -> None:
    rows = re.findall(r"^\| ((?:`\w+`(?: and )?)+) \| (`.+) \|$", REFERENCE.read_text(), re.MULTILINE)
    words = [[tuple(re.findall(r"`(\w+)`", cell)) for cell in row] for row in rows]
    assert [scopes[0] for scopes, _ in words if len(scopes) == 1] == list(Scope)
    shown = {operation: scopes for scopes, listed in words for operation in listed}
    assert shown == dict(scope.NEEDED)


@pytest.mark.parametrize("operation", ["retryMessage", "createResend"])
def test_what_makes_a_server_send_mail_needs_the_scope_send_too(operation: str) -> None:
    assert scope.NEEDED[operation] == (Scope.MESSAGES, Scope.SEND)


def test_no_scope_opens_logins_webhooks_keys_or_the_team() -> None:
    closed = re.compile("webhook|key|credential|member|invit|session|totp|account|password", re.IGNORECASE)
    assert [name for name in scope.NEEDED if closed.search(name)] == ["rotateDomainKeys"]
    assert set(scope.NEEDED) & set(role.OWN) == set()


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


def test_domains_are_kept_once_and_as_a_labels() -> None:
    assert scope.sender_domains(["B\u00fccher.example", "xn--bcher-kva.example.", "shop.example"]) == (
        "xn--bcher-kva.example",
        "shop.example",
    )
    assert scope.sender_domains(None) == ()
