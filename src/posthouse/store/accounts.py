"""Accounts: who they are, whether they may send, their limits, and the credits granted to them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final
from uuid import UUID

from posthouse.rules.ids import AccountId
from posthouse.store.postgres import Connection, Row, required
from posthouse.store.statement import statement


@dataclass(frozen=True, slots=True)
class AccountRow:
    """An account. Limits that are None are the service's own."""

    id: AccountId
    name: str
    created_at: datetime
    changed_at: datetime
    suspended_at: datetime | None
    suspended_reason: str | None
    closed_at: datetime | None
    available: int
    rate_per_second: int | None
    rate_burst: int | None
    warmup_exempt: bool
    warmup_limits: tuple[int, ...] | None
    warmup_started_on: date | None
    warmup_day: date | None
    warmup_used: int
    display_name: str | None = None

    @property
    def state(self) -> str:
        return "closed" if self.closed_at else "suspended" if self.suspended_at else "active"

    @property
    def shown_name(self) -> str:
        """The name that its owners chose, else the operator's."""
        return self.display_name or self.name


_INSERT: Final = """
INSERT INTO accounts (id, name, created_at, changed_at) VALUES ($1, $2, $3, $3)
ON CONFLICT (lower(name)) DO NOTHING
RETURNING id, name, created_at, changed_at, suspended_at, suspended_reason, closed_at, available,
    rate_per_second, rate_burst, warmup_exempt, warmup_limits, warmup_started_on, warmup_day, warmup_used,
    display_name
"""

# Never backwards: caches ask for what changed after the last change that they know of.
# Not before the database's own time, which the caches compare it with: that clock may be ahead of service time.
_TOUCH: Final = "UPDATE accounts SET changed_at = greatest(changed_at, $2, clock_timestamp()) WHERE id = $1"

_BY_ID: Final = """
SELECT id, name, created_at, changed_at, suspended_at, suspended_reason, closed_at, available,
       rate_per_second, rate_burst, warmup_exempt, warmup_limits, warmup_started_on, warmup_day, warmup_used,
    display_name
FROM accounts WHERE id = $1
"""
_BY_ID_LOCKED: Final = _BY_ID + "FOR NO KEY UPDATE"
_BY_IDS: Final = """
SELECT id, name, created_at, changed_at, suspended_at, suspended_reason, closed_at, available,
       rate_per_second, rate_burst, warmup_exempt, warmup_limits, warmup_started_on, warmup_day, warmup_used,
    display_name
FROM accounts WHERE id = ANY($1::uuid[])
"""
_BY_NAME: Final = """
SELECT id, name, created_at, changed_at, suspended_at, suspended_reason, closed_at, available,
       rate_per_second, rate_burst, warmup_exempt, warmup_limits, warmup_started_on, warmup_day, warmup_used,
    display_name
FROM accounts WHERE lower(name) = lower($1)
"""
_LIST: Final = """
SELECT id, name, created_at, changed_at, suspended_at, suspended_reason, closed_at, available,
       rate_per_second, rate_burst, warmup_exempt, warmup_limits, warmup_started_on, warmup_day, warmup_used,
    display_name
FROM accounts WHERE lower(name) > lower($1) ORDER BY lower(name) LIMIT $2
"""
_REQUIRES_TOTP: Final = "SELECT requires_totp FROM accounts WHERE id = $1"
_REQUIRE_TOTP: Final = "UPDATE accounts SET requires_totp = $2 WHERE id = $1"
_RENAME: Final = "UPDATE accounts SET display_name = $2 WHERE id = $1"
_IS_SUSPENDED: Final = "SELECT suspended_at IS NOT NULL FROM accounts WHERE id = $1"
_SUSPEND: Final = """
WITH began AS (
    INSERT INTO suspensions (account_id, started_at) VALUES ($1, $2)
    ON CONFLICT (account_id, started_at) DO UPDATE SET ended_at = NULL
)
UPDATE accounts SET suspended_at = $2, suspended_reason = $3 WHERE id = $1
"""
# The operator who resumes it has seen its reputation, which is counted from now on.
_RESUME: Final = """
WITH ended AS (
    UPDATE suspensions SET ended_at = greatest(started_at, $2) WHERE account_id = $1 AND ended_at IS NULL
)
UPDATE accounts SET suspended_at = NULL, suspended_reason = NULL, conduct_since = $2 WHERE id = $1
"""

# A closed account stays suspended: without that, its mail would be sent.
_CLOSE: Final = "UPDATE accounts SET closed_at = $2 WHERE id = $1"

_SET_LIMITS: Final = statement("""
UPDATE accounts SET rate_per_second = :rate_per_second, rate_burst = :rate_burst, warmup_exempt = :warmup_exempt,
    warmup_limits = :warmup_limits
WHERE id = :account_id
""")

