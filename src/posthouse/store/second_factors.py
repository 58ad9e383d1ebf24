"""Second factors: a user's sealed secret, the last step that was used of it, and the unused recovery codes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from posthouse.rules.ids import UserId
from posthouse.store.postgres import Connection


@dataclass(frozen=True, slots=True)
class SecondFactorRow:
    """It counts only once it is confirmed: a user who can't read its codes must not be locked out."""

    user_id: UserId
    confirmed_at: datetime | None
    last_step: int
    secret_sealed: bytes = field(repr=False)


_BEGIN: Final = """
INSERT INTO second_factors (user_id, secret_sealed, created_at) VALUES ($1, $2, $3)
ON CONFLICT (user_id) DO UPDATE SET secret_sealed = excluded.secret_sealed, created_at = excluded.created_at
WHERE second_factors.confirmed_at IS NULL
RETURNING user_id
"""
_LOCK: Final = """
SELECT user_id, confirmed_at, last_step, secret_sealed FROM second_factors WHERE user_id = $1 FOR UPDATE
"""
_IS_ACTIVE: Final = "SELECT FROM second_factors WHERE user_id = $1 AND confirmed_at IS NOT NULL"
_CONFIRM: Final = "UPDATE second_factors SET confirmed_at = $2, last_step = $3 WHERE user_id = $1"
_USE_STEP: Final = "UPDATE second_factors SET last_step = $2 WHERE user_id = $1 AND last_step < $2 RETURNING user_id"
_KEEP_CODES: Final = "INSERT INTO recovery_codes (user_id, code_hash) SELECT $1, unnest($2::bytea[])"
_USE_CODE: Final = "DELETE FROM recovery_codes WHERE user_id = $1 AND code_hash = ANY($2::bytea[]) RETURNING user_id"
_CODES_LEFT: Final = "SELECT count(*) FROM recovery_codes WHERE user_id = $1"
_FORGET_CODES: Final = "DELETE FROM recovery_codes WHERE user_id = $1"
_REMOVE: Final = "DELETE FROM second_factors WHERE user_id = $1 RETURNING confirmed_at IS NOT NULL"
_SEALED_WITH: Final = """
SELECT user_id, confirmed_at, last_step, secret_sealed FROM second_factors
WHERE convert_from(substring(secret_sealed FROM 3 FOR get_byte(secret_sealed, 1)), 'UTF8') = ANY($1::text[])
LIMIT $2 FOR UPDATE SKIP LOCKED
"""
_RESEAL: Final = "UPDATE second_factors SET secret_sealed = $2 WHERE user_id = $1"


def secret_purpose(user_id: UserId) -> bytes:
    return b"totp secret of user " + user_id.bytes


async def begin(tx: Connection, user_id: UserId, secret_sealed: bytes, now: datetime) -> bool:
    """Replaces a factor that was never confirmed; False if the user has a confirmed one."""
    return await tx.fetchval(_BEGIN, user_id, secret_sealed, now) is not None


async def lock(tx: Connection, user_id: UserId) -> SecondFactorRow | None:
    row = await tx.fetchrow(_LOCK, user_id)
    return None if row is None else SecondFactorRow(**row)


async def is_active(connection: Connection, user_id: UserId) -> bool:
    return await connection.fetchrow(_IS_ACTIVE, user_id) is not None


async def confirm(tx: Connection, user_id: UserId, step: int, code_hashes: Sequence[bytes], now: datetime) -> None:
    await tx.execute(_CONFIRM, user_id, now, step)
    await tx.execute(_KEEP_CODES, user_id, list(code_hashes))


async def use_step(tx: Connection, user_id: UserId, step: int) -> bool:
    """False if that step, or a later one, was used before."""
    return await tx.fetchval(_USE_STEP, user_id, step) is not None


async def use_recovery_code(tx: Connection, user_id: UserId, code_hashes: Sequence[bytes]) -> bool:
    return await tx.fetchval(_USE_CODE, user_id, code_hashes) is not None


async def recovery_codes_left(connection: Connection, user_id: UserId) -> int:
    unused: int = await connection.fetchval(_CODES_LEFT, user_id)
    return unused


async def replace_recovery_codes(tx: Connection, user_id: UserId, code_hashes: Sequence[bytes]) -> None:
    await tx.execute(_FORGET_CODES, user_id)
    await tx.execute(_KEEP_CODES, user_id, list(code_hashes))


async def remove(tx: Connection, user_id: UserId) -> bool:
    """Whether a confirmed one was removed."""
    await tx.execute(_FORGET_CODES, user_id)
    return bool(await tx.fetchval(_REMOVE, user_id))


async def sealed_with(tx: Connection, key_ids: Sequence[str], limit: int) -> list[SecondFactorRow]:
    return [SecondFactorRow(**row) for row in await tx.fetch(_SEALED_WITH, list(key_ids), limit)]


async def reseal(tx: Connection, user_id: UserId, secret_sealed: bytes) -> None:
    await tx.execute(_RESEAL, user_id, secret_sealed)
