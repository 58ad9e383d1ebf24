"""What nearly every flow needs, as one object: database, clock, randomness, keys, and the logs of changes."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Self
from uuid import UUID

from posthouse.clock import Clock
from posthouse.randomness import Randomness
from posthouse.rules import ids
from posthouse.rules.credential import OPERATOR, Actor
from posthouse.rules.erasure import ErasureKey
from posthouse.rules.ids import AccountId
from posthouse.rules.pepper import FIRST, Peppers
from posthouse.store import audit_log
from posthouse.store.audit_log import AuditLogEntry, Detail
from posthouse.store.postgres import Connection, Database

if TYPE_CHECKING:
    from posthouse.store.seal import Sealer


def new_id(randomness: Randomness, now: datetime) -> UUID:
    """A new id, from the injected source of randomness."""
    return ids.new_id(now, randomness.id_bytes())


class OperatorLog:
    """What operators changed, written in the transaction that changes it."""

    def __init__(self, randomness: Randomness, actor: Actor = OPERATOR) -> None:
        """`actor` is an operator who is logged in, or who uses the command line."""
        self._randomness = randomness
        self.actor = actor

    async def add_entry(
        self, tx: Connection, action: str, target: str, now: datetime, detail: Detail | None = None
    ) -> None:
        entry = AuditLogEntry(new_id(self._randomness, now), now, self.actor, action, target, detail or {})
        await audit_log.add_operator_entry(tx, entry)


class AuditLog:
    """Who changed what, written in the transaction that changes it."""

    def __init__(self, randomness: Randomness) -> None:
        self._randomness = randomness

    async def add_entry(
        self,
        tx: Connection,
        account_id: AccountId,
        actor: Actor,
        action: str,
        target: str,
        now: datetime,
        detail: Detail | None = None,
    ) -> None:
        entry_id = new_id(self._randomness, now)
        await audit_log.add_entry(tx, account_id, AuditLogEntry(entry_id, now, actor, action, target, detail or {}))


@dataclass(frozen=True)
class Keys:
    """The installation's secrets, and the keys derived from them, one for each purpose."""

    peppers: Peppers
    seal_keys: Mapping[str, bytes] = field(repr=False)
    seal_key_active: str
    # The first signs; all of them verify.
    token_secrets: Sequence[str] = field(default=(), repr=False)

    @cached_property
    def sealer(self) -> "Sealer":
        from posthouse.store.seal import Sealer  # its cryptography is slow to import

        return Sealer(self.seal_keys, self.seal_key_active)

    @cached_property
    def return_path(self) -> Sequence[bytes]:
        """The first key signs; all of them verify."""
        return self._keys_for(b"return path")

    @cached_property
    def unsubscribe(self) -> Sequence[bytes]:
        """The first key signs; all of them verify."""
        return self._keys_for(b"unsubscribe")

    @cached_property
    def erasure(self) -> Sequence[ErasureKey]:
        """The first creates new hashes; each recognises its own, which begin with the id of its pepper."""
        prefixes = [b"" if pepper.id == FIRST else pepper.id.encode() + b":" for pepper in self.peppers.all]
        return [ErasureKey(*pair) for pair in zip(prefixes, self._keys_for(b"erasure"), strict=True)]

    def _keys_for(self, purpose: bytes) -> Sequence[bytes]:
        """Separate keys, so that what they sign reveals nothing about other uses of the peppers."""
        return [
            blake2b(key=blake2b(pepper).digest(), person=purpose, digest_size=32).digest()
            for pepper in self.peppers.keys
        ]


@dataclass(frozen=True, slots=True)
class Context:
    database: Database
    clock: Clock
    randomness: Randomness
    keys: Keys


class Flow:
    """What a flow starts with."""

    def __init__(self, context: Context) -> None:
        self._database = context.database
        self._clock = context.clock
        self._randomness = context.randomness
        self._keys = context.keys
        self._audit_log = AuditLog(context.randomness)
        self._operator_log = OperatorLog(context.randomness)

    def by(self, actor: Actor) -> Self:
        """The same flow, rates and caches included, whose changes are logged as this operator's."""
        flow = copy(self)
        flow._operator_log = OperatorLog(self._randomness, actor)  # noqa: SLF001
        return flow
