"""SMTP credentials and the API keys that belong to them; secrets are here only as keyed hashes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from ipaddress import IPv4Network, IPv6Network
from typing import Final

from posthouse.rules.credential import Mode
from posthouse.rules.ids import AccountId, ApiKeyId, CredentialId
from posthouse.store.accounts import touch
from posthouse.store.postgres import Connection, Row


@dataclass(frozen=True, slots=True)
class CredentialRow:
    account_id: AccountId
    id: CredentialId
    username: str
    name: str
    is_default: bool
    allowed_networks: tuple[IPv4Network | IPv6Network, ...]
    created_at: datetime
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class KeyRow:
    """An API key; `hint` is its beginning and end, enough to recognise it by."""

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


_INSERT_CREDENTIAL: Final = """
INSERT INTO credentials
    (account_id, id, username, name, is_default, allowed_networks, created_at, revoked_at, secret_hash)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
"""
_CREDENTIALS: Final = """
SELECT account_id, id, username, name, is_default, allowed_networks, created_at, revoked_at
FROM credentials WHERE account_id = $1 ORDER BY id LIMIT $2
"""
_REVOKE_CREDENTIAL: Final = """
UPDATE credentials SET revoked_at = $3 WHERE account_id = $1 AND id = $2 AND revoked_at IS NULL
RETURNING id
"""

_INSERT_KEY: Final = """
INSERT INTO api_keys
    (account_id, id, credential_id, hint, name, mode, may_read, created_at, expires_at, revoked_at,
     secret_hash)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
"""
_KEYS: Final = """
SELECT account_id, id, credential_id, hint, name, mode, may_read, created_at, expires_at, revoked_at
FROM api_keys WHERE account_id = $1 ORDER BY id LIMIT $2
"""
_REVOKE_KEY: Final = """
UPDATE api_keys SET revoked_at = $3 WHERE account_id = $1 AND id = $2 AND revoked_at IS NULL
RETURNING id
"""


def _credential(row: Row) -> CredentialRow:
    values = dict(row)
    networks = tuple(values.pop("allowed_networks"))
    return CredentialRow(**values, allowed_networks=networks)


def _key(row: Row) -> KeyRow:
    values = dict(row)
    mode = Mode(values.pop("mode"))
    return KeyRow(**values, mode=mode)


async def insert_credential(tx: Connection, row: CredentialRow, secret_hash: bytes, now: datetime) -> None:
    await tx.execute(
        _INSERT_CREDENTIAL,
        row.account_id,
        row.id,
        row.username,
        row.name,
        row.is_default,
        list(row.allowed_networks),
        row.created_at,
        row.revoked_at,
        secret_hash,
    )
    await touch(tx, row.account_id, now)


async def list_credentials(connection: Connection, account_id: AccountId, limit: int) -> Sequence[CredentialRow]:
    """Oldest first, revoked ones included."""
    return [_credential(row) for row in await connection.fetch(_CREDENTIALS, account_id, limit)]


async def revoke_credential(tx: Connection, account_id: AccountId, credential_id: CredentialId, now: datetime) -> bool:
    """Its API keys end with it. False when it was revoked already."""
    revoked = await tx.fetchval(_REVOKE_CREDENTIAL, account_id, credential_id, now)
    await touch(tx, account_id, now)
    return revoked is not None


async def insert_key(tx: Connection, row: KeyRow, secret_hash: bytes, now: datetime) -> None:
    await tx.execute(
        _INSERT_KEY,
        row.account_id,
        row.id,
        row.credential_id,
        row.hint,
        row.name,
        row.mode,
        row.may_read,
        row.created_at,
        row.expires_at,
        row.revoked_at,
        secret_hash,
    )
    await touch(tx, row.account_id, now)


async def list_keys(connection: Connection, account_id: AccountId, limit: int) -> Sequence[KeyRow]:
    """Oldest first, revoked ones included."""
    return [_key(row) for row in await connection.fetch(_KEYS, account_id, limit)]


async def revoke_key(tx: Connection, account_id: AccountId, key_id: ApiKeyId, now: datetime) -> bool:
    """False when it was revoked already."""
    revoked = await tx.fetchval(_REVOKE_KEY, account_id, key_id, now)
    await touch(tx, account_id, now)
    return revoked is not None
