"""An account's suppressed addresses, the row that bounds and orders their imports, and who left which mailing list.

Suppressions by bounces and complaints are written by `delivery_outcomes` and `reports`, in their transactions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from posthouse.rules.ids import AccountId
from posthouse.rules.suppression import SuppressionReason
from posthouse.rules.unsubscribe import ListMember
from posthouse.store.postgres import Connection, row_count
from posthouse.store.statement import statement

# A page begins after this row.
Position = tuple[datetime, str]


@dataclass(frozen=True, slots=True)
class SuppressionRow:
    """`code` and `response` are the server's, if any; `note` and `added_by` are the user's."""

    email: str
    reason: str
    note: str | None
    added_by: str | None
    code: int | None
    response: str | None
    at: datetime


_COLUMNS: Final = "email, reason, note, added_by, code, response, at"

_FIND: Final = f"SELECT {_COLUMNS} FROM suppressions WHERE account_id = $1 AND email = $2"

# The newest rows of each of the three reasons are read from the index, and the newest of those are returned. The
# condition on the time is always true; it makes the planner use that index.
_NEWEST: Final = statement(f"""
SELECT {_COLUMNS}
FROM unnest(:reasons::text[]) wanted(reason_wanted)
CROSS JOIN LATERAL (
    SELECT {_COLUMNS} FROM suppressions
    WHERE account_id = :account_id AND reason = reason_wanted
      AND (at, email) < (:before_at::timestamptz, :before_email::text COLLATE "C") AND at > '-infinity'
    ORDER BY at DESC, email DESC LIMIT :limit) newest
ORDER BY at DESC, email DESC LIMIT :limit
""")

_NEWEST_OF_DOMAIN: Final = statement(f"""
SELECT {_COLUMNS}
FROM unnest(:reasons::text[]) wanted(reason_wanted)
CROSS JOIN LATERAL (
    SELECT {_COLUMNS} FROM suppressions
    WHERE account_id = :account_id AND split_part(email, '@', 2) = :domain AND reason = reason_wanted
      AND (at, email) < (:before_at::timestamptz, :before_email::text COLLATE "C") AND at > '-infinity'
    ORDER BY at DESC, email DESC LIMIT :limit) newest
ORDER BY at DESC, email DESC LIMIT :limit
""")

# Addresses are ASCII: its last character sorts after every address with the prefix.
_BY_ADDRESS: Final = statement(f"""
SELECT {_COLUMNS} FROM suppressions
WHERE account_id = :account_id AND email >= :prefix AND email < :prefix || chr(127) AND email > :after
ORDER BY email LIMIT :limit
""")

_REASONS_OF: Final = """
SELECT asked.email, found.reason
FROM unnest($2::text[]) asked(email)
CROSS JOIN LATERAL (
    SELECT reason FROM suppressions WHERE account_id = $1 AND email = asked.email LIMIT 1) found
"""

# In one order, against deadlocks. Rows that exist already stay as they are.
_ADD: Final = statement("""
WITH added AS (
    INSERT INTO suppressions (account_id, email, reason, note, added_by, at)
    SELECT :account_id, email, 'manual', note, :added_by, :now FROM unnest(:emails::text[],
        :notes::text[]) given(email, note)
    ORDER BY email
    ON CONFLICT (account_id, email) DO NOTHING
    RETURNING 1
)
SELECT count(*) FROM added
""")

_REMOVE: Final = f"DELETE FROM suppressions WHERE account_id = $1 AND email = $2 RETURNING {_COLUMNS}"

_LIFT: Final = "INSERT INTO removed_suppressions (account_id, reason, at) VALUES ($1, $2, $3)"

_FORGET_LIFTED: Final = """
DELETE FROM removed_suppressions WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM removed_suppressions WHERE at < $1 LIMIT $2))
"""

_ENTER: Final = """
INSERT INTO suppression_counts (account_id, manual) VALUES ($1, greatest($2, 0))
ON CONFLICT (account_id) DO UPDATE SET manual = greatest(suppression_counts.manual + $2, 0)
RETURNING manual
"""

_HOLD: Final = statement("""
INSERT INTO suppression_counts (account_id, importer, held_until) VALUES (:account_id, :importer, :until)
ON CONFLICT (account_id) DO UPDATE SET importer = excluded.importer, held_until = excluded.held_until
    WHERE suppression_counts.held_until IS NULL OR suppression_counts.held_until <= :now
