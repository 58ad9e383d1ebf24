"""The audit log: who changed what in an account, written in the transaction that changes it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from posthouse.rules import ids
from posthouse.rules.actor import Actor
from posthouse.rules.audit_log_filters import AuditLogFilters
from posthouse.rules.ids import AccountId
from posthouse.store.postgres import Connection, Row
from posthouse.store.statement import statement

_NOTE: Final = statement("""
INSERT INTO audit_log (account_id, id, at, user_id, actor, action, target, detail)
VALUES (:account_id, :id, :at, :user_id, :actor, :action, :target, :detail::jsonb)
""")

# Whatever matches, a statement examines a bounded number of entries; the last that it examined is there, too.
_PAGE: Final = statement("""
WITH examined AS MATERIALIZED (
    SELECT id, at, user_id, actor, action, target, detail FROM audit_log
    WHERE account_id = :account_id AND id >= :lowest AND id < :before ORDER BY id DESC LIMIT :examined_max
)
SELECT examined.*, (SELECT count(*) FROM examined) = :examined_max AS is_cut,
    (SELECT id FROM examined ORDER BY id LIMIT 1) AS reached
FROM (SELECT) whole LEFT JOIN examined
  ON (:kind::text IS NULL OR split_part(action, '.', 1) = :kind) AND (:action::text IS NULL OR action = :action)
 AND (:actor::text IS NULL OR lower(actor) = :actor) AND (:user_id::uuid IS NULL OR user_id = :user_id)
ORDER BY id DESC LIMIT :limit
""")

# There are few entries of half an hour.
_VISITED: Final = statement("""
SELECT max(at) FROM audit_log WHERE account_id = :account_id AND id >= :lowest AND action = 'account.visited'
""")

_FORGET: Final = """
WITH old AS (
    SELECT account_id, id FROM audit_log WHERE at < $1 ORDER BY at LIMIT $2 FOR UPDATE SKIP LOCKED
), forgotten AS (
    DELETE FROM audit_log USING old WHERE audit_log.account_id = old.account_id AND audit_log.id = old.id RETURNING 1
)
SELECT count(*) FROM forgotten
"""

Detail = Mapping[str, str | int | bool | None]

EXAMINED_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class AuditLogEntry:
    """`action` is what was done (`domain.added`), `target` to what (its name or id); secrets are in neither."""

    id: UUID
    at: datetime
    actor: Actor
    action: str
    target: str
    detail: Detail


async def note(tx: Connection, account_id: AccountId, entry: AuditLogEntry) -> None:
    user_id, actor = entry.actor.user_id, entry.actor.name
    written = json.dumps(dict(entry.detail))
    await tx.execute(
        *_NOTE.bind(
            account_id=account_id,
            id=entry.id,
            at=entry.at,
            user_id=user_id,
            actor=actor,
            action=entry.action,
            target=entry.target,
            detail=written,
        )
    )


async def last_visited(connection: Connection, account_id: AccountId, since: datetime) -> datetime | None:
    """When an operator last began to visit the account, if it was since then."""
    found: datetime | None = await connection.fetchval(
        *_VISITED.bind(account_id=account_id, lowest=ids.lowest_id(since))
    )
    return found


async def page(
    connection: Connection, account_id: AccountId, filters: AuditLogFilters, count: int
) -> tuple[list[AuditLogEntry], UUID | None]:
    """The newest first, of as many as one step examines; and the id to go on from, None at the end."""
    rows = await connection.fetch(
        *_PAGE.bind(
            account_id=account_id,
            lowest=filters.lowest,
            before=filters.before,
            kind=filters.kind,
            action=filters.action,
            actor=filters.actor,
            user_id=filters.user_id,
            limit=count,
            examined_max=EXAMINED_MAX,
        )
    )
    reached: UUID | None = rows[0]["reached"] if rows[0]["is_cut"] else None
    return [_entry(row) for row in rows if row["id"] is not None], reached


async def forget_old(tx: Connection, before: datetime, count_max: int) -> int:
    """Of every account."""
    count: int = await tx.fetchval(_FORGET, before, count_max)
    return count


def _entry(row: Row) -> AuditLogEntry:
    actor = Actor(row["user_id"], row["actor"])
    return AuditLogEntry(row["id"], row["at"], actor, row["action"], row["target"], json.loads(row["detail"]))
