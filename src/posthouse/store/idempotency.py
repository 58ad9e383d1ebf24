"""Expired idempotency keys."""

from datetime import datetime
from typing import Final

from posthouse.store.postgres import Connection

_DELETE_EXPIRED: Final = """
WITH expired AS (
    SELECT account_id, credential_id, key FROM idempotency
    WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED
), deleted AS (
    DELETE FROM idempotency USING expired
    WHERE idempotency.account_id = expired.account_id AND idempotency.credential_id = expired.credential_id
        AND idempotency.key = expired.key
    RETURNING 1
)
SELECT count(*) FROM deleted
"""


async def delete_expired(tx: Connection, now: datetime, count_max: int) -> int:
    count: int = await tx.fetchval(_DELETE_EXPIRED, now, count_max)
    return count
