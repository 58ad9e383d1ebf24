"""The tokens of a session. They end with it; those of a kept session sooner, since it can be renewed."""

from typing import Final

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.shared.principal import LoginSession, RenewalSecret
from posthouse.rules import renewal, token
from posthouse.rules.credential import Role
from posthouse.rules.ids import AccountId
from posthouse.store.sessions import SessionRow

OVER: Final = "The session is over: log in again."
NO_ACCOUNT: Final = "You are a member of no account any more: ask an owner for a new invitation."
NO_MEMBER: Final = "You are a member of no account with this id: GET /v1/auth/me lists your accounts."


class SessionTokens:
    def __init__(self, *, clock: Clock, chance: Chance, secret: str) -> None:
        self._clock = clock
        self._chance = chance
        self._secret = secret

    def issue(
        self, session: SessionRow, account_id: AccountId, role: Role, renewal_secret: str | None = None
    ) -> LoginSession:
        now = self._clock.now()
        expires_at = renewal.end_of_token(session.expires_at, now) if session.is_kept else session.expires_at
        issued = token.issue(
            account_id=account_id,
            user_id=session.user_id,
            role=role,
            session_id=session.id,
            expires_at=expires_at,
            token_id=self._chance.bytes(16).hex(),
            secret=self._secret,
            now=now,
        )
        renews = None if renewal_secret is None else RenewalSecret(renewal_secret, session.expires_at - now)
        return LoginSession(issued, expires_at, renews)
