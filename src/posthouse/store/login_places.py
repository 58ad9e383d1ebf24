"""Places that users logged in from: a few for each user, the latest."""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from posthouse.rules.ids import UserId
from posthouse.rules.login_place import LoginPlace
from posthouse.store.postgres import Connection
from posthouse.store.statement import statement


class Seen(StrEnum):
    FIRST = "first"  # the user's first login
    BEFORE = "before"
    NEW = "new"


# The user's row: of two logins at once the second sees the place of the first.
_LOCK: Final = "SELECT 1 FROM users WHERE id = $1 FOR NO KEY UPDATE"
_SEEN_AGAIN: Final = statement("""
UPDATE login_places SET last_at = greatest(last_at, :now)
WHERE user_id = :user_id AND network = :network AND program = :program AND last_at < :seen_before
""")
_IS_KNOWN: Final = "SELECT EXISTS (SELECT FROM login_places WHERE user_id = $1 AND network = $2 AND program = $3)"
_IS_ANY: Final = "SELECT EXISTS (SELECT FROM login_places WHERE user_id = $1)"
_INSERT: Final = statement("""
INSERT INTO login_places (user_id, network, program, last_at) VALUES (:user_id, :network, :program, :now)
""")
# Those with a recent notice stay: they are counted.
_TRIM: Final = statement("""
DELETE FROM login_places WHERE user_id = :user_id AND (network, program) NOT IN (
    SELECT network, program FROM login_places WHERE user_id = :user_id
    ORDER BY coalesce(notified_at > :notified_after, false) DESC, last_at DESC LIMIT :kept_max)
""")
_NOTIFY: Final = statement("""
UPDATE login_places SET notified_at = :now
WHERE user_id = :user_id AND network = :network AND program = :program AND (
    SELECT count(*) FROM login_places WHERE user_id = :user_id AND notified_at > :notified_after) < :notices_max
RETURNING 1
""")


async def is_known(connection: Connection, user_id: UserId, place: LoginPlace) -> bool:
    known: bool = await connection.fetchval(_IS_KNOWN, user_id, *place)
    return known


async def note(
    tx: Connection, user_id: UserId, place: LoginPlace, now: datetime, *, seen_again_after: timedelta
) -> Seen:
    """Whether the user had logged in from there before; from now on they have."""
    given = {"user_id": user_id, "network": place.network, "program": place.program, "now": now}
    if await is_known(tx, user_id, place):
        await tx.execute(*_SEEN_AGAIN.bind(**given, seen_before=now - seen_again_after))
        return Seen.BEFORE
    await tx.execute(_LOCK, user_id)
    if await is_known(tx, user_id, place):
        return Seen.BEFORE
    is_first = not await tx.fetchval(_IS_ANY, user_id)
    await tx.execute(*_INSERT.bind(**given))
    return Seen.FIRST if is_first else Seen.NEW


async def mark_notified(
    tx: Connection, user_id: UserId, place: LoginPlace, now: datetime, *, notified_after: datetime, notices_max: int
) -> bool:
    """Whether the user is to be notified of this place: not more than so many times since then."""
    return (
        await tx.fetchval(
            *_NOTIFY.bind(
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


async def trim(tx: Connection, user_id: UserId, kept_max: int, *, notified_after: datetime) -> None:
    """Keep the latest; before them, those of which the user was notified since then."""
    await tx.execute(*_TRIM.bind(user_id=user_id, kept_max=kept_max, notified_after=notified_after))
