"""Headers that a request may have only once.

Of two, a proxy in front of us may have read the other: neither is chosen.
"""

from starlette.types import Scope

from posthouse.rules.refusal import Code, Refusal, invalid


def is_repeated(scope: Scope, name: bytes) -> bool:
    return [given for given, _ in scope["headers"]].count(name) > 1


def check_authorization(scope: Scope) -> None:
    if is_repeated(scope, b"authorization"):
        raise Refusal(Code.UNAUTHORIZED, "The header Authorization is given more than once: send it once.")


def check_content_type(scope: Scope) -> None:
    if is_repeated(scope, b"content-type"):
        raise invalid("The header Content-Type is given more than once: send it once.")


def check_idempotency_key(scope: Scope) -> None:
    if is_repeated(scope, b"idempotency-key"):
        raise invalid("The header Idempotency-Key is given more than once: send it once.")
