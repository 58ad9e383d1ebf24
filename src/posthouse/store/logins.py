"""Failed logins, password resets, login links, and the places that users logged in from."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from posthouse.rules.ids import UserId
from posthouse.rules.login import LoginLocation
from posthouse.store.postgres import Connection, row_count
from posthouse.store.statement import delete_some, statement

# Failed logins: how often a person from a network failed, or a user's codes, and until when logins are blocked.

FAILURES_KEPT: Final = timedelta(days=1)
# Simultaneous tries reach the row in any order, from processes whose clocks differ: a try that blocks nothing is
# recorded a little earlier, or it would block tries that come only a little later.
_NO_WAIT: Final = timedelta(seconds=5)

_BLOCKED_UNTIL: Final = "SELECT blocked_until FROM login_failures WHERE subject = $1"

# Whether the subject is blocked is decided under the row's lock, so that of many simultaneous tries only one passes.
_COUNT_TRY: Final = """
INSERT INTO login_failures (subject, count, blocked_until) VALUES ($1, 1, $2)
ON CONFLICT (subject) DO UPDATE
SET count = CASE WHEN login_failures.blocked_until < $3 THEN 1 ELSE login_failures.count + 1 END
WHERE login_failures.blocked_until <= $2
RETURNING count
"""

_BLOCK: Final = "UPDATE login_failures SET blocked_until = $2 WHERE subject = $1"
_CLEAR_FAILURES: Final = "DELETE FROM login_failures WHERE subject = $1"
_FORGET_FAILURES: Final = delete_some("login_failures", "subject", "blocked_until < $1")


async def blocked_until(connection: Connection, subject: str) -> datetime | None:
    until: datetime | None = await connection.fetchval(_BLOCKED_UNTIL, subject)
    return until


async def count_try(tx: Connection, subject: str, now: datetime) -> int | None:
    """Count a try before it is checked, so that many simultaneous ones are all counted; a success clears the count.

    None if the subject is blocked: then nothing is counted. All other tries wait until the transaction ends.
    """
    count: int | None = await tx.fetchval(_COUNT_TRY, subject, now, now - FAILURES_KEPT)
    return count


async def block_logins(tx: Connection, subject: str, now: datetime, wait_seconds: int) -> None:
    until = now + timedelta(seconds=wait_seconds) if wait_seconds else now - _NO_WAIT
    await tx.execute(_BLOCK, subject, until)


async def clear_failures(tx: Connection, subject: str) -> None:
    await tx.execute(_CLEAR_FAILURES, subject)


async def forget_old_failures(tx: Connection, now: datetime, count_max: int) -> int:
    """Returns how many were deleted."""
    return row_count(await tx.execute(_FORGET_FAILURES, now - FAILURES_KEPT, count_max))


# Open password resets; the token itself is never stored.

# A user has at most one: a new one replaces it.
_BEGIN_RESET: Final = """
INSERT INTO password_resets (user_id, token_hash, expires_at) VALUES ($1, $2, $3)
ON CONFLICT (user_id) DO UPDATE SET token_hash = excluded.token_hash, expires_at = excluded.expires_at
"""
_FIND_RESET: Final = "SELECT user_id FROM password_resets WHERE token_hash = ANY($1::bytea[]) AND expires_at > $2"
_USE_RESET: Final = "DELETE FROM password_resets WHERE user_id = $1 AND token_hash = ANY($2::bytea[]) RETURNING user_id"
_FORGET_RESETS: Final = delete_some("password_resets", "user_id", "expires_at <= $1")


async def begin_reset(tx: Connection, user_id: UserId, token_hash: bytes, expires_at: datetime) -> None:
    await tx.execute(_BEGIN_RESET, user_id, token_hash, expires_at)


async def find_open_reset(connection: Connection, token_hashes: Sequence[bytes], now: datetime) -> UserId | None:
    found: UserId | None = await connection.fetchval(_FIND_RESET, token_hashes, now)
    return found


async def use_reset(tx: Connection, user_id: UserId, token_hashes: Sequence[bytes]) -> bool:
    """False if it was used or replaced."""
    return await tx.fetchval(_USE_RESET, user_id, token_hashes) is not None


async def forget_expired_resets(tx: Connection, now: datetime, count_max: int) -> int:
    return row_count(await tx.execute(_FORGET_RESETS, now, count_max))


# Links that log a user in once; the token itself is never stored.

# Adding a link deletes expired ones, since no other work cleans up this table.
_ADD_LINK: Final = """
WITH ended AS (DELETE FROM login_links WHERE expires_at <= $4)
INSERT INTO login_links (token_hash, user_id, expires_at) VALUES ($1, $2, $3)
"""
_FIND_LINK: Final = "SELECT user_id FROM login_links WHERE token_hash = ANY($1::bytea[]) AND expires_at > $2"
_USE_LINK: Final = "DELETE FROM login_links WHERE token_hash = ANY($1::bytea[]) RETURNING user_id"
_FORGET_LINKS: Final = "DELETE FROM login_links WHERE user_id = $1"


async def add_link(tx: Connection, token_hash: bytes, user_id: UserId, *, expires_at: datetime, now: datetime) -> None:
    await tx.execute(_ADD_LINK, token_hash, user_id, expires_at, now)


async def find_open_link(connection: Connection, token_hashes: Sequence[bytes], now: datetime) -> UserId | None:
    found: UserId | None = await connection.fetchval(_FIND_LINK, token_hashes, now)
    return found


async def use_link(tx: Connection, token_hashes: Sequence[bytes]) -> bool:
    """False if it was used already."""
    return await tx.fetchval(_USE_LINK, token_hashes) is not None


async def forget_links_of_user(tx: Connection, user_id: UserId) -> None:
    await tx.execute(_FORGET_LINKS, user_id)


# Places that users logged in from: a few for each user, the latest.


class SeenLocation(StrEnum):
    FIRST = "first"  # the user's first login
    BEFORE = "before"
    NEW = "new"


# The user's row is locked: of two simultaneous logins the second sees the place of the first.
_LOCK_USER: Final = "SELECT 1 FROM users WHERE id = $1 FOR NO KEY UPDATE"
_LOCATION_SEEN_AGAIN: Final = statement("""
UPDATE known_login_locations SET last_at = greatest(last_at, :now)
WHERE user_id = :user_id AND network = :network AND program = :program AND last_at < :seen_before
""")
_IS_KNOWN_LOCATION: Final = (
    "SELECT EXISTS (SELECT FROM known_login_locations WHERE user_id = $1 AND network = $2 AND program = $3)"
)
_HAS_LOCATION: Final = "SELECT EXISTS (SELECT FROM known_login_locations WHERE user_id = $1)"
_ADD_LOCATION: Final = statement("""
INSERT INTO known_login_locations (user_id, network, program, last_at) VALUES (:user_id, :network, :program, :now)
""")
# Places with a recent notice stay, since notices are counted.
_TRIM_LOCATIONS: Final = statement("""
DELETE FROM known_login_locations WHERE user_id = :user_id AND (network, program) NOT IN (
    SELECT network, program FROM known_login_locations WHERE user_id = :user_id
    ORDER BY coalesce(notified_at > :notified_after, false) DESC, last_at DESC LIMIT :kept_max)
