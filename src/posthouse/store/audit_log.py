"""The log of changes: who changed what in an account, written in the transaction that changes it."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Final
from uuid import UUID

from posthouse.rules.actor import Actor
from posthouse.rules.ids import AccountId
from posthouse.store.postgres import Connection

_NOTE: Final = """
INSERT INTO audit_log (account_id, id, at, user_id, actor, action, target, detail)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8::jsonb)
"""

Detail = Mapping[str, str | int | bool | None]


async def note(
    tx: Connection,
    account_id: AccountId,
    entry_id: UUID,
    actor: Actor,
    action: str,
    target: str,
    now: datetime,
    detail: Detail | None = None,
) -> None:
    """`action` is what was done (`domain.added`), `target` to what (its name or id); secrets are in neither."""
    written = json.dumps(dict(detail or {}))
    await tx.execute(_NOTE, account_id, entry_id, now, actor.user_id, actor.name, action, target, written)
