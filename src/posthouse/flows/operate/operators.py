"""Operators with a login: who they are, their admission to the operator's routes, and the users that they find."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from posthouse.flows.shared.context import Flow
from posthouse.rules import credential, input_checks, limits, token
from posthouse.rules.credential import Actor, BearerToken, OperatorSession, Role
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import sessions, users
from posthouse.store.postgres import Connection
from posthouse.store.sessions import SessionRow
from posthouse.store.users import AccountOfUser, UserRow, named_user

OPERATORS_SHOWN_MAX: Final = 100
ACCOUNTS_SHOWN_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class FoundUser:
    user: UserRow
    operator_since: datetime | None
    has_second_factor: bool
    accounts: Sequence[AccountOfUser]
    sessions: Sequence[SessionRow]


class Operators(Flow):
    """Without secrets no token is accepted."""

    async def admit(self, authorization: str | None) -> Actor:
        """The operator to whom the login belongs; raises for every other credential."""
        session = await self._session(authorization)
        return Actor(session.user_id, session.email)

    async def impersonation_token(self, authorization: str | None, account_id: AccountId, until: datetime) -> str:
        """A viewer's token for the account, which ends with the operator's login.

        The caller has already logged the impersonation.
        """
        session = await self._session(authorization)
        return token.issue(
            account_id=account_id,
            user_id=session.user_id,
            role=Role.VIEWER,
            session_id=session.session_id,
            expires_at=until,
            token_id=self._randomness.bytes(16).hex(),
            secret=self._keys.token_secrets[0],
            now=self._clock.now(),
            is_impersonation=True,
        )

    async def set_operator(self, email: str, *, is_operator: bool) -> None:
        async with self._database.transaction() as tx:
            now = self._clock.now()
            address = input_checks.user_address(email)
            if not await users.set_operator(tx, address, now if is_operator else None):
                raise Refusal(Code.NOT_FOUND, f"There is no user {email!r}: `posthouse user list` shows an account's.")
            action = "operator.granted" if is_operator else "operator.withdrawn"
            await self._operator_log.add_entry(tx, action, address, now)

    async def all(self) -> list[tuple[str, datetime]]:
        """Their addresses, and since when they are operators."""
        async with self._database.connection() as connection:
            return await users.operators(connection)

    async def find_users(self, given: str) -> Sequence[FoundUser]:
        """The user with this address or id, if there is one; the operators if none is given."""
        async with self._database.connection() as connection:
            if given.strip():
                named = [await named_user(connection, given.strip())]
            else:
                operators = await users.operators(connection)
                named = [await users.find_by_email(connection, email) for email, _ in operators[:OPERATORS_SHOWN_MAX]]
            return [await self._found(connection, user) for user in named if user is not None]

    async def _session(self, authorization: str | None) -> OperatorSession:
        given = credential.parse_authorization(authorization)
        now = self._clock.now()
        claims = None
        if isinstance(given, BearerToken):
            claims = token.read(given.jwt, secrets=self._keys.token_secrets, now=now)
        if claims is not None:
            async with self._database.connection() as connection:
                session = await sessions.of_operator(connection, claims.session_id, claims.user_id, now)
            if session is not None:
                credential.require_operator(session, now)
                return session
        raise Refusal(Code.UNAUTHORIZED, "This needs the token of an operator's login: POST /v1/auth/login gives one.")

    async def _found(self, connection: Connection, user: UserRow) -> FoundUser:
        operator_since, has_second_factor = await users.access(connection, user.id)
        return FoundUser(
            user,
            operator_since,
            has_second_factor,
            await users.accounts_of(connection, user.id, ACCOUNTS_SHOWN_MAX),
            await sessions.live_of_user(connection, user.id, self._clock.now(), limits.SESSIONS_PER_USER_MAX),
        )
