"""The audit logs: who changed what, written in the transaction that changes it.

Each account has a log; the operator's log has the changes of the installation itself. What operators change in an
account is in that account's log; `newest_operator_entries` reads both.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from posthouse.rules import ids
from posthouse.rules.credential import Actor
from posthouse.rules.ids import AccountId, ApiKeyId
from posthouse.rules.search import AuditLogFilters
from posthouse.store.postgres import Connection, Row, row_count
from posthouse.store.statement import delete_some, statement

Detail = Mapping[str, str | int | bool | None]

EXAMINED_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class AuditLogEntry:
    """`action` is what was done (`domain.added`), `target` the name or id of its object; neither contains secrets."""

    id: UUID
    at: datetime
    actor: Actor
    action: str
    target: str
    detail: Detail


@dataclass(frozen=True, slots=True)
class OperatorLogEntry:
    """`account` is the name of the account that was changed, if one was."""

    entry: AuditLogEntry
    account: str | None


_ADD_ENTRY: Final = statement("""
INSERT INTO audit_log (account_id, id, at, user_id, actor, action, target, detail)
VALUES (:account_id, :id, :at, :user_id, :actor, :action, :target, :detail::jsonb)
""")

# A statement examines a bounded number of entries, whatever matches, and also returns the last that it examined.
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

# Half an hour has few entries. `until` names an impersonation: where two have the same end, both end together.
_IMPERSONATED: Final = statement("""
SELECT max(at) FROM audit_log began
WHERE account_id = :account_id AND id >= :lowest AND action = 'account.impersonated' AND NOT EXISTS (
    SELECT FROM audit_log ended WHERE ended.account_id = :account_id AND ended.id >= :lowest
        AND ended.action = 'account.impersonation_ended' AND ended.detail->>'until' = began.detail->>'until')
""")
_IS_IMPERSONATION_ENDED: Final = statement("""
SELECT EXISTS (
    SELECT FROM audit_log WHERE account_id = :account_id AND id >= :lowest
        AND action = 'account.impersonation_ended' AND detail->>'until' = :until)
""")

# An entry has the time of its key's id, so few are read. A rotation is an entry about the replaced key.
_KEYS_CREATED_BY: Final = """
SELECT key.name, entry.actor FROM unnest($2::text[], $3::uuid[], $4::uuid[]) key(name, lowest, before)
CROSS JOIN LATERAL (
    SELECT actor FROM audit_log WHERE account_id = $1 AND id >= key.lowest AND id < key.before
        AND (action = 'key.created' AND target = key.name
            OR action = 'key.rotated' AND detail->>'replaced_by' = key.name) LIMIT 1) entry
"""

_FORGET: Final = delete_some("audit_log", "account_id, id", "at < $1 ORDER BY at")

_ADD_OPERATOR_ENTRY: Final = statement("""
INSERT INTO operator_log (id, at, actor, action, target, detail)
VALUES (:id, :at, :actor, :action, :target, :detail::jsonb)
""")

# The index of operators' entries has these words in its condition.
_NEWEST_OPERATOR_ENTRIES: Final = """
SELECT changes.*, accounts.name AS account FROM (
    (SELECT id, at, actor, action, target, detail, NULL::uuid AS account_id FROM operator_log
     ORDER BY id DESC LIMIT $1)
    UNION ALL
    (SELECT id, at, actor, action, target, detail, account_id FROM audit_log
     WHERE user_id IS NULL AND actor = 'operator' ORDER BY id DESC LIMIT $1)) changes
LEFT JOIN accounts ON accounts.id = changes.account_id
ORDER BY changes.id DESC LIMIT $1
"""

_FORGET_OPERATOR_ENTRIES: Final = """
DELETE FROM operator_log WHERE id = ANY(ARRAY(
    SELECT id FROM operator_log WHERE id < $1 ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED)) RETURNING 1
"""


async def add_entry(tx: Connection, account_id: AccountId, entry: AuditLogEntry) -> None:
    user_id, actor = entry.actor.user_id, entry.actor.name
    written = json.dumps(dict(entry.detail))
    await tx.execute(*_ADD_ENTRY.bind_row(entry, account_id=account_id, user_id=user_id, actor=actor, detail=written))


def impersonation_detail(until: datetime) -> Detail:
    """Of the entries that begin and end an impersonation."""
    return {"until": until.isoformat(timespec="seconds")}


async def last_impersonated(connection: Connection, account_id: AccountId, since: datetime) -> datetime | None:
    """When the last impersonation of the account that was not ended began, if that was at or after `since`."""
    found: datetime | None = await connection.fetchval(
        *_IMPERSONATED.bind(account_id=account_id, lowest=ids.lowest_id(since))
    )
    return found


async def is_impersonation_ended(
    connection: Connection, account_id: AccountId, since: datetime, until: datetime
) -> bool:
    ended: bool = await connection.fetchval(
        *_IS_IMPERSONATION_ENDED.bind(account_id=account_id, lowest=ids.lowest_id(since), **impersonation_detail(until))
    )
    return ended


async def page(
    connection: Connection, account_id: AccountId, filters: AuditLogFilters, count: int
) -> tuple[list[AuditLogEntry], UUID | None]:
    """The newest first, from the entries that one step examines; and the id to continue from, None at the end."""
    rows = await connection.fetch(
        *_PAGE.bind_row(filters, account_id=account_id, limit=count, examined_max=EXAMINED_MAX)
    )
    reached: UUID | None = rows[0]["reached"] if rows[0]["is_cut"] else None
    return [_entry(row) for row in rows if row["id"] is not None], reached


async def keys_created_by(
    connection: Connection, account_id: AccountId, keys: Sequence[ApiKeyId]
) -> dict[ApiKeyId, str]:
    """Who created each key, as far as the log still knows."""
    names = {ids.text(ids.API_KEY, key): key for key in keys}
    lowest = [ids.lowest_id(ids.time_of(key)) for key in keys]
    before = [ids.lowest_id(ids.time_of(key) + timedelta(milliseconds=1)) for key in keys]
    rows = await connection.fetch(_KEYS_CREATED_BY, account_id, list(names), lowest, before)
    return {names[row["name"]]: row["actor"] for row in rows}


async def forget_old(tx: Connection, before: datetime, count_max: int) -> int:
    """Delete old entries of every account."""
    return row_count(await tx.execute(_FORGET, before, count_max))


async def add_operator_entry(tx: Connection, entry: AuditLogEntry) -> None:
    await tx.execute(
        *_ADD_OPERATOR_ENTRY.bind_row(entry, actor=entry.actor.name, detail=json.dumps(dict(entry.detail)))
    )


async def newest_operator_entries(connection: Connection, count: int) -> list[OperatorLogEntry]:
    return [
        OperatorLogEntry(
            AuditLogEntry(
                row["id"], row["at"], Actor(None, row["actor"]), row["action"], row["target"], json.loads(row["detail"])
            ),
            row["account"],
        )
        for row in await connection.fetch(_NEWEST_OPERATOR_ENTRIES, count)
    ]


async def forget_old_operator_entries(tx: Connection, before: datetime, count_max: int) -> int:
    return len(await tx.fetch(_FORGET_OPERATOR_ENTRIES, ids.lowest_id(before), count_max))


def _entry(row: Row) -> AuditLogEntry:
    actor = Actor(row["user_id"], row["actor"])
    return AuditLogEntry(row["id"], row["at"], actor, row["action"], row["target"], json.loads(row["detail"]))
