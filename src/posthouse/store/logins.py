"""Logging in: whom an address names, and how often it was tried in vain."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from posthouse.rules.credential import Role
from posthouse.rules.ids import AccountId, UserId
from posthouse.store.postgres import Connection

FAILURES_KEPT: Final = timedelta(days=1)

_USER: Final = """
SELECT u.id, u.password_hash, m.account_id, m.role
FROM users u JOIN memberships m ON m.user_id = u.id
WHERE u.email = $1 ORDER BY m.created_at, m.account_id LIMIT 1
"""

_BLOCKED_UNTIL: Final = "SELECT blocked_until FROM login_failures WHERE subject = $1"

_COUNT: Final = """
INSERT INTO login_failures (subject, count, blocked_until) VALUES ($1, 1, $2)
ON CONFLICT (subject) DO UPDATE
SET count = CASE WHEN login_failures.blocked_until < $3 THEN 1 ELSE login_failures.count + 1 END
RETURNING count
"""

_BLOCK: Final = "UPDATE login_failures SET blocked_until = $2 WHERE subject = $1"
_FORGIVE: Final = """
UPDATE login_failures SET count = count - 1, blocked_until = $2 WHERE subject = $1 AND count > 1
"""
_CLEAR: Final = "DELETE FROM login_failures WHERE subject = $1"
_FORGET: Final = "DELETE FROM login_failures WHERE blocked_until < $1"


@dataclass(frozen=True, slots=True)
class Login:
    user_id: UserId
    password_hash: str
    account_id: AccountId
    role: Role


async def login_of(connection: Connection, email: str) -> Login | None:
    """The user of that address, with the account that they joined first."""
    row = await connection.fetchrow(_USER, email)
    return None if row is None else Login(row["id"], row["password_hash"], row["account_id"], Role(row["role"]))


async def blocked_until(connection: Connection, subject: str) -> datetime | None:
    until: datetime | None = await connection.fetchval(_BLOCKED_UNTIL, subject)
    return until


async def count_try(tx: Connection, subject: str, now: datetime) -> int:
    """Count a try before it is judged, so that many at once are all counted; a success clears it."""
    count: int = await tx.fetchval(_COUNT, subject, now, now - FAILURES_KEPT)
    return count


async def block(tx: Connection, subject: str, until: datetime) -> None:
    await tx.execute(_BLOCK, subject, until)


async def forgive(tx: Connection, subject: str, now: datetime) -> None:
    """Take one try back, and nothing of those before it."""
    await tx.execute(_FORGIVE, subject, now)


async def clear(tx: Connection, subject: str) -> None:
    await tx.execute(_CLEAR, subject)


async def forget_old(tx: Connection, now: datetime) -> None:
    await tx.execute(_FORGET, now - FAILURES_KEPT)
