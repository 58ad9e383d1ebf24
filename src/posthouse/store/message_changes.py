"""Changes of messages that have no final result: requested retries, and scheduled mail that is moved or cancelled."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.restore import RESTORE
from posthouse.store import delivery_schedule
from posthouse.store.acceptance import Spending
from posthouse.store.postgres import Connection, row_count
from posthouse.store.statement import delete_some, statement

# Scheduled mail, which its sender may cancel or move: the message is locked, so that no worker claims it meanwhile.
#
# The locks are taken in the order of `delivery_outcomes`: the message, then the schedule's rows. A claim that came
# first has raised the count of attempts before its worker connects; one that comes later waits, and finds the rows
# gone or their fences raised.


class WaitingRecipient(NamedTuple):
    position: int
    fence: int
    attempt_count: int
    held_by: str | None
    bounce_at: datetime | None


@dataclass(frozen=True, slots=True)
class LockedMessage:
    source: str
    sender: str
    recipient_count: int
    credits_reserved: int
    send_at: datetime | None
    # Those that are not final.
    waiting: Sequence[WaitingRecipient]

    @property
    def is_tried(self) -> bool:
        """Whether a recipient has had an attempt or a result."""
        return len(self.waiting) < self.recipient_count or any(
            row.attempt_count or row.bounce_at for row in self.waiting
        )

    @property
    def is_restored(self) -> bool:
        """Whether it is held since a restore: nothing says whether it was sent before that."""
        return any(row.held_by == RESTORE for row in self.waiting)


# In the form of `delivery_outcomes`, where PostgreSQL 18.4 finds a row that it had to wait for.
_MESSAGE: Final = """
SELECT message.*
FROM unnest($1::uuid[], $2::uuid[]) wanted(account_id, id)
CROSS JOIN LATERAL (
    SELECT source, sender, recipient_count, credits_reserved, send_at FROM messages
    WHERE account_id = wanted.account_id AND id = wanted.id
    LIMIT 1 FOR NO KEY UPDATE) message
"""

_WAITING: Final = """
SELECT position, fence, attempt_count, held_by, bounce_at FROM delivery_schedule WHERE account_id = $1
    AND message_id = $2
ORDER BY position FOR NO KEY UPDATE
"""

_IS_CANCELLED: Final = """
SELECT bool_and(status = 'cancelled') FROM recipients WHERE account_id = $1 AND message_id = $2
"""


# Tickets in transit become invalid. Other holds end, or a resumption would send it early; an operator's hold stays.
_MOVE: Final = """
UPDATE delivery_schedule SET fence = fence + 1, worker_id = NULL, send_at = $3,
    next_at = CASE WHEN due_at IS NULL THEN $3 ELSE next_at END,
    due_at = CASE WHEN due_at IS NULL THEN NULL ELSE $3 END,
    held_since = CASE WHEN due_at IS NULL THEN NULL ELSE held_since END,
    held_by = CASE WHEN due_at IS NULL THEN NULL ELSE held_by END
WHERE account_id = $1 AND message_id = $2
"""

_SET_WARMUP: Final = """
UPDATE accounts SET warmup_started_on = $2, warmup_day = $3, warmup_used = $4, warmup_ahead = $5::jsonb WHERE id = $1
"""


async def lock(tx: Connection, account_id: AccountId, message_id: MessageId) -> LockedMessage | None:
    message = await tx.fetchrow(_MESSAGE, [account_id], [message_id])
    if message is None:
        return None
    waiting = await tx.fetch(_WAITING, account_id, message_id)
    return LockedMessage(**message, waiting=[WaitingRecipient(*row) for row in waiting])


async def move(tx: Connection, account_id: AccountId, message_id: MessageId, send_at: datetime) -> None:
    """Move the locked message to another time."""
    await tx.execute(_MOVE, account_id, message_id, send_at)
    await tx.execute(
        "UPDATE messages SET send_at = $3 WHERE account_id = $1 AND id = $2", account_id, message_id, send_at
    )


async def set_warmup(tx: Connection, spending: Spending) -> None:
    """Set the warm-up of the account, whose row is locked."""
    await tx.execute(
        _SET_WARMUP,
        spending.account_id,
        spending.warmup_started_on,
        spending.warmup_day,
        spending.warmup_used,
        spending.warmup_ahead,
    )


async def is_cancelled(connection: Connection, account_id: AccountId, message_id: MessageId) -> bool:
    """Whether each of its recipients is cancelled."""
    return await connection.fetchval(_IS_CANCELLED, account_id, message_id) is True


# Retries that members asked for: counted for their message, limited for their account.


_MAKE_DUE: Final = statement("""
UPDATE delivery_schedule SET next_at = :now
WHERE ctid = ANY(:places::tid[]) AND worker_id IS NULL AND held_since IS NULL AND next_at > :now
RETURNING position
""")
_COUNT: Final = statement("""
INSERT INTO message_retries AS known (account_id, message_id, count, last_at)
VALUES (:account_id, :message_id, 1, :now)
ON CONFLICT (account_id, message_id) DO UPDATE SET count = known.count + 1, last_at = excluded.last_at
RETURNING count
""")
# The row is locked until the transaction ends: requests of an account run one after another.
_RATE: Final = statement("""
INSERT INTO retry_limits AS known (account_id, full_at) VALUES (:account_id, :now)
ON CONFLICT (account_id) DO UPDATE SET full_at = known.full_at RETURNING full_at
""")
_SET_RATE: Final = "UPDATE retry_limits SET full_at = $2 WHERE account_id = $1"
_FORGET: Final = delete_some("message_retries", "account_id, message_id", "last_at < $1 ORDER BY last_at")


async def make_due(
    tx: Connection, account_id: AccountId, message_id: MessageId, fences: Sequence[tuple[int, int]], now: datetime
) -> set[int]:
    """Make those recipients (position and fence) due now that are unchanged since they were read; their positions.

    The fence stays: a ticket in transit still finds the row, and of two tickets the second finds it claimed.
    """
    keys = [(account_id, message_id, position, fence) for position, fence in fences]
    places = await delivery_schedule.lock(tx, keys)
    rows = await tx.fetch(*_MAKE_DUE.bind(now=now, places=list(places.values())))
    return {row["position"] for row in rows}


async def count(tx: Connection, account_id: AccountId, message_id: MessageId, now: datetime) -> int:
    """Count a retry of the message; returns the number of retries so far."""
    counted: int = await tx.fetchval(*_COUNT.bind(account_id=account_id, message_id=message_id, now=now))
    return counted


async def rate_full_at(tx: Connection, account_id: AccountId, now: datetime) -> datetime:
    full_at: datetime = await tx.fetchval(*_RATE.bind(account_id=account_id, now=now))
    return full_at


async def set_rate_full_at(tx: Connection, account_id: AccountId, full_at: datetime) -> None:
    await tx.execute(_SET_RATE, account_id, full_at)


async def forget_old(tx: Connection, before: datetime, count_max: int) -> int:
    return row_count(await tx.execute(_FORGET, before, count_max))
