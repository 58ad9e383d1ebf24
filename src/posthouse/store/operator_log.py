"""The operator's log: what was changed in the installation itself, written in the transaction that changes it.

What operators change in an account is in that account's audit log; `newest` reads both.
"""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from posthouse.rules import ids
from posthouse.rules.actor import Actor
from posthouse.store.audit_log import AuditLogEntry
from posthouse.store.postgres import Connection
from posthouse.store.statement import statement


@dataclass(frozen=True, slots=True)
class OperatorLogEntry:
    """`account` is the name of the account that was changed, if one was."""

    entry: AuditLogEntry
    account: str | None


_NOTE: Final = statement("""
INSERT INTO operator_log (id, at, actor, action, target, detail)
VALUES (:id, :at, :actor, :action, :target, :detail::jsonb)
""")

# The index of operators' entries has these words in its condition.
_NEWEST: Final = """
SELECT changes.*, accounts.name AS account FROM (
    (SELECT id, at, actor, action, target, detail, NULL::uuid AS account_id FROM operator_log
     ORDER BY id DESC LIMIT $1)
    UNION ALL
    (SELECT id, at, actor, action, target, detail, account_id FROM audit_log
     WHERE user_id IS NULL AND actor = 'operator' ORDER BY id DESC LIMIT $1)) changes
LEFT JOIN accounts ON accounts.id = changes.account_id
ORDER BY changes.id DESC LIMIT $1
"""

_FORGET: Final = """
DELETE FROM operator_log WHERE id = ANY(ARRAY(
    SELECT id FROM operator_log WHERE id < $1 ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED)) RETURNING 1
"""


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


async def newest(connection: Connection, count: int) -> list[OperatorLogEntry]:
    return [
        OperatorLogEntry(
            AuditLogEntry(
                row["id"], row["at"], Actor(None, row["actor"]), row["action"], row["target"], json.loads(row["detail"])
            ),
            row["account"],
        )
        for row in await connection.fetch(_NEWEST, count)
    ]


async def forget_old(tx: Connection, before: datetime, count_max: int) -> int:
    return len(await tx.fetch(_FORGET, ids.lowest_id(before), count_max))
