"""The control tables, read through a short cache: who may send, from which domains, signed with which keys.

Every change to an account's control rows moves `accounts.changed_at` in the same transaction. Each
process asks once a second which accounts changed lately and drops what it cached of them, so a
revocation takes effect everywhere within seconds while the hot path sends no query to PostgreSQL. If that
question goes unanswered for longer than the cache may be old, nothing in the cache is used; so it need not
be asked while the cache is not used.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Network, IPv6Network
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from posthouse.rules.credential import IMPERSONATION_MAX, Mode, OperatorSession, Role, Scope
from posthouse.rules.ids import AccountId, ApiKeyId, CredentialId, SessionId, UserId
from posthouse.rules.limits import CONTROL_CACHE_SECONDS
from posthouse.rules.template import Engine, Template
from posthouse.rules.token import Claims
from posthouse.store import accounts, audit_log, sessions, templates
from posthouse.store.credentials import known_scopes
from posthouse.store.domains import dkim_purpose, ed25519_purpose
from posthouse.store.postgres import Connection, Database, Row, required

# A template or a key counts as one entry for each kilobyte.
ENTRIES_MAX: Final = 100_000
# Nothing is cached for longer than this. Keys that were read at the same time, such as all keys after a start, are read
# again at different times.
REMEMBERED_SECONDS_MAX: Final = 60
SPREAD_SECONDS: Final = 20
# How many of the oldest entries are looked at each second, to drop those that are too old.
OLDEST_LOOKED_AT: Final = 4_000
# After this long without use, changes are no longer read, and nothing in the cache is used until they are read again.
UNUSED_SECONDS_MAX: Final = 10
# A change that was stamped before its transaction committed is still seen if the commit comes within this time.
COMMIT_SECONDS_MAX: Final = 15

_NEVER: Final = datetime(9999, 1, 1, tzinfo=UTC)

Networks = tuple[IPv4Network | IPv6Network, ...]
Known = TypeVar("Known")

_CHANGED: Final = "SELECT now() AS now, ARRAY(SELECT id FROM accounts WHERE changed_at > $1) AS changed"

_CREDENTIAL: Final = """
SELECT account_id, id, secret_hash, allowed_networks, previous_hash, previous_until
FROM credentials WHERE username = $1 AND revoked_at IS NULL
"""

_CREDENTIAL_OF: Final = """
SELECT account_id, id, secret_hash, allowed_networks, previous_hash, previous_until
FROM credentials WHERE account_id = $1 AND id = $2 AND revoked_at IS NULL
"""

_API_KEY: Final = """
SELECT k.account_id, k.id, k.credential_id, k.mode, k.may_send, k.may_read, k.other_scopes, k.sender_domains,
       k.expires_at, k.allowed_networks AS own_networks, c.allowed_networks,
       coalesce(k.revoked_at, c.revoked_at) AS revoked_at
FROM api_keys k JOIN credentials c ON c.account_id = k.account_id AND c.id = k.credential_id
WHERE k.secret_hash = $1
"""

_MEMBERSHIP: Final = """
SELECT m.account_id, m.role, u.email, c.id AS credential_id, (
    SELECT id FROM credentials WHERE account_id = m.account_id ORDER BY created_at, id LIMIT 1) AS scope_id,
    a.requires_totp AND NOT EXISTS (
        SELECT FROM second_factors f WHERE f.user_id = m.user_id AND f.confirmed_at IS NOT NULL
    ) AS lacks_second_factor
FROM memberships m JOIN users u ON u.id = m.user_id JOIN accounts a ON a.id = m.account_id
JOIN credentials c ON c.account_id = m.account_id AND c.is_default
WHERE m.account_id = $1 AND m.user_id = $2
"""

# Cached with the account in which the session began: ending a session touches that account.
_SESSION: Final = "SELECT account_id, user_id FROM sessions WHERE id = $1 AND revoked_at IS NULL"

_DOMAINS: Final = """
SELECT name, shared_from IS NOT NULL AS is_shared FROM domains WHERE account_id = $1 AND verified_at IS NOT NULL
"""
_MEMBER_ADDRESSES: Final = """
SELECT u.email FROM memberships m JOIN users u ON u.id = m.user_id WHERE m.account_id = $1
"""

_SIGNING_KEYS: Final = """
SELECT k.account_id, k.id, k.selector, k.dkim_sealed, k.ed25519_selector, k.ed25519_sealed, k.ed25519_published
FROM domains d JOIN domains k ON k.account_id = coalesce(d.shared_from, d.account_id) AND k.name = d.name
WHERE d.account_id = $1 AND d.name = $2 AND d.verified_at IS NOT NULL AND k.verified_at IS NOT NULL
"""

_TEMPLATE: Final = """
SELECT v.subject, v.text, v.html, v.engine
FROM templates t JOIN template_versions v
  ON v.account_id = t.account_id AND v.alias = t.alias AND v.version = t.published_version
