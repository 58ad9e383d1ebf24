"""The audit log: who changed what, written in the transaction that changes it."""

from datetime import datetime

from posthouse.chance import Chance
from posthouse.flows.shared.new_id import new_id
from posthouse.rules.actor import Actor
from posthouse.rules.ids import AccountId
from posthouse.store import audit_log
from posthouse.store.audit_log import AuditLogEntry, Detail
from posthouse.store.postgres import Connection


class AuditLog:
    def __init__(self, chance: Chance) -> None:
        self._chance = chance

    async def note(
        self,
        tx: Connection,
        account_id: AccountId,
        actor: Actor,
        action: str,
        target: str,
        now: datetime,
        detail: Detail | None = None,
    ) -> None:
        entry_id = new_id(self._chance, now)
        await audit_log.note(tx, account_id, AuditLogEntry(entry_id, now, actor, action, target, detail or {}))
