"""Operators with a login: who they are, and their admission to the operator's routes."""

from collections.abc import Sequence
from datetime import datetime

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.shared.operator_log import OperatorLog
from posthouse.rules import credential, input_checks, operator, token
from posthouse.rules.actor import Actor
from posthouse.rules.credential import BearerToken, Role
from posthouse.rules.ids import AccountId
from posthouse.rules.operator import OperatorSession
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import sessions, users
from posthouse.store.postgres import Database


class Operators:
    def __init__(self, *, database: Database, clock: Clock, chance: Chance, token_secrets: Sequence[str] = ()) -> None:
        """Without secrets no token is known."""
        self._database = database
        self._clock = clock
        self._chance = chance
        self._log = OperatorLog(chance)
        self._token_secrets = token_secrets

    async def admit(self, authorization: str | None) -> Actor:
        """The operator whose login it is; raises for every other credential."""
        session = await self._session(authorization)
        return Actor(session.user_id, session.email)

    async def visiting_token(self, authorization: str | None, account_id: AccountId, until: datetime) -> str:
        """A viewer's token for the account, which ends with the operator's login. The visit is in the log already."""
        session = await self._session(authorization)
        return token.issue(
            account_id=account_id,
            user_id=session.user_id,
            role=Role.VIEWER,
            session_id=session.session_id,
            expires_at=until,
            token_id=self._chance.bytes(16).hex(),
            secret=self._token_secrets[0],
            now=self._clock.now(),
            is_visit=True,
        )

    async def _session(self, authorization: str | None) -> OperatorSession:
        given = credential.parse_authorization(authorization)
        now = self._clock.now()
        claims = None
        if isinstance(given, BearerToken):
            claims = token.read(given.jwt, secrets=self._token_secrets, now=now)
        if claims is not None:
            async with self._database.connection() as connection:
                session = await sessions.of_operator(connection, claims.session_id, claims.user_id, now)
            if session is not None:
                operator.require(session, now)
                return session
        raise Refusal(Code.UNAUTHORIZED, "This needs the token of an operator's login: POST /v1/auth/login gives one.")

    async def set_operator(self, email: str, *, is_operator: bool) -> None:
        async with self._database.transaction() as tx:
            now = self._clock.now()
            address = input_checks.user_address(email)
            if not await users.set_operator(tx, address, now if is_operator else None):
                raise Refusal(Code.NOT_FOUND, f"There is no user {email!r}: `posthouse user list` shows an account's.")
            action = "operator.granted" if is_operator else "operator.withdrawn"
            await self._log.note(tx, action, address, now)

    async def all(self) -> list[tuple[str, datetime]]:
        """Their addresses, and since when."""
        async with self._database.connection() as connection:
            return await users.operators(connection)
