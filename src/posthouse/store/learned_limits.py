"""Learned limits of lanes, and the history of their changes."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from posthouse.rules import learned_limits as rules
from posthouse.rules.learned_limits import Branch, LaneScope, LearnedLimits, LimitChange, LimitChangeKind, Refused
from posthouse.store.postgres import Connection, row_count, storable
from posthouse.store.statement import statement

REPLY_CHARACTERS_MAX: Final = 1000
READ_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class StoredLearnedLimits:
    """`version` is raised by each change."""

    scope: LaneScope
    limits: LearnedLimits
    version: int
    changed_at: datetime


@dataclass(frozen=True, slots=True)
class StoredLimitChange:
    id: int
    change: LimitChange


_CHANGED: Final = "SELECT ip, lane, limits, version, changed_at FROM learned_limits WHERE changed_at > $1 LIMIT $2"

# IS TRUE keeps it from becoming a join, which would compare each row with each name; so the names are hashed.
_OF_LANES: Final = """
SELECT ip, lane, limits, version, changed_at FROM learned_limits WHERE (lane IN (SELECT unnest($1::text[]))) IS TRUE
ORDER BY lane, ip LIMIT $2
"""

# Version 0: of two workers that are first at the same time, the second finds the changed row of the first.
_BEGIN: Final = statement("""
INSERT INTO learned_limits (ip, lane, limits, version, changed_at)
SELECT ip, lane, '{}', 0, :now FROM unnest(:ips::text[], :lanes::text[]) place (ip, lane)
ORDER BY ip, lane ON CONFLICT DO NOTHING
""")

_LOCK: Final = statement("""
SELECT ip, lane, limits, version, changed_at FROM learned_limits
WHERE (ip, lane) IN (SELECT * FROM unnest(:ips::text[], :lanes::text[]))
ORDER BY ip, lane FOR UPDATE
""")

_CHANGE: Final = statement("""
UPDATE learned_limits SET limits = change.limits, version = version + 1, changed_at = :now
FROM unnest(:ips::text[], :lanes::text[], :limits::jsonb[]) change (ip, lane, limits)
WHERE learned_limits.ip = change.ip AND learned_limits.lane = change.lane
""")

_RECORD: Final = statement("""
INSERT INTO limit_changes (at, ip, lane, kind, scope, before, after, until, cause, reply, message_id)
SELECT * FROM unnest(:at::timestamptz[], :ips::text[], :lanes::text[], :kinds::text[], :scopes::text[],
    :before::jsonb[], :after::jsonb[], :until::timestamptz[], :causes::text[], :replies::text[], :message_ids::uuid[])
""")

_LOG: Final = statement("""
SELECT id, at, ip, lane, kind, before, after, scope, cause, reply, message_id FROM limit_changes
WHERE (:lane::text IS NULL OR lane = :lane) ORDER BY id DESC LIMIT :count
""")

_LIMIT_CHANGE: Final = """
SELECT id, at, ip, lane, kind, before, after, scope, cause, reply, message_id FROM limit_changes WHERE id = $1
"""

_STOPPING: Final = statement("""
SELECT id, at, ip, lane, kind, before, after, scope, cause, reply, message_id FROM limit_changes
WHERE lane = ANY(:lanes::text[]) AND until > :now AND (left(ip, 1) <> '@' OR ip = '@' || lower(:domain))
    AND (position('>' IN ip) = 0 OR right(ip, length(:branch) + 1) = '>' || :branch)
    AND EXISTS (SELECT FROM learned_limits WHERE learned_limits.ip = limit_changes.ip
        AND learned_limits.lane = limit_changes.lane
        AND (learned_limits.limits ->> 'paused_until')::timestamptz > :now)
ORDER BY id DESC LIMIT 1
""")

_FORGET_LIMIT_CHANGES: Final = """
DELETE FROM limit_changes WHERE id = ANY(ARRAY(SELECT id FROM limit_changes WHERE at < $1 ORDER BY at LIMIT $2))
"""

_FORGET_LEARNED_LIMITS: Final = """
DELETE FROM learned_limits WHERE (ip, lane) IN (
    SELECT ip, lane FROM learned_limits WHERE changed_at < $1 AND NOT coalesce((limits ->> 'is_pinned')::boolean, false)
    ORDER BY changed_at LIMIT $2)
