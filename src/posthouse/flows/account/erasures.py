"""Erasures, as an account asks for them and watches them; `operate/erasing` does the work."""

from collections.abc import Sequence

from posthouse.chance import Chance
from posthouse.clock import Clock
from posthouse.flows.shared.audit_log import AuditLog
from posthouse.flows.shared.new_id import new_id
from posthouse.flows.shared.principal import Caller
from posthouse.rules import erasure, ids, suppression
from posthouse.rules.erasure import ErasureKey
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import erasures
from posthouse.store.erasures import ErasureRow as ErasureRow
from posthouse.store.postgres import Database


class Erasures:
    def __init__(self, *, database: Database, clock: Clock, chance: Chance, keys: Sequence[ErasureKey]) -> None:
        """The first of the keys is used for new hashes."""
        self._database = database
        self._clock = clock
        self._chance = chance
        self._keys = keys
        self._audit_log = AuditLog(chance)

    async def begin(self, caller: Caller, given: str) -> ErasureRow:
        """A new erasure, or that of the address which is running. From now on the address gets no mail."""
        email = suppression.bare_address_of(given)
        hashes = erasure.hashes_of(email, self._keys)
        async with self._database.transaction() as tx:
            now = self._clock.now()
            running = await erasures.running(tx, caller.account_id, hashes)
            if running is not None:
                return running
            erasure_id = new_id(self._chance, now)
            if await erasures.add(tx, caller.account_id, erasure_id, email, hashes[0], erasure.START, now):
                # Without the address, which the log would keep.
                target = ids.text(ids.ERASURE, erasure_id)
                await self._audit_log.note(tx, caller.account_id, caller.actor, "erasure.begun", target, now)
            found = await erasures.running(tx, caller.account_id, hashes)
        if found is None:
            raise Refusal(Code.TEMPORARY_FAILURE, "An erasure of this address was just finished: try again.", 1)
        return found

    async def erasure(self, account_id: AccountId, given_id: str) -> ErasureRow:
        erasure_id = ids.parse(ids.ERASURE, given_id)
        if erasure_id is not None:
            async with self._database.connection() as connection:
                found = await erasures.by_id(connection, account_id, erasure_id)
            if found is not None:
                return found
        raise Refusal(Code.NOT_FOUND, "This account has no erasure with this id, or not any more.")
