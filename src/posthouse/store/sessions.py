"""Sessions: one for each login; a token is valid only while its session lasts.

Caches forget a session together with the account in which it began, whichever account its tokens are for: ending it
moves that account's `changed_at`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from posthouse.rules.credential import OperatorSession
from posthouse.rules.ids import AccountId, SessionId, UserId
from posthouse.store.accounts import touch
from posthouse.store.postgres import Connection, Row, row_count
from posthouse.store.statement import statement


@dataclass(frozen=True, slots=True)
class SessionRow:
    id: SessionId
    user_id: UserId
    account_id: AccountId
    created_at: datetime
    expires_at: datetime
    peer: str = ""
    user_agent: str = ""
    # It can be renewed: its tokens end long before it does.
    is_remembered: bool = False


@dataclass(frozen=True, slots=True)
class RenewableSession:
    """A remembered session that was found by its current secret or by the previous one."""

    session: SessionRow
    is_current: bool
    renewal_hash: bytes
    salt: bytes | None
    renewed_at: datetime | None


_OF_OPERATOR: Final = """
SELECT u.id AS user_id, u.email, s.id AS session_id, s.created_at AS began_at,
    u.operator_since IS NOT NULL AS is_operator, EXISTS (
        SELECT FROM second_factors f WHERE f.user_id = u.id AND f.confirmed_at IS NOT NULL) AS has_second_factor
FROM sessions s JOIN users u ON u.id = s.user_id
WHERE s.id = $1 AND s.user_id = $2 AND s.revoked_at IS NULL AND s.expires_at > $3
"""
# The lock makes a password change wait for this statement, or this statement for the change, after which the hash
# differs: no session begins with a password that is no longer the user's.
_INSERT: Final = statement("""
INSERT INTO sessions (id, user_id, account_id, created_at, expires_at, peer, user_agent, renewal_hash)
SELECT :session_id, id, :account_id, :created_at, :expires_at, :peer, :user_agent, :renewal_hash
FROM users WHERE id = :user_id AND password_hash = :password_hash FOR SHARE
RETURNING id
""")
# Live sessions are kept before ended ones.
_TRIM: Final = """
DELETE FROM sessions WHERE user_id = $1 AND id NOT IN (
    SELECT id FROM sessions WHERE user_id = $1
    ORDER BY (revoked_at IS NOT NULL OR expires_at <= $2), id DESC LIMIT $3
)
RETURNING account_id
"""
_COLUMNS: Final = (
    "id, user_id, account_id, created_at, expires_at, peer, user_agent, renewal_hash IS NOT NULL AS is_remembered"
)
_LIVE_OF_USER: Final = f"""
SELECT {_COLUMNS} FROM sessions
WHERE user_id = $1 AND revoked_at IS NULL AND expires_at > $2 ORDER BY id DESC LIMIT $3
"""
_LIVE: Final = f"""
SELECT {_COLUMNS} FROM sessions
WHERE id = $1 AND user_id = $2 AND revoked_at IS NULL AND expires_at > $3
"""
# A second request with the same secret waits here, and then finds the session by its previous secret.
_LOCK_RENEWABLE: Final = f"""
SELECT {_COLUMNS}, renewal_hash = ANY($1::bytea[]) AS is_current, renewal_hash, renewal_salt AS salt, renewed_at
FROM sessions
WHERE (renewal_hash = ANY($1::bytea[]) OR renewal_hash_before = ANY($1::bytea[]))
    AND revoked_at IS NULL AND expires_at > $2 FOR UPDATE
"""
_RENEW: Final = statement("""
UPDATE sessions SET renewal_hash = :renewal_hash, renewal_hash_before = renewal_hash, renewal_salt = :salt,
    renewed_at = :now, expires_at = :expires_at
WHERE id = :session_id
""")
_REVOKE: Final = """
UPDATE sessions SET revoked_at = $3 WHERE id = $1 AND user_id = $2 AND revoked_at IS NULL RETURNING account_id
"""
_REVOKE_ALL: Final = """
UPDATE sessions SET revoked_at = $3 WHERE user_id = $1 AND id IS DISTINCT FROM $2 AND revoked_at IS NULL
RETURNING account_id
"""
_DELETE_EXPIRED: Final = """
DELETE FROM sessions WHERE id IN (SELECT id FROM sessions WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2)
"""


async def begin(
    tx: Connection, session: SessionRow, password_hash: str, count_max: int, renewal_hash: bytes | None = None
) -> bool:
    """False if the user's password has changed meanwhile. Of the user's sessions the newest stay."""
    begun = await tx.fetchval(
        *_INSERT.bind_row(session, session_id=session.id, password_hash=password_hash, renewal_hash=renewal_hash)
    )
    if begun is None:
        return False
    await _touch_each(tx, await tx.fetch(_TRIM, session.user_id, session.created_at, count_max), session.created_at)
    return True


async def live(connection: Connection, session_id: SessionId, user_id: UserId, now: datetime) -> SessionRow | None:
    row = await connection.fetchrow(_LIVE, session_id, user_id, now)
    return None if row is None else SessionRow(**row)


async def lock_renewable(tx: Connection, renewal_hashes: Sequence[bytes], now: datetime) -> RenewableSession | None:
    row = await tx.fetchrow(_LOCK_RENEWABLE, renewal_hashes, now)
    if row is None:
        return None
    columns = dict(row)
    more = {name: columns.pop(name) for name in ("is_current", "renewal_hash", "salt", "renewed_at")}
    return RenewableSession(SessionRow(**columns), **more)


async def renew(
    tx: Connection, session_id: SessionId, renewal_hash: bytes, salt: bytes, expires_at: datetime, now: datetime
) -> None:
    """Give the session a new secret and a new end; the previous secret is stored as well."""
    await tx.execute(
        *_RENEW.bind(session_id=session_id, renewal_hash=renewal_hash, salt=salt, expires_at=expires_at, now=now)
    )


async def live_of_user(connection: Connection, user_id: UserId, now: datetime, limit: int) -> list[SessionRow]:
    """The newest first."""
    return [SessionRow(**row) for row in await connection.fetch(_LIVE_OF_USER, user_id, now, limit)]


async def revoke(tx: Connection, session_id: SessionId, user_id: UserId, now: datetime) -> bool:
    """False if the user has no such session, or it was revoked already."""
    ended = await tx.fetch(_REVOKE, session_id, user_id, now)
    await _touch_each(tx, ended, now)
    return bool(ended)


async def revoke_all(tx: Connection, user_id: UserId, but: SessionId | None, now: datetime) -> int:
    """Returns how many ended."""
    ended = await tx.fetch(_REVOKE_ALL, user_id, but, now)
    await _touch_each(tx, ended, now)
    return len(ended)


async def delete_expired(tx: Connection, now: datetime, limit: int) -> int:
    return row_count(await tx.execute(_DELETE_EXPIRED, now, limit))


async def _touch_each(tx: Connection, ended: Sequence[Row], now: datetime) -> None:
    # In order: two transactions that touch the same accounts must not deadlock.
    for account_id in sorted({row["account_id"] for row in ended}):
        await touch(tx, account_id, now)


async def of_operator(
    connection: Connection, session_id: SessionId, user_id: UserId, now: datetime
) -> OperatorSession | None:
    """Never cached: an operator who loses the right loses it immediately."""
    row = await connection.fetchrow(_OF_OPERATOR, session_id, user_id, now)
    return None if row is None else OperatorSession(**row)