"""


async def changed_after(connection: Connection, since: datetime) -> list[StoredLearnedLimits]:
    return [_learned_limits(row) for row in await connection.fetch(_CHANGED, since, READ_MAX)]


async def of_lanes(connection: Connection, lanes: Sequence[str]) -> list[StoredLearnedLimits]:
    return [_learned_limits(row) for row in await connection.fetch(_OF_LANES, lanes, READ_MAX)]


async def locked(
    tx: Connection, scopes: Collection[LaneScope], now: datetime
) -> dict[LaneScope, StoredLearnedLimits | None]:
    """The scopes' learned limits, locked until the end of the transaction; None where there were none."""
    ordered = sorted(scopes)
    given = {"ips": [scope.ip for scope in ordered], "lanes": [scope.lane for scope in ordered]}
    await tx.execute(*_BEGIN.bind(**given, now=now))
    found: dict[LaneScope, StoredLearnedLimits | None] = dict.fromkeys(ordered)
    for row in await tx.fetch(*_LOCK.bind(**given)):
        found[LaneScope(row["ip"], row["lane"])] = _learned_limits(row) if row["version"] else None
    return found


async def change(tx: Connection, learned_limits: dict[LaneScope, LearnedLimits], now: datetime) -> None:
    """Store the limits of locked scopes."""
    await tx.execute(
        *_CHANGE.bind(
            ips=[scope.ip for scope in learned_limits],
            lanes=[scope.lane for scope in learned_limits],
            limits=[json.dumps(rules.stored(learned)) for learned in learned_limits.values()],
            now=now,
        )
    )


async def record(tx: Connection, limit_changes: Sequence[LimitChange]) -> None:
    await tx.execute(
        *_RECORD.bind(
            at=[limit_change.at for limit_change in limit_changes],
            ips=[limit_change.scope.ip for limit_change in limit_changes],
            lanes=[limit_change.scope.lane for limit_change in limit_changes],
            kinds=[limit_change.kind for limit_change in limit_changes],
            scopes=[limit_change.refused.scope for limit_change in limit_changes],
            before=[json.dumps(rules.stored(limit_change.before)) for limit_change in limit_changes],
            after=[json.dumps(rules.stored(limit_change.after)) for limit_change in limit_changes],
            until=[limit_change.until for limit_change in limit_changes],
            causes=[limit_change.refused.cause for limit_change in limit_changes],
            replies=[storable(limit_change.refused.reply, REPLY_CHARACTERS_MAX) for limit_change in limit_changes],
            message_ids=[limit_change.refused.message_id for limit_change in limit_changes],
        )
    )


async def log(connection: Connection, lane: str | None, count: int) -> list[StoredLimitChange]:
    """The latest limit changes, of one lane or of all."""
    return [_limit_change(row) for row in await connection.fetch(*_LOG.bind(lane=lane, count=count))]


async def limit_change(connection: Connection, limit_change_id: int) -> StoredLimitChange | None:
    row = await connection.fetchrow(_LIMIT_CHANGE, limit_change_id)
    return None if row is None else _limit_change(row)


async def stopping(
    connection: Connection, lanes: Collection[str], domain: str, branch: Branch, now: datetime
) -> StoredLimitChange | None:
    """The latest limit change that stops one of these lanes now, or there this From domain, or this branch."""
    row = await connection.fetchrow(*_STOPPING.bind(lanes=list(lanes), domain=domain, branch=branch.name, now=now))
    return None if row is None else _limit_change(row)


async def forget_limit_changes(tx: Connection, before: datetime, count: int) -> int:
    return row_count(await tx.execute(_FORGET_LIMIT_CHANGES, before, count))


async def forget_learned_limits(tx: Connection, unchanged_since: datetime, count: int) -> int:
    """Forget lanes that have not changed for this long, unless an operator pinned them."""
    return row_count(await tx.execute(_FORGET_LEARNED_LIMITS, unchanged_since, count))


def _learned_limits(row: Any) -> StoredLearnedLimits:
    scope = LaneScope(row["ip"], row["lane"])
    return StoredLearnedLimits(scope, rules.restored(json.loads(row["limits"])), row["version"], row["changed_at"])


def _limit_change(row: Any) -> StoredLimitChange:
    before, after = (rules.restored(json.loads(row[name])) for name in ("before", "after"))
    refused = Refused(row["cause"], row["reply"], row["scope"], row["message_id"])
    made = LimitChange(
        row["at"], LaneScope(row["ip"], row["lane"]), LimitChangeKind(row["kind"]), before, after, refused
    )
    return StoredLimitChange(row["id"], made)
