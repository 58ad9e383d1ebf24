"""Failed logins: how often a person at a network failed, or a user's codes, and until when that is blocked."""

from datetime import datetime, timedelta
from typing import Final

from posthouse.store.postgres import Connection

FAILURES_KEPT: Final = timedelta(days=1)
# Simultaneous tries reach the row in any order, from processes whose clocks differ: a try that blocks nothing is
# recorded a little earlier, or it would block those that are later by as little.
_AT_ONCE: Final = timedelta(seconds=5)

_BLOCKED_UNTIL: Final = "SELECT blocked_until FROM login_failures WHERE subject = $1"

# Whether the subject is blocked is judged under the row's lock, so that of many tries at once only the first passes.
_COUNT: Final = """
INSERT INTO login_failures (subject, count, blocked_until) VALUES ($1, 1, $2)
ON CONFLICT (subject) DO UPDATE
SET count = CASE WHEN login_failures.blocked_until < $3 THEN 1 ELSE login_failures.count + 1 END
WHERE login_failures.blocked_until <= $2
RETURNING count
"""

_BLOCK: Final = "UPDATE login_failures SET blocked_until = $2 WHERE subject = $1"
_CLEAR: Final = "DELETE FROM login_failures WHERE subject = $1"
_FORGET: Final = """
WITH old AS (
    SELECT subject FROM login_failures WHERE blocked_until < $1 LIMIT $2 FOR UPDATE SKIP LOCKED
), forgotten AS (
    DELETE FROM login_failures USING old WHERE login_failures.subject = old.subject RETURNING 1
)
SELECT count(*) FROM forgotten
"""


async def blocked_until(connection: Connection, subject: str) -> datetime | None:
    until: datetime | None = await connection.fetchval(_BLOCKED_UNTIL, subject)
    return until


async def count_try(tx: Connection, subject: str, now: datetime) -> int | None:
    """Count a try before it is judged, so that many at once are all counted; a success clears it.

    None when the subject is blocked: then nothing is counted. Until the transaction ends all other tries wait for it.
    """
    count: int | None = await tx.fetchval(_COUNT, subject, now, now - FAILURES_KEPT)
    return count


async def block(tx: Connection, subject: str, now: datetime, wait_seconds: int) -> None:
    until = now + timedelta(seconds=wait_seconds) if wait_seconds else now - _AT_ONCE
    await tx.execute(_BLOCK, subject, until)


async def clear(tx: Connection, subject: str) -> None:
    await tx.execute(_CLEAR, subject)


async def forget_old(tx: Connection, now: datetime, count_max: int) -> int:
    """Returns how many there were."""
    count: int = await tx.fetchval(_FORGET, now - FAILURES_KEPT, count_max)
    return count
