"""SMTP credentials and the API keys that belong to them; secrets are stored only as keyed hashes.

The time of a secret's last use is written separately and invalidates no cache, since none contains it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from ipaddress import IPv4Network, IPv6Network
from typing import Final, NamedTuple
from uuid import UUID

from posthouse.rules.credential import Mode, Scope
from posthouse.rules.ids import AccountId, ApiKeyId, CredentialId
from posthouse.store.accounts import touch
from posthouse.store.postgres import Connection, Row, required, row_count, storable
from posthouse.store.statement import delete_some, statement

# The longest address: IPv6 with a zone.
PEER_CHARACTERS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class CredentialRow:
    """`previous_until` is when the previous password ends, if it was replaced."""

    account_id: AccountId
    id: CredentialId
    username: str
    name: str
    is_default: bool
    allowed_networks: tuple[IPv4Network | IPv6Network, ...]
    created_at: datetime
    revoked_at: datetime | None
    previous_until: datetime | None = None
    last_used_at: datetime | None = None
    last_used_from: str | None = None


@dataclass(frozen=True, slots=True)
class ApiKeyRow:
    """An API key; `hint` is its beginning and end, enough to recognise it."""

    account_id: AccountId
    id: ApiKeyId
    credential_id: CredentialId
    hint: str
    name: str
    mode: Mode
    may_read: bool
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    may_send: bool = True
    allowed_networks: tuple[IPv4Network | IPv6Network, ...] = ()
    last_used_at: datetime | None = None
    last_used_from: str | None = None
    replaced_by: ApiKeyId | None = None
    # Scopes for /v1, in addition to `send` and `read`.
    other_scopes: tuple[Scope, ...] = ()
    # The only domains that it may send from; empty: all domains of the account.
    sender_domains: tuple[str, ...] = ()
    # By the account's log, which keeps it for a limited time; not stored with the key.
    created_by: str | None = None

    @property
    def scopes(self) -> tuple[Scope, ...]:
        may = {Scope.SEND: self.may_send, Scope.READ: self.may_read}
        return (*[scope for scope, is_given in may.items() if is_given], *self.other_scopes)


class Rehash(NamedTuple):
    """The hash that a secret was found under, and the hash of the active pepper, which replaces it."""

    old: bytes
    new: bytes


class LastUse(NamedTuple):
    """When a secret was last used, and from which address; None if that is unknown."""

    at: datetime
    peer: str | None = None
    rehash: Rehash | None = None


@dataclass(frozen=True, slots=True)
class KeyCounts:
    """`replaced` keys end without further action: a rotation gave each of them an end."""

    current: int
    replaced: int


_CREDENTIAL_COLUMNS: Final = """
account_id, id, username, name, is_default, allowed_networks, created_at, revoked_at, previous_until, last_used_at,
last_used_from
"""
_KEY_COLUMNS: Final = """
account_id, id, credential_id, hint, name, mode, may_read, created_at, expires_at, revoked_at, may_send,
allowed_networks, last_used_at, last_used_from, replaced_by, other_scopes, sender_domains
"""

_INSERT_CREDENTIAL: Final = statement("""
INSERT INTO credentials
    (account_id, id, username, name, is_default, allowed_networks, created_at, revoked_at, secret_hash)
