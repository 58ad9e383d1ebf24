"""Retries that members asked for: counted for their message, limited for their account."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from posthouse.rules.ids import AccountId, MessageId
from posthouse.store import delivery_schedule
from posthouse.store.postgres import Connection
from posthouse.store.statement import statement

_MAKE_DUE: Final = statement("""
UPDATE schedule SET next_at = :now
WHERE ctid = ANY(:places::tid[]) AND worker_id IS NULL AND held_since IS NULL AND next_at > :now
RETURNING position
""")
_COUNT: Final = statement("""
INSERT INTO message_retries AS known (account_id, message_id, count, last_at)
VALUES (:account_id, :message_id, 1, :now)
ON CONFLICT (account_id, message_id) DO UPDATE SET count = known.count + 1, last_at = excluded.last_at
RETURNING count
""")
# The row is locked to the end of the transaction: requests of an account take their turn.
_RATE: Final = statement("""
INSERT INTO retry_rates AS known (account_id, full_at) VALUES (:account_id, :now)
ON CONFLICT (account_id) DO UPDATE SET full_at = known.full_at RETURNING full_at
""")
_SET_RATE: Final = "UPDATE retry_rates SET full_at = $2 WHERE account_id = $1"
_FORGET: Final = """
WITH old AS (
    SELECT account_id, message_id FROM message_retries WHERE last_at < $1 ORDER BY last_at LIMIT $2
    FOR UPDATE SKIP LOCKED
), forgotten AS (
    DELETE FROM message_retries retries USING old
    WHERE retries.account_id = old.account_id AND retries.message_id = old.message_id RETURNING 1
)
SELECT count(*) FROM forgotten
"""


async def make_due(
    tx: Connection, account_id: AccountId, message_id: MessageId, fences: Sequence[tuple[int, int]], now: datetime
) -> set[int]:
    """Make the recipients (their position and fence) due now that nothing was done with since; their positions.

    The fence stays: a ticket that is on its way still finds the row, and of two the second finds it claimed.
    """
    keys = [(account_id, message_id, position, fence) for position, fence in fences]
    places = await delivery_schedule.lock(tx, keys)
    rows = await tx.fetch(*_MAKE_DUE.bind(now=now, places=list(places.values())))
    return {row["position"] for row in rows}


async def count(tx: Connection, account_id: AccountId, message_id: MessageId, now: datetime) -> int:
    """Count a retry of the message; how many there are with it."""
    counted: int = await tx.fetchval(*_COUNT.bind(account_id=account_id, message_id=message_id, now=now))
    return counted


async def rate_full_at(tx: Connection, account_id: AccountId, now: datetime) -> datetime:
    full_at: datetime = await tx.fetchval(*_RATE.bind(account_id=account_id, now=now))
    return full_at


async def set_rate_full_at(tx: Connection, account_id: AccountId, full_at: datetime) -> None:
    await tx.execute(_SET_RATE, account_id, full_at)


async def forget_old(tx: Connection, before: datetime, count_max: int) -> int:
    forgotten: int = await tx.fetchval(_FORGET, before, count_max)
    return forgotten
