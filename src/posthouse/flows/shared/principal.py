"""Who makes a request, as determined by admission."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from posthouse.rules import ids
from posthouse.rules.credential import OPERATOR, Actor, Mode, Role
from posthouse.rules.ids import AccountId, ApiKeyId, CredentialId, SessionId, UserId
from posthouse.store.acceptance import IdempotencyKey


class Principal(NamedTuple):
    """May send or read mail. Idempotency keys are scoped to the credential, or to `scope_id` if there is one."""

    account_id: AccountId
    credential_id: CredentialId
    mode: Mode
    # Hashes of the password with which an SMTP session began, under every pepper: the session ends with it.
    password_hashes: tuple[bytes, ...] = ()
    # For a login, the account's first credential, which stays the same when the default credential is replaced.
    scope_id: CredentialId | None = None
    # The domains to which an API key is bound; if empty, all domains of the account.
    sender_domains: tuple[str, ...] = ()

    def key(self, text: str) -> IdempotencyKey:
        return IdempotencyKey(self.account_id, self.scope_id or self.credential_id, text)


@dataclass(frozen=True, slots=True)
class Member:
    """A person who logged in to the dashboard, or an operator who impersonates a viewer."""

    account_id: AccountId
    user_id: UserId
    role: Role
    email: str
    session_id: SessionId
    # The account requires a second factor, and the member has none: they may only set one up.
    lacks_second_factor: bool = False
    # Whether this is a read-only impersonation, which can change nothing.
    impersonated_until: datetime | None = None

    @property
    def actor(self) -> Actor:
        return Actor(self.user_id, self.email)


@dataclass(frozen=True, slots=True)
class Program:
    """An API key, used under /v1 for what its scopes permit."""

    account_id: AccountId
    key_id: ApiKeyId
    mode: Mode = Mode.LIVE
    # The domains to which the key is bound; if empty, all domains of the account.
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
    """The secret that renews a remembered session, only for the browser's cookie."""

    text: str = field(repr=False)
    lifetime: timedelta


@dataclass(frozen=True, slots=True)
class LoginSession:
    """The result of a login: a token for one account with its end; and for a remembered session, the renewal secret."""

    token: str = field(repr=False)
    expires_at: datetime
    renewal_secret: RenewalSecret | None = None
