"""The ledger as its account reads it: message by message, the newest first, each grant at its own time.

An entry's place is an id and a position, as in the ledger's key: the closing entries of a message, then its reserve.
A grant is placed by its id, and the sum of a day that is no longer stored at the day's beginning. A page reads
no more rows of a partition than it shows, by the key; a search for one kind of entry reads no more than a bound.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from enum import StrEnum
from typing import Final, NamedTuple
from uuid import UUID

from posthouse.rules.ids import AccountId, MessageId, lowest_id, time_of
from posthouse.rules.limits import RECIPIENTS_MAX
from posthouse.store.postgres import Connection, Row
from posthouse.store.statement import statement

RESERVE_POSITION: Final = -1
GRANT_POSITION: Final = -2
DAY_POSITION: Final = -3
# Above every recipient's position.
POSITION_END: Final = RECIPIENTS_MAX
# A kind may be rare. This many entries are searched for it at a time, and the reader continues from there.
SEARCHED_BATCH_MAX: Final = 5_000


# The OpenAPI document uses this name.
class Kind(StrEnum):
    GRANT = "grant"
    RESERVE = "reserve"
    SETTLE = "settle"
    RELEASE = "release"
    DAY = "day"


class LedgerPosition(NamedTuple):
    """The place of an entry; later ones are greater."""

    id: UUID
    position: int


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """`credits` is its amount; a day's sum has three: reserved, settled and released."""

    place: LedgerPosition
    kind: Kind
    at: datetime
    credits: tuple[int, ...]
    reason: str | None = None


class LedgerRange(NamedTuple):
    """Entries, the newest first, and the place to continue from; None if there are no more."""

    entries: list[LedgerEntry]
    read_to: LedgerPosition | None


@dataclass(frozen=True, slots=True)
class RecipientResult:
    """The result of a recipient."""

    email: str
    status: str
    code: int | None
    response: str | None


_ENTRIES: Final = statement("""
SELECT message_id, position, kind, amount, at FROM ledger
WHERE account_id = :account_id AND message_id >= :lowest AND message_id <= :id
    AND (message_id, position) < (:id, :position)
ORDER BY message_id DESC, position DESC LIMIT :limit
""")
_END_OF_BATCH: Final = statement("""
SELECT message_id, position FROM ledger
WHERE account_id = :account_id AND message_id >= :lowest AND message_id <= :id
    AND (message_id, position) < (:id, :position)
ORDER BY message_id DESC, position DESC OFFSET :count LIMIT 1
""")
_ENTRIES_OF_KIND: Final = statement("""
SELECT message_id, position, kind, amount, at FROM ledger
WHERE account_id = :account_id AND message_id >= :lowest AND message_id <= :id
    AND (message_id, position) < (:id, :position)
  AND (message_id, position) >= (:lowest, :lowest_position) AND kind = :kind
ORDER BY message_id DESC, position DESC LIMIT :limit
""")
_GRANTS: Final = statement("""
SELECT id, amount, reason, at FROM credit_grants WHERE account_id = :account_id AND id >= :lowest AND id < :before
ORDER BY id DESC LIMIT :limit
""")
_DAYS: Final = statement("""
SELECT day, reserved, settled, released FROM ledger_days
WHERE account_id = :account_id AND day >= :first AND day <= :last ORDER BY day DESC LIMIT :limit
""")

_RECIPIENT_RESULTS: Final = statement("""
SELECT asked.message_id, asked.position, recipient.*
FROM unnest(:message_ids::uuid[], :positions::smallint[]) asked(message_id, position)
CROSS JOIN LATERAL (
    SELECT email, status, last_smtp_code, last_smtp_response FROM recipients
    WHERE account_id = :account_id AND message_id = asked.message_id AND position = asked.position
      AND message_id >= :lowest AND message_id <= :highest LIMIT 1) recipient
""")


