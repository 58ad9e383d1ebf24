"""Standings of lanes, and the lessons that changed them."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from posthouse.rules import standing as rules
from posthouse.rules.standing import Branch, Lesson, LessonKind, Place, Refused, Standing
from posthouse.store.postgres import Connection, storable
from posthouse.store.statement import statement

REPLY_CHARACTERS_MAX: Final = 1000
READ_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class StoredStanding:
    """`version` is raised by each change."""

    place: Place
    standing: Standing
    version: int
    changed_at: datetime


@dataclass(frozen=True, slots=True)
class StoredLesson:
    id: int
    lesson: Lesson


_CHANGED: Final = "SELECT ip, lane, standing, version, changed_at FROM standings WHERE changed_at > $1 LIMIT $2"

# IS TRUE keeps it from becoming a join, which would compare each row with each name; so the names are hashed.
_OF_LANES: Final = """
SELECT ip, lane, standing, version, changed_at FROM standings WHERE (lane IN (SELECT unnest($1::text[]))) IS TRUE
ORDER BY lane, ip LIMIT $2
"""

# Version 0: of two workers that are first at once, the second finds the row of the first, changed.
_BEGIN: Final = statement("""
INSERT INTO standings (ip, lane, standing, version, changed_at)
SELECT ip, lane, '{}', 0, :now FROM unnest(:ips::text[], :lanes::text[]) place (ip, lane)
ORDER BY ip, lane ON CONFLICT DO NOTHING
""")

_LOCK: Final = statement("""
SELECT ip, lane, standing, version, changed_at FROM standings
WHERE (ip, lane) IN (SELECT * FROM unnest(:ips::text[], :lanes::text[]))
ORDER BY ip, lane FOR UPDATE
""")

_CHANGE: Final = statement("""
UPDATE standings SET standing = change.standing, version = version + 1, changed_at = :now
FROM unnest(:ips::text[], :lanes::text[], :standings::jsonb[]) change (ip, lane, standing)
WHERE standings.ip = change.ip AND standings.lane = change.lane
""")

_RECORD: Final = statement("""
INSERT INTO lessons (at, ip, lane, kind, scope, before, after, until, cause, reply, message_id)
SELECT * FROM unnest(:at::timestamptz[], :ips::text[], :lanes::text[], :kinds::text[], :scopes::text[],
    :before::jsonb[], :after::jsonb[], :until::timestamptz[], :causes::text[], :replies::text[], :message_ids::uuid[])
""")

_LOG: Final = statement("""
SELECT id, at, ip, lane, kind, before, after, scope, cause, reply, message_id FROM lessons
WHERE (:lane::text IS NULL OR lane = :lane) ORDER BY id DESC LIMIT :count
""")

_LESSON: Final = """
SELECT id, at, ip, lane, kind, before, after, scope, cause, reply, message_id FROM lessons WHERE id = $1
"""

_STOPPING: Final = statement("""
SELECT id, at, ip, lane, kind, before, after, scope, cause, reply, message_id FROM lessons
WHERE lane = ANY(:lanes::text[]) AND until > :now AND (left(ip, 1) <> '@' OR ip = '@' || lower(:domain))
    AND (position('>' IN ip) = 0 OR right(ip, length(:branch) + 1) = '>' || :branch)
    AND EXISTS (SELECT FROM standings WHERE standings.ip = lessons.ip AND standings.lane = lessons.lane
        AND (standings.standing ->> 'paused_until')::timestamptz > :now)
ORDER BY id DESC LIMIT 1
""")

_FORGET_LESSONS: Final = """
DELETE FROM lessons WHERE id = ANY(ARRAY(SELECT id FROM lessons WHERE at < $1 ORDER BY at LIMIT $2))
"""

_FORGET_STANDINGS: Final = """
DELETE FROM standings WHERE (ip, lane) IN (
    SELECT ip, lane FROM standings WHERE changed_at < $1 AND NOT coalesce((standing ->> 'is_pinned')::boolean, false)
    ORDER BY changed_at LIMIT $2)
