"""Password resets that are open; the token itself is never stored."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from posthouse.rules.ids import UserId
from posthouse.store.postgres import Connection

# A user has one at most: a new one replaces it.
_OPEN: Final = """
INSERT INTO password_resets (user_id, token_hash, expires_at) VALUES ($1, $2, $3)
ON CONFLICT (user_id) DO UPDATE SET token_hash = excluded.token_hash, expires_at = excluded.expires_at
"""
_FIND: Final = "SELECT user_id FROM password_resets WHERE token_hash = ANY($1::bytea[]) AND expires_at > $2"
_USE: Final = "DELETE FROM password_resets WHERE user_id = $1 AND token_hash = ANY($2::bytea[]) RETURNING user_id"
_FORGET: Final = """
WITH expired AS (
    SELECT user_id FROM password_resets WHERE expires_at <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED
), forgotten AS (
    DELETE FROM password_resets USING expired WHERE password_resets.user_id = expired.user_id RETURNING 1
)
SELECT count(*) FROM forgotten
"""


async def begin(tx: Connection, user_id: UserId, token_hash: bytes, expires_at: datetime) -> None:
    await tx.execute(_OPEN, user_id, token_hash, expires_at)


async def find_open(connection: Connection, token_hashes: Sequence[bytes], now: datetime) -> UserId | None:
    found: UserId | None = await connection.fetchval(_FIND, token_hashes, now)
    return found


async def use(tx: Connection, user_id: UserId, token_hashes: Sequence[bytes]) -> bool:
    """False when it was used or replaced."""
    return await tx.fetchval(_USE, user_id, token_hashes) is not None


async def forget_expired(tx: Connection, now: datetime, count_max: int) -> int:
    count: int = await tx.fetchval(_FORGET, now, count_max)
    return count
