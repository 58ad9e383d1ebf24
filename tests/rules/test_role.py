"""Roles: each includes those before it."""

import pytest

from posthouse.rules import role
from posthouse.rules.credential import Role, may_send
from posthouse.rules.refusal import Code, Refusal

FROM_LEAST = [Role.VIEWER, Role.MEMBER, Role.ADMIN, Role.OWNER]


def test_each_role_includes_the_lower_roles() -> None:
    for position, needed in enumerate(FROM_LEAST):
        assert [item for item in FROM_LEAST if role.may(item, needed)] == FROM_LEAST[position:]


def test_members_and_above_may_send() -> None:
    assert {item for item in Role if role.may(item, Role.MEMBER)} == {item for item in Role if may_send(item)}


@pytest.mark.parametrize(
    ("given", "needed", "said"),
    [
        (Role.VIEWER, Role.ADMIN, "the role of an admin, and yours is viewer"),
        (Role.VIEWER, Role.MEMBER, "the role of a member, and yours is viewer"),
        (Role.ADMIN, Role.OWNER, "the role of an owner, and yours is admin"),
    ],
)
def test_a_refusal_names_the_needed_role(given: Role, needed: Role, said: str) -> None:
    with pytest.raises(Refusal) as caught:
        role.require(given, needed)
    assert caught.value.code is Code.FORBIDDEN
    assert said in caught.value.text


@pytest.mark.parametrize("given", ["", "Owner", "root", "owner ", "own\0er"])
def test_only_the_four_names_are_roles(given: str) -> None:
    with pytest.raises(Refusal) as caught:
        role.parse_role(given)
    assert caught.value.code is Code.INVALID_REQUEST
    assert [role.parse_role(item) for item in ("owner", "viewer")] == [Role.OWNER, Role.VIEWER]
