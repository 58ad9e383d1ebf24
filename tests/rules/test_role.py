"""Roles: who may do what is one table, which the reference repeats word for word."""

import re
from pathlib import Path

import pytest

from posthouse.rules import role
from posthouse.rules.credential import Role, may_send
from posthouse.rules.refusal import Code, Refusal

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "team.md"
FROM_LEAST = [Role.VIEWER, Role.MEMBER, Role.ADMIN, Role.OWNER]


def test_each_role_includes_the_lower_roles() -> None:
    for position, needed in enumerate(FROM_LEAST):
        assert [item for item in FROM_LEAST if role.may(item, needed)] == FROM_LEAST[position:]


def test_members_and_above_may_send() -> None:
    assert {item for item in Role if role.may(item, Role.MEMBER)} == {item for item in Role if may_send(item)}


def test_no_operation_is_both_public_and_for_a_role() -> None:
    assert (role.PUBLIC | role.FOR_READERS | role.FOR_OPERATORS) & set(role.NEEDED) == set()


def test_an_operators_operation_is_known_by_its_name() -> None:
    """The dashboard goes by it."""
    known = role.PUBLIC | role.FOR_READERS | role.FOR_OPERATORS | set(role.NEEDED)
    assert {operation for operation in known if operation.startswith("operator")} == role.FOR_OPERATORS


@pytest.mark.parametrize(
    ("given", "operation", "said"),
    [
        (Role.VIEWER, "createKey", "the role of an admin, and yours is viewer"),
        (Role.VIEWER, "saveWebhook", "the role of a member, and yours is viewer"),
        (Role.ADMIN, "inviteMember", "the role of an owner, and yours is admin"),
    ],
)
def test_a_refusal_names_the_needed_role(given: Role, operation: str, said: str) -> None:
    with pytest.raises(Refusal) as caught:
        role.require(given, operation)
    assert caught.value.code is Code.FORBIDDEN
    assert said in caught.value.text


def test_an_unlisted_operation_is_refused() -> None:
    with pytest.raises(KeyError):
        role.require(Role.OWNER, "takeOver")


@pytest.mark.parametrize("given", ["", "Owner", "root", "owner ", "own\0er"])
def test_only_the_four_names_are_roles(given: str) -> None:
    with pytest.raises(Refusal) as caught:
        role.parse_role(given)
    assert caught.value.code is Code.INVALID_REQUEST
    assert [role.parse_role(item) for item in ("owner", "viewer")] == [Role.OWNER, Role.VIEWER]


def test_the_reference_has_the_same_table() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", REFERENCE.read_text(), re.MULTILINE)
    shown = {operation: name for name, listed in rows for operation in re.findall(r"`(\w+)`", listed)}
    assert shown == dict(role.NEEDED)


def test_operations_that_store_more_are_changes() -> None:
    assert set(role.NEEDED) >= role.STORING
    freeing = ("get", "list", "delete", "remove", "revoke", "logout")
    assert [name for name in role.STORING if name.startswith(freeing)] == []