WHERE t.account_id = $1 AND t.alias = $2
"""


@dataclass(frozen=True, slots=True)
class CachedCredential:
    account_id: AccountId
    id: CredentialId
    secret_hash: bytes
    allowed_networks: Networks
    previous_hash: bytes | None = None
    previous_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class CachedApiKey:
    account_id: AccountId
    id: ApiKeyId
    credential_id: CredentialId
    mode: Mode
    may_send: bool
    may_read: bool
    expires_at: datetime | None
    own_networks: Networks
    allowed_networks: Networks
    other_scopes: tuple[Scope, ...] = ()
    sender_domains: tuple[str, ...] = ()

    @property
    def scopes(self) -> tuple[Scope, ...]:
        mail = ((Scope.SEND, self.may_send), (Scope.READ, self.may_read))
        return *(scope for scope, may in mail if may), *self.other_scopes


@dataclass(frozen=True, slots=True)
class CachedMembership:
    account_id: AccountId
    user_id: UserId
    role: Role
    email: str
    credential_id: CredentialId
    scope_id: CredentialId
    # The account requires a second factor, and the user has none.
    lacks_second_factor: bool


@dataclass(frozen=True, slots=True)
class SealedKey:
    """A DKIM key as it is stored; `purpose` is the purpose that it was sealed for."""

    selector: str
    purpose: bytes
    sealed: bytes = field(repr=False)


class _Entry(NamedTuple):
    account_id: AccountId
    known: object
    weight: int
    # It is read again after this time.
    until: float


class ControlCache:
    def __init__(self, database: Database, monotonic: Callable[[], float]) -> None:
        self._database = database
        self._monotonic = monotonic
        # In the order in which they were read.
        self._known: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._keys_of: dict[AccountId, set[Hashable]] = {}
        self._weight = 0
        self._checked_at = float("-inf")
        self._changes_read_to: datetime | None = None
        self._used_at = monotonic()

    async def forget_changes(self) -> None:
        """Drop what changed since the last call; `workers` calls it every second."""
        asked_at = self._monotonic()
        if asked_at - self._used_at > UNUSED_SECONDS_MAX:
            self._checked_at = float("-inf")
            return
        read_to = self._changes_read_to
        since = _NEVER if read_to is None else read_to - timedelta(seconds=COMMIT_SECONDS_MAX)
        async with self._database.connection() as connection:
            row = required(await connection.fetchrow(_CHANGED, since))
        # A gap in the reading, or a database whose time stepped (after a failover), may hide changes.
        passed = asked_at - self._checked_at
        is_sure = (
            read_to is not None
            and passed <= COMMIT_SECONDS_MAX / 2
            and 0 <= (row["now"] - read_to).total_seconds() <= passed + COMMIT_SECONDS_MAX / 2
        )
        if is_sure:
            oldest = islice(self._known.items(), OLDEST_LOOKED_AT)
            dropped = [key for key, entry in oldest if entry.until <= asked_at]
            for account_id in row["changed"]:
                dropped += self._keys_of.get(account_id, ())
            for key in dropped:
                self._forget(key)
        else:
            self._known.clear()
            self._keys_of.clear()
            self._weight = 0
        self._changes_read_to = row["now"]
        self._checked_at = asked_at

    def _remember(self, key: Hashable, account_id: AccountId, known: object) -> None:
        self._forget(key)
        until = self._monotonic() + REMEMBERED_SECONDS_MAX - hash(key) % SPREAD_SECONDS
        self._known[key] = entry = _Entry(account_id, known, _weight(known), until)
        self._keys_of.setdefault(account_id, set()).add(key)
        self._weight += entry.weight
        while self._weight > ENTRIES_MAX:
            self._forget(next(iter(self._known)))

    def _forget(self, key: Hashable) -> None:
        entry = self._known.pop(key, None)
        if entry is not None:
            self._weight -= entry.weight
            keys = self._keys_of[entry.account_id]
            keys.remove(key)
            if not keys:
                del self._keys_of[entry.account_id]

    async def credential(self, username: str) -> CachedCredential | None:
        return await self._recall(("credential", username), _load_credential, username)

    def known_credential(self, username: str) -> CachedCredential | None:
        """The cached credential, without asking the database: None also if it is not cached."""
        return self._cached(("credential", username))  # type: ignore[return-value]

    async def credential_of(self, account_id: AccountId, credential_id: CredentialId) -> CachedCredential | None:
        """The same by its id, for sessions that logged in with it; None once it is revoked."""
        key = "credential_of", account_id, credential_id
        return await self._recall(key, _load_credential_of, account_id, credential_id)

    async def api_key(self, secret_hash: bytes) -> CachedApiKey | None:
        return await self._recall(("api_key", secret_hash), _load_api_key, secret_hash)

    async def membership(self, account_id: AccountId, user_id: UserId) -> CachedMembership | None:
        return await self._recall(("membership", account_id, user_id), _load_membership, account_id, user_id)

    async def user_of_session(self, session_id: SessionId) -> UserId | None:
        """The session's user; None once it has ended."""
        return await self._recall(("session", session_id), _load_session, session_id)

    async def impersonator(self, impersonation: Claims, now: datetime) -> OperatorSession | None:
        """The operator's login, until either ends. Never cached: an operator who loses the right loses it at once."""
        async with self._database.connection() as connection:
            since, until = now - IMPERSONATION_MAX, impersonation.expires_at
            if await audit_log.is_impersonation_ended(connection, impersonation.account_id, since, until):
                return None
            return await sessions.of_operator(connection, impersonation.session_id, impersonation.user_id, now)

    async def is_verified(self, account_id: AccountId, domain: str) -> bool:
        """Only a yes is taken from the cache, so a domain that was verified a moment ago counts."""
        known = await self._recall(("domains", account_id), _load_domains, account_id)
        if domain in known:
            return True
        self.forget_domains(account_id)
        return domain in await self._recall(("domains", account_id), _load_domains, account_id)

    async def verified_domains(self, account_id: AccountId) -> Mapping[str, bool]:
        """The verified domains, and whether each is shared. Cached: one verified in the last seconds may be missing."""
        return await self._recall(("domains", account_id), _load_domains, account_id)

    async def member_addresses(self, account_id: AccountId) -> frozenset[str]:
        """The members' addresses in lower case."""
        return await self._recall(("member_addresses", account_id), _load_member_addresses, account_id)

    def forget_domains(self, account_id: AccountId) -> None:
        self._forget(("domains", account_id))

    async def signing_keys(self, account_id: AccountId, domain: str) -> tuple[SealedKey, ...]:
        """The keys that mail from the domain is signed with; none when it is not the account's (any more)."""
        return await self._recall(("signing", account_id, domain), _load_signing_keys, account_id, domain) or ()

    async def is_suspended(self, account_id: AccountId) -> bool:
        return await self._recall(("suspended", account_id), _load_suspended, account_id)

    def is_known_suspended(self, account_id: AccountId) -> bool:
        """Whether it is cached as suspended, without asking the database: False also if it is not cached."""
        return self._cached(("suspended", account_id)) is True

    async def published_template(self, account_id: AccountId, alias: str) -> Template | None:
        return await self._recall(("template", account_id, alias), _load_template, account_id, alias)

    async def renamed_template(self, account_id: AccountId, alias: str) -> str | None:
        """The current alias of a template that had this alias before; never cached."""
        async with self._database.connection() as connection:
            return await templates.renamed(connection, account_id, alias)

    def _is_current(self) -> bool:
        """Whether the cache is current; also notes that the cache is in use."""
        self._used_at = self._monotonic()
        return self._used_at - self._checked_at < CONTROL_CACHE_SECONDS

    def _cached(self, key: Hashable) -> object | None:
        entry = self._known.get(key)
        return entry.known if self._is_current() and entry is not None and entry.until > self._used_at else None

    async def _recall(
        self,
        key: Hashable,
        load: Callable[..., Awaitable[tuple[AccountId, Known] | None]],
        *arguments: object,
    ) -> Known:
        entry = self._known.get(key)
        if self._is_current() and entry is not None and entry.until > self._used_at:
            return entry.known  # type: ignore[return-value]
        checked_at = self._checked_at
        async with self._database.connection() as connection:
            loaded = await load(connection, *arguments)
        # A missing row is not cached: a key works as soon as it is made.
        if loaded is None:
            return None  # type: ignore[return-value]
        # A change may have been committed after the row was read, and been processed before the row is cached here.
        if checked_at == self._checked_at:
            self._remember(key, *loaded)
        return loaded[1]