""")
_MARK_NOTIFIED: Final = statement("""
UPDATE known_login_locations SET notified_at = :now
WHERE user_id = :user_id AND network = :network AND program = :program AND (
    SELECT count(*) FROM known_login_locations WHERE user_id = :user_id
        AND notified_at > :notified_after) < :notices_max
RETURNING 1
""")


async def is_known_location(connection: Connection, user_id: UserId, place: LoginLocation) -> bool:
    known: bool = await connection.fetchval(_IS_KNOWN_LOCATION, user_id, *place)
    return known


async def note_location(
    tx: Connection, user_id: UserId, place: LoginLocation, now: datetime, *, seen_again_after: timedelta
) -> SeenLocation:
    """Whether the user had logged in from this place before; the place is stored."""
    given = {"user_id": user_id, "network": place.network, "program": place.program, "now": now}
    if await is_known_location(tx, user_id, place):
        await tx.execute(*_LOCATION_SEEN_AGAIN.bind(**given, seen_before=now - seen_again_after))
        return SeenLocation.BEFORE
    await tx.execute(_LOCK_USER, user_id)
    if await is_known_location(tx, user_id, place):
        return SeenLocation.BEFORE
    is_first = not await tx.fetchval(_HAS_LOCATION, user_id)
    await tx.execute(*_ADD_LOCATION.bind(**given))
    return SeenLocation.FIRST if is_first else SeenLocation.NEW


async def mark_location_notified(
    tx: Connection, user_id: UserId, place: LoginLocation, now: datetime, *, notified_after: datetime, notices_max: int
) -> bool:
    """Whether the user is to be notified of this place: at most this many times since then."""
    return (
        await tx.fetchval(
            *_MARK_NOTIFIED.bind(
                user_id=user_id,
                network=place.network,
                program=place.program,
                now=now,
                notified_after=notified_after,
                notices_max=notices_max,
            )
        )
        is not None
    )


async def trim_locations(tx: Connection, user_id: UserId, kept_max: int, *, notified_after: datetime) -> None:
    """Delete all but the latest places, and those of which the user was notified since then."""
    await tx.execute(*_TRIM_LOCATIONS.bind(user_id=user_id, kept_max=kept_max, notified_after=notified_after))