VALUES (:account_id, :id, :username, :name, :is_default, :allowed_networks, :created_at, :revoked_at, :secret_hash)
""")
_CREDENTIALS: Final = f"""
SELECT {_CREDENTIAL_COLUMNS} FROM credentials WHERE account_id = $1 ORDER BY id LIMIT $2
"""
_CREDENTIALS_PAGE: Final = f"""
SELECT {_CREDENTIAL_COLUMNS} FROM credentials WHERE account_id = $1 AND ($2::uuid IS NULL OR id < $2)
ORDER BY id DESC LIMIT $3
"""
_LIVE_CREDENTIALS: Final = f"""
SELECT {_CREDENTIAL_COLUMNS} FROM credentials WHERE account_id = $1 AND revoked_at IS NULL ORDER BY id
"""
_CREDENTIAL_BY_ID: Final = f"""
SELECT {_CREDENTIAL_COLUMNS} FROM credentials WHERE account_id = $1 AND id = $2
"""
_CREDENTIAL_BY_USERNAME: Final = f"""
SELECT {_CREDENTIAL_COLUMNS} FROM credentials WHERE account_id = $1 AND username = $2
"""
_DEFAULT_CREDENTIAL: Final = f"""
SELECT {_CREDENTIAL_COLUMNS} FROM credentials WHERE account_id = $1 AND is_default
"""
_REVOKE_CREDENTIAL: Final = """
UPDATE credentials SET revoked_at = $3, previous_hash = NULL, previous_until = NULL
WHERE account_id = $1 AND id = $2 AND revoked_at IS NULL
RETURNING id
"""
_REVOKE_KEYS_OF: Final = """
UPDATE api_keys SET revoked_at = $3
WHERE account_id = $1 AND credential_id = $2 AND revoked_at IS NULL AND coalesce(expires_at, 'infinity') > $3
"""
_REVOKE_ALL: Final = """
WITH ended AS (
    UPDATE api_keys SET revoked_at = $2
    WHERE account_id = $1 AND revoked_at IS NULL AND coalesce(expires_at, 'infinity') > $2
    RETURNING id
), revoked AS (
    UPDATE credentials SET revoked_at = $2, previous_hash = NULL, previous_until = NULL
    WHERE account_id = $1 AND revoked_at IS NULL
    RETURNING id
)
SELECT (SELECT count(*) FROM revoked), (SELECT count(*) FROM ended)
"""
_NO_DEFAULT: Final = "UPDATE credentials SET is_default = false WHERE account_id = $1 AND is_default"
_SET_DEFAULT: Final = "UPDATE credentials SET is_default = true WHERE account_id = $1 AND id = $2"
_ROTATE_CREDENTIAL: Final = statement("""
UPDATE credentials SET secret_hash = :secret_hash, previous_until = :previous_until,
    previous_hash = CASE WHEN :previous_until::timestamptz IS NOT NULL THEN secret_hash END
WHERE account_id = :account_id AND id = :credential_id AND revoked_at IS NULL
""")

_INSERT_KEY: Final = statement("""
INSERT INTO api_keys
    (account_id, id, credential_id, hint, name, mode, may_read, created_at, expires_at, revoked_at, may_send,
     allowed_networks, other_scopes, sender_domains, secret_hash)
VALUES (:account_id, :id, :credential_id, :hint, :name, :mode, :may_read, :created_at, :expires_at, :revoked_at,
    :may_send, :allowed_networks, :other_scopes, :sender_domains, :secret_hash)
""")
_KEYS: Final = f"""
SELECT {_KEY_COLUMNS} FROM api_keys WHERE account_id = $1 ORDER BY id LIMIT $2
"""
_KEYS_PAGE: Final = f"""
SELECT {_KEY_COLUMNS} FROM api_keys WHERE account_id = $1 AND ($2::uuid IS NULL OR id < $2) ORDER BY id DESC LIMIT $3
"""
_KEY_BY_ID: Final = f"""
SELECT {_KEY_COLUMNS} FROM api_keys WHERE account_id = $1 AND id = $2
"""
# Has the condition of the index of live keys, so that ended keys, of which there can be any number, are not read.
_COUNT_KEYS: Final = """
SELECT count(*) FILTER (WHERE replaced_by IS NULL) AS current,
    count(*) FILTER (WHERE replaced_by IS NOT NULL) AS replaced
FROM api_keys WHERE account_id = $1 AND revoked_at IS NULL AND coalesce(expires_at, 'infinity') > $2
"""
_REVOKE_KEY: Final = """
UPDATE api_keys SET revoked_at = $3 WHERE account_id = $1 AND id = $2 AND revoked_at IS NULL
RETURNING id
"""
_REPLACE_KEY: Final = statement("""
UPDATE api_keys SET replaced_by = :replaced_by, expires_at = least(expires_at, :until)
WHERE account_id = :account_id AND id = :key_id
RETURNING expires_at
""")
_DELETE_ENDED_KEYS: Final = delete_some(
    "api_keys", "account_id, id", "least(revoked_at, expires_at) < $1 ORDER BY least(revoked_at, expires_at)"
)


def _used(table: str) -> str:
    # Every process updates the same rows: all lock them in one order.
    return f"""
