"""Roles of members. Each operation declares the least role that may call it."""

from typing import Final

from posthouse.rules.credential import Role
from posthouse.rules.refusal import Code, Refusal, invalid

# Each role includes the permissions of those before it.
_FROM_LEAST: Final = (Role.VIEWER, Role.MEMBER, Role.ADMIN, Role.OWNER)

SECOND_FACTOR_REQUIRED: Final = (
    "This account requires a second factor, and you have none: begin one with POST /v1/auth/totp."
)


def parse_role(given: str) -> Role:
    """The role with this name."""
    if given not in list(Role):
        raise invalid(f"`role` is one of {', '.join(Role)}.")
    return Role(given)


def may(role: Role, needed: Role) -> bool:
    return _FROM_LEAST.index(role) >= _FROM_LEAST.index(needed)


def require(role: Role, needed: Role) -> None:
    if not may(role, needed):
        raise Refusal(
            Code.FORBIDDEN,
            f"This needs the role of {_spelled(needed)}, and yours is {role.value}: ask an owner of the account.",
        )


def _spelled(role: Role) -> str:
    return f"an {role.value}" if role.value[0] in "ao" else f"a {role.value}"
