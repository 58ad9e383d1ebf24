"""Changes of the queue by operators: the next try now, hold, release, and the first step of a cancellation.

Recipients that a worker has claimed are left alone: their outcomes are recorded under their fences. Other rows that are
locked at the moment are taken by the next step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.queue_change import QueueChange
from posthouse.store.delivery_schedule import RecipientKey, columns, id_bounds
from posthouse.store.postgres import Connection, required
from posthouse.store.restore import NEVER
from posthouse.store.statement import statement

OPERATOR: Final = "operator"


@dataclass(frozen=True, slots=True)
class QueueSelection:
    """Filters for messages with an id below `before`: None selects all."""

    before: MessageId
    account_id: AccountId | None = None
    message_id: MessageId | None = None
    destinations: Sequence[str] | None = None


class QueueCount(NamedTuple):
    """The recipients that a change would affect, the messages and accounts that they belong to, and others.

    `being_tried` are claimed by workers; `unchanged` are those for which the change has no effect.
    """

    recipients: int
    messages: int
    accounts: int
    being_tried: int
    unchanged: int


@dataclass(frozen=True, slots=True)
class TakenRecipient:
    """A recipient that no worker can claim with its old fence, with the data for its event."""

    key: RecipientKey
    email: str
    envelope_sender: str
    subject: str


_SELECTED: Final = """
message_id < :before AND (:account_id::uuid IS NULL OR account_id = :account_id)
AND (:message_id::uuid IS NULL OR message_id = :message_id)
AND (:destinations::text[] IS NULL OR destination = ANY(:destinations))
"""
# Which rows a change applies to; after the change, the condition is false for them.
_IS_AFFECTED: Final = """
CASE :change::text
    WHEN 'retry' THEN held_since IS NULL AND next_at > :now AND attempt_count < :attempts_max - 1
        AND coalesce(send_at <= :now, true)
    WHEN 'hold' THEN held_by IS DISTINCT FROM 'operator'
    WHEN 'release' THEN held_by = 'operator'
    WHEN 'release_restored' THEN held_by = 'restore'
    ELSE true
END
"""

_COUNT: Final = statement(f"""
SELECT count(*) FILTER (WHERE is_affected AND NOT is_claimed),
    count(DISTINCT message_id) FILTER (WHERE is_affected AND NOT is_claimed),
    count(DISTINCT account_id) FILTER (WHERE is_affected AND NOT is_claimed),
    count(*) FILTER (WHERE is_claimed), count(*) FILTER (WHERE NOT is_affected AND NOT is_claimed)
FROM (
    SELECT account_id, message_id, worker_id IS NOT NULL AS is_claimed, coalesce({_IS_AFFECTED}, false) AS is_affected
    FROM delivery_schedule WHERE {_SELECTED}) selected
""")

_DESTINATIONS: Final = statement(f"SELECT DISTINCT destination FROM delivery_schedule WHERE {_SELECTED} ORDER BY 1")

_PLACES: Final = f"""
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM delivery_schedule WHERE worker_id IS NULL AND {_IS_AFFECTED} AND {_SELECTED}
    ORDER BY account_id, message_id, position LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED))
"""
# A hold and a cancellation invalidate tickets; after the others, a ticket in transit still finds its row.
_RETRY: Final = statement(f"UPDATE delivery_schedule SET next_at = :now {_PLACES} RETURNING 1")
_HOLD: Final = statement(f"""
UPDATE delivery_schedule SET fence = fence + 1, next_at = :never, held_since = :now, held_by = 'operator',
    due_at = CASE WHEN held_since IS NULL THEN next_at ELSE :now END,
    paused = paused + CASE WHEN held_by IS NULL THEN interval '0' ELSE :now::timestamptz - held_since END
{_PLACES} RETURNING 1
""")
_RELEASE: Final = statement(f"""
UPDATE delivery_schedule SET next_at = greatest(due_at, :now), due_at = NULL, held_since = NULL, held_by = NULL,
    paused = paused + (:now::timestamptz - held_since)
{_PLACES} RETURNING 1
""")

# A hold stays a hold if the cancellation is interrupted.
_TAKE: Final = statement(f"""
UPDATE delivery_schedule SET fence = fence + 1, next_at = greatest(next_at, :until) {_PLACES}
RETURNING account_id, message_id, position, fence
""")

_ABOUT: Final = statement("""
SELECT taken.number, recipient.email, message.envelope_sender, message.subject
FROM unnest(:account_ids::uuid[], :message_ids::uuid[], :positions::smallint[]) WITH ORDINALITY
    taken(account_id, message_id, position, number)
CROSS JOIN LATERAL (
    SELECT envelope_sender, subject FROM messages
    WHERE account_id = taken.account_id AND id = taken.message_id AND id >= :lowest AND id <= :highest LIMIT 1) message
CROSS JOIN LATERAL (
    SELECT email FROM recipients
    WHERE account_id = taken.account_id AND message_id = taken.message_id AND position = taken.position
      AND message_id >= :lowest AND message_id <= :highest LIMIT 1) recipient
""")


async def count(
    connection: Connection, change: QueueChange, selection: QueueSelection, now: datetime, attempts_max: int
) -> QueueCount:
    row = await connection.fetchrow(
        *_COUNT.bind(**_given(selection), change=change, now=now, attempts_max=attempts_max)
    )
    return QueueCount(*required(row))


async def destinations(connection: Connection, selection: QueueSelection) -> list[str]:
    """The destinations of the selected mail."""
    return [row["destination"] for row in await connection.fetch(*_DESTINATIONS.bind(**_given(selection)))]


async def change(
    tx: Connection, change: QueueChange, selection: QueueSelection, now: datetime, attempts_max: int, limit: int
) -> int:
    """Change up to `limit` recipients; return how many. None: all that can be changed are."""
    given = {**_given(selection), "change": change, "now": now, "attempts_max": attempts_max, "limit": limit}
    match change:
        case QueueChange.RETRY:
            bound = _RETRY.bind(**given)
        case QueueChange.HOLD:
            bound = _HOLD.bind(**given, never=NEVER)
        case QueueChange.RELEASE | QueueChange.RELEASE_RESTORED:
            bound = _RELEASE.bind(**given)
        case QueueChange.CANCEL:
            raise ValueError("for a cancellation, take the recipients and then record them")
    return len(await tx.fetch(*bound))


async def take_recipients(
    tx: Connection, selection: QueueSelection, now: datetime, until: datetime, limit: int
) -> list[TakenRecipient]:
    """Take up to `limit` unclaimed recipients; their tickets become invalid, and they are not due before `until`."""
    rows = await tx.fetch(
        *_TAKE.bind(**_given(selection), change=QueueChange.CANCEL, now=now, attempts_max=0, until=until, limit=limit)
    )
    if not rows:
        return []
    keys: list[RecipientKey] = [tuple(row) for row in rows]
    account_ids, message_ids, positions, _ = columns(keys)
    low, high = id_bounds(keys)
    found = await tx.fetch(
        *_ABOUT.bind(account_ids=account_ids, message_ids=message_ids, positions=positions, lowest=low, highest=high)
    )
    return [
        TakenRecipient(keys[row["number"] - 1], row["email"], row["envelope_sender"], row["subject"]) for row in found
    ]


def _given(selection: QueueSelection) -> dict[str, object]:
    return {
        "before": selection.before,
        "account_id": selection.account_id,
        "message_id": selection.message_id,
        "destinations": None if selection.destinations is None else list(selection.destinations),
    }
