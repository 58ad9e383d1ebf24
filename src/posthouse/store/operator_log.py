"""The operator's log: what was changed in the installation itself, written in the transaction that changes it."""

import json
from typing import Final

from posthouse.rules.actor import Actor
from posthouse.store.audit_log import AuditLogEntry
from posthouse.store.postgres import Connection
from posthouse.store.statement import statement

_NOTE: Final = statement("""
INSERT INTO operator_log (id, at, actor, action, target, detail)
VALUES (:id, :at, :actor, :action, :target, :detail::jsonb)
""")

_NEWEST: Final = "SELECT id, at, actor, action, target, detail FROM operator_log ORDER BY id DESC LIMIT $1"


async def note(tx: Connection, entry: AuditLogEntry) -> None:
    await tx.execute(
        *_NOTE.bind(
            id=entry.id,
            at=entry.at,
            actor=entry.actor.name,
            action=entry.action,
            target=entry.target,
            detail=json.dumps(dict(entry.detail)),
        )
    )


async def newest(connection: Connection, count: int) -> list[AuditLogEntry]:
    return [
        AuditLogEntry(
            row["id"], row["at"], Actor(None, row["actor"]), row["action"], row["target"], json.loads(row["detail"])
        )
        for row in await connection.fetch(_NEWEST, count)
    ]