def _weight(known: object) -> int:
    if isinstance(known, tuple):
        return 1 + sum(len(key.sealed) for key in known if isinstance(key, SealedKey)) // 1024
    if not isinstance(known, Template):
        return 1
    return 1 + sum(len(part or "") for part in (known.subject, known.text, known.html)) // 1024


async def _load_credential(connection: Connection, username: str) -> tuple[AccountId, CachedCredential] | None:
    return _credential(await connection.fetchrow(_CREDENTIAL, username))


async def _load_credential_of(
    connection: Connection, account_id: AccountId, credential_id: CredentialId
) -> tuple[AccountId, CachedCredential] | None:
    return _credential(await connection.fetchrow(_CREDENTIAL_OF, account_id, credential_id))


def _credential(row: Row | None) -> tuple[AccountId, CachedCredential] | None:
    if row is None:
        return None
    known = CachedCredential(**{**row, "allowed_networks": tuple(row["allowed_networks"])})
    return known.account_id, known


async def _load_api_key(connection: Connection, secret_hash: bytes) -> tuple[AccountId, CachedApiKey] | None:
    row = await connection.fetchrow(_API_KEY, secret_hash)
    if row is None or row["revoked_at"] is not None:
        return None
    return row["account_id"], _api_key(row)


def _api_key(row: Row) -> CachedApiKey:
    return CachedApiKey(
        account_id=row["account_id"],
        id=row["id"],
        credential_id=row["credential_id"],
        mode=Mode(row["mode"]),
        may_send=row["may_send"],
        may_read=row["may_read"],
        expires_at=row["expires_at"],
        own_networks=tuple(row["own_networks"]),
        allowed_networks=tuple(row["allowed_networks"]),
        other_scopes=known_scopes(row["other_scopes"]),
        sender_domains=tuple(row["sender_domains"]),
    )


