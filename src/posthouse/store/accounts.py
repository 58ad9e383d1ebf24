"""Accounts: who they are, whether they may send, their limits, the credits granted to them, and their first steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final
from uuid import UUID

from posthouse.rules.ids import AccountId, UserId
from posthouse.rules.usage import Step
from posthouse.store import backlog
from posthouse.store.postgres import Connection, Row, required
from posthouse.store.statement import statement

# A new account's first messages are among its oldest; no more of them are read.
_MESSAGES_READ_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class AccountRow:
    """An account. Where a limit is None, the service's default applies."""

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


_COLUMNS: Final = """
id, name, created_at, changed_at, suspended_at, suspended_reason, closed_at, available, rate_per_second, rate_burst,
warmup_exempt, warmup_limits, warmup_started_on, warmup_day, warmup_used, display_name
"""

_INSERT: Final = f"""
INSERT INTO accounts (id, name, created_at, changed_at) VALUES ($1, $2, $3, $3)
ON CONFLICT (lower(name)) DO NOTHING
RETURNING {_COLUMNS}
"""

# Never moves backwards: caches ask for what changed after the last change that they know of.
# Not before the database's own time, which the caches compare it with: the database's clock may be ahead of service
# time.
_TOUCH: Final = "UPDATE accounts SET changed_at = greatest(changed_at, $2, clock_timestamp()) WHERE id = $1"

_BY_ID: Final = f"""
SELECT {_COLUMNS} FROM accounts WHERE id = $1
"""
_BY_ID_LOCKED: Final = _BY_ID + "FOR NO KEY UPDATE"
_BY_IDS: Final = f"""
SELECT {_COLUMNS} FROM accounts WHERE id = ANY($1::uuid[])
"""
_BY_NAME: Final = f"""
SELECT {_COLUMNS} FROM accounts WHERE lower(name) = lower($1)
"""
_LIST: Final = f"""
SELECT {_COLUMNS} FROM accounts WHERE lower(name) > lower($1) ORDER BY lower(name) LIMIT $2
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
# The operator who resumes it has seen its reputation, which is counted from then on.
_RESUME: Final = """
WITH ended AS (
    UPDATE suspensions SET ended_at = greatest(started_at, $2) WHERE account_id = $1 AND ended_at IS NULL
)
UPDATE accounts SET suspended_at = NULL, suspended_reason = NULL, reputation_since = $2 WHERE id = $1
"""

# A closed account stays suspended: without that, its mail would be sent.
_CLOSE: Final = "UPDATE accounts SET closed_at = $2 WHERE id = $1"

_SET_LIMITS: Final = statement("""
UPDATE accounts SET rate_per_second = :rate_per_second, rate_burst = :rate_burst, warmup_exempt = :warmup_exempt,
    warmup_limits = :warmup_limits
WHERE id = :account_id
""")

_GRANT: Final = statement("""
INSERT INTO credit_grants (account_id, id, amount, reason, at, key)
VALUES (:account_id, :grant_id, :amount, :reason, :now, :key)
""")
_GRANT_WITH_KEY: Final = "SELECT amount, reason FROM credit_grants WHERE account_id = $1 AND key = $2"
_ADD: Final = "UPDATE accounts SET available = available + $2 WHERE id = $1 RETURNING available"
_GRANTED: Final = "SELECT coalesce(sum(amount), 0)::bigint FROM credit_grants WHERE account_id = $1"

# Messages are deleted after some weeks, but days of usage are not: they show that mail was sent before. Of such an
# account, and of one with more messages than are read, it isn't known whether one was to its owner. The last use of a
# key is written once a minute; a message shows it immediately.
_STEPS: Final = statement(f"""
WITH first_messages AS MATERIALIZED (
    SELECT source, credits_reserved, created_at FROM messages WHERE account_id = :account_id
    ORDER BY id LIMIT {_MESSAGES_READ_MAX}
)
SELECT
    coalesce(
        (SELECT min(created_at) FROM first_messages WHERE source = 'test' AND credits_reserved > 0),
        (SELECT min(day)::timestamp AT TIME ZONE 'UTC' FROM usage_days WHERE account_id = :account_id AND accepted > 0
            AND (day + 1)::timestamp AT TIME ZONE 'UTC'
                <= coalesce((SELECT min(created_at) FROM first_messages), 'infinity')),
        (SELECT min(created_at) FROM first_messages HAVING count(*) = {_MESSAGES_READ_MAX})
    ) AS test_mail,
    (SELECT min(verified_at) FROM domains WHERE account_id = :account_id AND shared_from IS NULL) AS domain_verified,
    (SELECT min(created_at) FROM api_keys WHERE account_id = :account_id) AS key_created,
    least(
        (SELECT min(created_at) FROM first_messages WHERE source <> 'test' OR credits_reserved = 0),
        (SELECT min(last_used_at) FROM api_keys WHERE account_id = :account_id),
        (SELECT min(last_used_at) FROM credentials WHERE account_id = :account_id)) AS first_request,
    (SELECT min(created_at) FROM endpoints WHERE account_id = :account_id) AS webhook_saved,
    (SELECT min(answered_at) FROM endpoints WHERE account_id = :account_id) AS webhook_answered,
    (SELECT confirmed_at FROM second_factors WHERE user_id = :user_id) AS second_factor,
    least(
        (SELECT min(created_at) FROM invitations WHERE account_id = :account_id),
        (SELECT created_at FROM memberships WHERE account_id = :account_id ORDER BY created_at OFFSET 1 LIMIT 1)
    ) AS member_invited
""")


async def insert(tx: Connection, account_id: AccountId, name: str, now: datetime) -> AccountRow | None:
    """None if the name is taken, ignoring case."""
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
    """The account, locked: it stays as it is until the transaction ends."""
    return _account(required(await tx.fetchrow(_BY_ID_LOCKED, account_id)))


async def page(connection: Connection, after: str, limit: int) -> list[AccountRow]:
    """The accounts after this name, in the order of their names."""
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
    """Amount and reason of the grant that was made with this key."""
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
    """Add the grant and change the balance by it; return the new balance.

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
    """Change the name for its members; the name that commands take stays the same."""
    await tx.execute(_RENAME, account_id, display_name)
    await touch(tx, account_id, now)


async def requires_totp(connection: Connection, account_id: AccountId) -> bool:
    """Whether its members need a second factor."""
    return bool(await connection.fetchval(_REQUIRES_TOTP, account_id))


async def require_totp(tx: Connection, account_id: AccountId, is_required: bool, now: datetime) -> None:
    await tx.execute(_REQUIRE_TOTP, account_id, is_required)
    await touch(tx, account_id, now)


async def steps_done(tx: Connection, account_id: AccountId, user_id: UserId) -> Mapping[Step, datetime | None]:
    """When each first step was done, from the tables of each; the second factor is the user's own."""
    await backlog.disable_bitmap_scans(tx)
    row = required(await tx.fetchrow(*_STEPS.bind(account_id=account_id, user_id=user_id)))
    return {step: row[step.value] for step in Step}


def _account(row: Row) -> AccountRow:
    values = dict(row)
    limits = values.pop("warmup_limits")
    return AccountRow(**values, warmup_limits=None if limits is None else tuple(limits))