async def below(
    connection: Connection,
    account_id: AccountId,
    place: LedgerPosition,
    lowest: UUID,
    limit: int,
    kind: Kind | None = None,
) -> LedgerRange:
    """The next entries below the place, of all kinds or of one, of ids from `lowest` on."""
    entries: list[LedgerEntry] = []
    if kind in (None, Kind.GRANT):
        entries += await _grants(connection, account_id, place, lowest, limit + 1)
    if kind in (None, Kind.DAY):
        entries += await _days(connection, account_id, place, lowest, limit + 1)
    if kind is None:
        rows = await connection.fetch(
            *_ENTRIES.bind(account_id=account_id, lowest=lowest, id=place.id, position=place.position, limit=limit + 1)
        )
        entries += map(_entry, rows)
    elif kind not in (Kind.GRANT, Kind.DAY):
        return await _of_kind(connection, account_id, place, lowest, limit, kind)
    entries.sort(key=lambda entry: entry.place, reverse=True)
    return LedgerRange(entries[:limit], entries[limit - 1].place if len(entries) > limit else None)


async def _of_kind(
    connection: Connection,
    account_id: AccountId,
    place: LedgerPosition,
    lowest: UUID,
    limit: int,
    kind: Kind,
) -> LedgerRange:
    further = await connection.fetchrow(
        *_END_OF_BATCH.bind(
            account_id=account_id,
            lowest=lowest,
            id=place.id,
            position=place.position,
            count=SEARCHED_BATCH_MAX - 1,
        )
    )
    end = LedgerPosition(lowest, RESERVE_POSITION) if further is None else LedgerPosition(*further)
    rows = await connection.fetch(
        *_ENTRIES_OF_KIND.bind(
            account_id=account_id,
            lowest=end.id,
            lowest_position=end.position,
            id=place.id,
            position=place.position,
            kind=kind,
            limit=limit + 1,
        )
    )
    entries = [_entry(row) for row in rows[:limit]]
    if len(rows) > limit:
        return LedgerRange(entries, entries[-1].place)
    return LedgerRange(entries, None if further is None else end)


async def _grants(
    connection: Connection, account_id: AccountId, place: LedgerPosition, lowest: UUID, limit: int
) -> list[LedgerEntry]:
    rows = await connection.fetch(*_GRANTS.bind(account_id=account_id, lowest=lowest, before=place.id, limit=limit))
    return [
        LedgerEntry(LedgerPosition(row["id"], GRANT_POSITION), Kind.GRANT, row["at"], (row["amount"],), row["reason"])
        for row in rows
    ]


async def _days(
    connection: Connection, account_id: AccountId, place: LedgerPosition, lowest: UUID, limit: int
) -> list[LedgerEntry]:
    rows = await connection.fetch(
        *_DAYS.bind(account_id=account_id, first=time_of(lowest).date(), last=time_of(place.id).date(), limit=limit)
    )
    entries = [
        LedgerEntry(day_place(day), Kind.DAY, datetime.combine(day, time(), UTC), (reserved, settled, released))
        for day, reserved, settled, released in rows
    ]
    # The place may be above or below its day's sum, and the lowest bound may be within a day.
    return [entry for entry in entries if entry.place < place and entry.place.id >= lowest]


def day_place(day: date) -> LedgerPosition:
    return LedgerPosition(lowest_id(datetime.combine(day, time(), UTC)), DAY_POSITION)


async def recipient_results(
    connection: Connection, account_id: AccountId, places: Sequence[LedgerPosition]
) -> Mapping[LedgerPosition, RecipientResult]:
    """The results of the recipients of closing entries, if they are still stored."""
    if not places:
        return {}
    message_ids = [MessageId(place.id) for place in places]
    positions = [place.position for place in places]
    rows = await connection.fetch(
        *_RECIPIENT_RESULTS.bind(
            account_id=account_id,
            lowest=min(message_ids),
            highest=max(message_ids),
            message_ids=message_ids,
            positions=positions,
        )
    )
    return {LedgerPosition(message_id, position): RecipientResult(*result) for message_id, position, *result in rows}


def _entry(row: Row) -> LedgerEntry:
    message_id, position, kind, amount, at = row
    return LedgerEntry(LedgerPosition(message_id, position), Kind(kind), at, (amount,))
