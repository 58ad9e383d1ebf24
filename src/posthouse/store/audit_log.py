"""The audit log: who changed what in an account, written in the transaction that changes it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from posthouse.rules.actor import Actor
from posthouse.rules.ids import AccountId
from posthouse.store.postgres import Connection, Row
from posthouse.store.statement import statement

_NOTE: Final = statement("""
INSERT INTO audit_log (account_id, id, at, user_id, actor, action, target, detail)
VALUES (:account_id, :id, :at, :user_id, :actor, :action, :target, :detail::jsonb)
""")

_PAGE: Final = """
SELECT id, at, user_id, actor, action, target, detail FROM audit_log
WHERE account_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3
"""

_FORGET: Final = """
WITH old AS (
    SELECT account_id, id FROM audit_log WHERE at < $1 ORDER BY at LIMIT $2 FOR UPDATE SKIP LOCKED
), forgotten AS (
    DELETE FROM audit_log USING old WHERE audit_log.account_id = old.account_id AND audit_log.id = old.id RETURNING 1
)
SELECT count(*) FROM forgotten
"""

Detail = Mapping[str, str | int | bool | None]

# Above every id: where the newest page begins.
END: Final = UUID(int=2**128 - 1)


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


async def page(connection: Connection, account_id: AccountId, before: UUID, count: int) -> list[AuditLogEntry]:
    """The newest first."""
    return [_entry(row) for row in await connection.fetch(_PAGE, account_id, before, count)]


async def forget_old(tx: Connection, before: datetime, count_max: int) -> int:
    """Of every account."""
    count: int = await tx.fetchval(_FORGET, before, count_max)
    return count


def _entry(row: Row) -> AuditLogEntry:
    actor = Actor(row["user_id"], row["actor"])
    return AuditLogEntry(row["id"], row["at"], actor, row["action"], row["target"], json.loads(row["detail"]))
