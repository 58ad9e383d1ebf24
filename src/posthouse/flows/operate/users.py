"""Users, as an operator finds them: their accounts and logins, and whether they operate the service."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from posthouse.clock import Clock
from posthouse.flows.shared.named_user import named_user
from posthouse.rules import limits
from posthouse.store import sessions, users
from posthouse.store.postgres import Connection, Database
from posthouse.store.sessions import SessionRow
from posthouse.store.users import AccountOfUser, UserRow

OPERATORS_SHOWN_MAX: Final = 100
ACCOUNTS_SHOWN_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class FoundUser:
    user: UserRow
    operator_since: datetime | None
    has_second_factor: bool
    accounts: Sequence[AccountOfUser]
    sessions: Sequence[SessionRow]


class Users:
    def __init__(self, *, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def find(self, given: str) -> Sequence[FoundUser]:
        """The user with this address or id, if there is one; without any, the operators."""
        async with self._database.connection() as connection:
            if given.strip():
                named = [await named_user(connection, given.strip())]
            else:
                operators = await users.operators(connection)
                named = [await users.find_by_email(connection, email) for email, _ in operators[:OPERATORS_SHOWN_MAX]]
            return [await self._found(connection, user) for user in named if user is not None]

    async def _found(self, connection: Connection, user: UserRow) -> FoundUser:
        operator_since, has_second_factor = await users.access(connection, user.id)
        return FoundUser(
            user,
            operator_since,
            has_second_factor,
            await users.accounts_of(connection, user.id, ACCOUNTS_SHOWN_MAX),
            await sessions.live_of_user(connection, user.id, self._clock.now(), limits.SESSIONS_PER_USER_MAX),
        )
