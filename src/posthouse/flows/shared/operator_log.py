"""The operator's log: what operators changed, written in the transaction that changes it."""

from datetime import datetime

from posthouse.chance import Chance
from posthouse.flows.shared.new_id import new_id
from posthouse.rules.actor import OPERATOR, Actor
from posthouse.store import operator_log
from posthouse.store.audit_log import AuditLogEntry, Detail
from posthouse.store.postgres import Connection


class OperatorLog:
    def __init__(self, chance: Chance, actor: Actor = OPERATOR) -> None:
        """`actor` is an operator who logged in, or who uses the command line."""
        self._chance = chance
        self._actor = actor

    async def note(self, tx: Connection, action: str, target: str, now: datetime, detail: Detail | None = None) -> None:
        entry = AuditLogEntry(new_id(self._chance, now), now, self._actor, action, target, detail or {})
        await operator_log.note(tx, entry)
