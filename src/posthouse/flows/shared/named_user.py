"""A user, as an operator names them."""

from posthouse.rules import ids, input_checks
from posthouse.rules.ids import UserId
from posthouse.store import users
from posthouse.store.postgres import Connection
from posthouse.store.users import UserRow


async def named_user(connection: Connection, given: str) -> UserRow | None:
    """By the address or the id."""
    user_id = ids.parse(ids.USER, given)
    if user_id is not None:
        return await users.find_by_id(connection, UserId(user_id))
    return await users.find_by_email(connection, input_checks.user_address(given))
