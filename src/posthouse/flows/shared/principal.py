"""Who makes a request, as admission found."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from posthouse.rules import ids
from posthouse.rules.actor import OPERATOR, Actor
from posthouse.rules.credential import Mode, Role
from posthouse.rules.ids import AccountId, ApiKeyId, CredentialId, SessionId, UserId
from posthouse.store.acceptance import IdempotencyKey


class Principal(NamedTuple):
    """May send or read mail. Idempotency keys are scoped to the credential, or to `scope_id` if there is one."""

    account_id: AccountId
    credential_id: CredentialId
    mode: Mode
    # Of the password that an SMTP session began with, under every pepper: the session ends with it.
    password_hashes: tuple[bytes, ...] = ()
    # Of a login: the account's first credential, which stays the same when the default credential is replaced.
    scope_id: CredentialId | None = None
    # Of an API key that is bound to them; none: all domains of the account.
    sender_domains: tuple[str, ...] = ()

    def key(self, text: str) -> IdempotencyKey:
        return IdempotencyKey(self.account_id, self.scope_id or self.credential_id, text)


@dataclass(frozen=True, slots=True)
class Member:
    """A person who logged in to the dashboard, or an operator who visits."""

    account_id: AccountId
    user_id: UserId
    role: Role
    email: str
    session_id: SessionId
    # The account requires a second factor, and they have none: they may only set one up.
    lacks_second_factor: bool = False
    # Of an operator's visit, which can change nothing.
    visits_until: datetime | None = None

    @property
    def actor(self) -> Actor:
        return Actor(self.user_id, self.email)


@dataclass(frozen=True, slots=True)
class Program:
    """An API key, used under /v1 for what its scopes permit."""

    account_id: AccountId
    key_id: ApiKeyId
    mode: Mode = Mode.LIVE
    # That the key is bound to; none: all domains of the account.
    sender_domains: tuple[str, ...] = ()

    @property
    def actor(self) -> Actor:
        return Actor(None, ids.text(ids.API_KEY, self.key_id))


@dataclass(frozen=True, slots=True)
class Operating:
    """An operator who acts for an account: its log says "operator", the operator's log has the name."""

    account_id: AccountId

    @property
    def actor(self) -> Actor:
        return OPERATOR


Caller = Member | Program


@dataclass(frozen=True, slots=True)
class RenewalSecret:
    """What renews a kept session: it is for the browser's cookie alone."""

    text: str = field(repr=False)
    lifetime: timedelta


@dataclass(frozen=True, slots=True)
class LoginSession:
    """What a login gives: a token for one account, until its end; and for a kept session, what renews it."""

    token: str = field(repr=False)
    expires_at: datetime
    renewal_secret: RenewalSecret | None = None