async def _load_membership(
    connection: Connection, account_id: AccountId, user_id: UserId
) -> tuple[AccountId, CachedMembership] | None:
    row = await connection.fetchrow(_MEMBERSHIP, account_id, user_id)
    if row is None:
        return None
    return account_id, CachedMembership(
        account_id=account_id,
        user_id=user_id,
        role=Role(row["role"]),
        email=row["email"],
        credential_id=row["credential_id"],
        scope_id=row["scope_id"],
        lacks_second_factor=row["lacks_second_factor"],
    )


async def _load_session(connection: Connection, session_id: SessionId) -> tuple[AccountId, UserId] | None:
    row = await connection.fetchrow(_SESSION, session_id)
    return None if row is None else (row["account_id"], row["user_id"])


async def _load_domains(connection: Connection, account_id: AccountId) -> tuple[AccountId, Mapping[str, bool]]:
    rows = await connection.fetch(_DOMAINS, account_id)
    return account_id, {row["name"]: row["is_shared"] for row in rows}


async def _load_member_addresses(connection: Connection, account_id: AccountId) -> tuple[AccountId, frozenset[str]]:
    rows = await connection.fetch(_MEMBER_ADDRESSES, account_id)
    return account_id, frozenset(row["email"] for row in rows)


async def _load_signing_keys(
    connection: Connection, account_id: AccountId, domain: str
) -> tuple[AccountId, tuple[SealedKey, ...]] | None:
    row = await connection.fetchrow(_SIGNING_KEYS, account_id, domain)
    if row is None:
        return None
    # The keys of a shared domain are the operator's, and change with that account.
    owner_id: AccountId = row["account_id"]
    keys = [SealedKey(row["selector"], dkim_purpose(owner_id, row["id"]), row["dkim_sealed"])]
    if row["ed25519_published"]:
        purpose = ed25519_purpose(owner_id, row["id"])
        keys.append(SealedKey(row["ed25519_selector"], purpose, row["ed25519_sealed"]))
    return owner_id, tuple(keys)


async def _load_suspended(connection: Connection, account_id: AccountId) -> tuple[AccountId, bool]:
    return account_id, await accounts.is_suspended(connection, account_id)


async def _load_template(
    connection: Connection, account_id: AccountId, alias: str
) -> tuple[AccountId, Template] | None:
    row = await connection.fetchrow(_TEMPLATE, account_id, alias)
    if row is None:
        return None
    return account_id, Template(row["subject"], row["text"], row["html"], Engine(row["engine"]))
