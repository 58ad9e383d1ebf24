"""Who makes a request, as admission found."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from posthouse.rules.actor import Actor
from posthouse.rules.credential import Mode, Role
from posthouse.rules.ids import AccountId, CredentialId, SessionId, UserId


class Principal(NamedTuple):
    """May send or read mail. Idempotency keys are scoped to the credential."""

    account_id: AccountId
    credential_id: CredentialId
    mode: Mode
    # Of the password that an SMTP session began with: the session ends with it.
    password_hash: bytes | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A person who logged in to the dashboard."""

    account_id: AccountId
    user_id: UserId
    role: Role
    email: str
    session_id: SessionId

    @property
    def actor(self) -> Actor:
        return Actor(self.user_id, self.email)


@dataclass(frozen=True, slots=True)
class LoginSession:
    """What a login gives: a token for one account, until its end."""

    token: str = field(repr=False)
    expires_at: datetime