"""


async def changed_after(connection: Connection, since: datetime) -> list[StoredStanding]:
    return [_standing(row) for row in await connection.fetch(_CHANGED, since, READ_MAX)]


async def of_lanes(connection: Connection, lanes: Sequence[str]) -> list[StoredStanding]:
    return [_standing(row) for row in await connection.fetch(_OF_LANES, lanes, READ_MAX)]


async def locked(tx: Connection, places: Collection[Place], now: datetime) -> dict[Place, StoredStanding | None]:
    """The places' standings, which no other changes before the end of the transaction; None where there was none."""
    ordered = sorted(places)
    given = {"ips": [place.ip for place in ordered], "lanes": [place.lane for place in ordered]}
    await tx.execute(*_BEGIN.bind(**given, now=now))
    found: dict[Place, StoredStanding | None] = dict.fromkeys(ordered)
    for row in await tx.fetch(*_LOCK.bind(**given)):
        found[Place(row["ip"], row["lane"])] = _standing(row) if row["version"] else None
    return found


async def change(tx: Connection, standings: dict[Place, Standing], now: datetime) -> None:
    """Of places that are locked."""
    await tx.execute(
        *_CHANGE.bind(
            ips=[place.ip for place in standings],
            lanes=[place.lane for place in standings],
            standings=[json.dumps(rules.stored(standing)) for standing in standings.values()],
            now=now,
        )
    )


async def record(tx: Connection, lessons: Sequence[Lesson]) -> None:
    await tx.execute(
        *_RECORD.bind(
            at=[lesson.at for lesson in lessons],
            ips=[lesson.place.ip for lesson in lessons],
            lanes=[lesson.place.lane for lesson in lessons],
            kinds=[lesson.kind for lesson in lessons],
            scopes=[lesson.refused.scope for lesson in lessons],
            before=[json.dumps(rules.stored(lesson.before)) for lesson in lessons],
            after=[json.dumps(rules.stored(lesson.after)) for lesson in lessons],
            until=[lesson.until for lesson in lessons],
            causes=[lesson.refused.cause for lesson in lessons],
            replies=[storable(lesson.refused.reply, REPLY_CHARACTERS_MAX) for lesson in lessons],
            message_ids=[lesson.refused.message_id for lesson in lessons],
        )
    )


async def log(connection: Connection, lane: str | None, count: int) -> list[StoredLesson]:
    """The latest lessons, of a lane or of all."""
    return [_lesson(row) for row in await connection.fetch(*_LOG.bind(lane=lane, count=count))]


async def lesson(connection: Connection, lesson_id: int) -> StoredLesson | None:
    row = await connection.fetchrow(_LESSON, lesson_id)
    return None if row is None else _lesson(row)


async def stopping(
    connection: Connection, lanes: Collection[str], domain: str, branch: Branch, now: datetime
) -> StoredLesson | None:
    """The latest lesson that stops one of these lanes now, or in it the mail of this From domain, or this branch."""
    row = await connection.fetchrow(*_STOPPING.bind(lanes=list(lanes), domain=domain, branch=branch.name, now=now))
    return None if row is None else _lesson(row)


async def forget_lessons(tx: Connection, before: datetime, count: int) -> int:
    return _count(await tx.execute(_FORGET_LESSONS, before, count))


async def forget_standings(tx: Connection, unchanged_since: datetime, count: int) -> int:
    """A lane that has not changed for so long begins anew, unless an operator pinned it."""
    return _count(await tx.execute(_FORGET_STANDINGS, unchanged_since, count))


def _count(tag: str) -> int:
    return int(tag.rpartition(" ")[2])


def _standing(row: Any) -> StoredStanding:
    place = Place(row["ip"], row["lane"])
    return StoredStanding(place, rules.restored(json.loads(row["standing"])), row["version"], row["changed_at"])


def _lesson(row: Any) -> StoredLesson:
    before, after = (rules.restored(json.loads(row[name])) for name in ("before", "after"))
    refused = Refused(row["cause"], row["reply"], row["scope"], row["message_id"])
    made = Lesson(row["at"], Place(row["ip"], row["lane"]), LessonKind(row["kind"]), before, after, refused)
    return StoredLesson(row["id"], made)
