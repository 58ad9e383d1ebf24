"""Claims: what a worker takes for itself before it tries it, for many recipients at once.

The rows of the calendar whose fence is the ticket's are locked by one statement; another, whose snapshot is
newer than the locks, raises their fences and writes the attempts down as begun. So there is an attempt on
record before there is a connection, and of two tickets for one recipient the second finds the fence gone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.ticket import DeliveryTicket
from posthouse.store import schedule
from posthouse.store.postgres import Connection, Row
from posthouse.store.schedule import columns, id_bounds


@dataclass(frozen=True, slots=True)
class ClaimedMessage:
    """What all recipients of a message share; `mime` is None when none of those claimed may get it."""

    id: MessageId
    source: str
    sender: str
    envelope_sender: str
    subject: str
    created_at: datetime
    mime: bytes | None


@dataclass(frozen=True, slots=True)
class Claimed:
    """One recipient to be tried, under a fence of its own.

    `attempt_count` includes this attempt, and any that no worker lived to report; `held` is how long the
    recipient was held back since it was accepted. One that is suppressed is not to be tried: no attempt
    is written or counted for it, its outcome is all that is wanted.
    """

    account_id: AccountId
    message_id: MessageId
    position: int
    fence: int
    destination: str
    email: str
    attempt_count: int
    held: timedelta
    is_suppressed: bool
    message: ClaimedMessage


_CLAIM: Final = """
WITH asked AS MATERIALIZED (
    SELECT due.*, recipient.email, suppression.email IS NOT NULL AS is_suppressed
    FROM unnest($6::tid[], $7::uuid[], $8::uuid[], $9::smallint[]) due(place, account_id, message_id, position)
    CROSS JOIN LATERAL (
        SELECT email FROM recipients
        WHERE account_id = due.account_id AND message_id = due.message_id AND position = due.position
          AND message_id >= $4 AND message_id <= $5 LIMIT 1) recipient
    LEFT JOIN LATERAL (
        SELECT email FROM suppressions
        WHERE account_id = due.account_id AND email = lower(recipient.email) LIMIT 1) suppression ON true
), claimed AS (
    UPDATE schedule SET fence = fence + 1, worker_id = $1, next_at = $3,
        attempt_count = attempt_count + CASE WHEN asked.is_suppressed THEN 0 ELSE 1 END,
        held_since = NULL, held = held + greatest(coalesce($2::timestamptz - held_since, interval '0'), interval '0')
    FROM asked WHERE schedule.ctid = asked.place
    RETURNING schedule.account_id, schedule.message_id, schedule.position, fence, destination,
        asked.email, attempt_count, held, asked.is_suppressed
), started AS (
    INSERT INTO attempts (account_id, message_id, position, fence, worker_id, started_at)
    SELECT account_id, message_id, position, fence, $1, $2 FROM claimed WHERE NOT is_suppressed
)
SELECT * FROM claimed
"""

_MESSAGES: Final = """
SELECT wanted.account_id, message.*, body.mime
FROM unnest($3::uuid[], $4::uuid[], $5::boolean[]) wanted(account_id, id, is_sent)
CROSS JOIN LATERAL (
    SELECT id, source, sender, envelope_sender, subject, created_at FROM messages
    WHERE account_id = wanted.account_id AND id = wanted.id AND id >= $1 AND id <= $2 LIMIT 1) message
LEFT JOIN LATERAL (
    SELECT mime FROM bodies
    WHERE wanted.is_sent AND account_id = wanted.account_id AND message_id = wanted.id
      AND message_id >= $1 AND message_id <= $2 LIMIT 1) body ON true
"""


async def claim(
    tx: Connection, worker_id: UUID, tickets: Iterable[DeliveryTicket], now: datetime, until: datetime
) -> list[Claimed]:
    """What of these the worker now has to itself, written down as begun; tickets that came late are absent.

    It is the worker's for as long as the worker's lease lasts, and not longer than `until`, which is after
    the end of the longest attempt: whatever the worker forgot is due again then.
    """
    places = await schedule.lock(
        tx, ((ticket.account_id, ticket.message_id, ticket.position, ticket.fence) for ticket in tickets)
    )
    if not places:
        return []
    low, high = id_bounds(places)
    due = [(place, *key[:3]) for key, place in places.items()]
    rows = await tx.fetch(_CLAIM, worker_id, now, until, low, high, *columns(due))
    messages = await _messages(tx, rows, low, high)
    return [Claimed(**row, message=messages[row["account_id"], row["message_id"]]) for row in rows]


async def _messages(
    tx: Connection, rows: Sequence[Row], low: MessageId, high: MessageId
) -> dict[tuple[AccountId, MessageId], ClaimedMessage]:
    """Each message once, with its body if anyone is to get it."""
    wanted: dict[tuple[AccountId, MessageId], bool] = {}
    for row in rows:
        key = row["account_id"], row["message_id"]
        wanted[key] = wanted.get(key, False) or not row["is_suppressed"]
    asked = [(*key, is_sent) for key, is_sent in wanted.items()]
    found = await tx.fetch(_MESSAGES, low, high, *columns(asked))
    return {(row["account_id"], row["id"]): ClaimedMessage(*tuple(row)[1:]) for row in found}
