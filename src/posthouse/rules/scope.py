"""Scopes of API keys. Each operation declares those that a key needs."""

from collections.abc import Sequence
from typing import Final

from posthouse.rules import input_checks, limits
from posthouse.rules.credential import Mode, Scope
from posthouse.rules.refusal import invalid

# Scopes for mail itself; all others are for the account, under /v1.
FOR_MAIL: Final = frozenset({Scope.SEND, Scope.READ})


def require_combination(mode: Mode, scopes: Sequence[Scope], domains: Sequence[str]) -> None:
    """Refuse a key that would see more than its mode or its domains allow."""
    others = [scope.value for scope in scopes if scope not in FOR_MAIL]
    if others and mode is Mode.TEST:
        raise invalid(f"`scopes`: a test key can only have `send` and `read`, not `{others[0]}`: make a live key.")
    if others and domains:
        raise invalid(
            f"`sender_domains`: a key that is bound to domains can only have `send` and `read`, not `{others[0]}`."
        )


def sender_domains(given: Sequence[str] | None) -> tuple[str, ...]:
    """The domains that a key is bound to, as A-labels; none by default."""
    if given is not None and len(given) > limits.KEY_DOMAINS_MAX:
        raise invalid(f"`sender_domains` has at most {limits.KEY_DOMAINS_MAX} domains.")
    return tuple(dict.fromkeys(input_checks.domain_name(name, "sender_domains") for name in given or ()))
