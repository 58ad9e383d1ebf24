"""Links that log a user in once; the token itself is never stored."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from posthouse.rules.ids import UserId
from posthouse.store.postgres import Connection

# A new link makes room: what has ended is of no use, and there is no other work on this table.
_ADD: Final = """
WITH ended AS (DELETE FROM login_links WHERE expires_at <= $4)
INSERT INTO login_links (token_hash, user_id, expires_at) VALUES ($1, $2, $3)
"""
_FIND: Final = "SELECT user_id FROM login_links WHERE token_hash = ANY($1::bytea[]) AND expires_at > $2"
_USE: Final = "DELETE FROM login_links WHERE token_hash = ANY($1::bytea[]) RETURNING user_id"
_FORGET_OF_USER: Final = "DELETE FROM login_links WHERE user_id = $1"


async def add(tx: Connection, token_hash: bytes, user_id: UserId, *, expires_at: datetime, now: datetime) -> None:
    await tx.execute(_ADD, token_hash, user_id, expires_at, now)


async def find_open(connection: Connection, token_hashes: Sequence[bytes], now: datetime) -> UserId | None:
    found: UserId | None = await connection.fetchval(_FIND, token_hashes, now)
    return found


async def use(tx: Connection, token_hashes: Sequence[bytes]) -> bool:
    """False when it was used."""
    return await tx.fetchval(_USE, token_hashes) is not None


async def forget_of_user(tx: Connection, user_id: UserId) -> None:
    await tx.execute(_FORGET_OF_USER, user_id)