_GRANT: Final = statement("""
INSERT INTO grants (account_id, id, amount, reason, at, key)
VALUES (:account_id, :grant_id, :amount, :reason, :now, :key)
""")
_GRANT_WITH_KEY: Final = "SELECT amount, reason FROM grants WHERE account_id = $1 AND key = $2"
_ADD: Final = "UPDATE accounts SET available = available + $2 WHERE id = $1 RETURNING available"
_GRANTED: Final = "SELECT coalesce(sum(amount), 0)::bigint FROM grants WHERE account_id = $1"


def _account(row: Row) -> AccountRow:
    values = dict(row)
    limits = values.pop("warmup_limits")
    return AccountRow(**values, warmup_limits=None if limits is None else tuple(limits))


async def insert(tx: Connection, account_id: AccountId, name: str, now: datetime) -> AccountRow | None:
    """None when the name is taken, in whatever case."""
    row = await tx.fetchrow(_INSERT, account_id, name, now)
    return None if row is None else _account(row)


async def touch(tx: Connection, account_id: AccountId, now: datetime) -> None:
    """Part of every write to an account's control rows: makes every cache forget the account."""
    await tx.execute(_TOUCH, account_id, now)


async def find_by_id(connection: Connection, account_id: AccountId) -> AccountRow | None:
    row = await connection.fetchrow(_BY_ID, account_id)
    return None if row is None else _account(row)


async def find_by_ids(connection: Connection, account_ids: Sequence[AccountId]) -> dict[AccountId, AccountRow]:
    return {row["id"]: _account(row) for row in await connection.fetch(_BY_IDS, account_ids)}


async def find_by_name(connection: Connection, name: str) -> AccountRow | None:
    row = await connection.fetchrow(_BY_NAME, name)
    return None if row is None else _account(row)


async def lock(tx: Connection, account_id: AccountId) -> AccountRow:
    """The account as it is now, and stays until the transaction ends."""
    return _account(required(await tx.fetchrow(_BY_ID_LOCKED, account_id)))


async def page(connection: Connection, after: str, limit: int) -> list[AccountRow]:
    """In the order of their names, those after this name."""
    return [_account(row) for row in await connection.fetch(_LIST, after, limit)]


async def is_suspended(connection: Connection, account_id: AccountId) -> bool:
    return bool(await connection.fetchval(_IS_SUSPENDED, account_id))


async def suspend(tx: Connection, account_id: AccountId, reason: str, now: datetime) -> None:
    await tx.execute(_SUSPEND, account_id, now, reason)
    await touch(tx, account_id, now)


async def set_closed(tx: Connection, account_id: AccountId, closed_at: datetime | None, now: datetime) -> None:
    await tx.execute(_CLOSE, account_id, closed_at)
    await touch(tx, account_id, now)


async def resume(tx: Connection, account_id: AccountId, now: datetime) -> None:
    await tx.execute(_RESUME, account_id, now)
    await touch(tx, account_id, now)


async def set_limits(
    tx: Connection,
    account_id: AccountId,
    rate_per_second: int | None,
    rate_burst: int | None,
    warmup_exempt: bool,
    warmup_limits: Sequence[int] | None,
    now: datetime,
) -> None:
    numbers = None if warmup_limits is None else list(warmup_limits)
    await tx.execute(
        *_SET_LIMITS.bind(
            account_id=account_id,
            rate_per_second=rate_per_second,
            rate_burst=rate_burst,
            warmup_exempt=warmup_exempt,
            warmup_limits=numbers,
        )
    )
    await touch(tx, account_id, now)


async def grant_with_key(tx: Connection, account_id: AccountId, key: str) -> tuple[int, str] | None:
    """Amount and reason of the grant that this key made."""
    row = await tx.fetchrow(_GRANT_WITH_KEY, account_id, key)
    return None if row is None else (row["amount"], row["reason"])


async def grant(
    tx: Connection,
    account_id: AccountId,
    grant_id: UUID,
    amount: int,
    reason: str,
    now: datetime,
    key: str | None = None,
) -> int:
    """Enter the grant and change the balance with it; return the new balance.

    Lock the row and check the balance before a negative amount: a balance below 0 is a fault.
    """
    await tx.execute(
        *_GRANT.bind(account_id=account_id, grant_id=grant_id, amount=amount, reason=reason, now=now, key=key)
    )
    available: int = await tx.fetchval(_ADD, account_id, amount)
    await touch(tx, account_id, now)
    return available


async def granted(connection: Connection, account_id: AccountId) -> int:
    """The sum of all grants, corrections included."""
    total: int = await connection.fetchval(_GRANTED, account_id)
    return total


async def rename(tx: Connection, account_id: AccountId, display_name: str, now: datetime) -> None:
    """For its members; the name that commands take stays."""
    await tx.execute(_RENAME, account_id, display_name)
    await touch(tx, account_id, now)


async def requires_totp(connection: Connection, account_id: AccountId) -> bool:
    """Whether its members need a second factor."""
    return bool(await connection.fetchval(_REQUIRES_TOTP, account_id))


async def require_totp(tx: Connection, account_id: AccountId, is_required: bool, now: datetime) -> None:
    await tx.execute(_REQUIRE_TOTP, account_id, is_required)
    await touch(tx, account_id, now)