WITH used AS (
    SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::timestamptz[], $4::text[], $5::bytea[], $6::bytea[])
        used (account_id, id, at, peer, old_hash, new_hash)
),
locked AS (
    SELECT s.account_id, s.id, u.at, u.peer, u.old_hash, u.new_hash
    FROM used u JOIN {table} s ON s.account_id = u.account_id AND s.id = u.id
    ORDER BY s.account_id, s.id FOR NO KEY UPDATE OF s
)
UPDATE {table} s SET last_used_at = greatest(s.last_used_at, l.at),
    last_used_from = CASE WHEN s.last_used_at > l.at THEN s.last_used_from ELSE l.peer END,
    secret_hash = CASE WHEN s.secret_hash = l.old_hash THEN l.new_hash ELSE s.secret_hash END
FROM locked l WHERE s.account_id = l.account_id AND s.id = l.id
"""


_CREDENTIALS_USED: Final = _used("credentials")
_KEYS_USED: Final = _used("api_keys")


def _credential(row: Row) -> CredentialRow:
    values = dict(row)
    networks = tuple(values.pop("allowed_networks"))
    return CredentialRow(**values, allowed_networks=networks)


def _key(row: Row) -> ApiKeyRow:
    values = dict(row)
    return ApiKeyRow(
        **values
        | {
            "mode": Mode(row["mode"]),
            "allowed_networks": tuple(row["allowed_networks"]),
            "other_scopes": known_scopes(row["other_scopes"]),
            "sender_domains": tuple(row["sender_domains"]),
        }
    )


def known_scopes(stored: Sequence[str]) -> tuple[Scope, ...]:
    """The known scopes; those that a newer version stored are left out."""
    return tuple([scope for scope in Scope if scope in stored])


async def insert_credential(tx: Connection, row: CredentialRow, secret_hash: bytes, now: datetime) -> None:
    await tx.execute(
        *_INSERT_CREDENTIAL.bind_row(row, allowed_networks=list(row.allowed_networks), secret_hash=secret_hash)
    )
    await touch(tx, row.account_id, now)


async def list_credentials(connection: Connection, account_id: AccountId, limit: int) -> Sequence[CredentialRow]:
    """Oldest first, including revoked."""
    return [_credential(row) for row in await connection.fetch(_CREDENTIALS, account_id, limit)]


async def page_of_credentials(
    connection: Connection, account_id: AccountId, before: UUID | None, limit: int
) -> Sequence[CredentialRow]:
    """Newest first, including revoked."""
    return [_credential(row) for row in await connection.fetch(_CREDENTIALS_PAGE, account_id, before, limit)]


async def live_credentials(connection: Connection, account_id: AccountId) -> Sequence[CredentialRow]:
    """Credentials that are not revoked, oldest first."""
    return [_credential(row) for row in await connection.fetch(_LIVE_CREDENTIALS, account_id)]


async def find_credential(
    connection: Connection, account_id: AccountId, credential_id: CredentialId
) -> CredentialRow | None:
    row = await connection.fetchrow(_CREDENTIAL_BY_ID, account_id, credential_id)
    return None if row is None else _credential(row)


async def find_username(connection: Connection, account_id: AccountId, username: str) -> CredentialRow | None:
    row = await connection.fetchrow(_CREDENTIAL_BY_USERNAME, account_id, username)
    return None if row is None else _credential(row)


async def default_credential(connection: Connection, account_id: AccountId) -> CredentialRow | None:
    row = await connection.fetchrow(_DEFAULT_CREDENTIAL, account_id)
    return None if row is None else _credential(row)


async def make_default(tx: Connection, account_id: AccountId, credential_id: CredentialId, now: datetime) -> None:
    await tx.execute(_NO_DEFAULT, account_id)
    await tx.execute(_SET_DEFAULT, account_id, credential_id)
    await touch(tx, account_id, now)


async def revoke_credential(tx: Connection, account_id: AccountId, credential_id: CredentialId, now: datetime) -> bool:
    """Revoke it together with its API keys. False if it was revoked already."""
    revoked = await tx.fetchval(_REVOKE_CREDENTIAL, account_id, credential_id, now)
    await tx.execute(_REVOKE_KEYS_OF, account_id, credential_id, now)
    await touch(tx, account_id, now)
    return revoked is not None


async def revoke_all(tx: Connection, account_id: AccountId, now: datetime) -> tuple[int, int]:
    """Returns how many credentials and API keys of the account ended."""
    revoked, ended = required(await tx.fetchrow(_REVOKE_ALL, account_id, now))
    await touch(tx, account_id, now)
    return revoked, ended


async def rotate_credential(
    tx: Connection,
    account_id: AccountId,
    credential_id: CredentialId,
    secret_hash: bytes,
    previous_until: datetime | None,
    now: datetime,
) -> None:
    """The current password stays valid until `previous_until`, or ends now; an earlier one ends."""
    await tx.execute(
        *_ROTATE_CREDENTIAL.bind(
            account_id=account_id, credential_id=credential_id, secret_hash=secret_hash, previous_until=previous_until
        )
    )
    await touch(tx, account_id, now)


async def insert_key(tx: Connection, row: ApiKeyRow, secret_hash: bytes, now: datetime) -> None:
    await tx.execute(
        *_INSERT_KEY.bind_row(
            row,
            allowed_networks=list(row.allowed_networks),
            other_scopes=list(row.other_scopes),
            sender_domains=list(row.sender_domains),
            secret_hash=secret_hash,
        )
    )
    await touch(tx, row.account_id, now)


async def list_keys(connection: Connection, account_id: AccountId, limit: int) -> Sequence[ApiKeyRow]:
    """Oldest first, including revoked."""
    return [_key(row) for row in await connection.fetch(_KEYS, account_id, limit)]


async def page_of_keys(
    connection: Connection, account_id: AccountId, before: UUID | None, limit: int
) -> Sequence[ApiKeyRow]:
    """Newest first, including revoked."""
    return [_key(row) for row in await connection.fetch(_KEYS_PAGE, account_id, before, limit)]


async def find_key(connection: Connection, account_id: AccountId, key_id: ApiKeyId) -> ApiKeyRow | None:
    row = await connection.fetchrow(_KEY_BY_ID, account_id, key_id)
    return None if row is None else _key(row)


async def count_keys(connection: Connection, account_id: AccountId, now: datetime) -> KeyCounts:
    """Counts of the keys that work."""
    row = await connection.fetchrow(_COUNT_KEYS, account_id, now)
    return KeyCounts(**required(row))


async def revoke_key(tx: Connection, account_id: AccountId, key_id: ApiKeyId, now: datetime) -> bool:
    """False if it was revoked already."""
    revoked = await tx.fetchval(_REVOKE_KEY, account_id, key_id, now)
    await touch(tx, account_id, now)
    return revoked is not None


async def replace_key(
    tx: Connection, account_id: AccountId, key_id: ApiKeyId, by: ApiKeyId, until: datetime, now: datetime
) -> datetime:
    """Another key replaces it: it ends then, or earlier if it would have ended anyway. Returns when it ends."""
    expires_at: datetime = await tx.fetchval(
        *_REPLACE_KEY.bind(account_id=account_id, key_id=key_id, replaced_by=by, until=until)
    )
    await touch(tx, account_id, now)
    return expires_at


async def delete_ended_keys(tx: Connection, before: datetime, limit: int) -> int:
    """Of every account; credentials stay, because stored messages name them. Returns how many were deleted."""
    return row_count(await tx.execute(_DELETE_ENDED_KEYS, before, limit))


async def credentials_used(tx: Connection, uses: Mapping[tuple[AccountId, CredentialId], LastUse]) -> None:
    await tx.execute(_CREDENTIALS_USED, *_columns(uses))


async def keys_used(tx: Connection, uses: Mapping[tuple[AccountId, ApiKeyId], LastUse]) -> None:
    await tx.execute(_KEYS_USED, *_columns(uses))


def _columns(
    uses: Mapping[tuple[AccountId, CredentialId], LastUse] | Mapping[tuple[AccountId, ApiKeyId], LastUse],
) -> tuple[list[UUID], list[UUID], list[datetime], list[str | None], list[bytes | None], list[bytes | None]]:
    return (
        [account_id for account_id, _ in uses],
        [used_id for _, used_id in uses],
        [use.at for use in uses.values()],
        [storable(use.peer, PEER_CHARACTERS_MAX) for use in uses.values()],
        [use.rehash and use.rehash.old for use in uses.values()],
        [use.rehash and use.rehash.new for use in uses.values()],
    )