RETURNING 1
""")

_HELD_UNTIL: Final = "SELECT held_until FROM suppression_counts WHERE account_id = $1"

_EXTEND: Final = statement("""
UPDATE suppression_counts SET manual = manual + :count, held_until = :until
WHERE account_id = :account_id AND importer = :importer
RETURNING manual
""")

_RELEASE: Final = """
UPDATE suppression_counts SET importer = NULL, held_until = NULL WHERE account_id = $1 AND importer = $2
"""

# The time of the first is kept.
_UNSUBSCRIBE: Final = statement("""
INSERT INTO unsubscriptions (account_id, mailing_list, email, at) VALUES (:account_id, :mailing_list, :email,
    :now) ON CONFLICT DO NOTHING
RETURNING 1
""")


async def find(connection: Connection, account_id: AccountId, email: str) -> SuppressionRow | None:
    row = await connection.fetchrow(_FIND, account_id, email)
    return None if row is None else SuppressionRow(*row)


async def newest(
    connection: Connection,
    account_id: AccountId,
    reasons: Sequence[SuppressionReason],
    before: Position,
    count: int,
    domain: str | None = None,
) -> list[SuppressionRow]:
    """Addresses before the position, the newest first; of one domain, if that is given."""
    asked: dict[str, Any] = {
        "account_id": account_id,
        "reasons": list(reasons),
        "before_at": before[0],
        "before_email": before[1],
        "limit": count,
    }
    if domain is None:
        rows = await connection.fetch(*_NEWEST.bind(**asked))
    else:
        rows = await connection.fetch(*_NEWEST_OF_DOMAIN.bind(**asked, domain=domain))
    return [SuppressionRow(*row) for row in rows]


async def by_address(
    connection: Connection, account_id: AccountId, prefix: str, after: str, count: int
) -> list[SuppressionRow]:
    """Addresses with the prefix that come after a text, in the order of their bytes."""
    return [
        SuppressionRow(*row)
        for row in await connection.fetch(
            *_BY_ADDRESS.bind(account_id=account_id, prefix=prefix, after=after, limit=count)
        )
    ]


async def reasons_of(connection: Connection, account_id: AccountId, emails: Sequence[str]) -> dict[str, str]:
    """The reasons for those of the addresses, in lower case, that are suppressed."""
    return {row["email"]: row["reason"] for row in await connection.fetch(_REASONS_OF, account_id, list(emails))}


async def add(
    tx: Connection,
    account_id: AccountId,
    addresses: Sequence[tuple[str, str | None]],
    added_by: str,
    now: datetime,
) -> int:
    """Add addresses, each once and with its note; return how many were new."""
    emails, notes = [email for email, _ in addresses], [note for _, note in addresses]
    count: int = await tx.fetchval(
        *_ADD.bind(account_id=account_id, emails=emails, notes=notes, added_by=added_by, now=now)
    )
    return count


async def remove(tx: Connection, account_id: AccountId, email: str) -> SuppressionRow | None:
    """Returns the removed row; None if there was none."""
    row = await tx.fetchrow(_REMOVE, account_id, email)
    return None if row is None else SuppressionRow(*row)


async def lift(tx: Connection, account_id: AccountId, reason: str, at: datetime) -> None:
    """Let the address count for the account's reputation as if it were still suppressed."""
    await tx.execute(_LIFT, account_id, reason, at)


async def forget_lifted(tx: Connection, before: datetime, limit: int) -> int:
    return row_count(await tx.execute(_FORGET_LIFTED, before, limit))


async def enter(tx: Connection, account_id: AccountId, count: int) -> int:
    """Add to (or subtract from) the count of the account's own entries; return the new count."""
    manual: int = await tx.fetchval(_ENTER, account_id, count)
    return manual


async def hold_import(tx: Connection, account_id: AccountId, importer: UUID, now: datetime, until: datetime) -> bool:
    """Make the importer the account's only one until then; False if there is another."""
    return await tx.fetchval(*_HOLD.bind(account_id=account_id, importer=importer, now=now, until=until)) is not None


async def held_until(connection: Connection, account_id: AccountId) -> datetime | None:
    until: datetime | None = await connection.fetchval(_HELD_UNTIL, account_id)
    return until


async def extend_import(
    tx: Connection, account_id: AccountId, importer: UUID, count: int, until: datetime
) -> int | None:
    """Like `enter`, and the importer stays the only one; None if another has replaced it."""
    manual: int | None = await tx.fetchval(
        *_EXTEND.bind(account_id=account_id, importer=importer, count=count, until=until)
    )
    return manual


async def release_import(tx: Connection, account_id: AccountId, importer: UUID) -> None:
    await tx.execute(_RELEASE, account_id, importer)


async def unsubscribe(tx: Connection, leaver: ListMember, now: datetime) -> bool:
    """Note that this address left a mailing list of the account; return whether that is new."""
    account_id, mailing_list, email = leaver
    arguments = _UNSUBSCRIBE.bind(account_id=account_id, mailing_list=mailing_list, email=email, now=now)
    return await tx.fetchval(*arguments) is not None
