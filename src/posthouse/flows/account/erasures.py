"""Erasures, as an account requests them and follows them; `operate/erasing` does the work."""

from posthouse.flows.shared.context import Flow, new_id
from posthouse.flows.shared.principal import Caller
from posthouse.rules import erasure, ids, suppression
from posthouse.rules.ids import AccountId
from posthouse.rules.refusal import Code, Refusal
from posthouse.store import erasures
from posthouse.store.erasures import ErasureRow as ErasureRow


class Erasures(Flow):
    async def begin(self, caller: Caller, given: str) -> ErasureRow:
        """A new erasure, or the one that is already running for the address. From now on the address gets no mail."""
        email = suppression.bare_address_of(given)
        hashes = erasure.hashes_of(email, self._keys.erasure)
        async with self._database.transaction() as tx:
            now = self._clock.now()
            running = await erasures.running(tx, caller.account_id, hashes)
            if running is not None:
                return running
            erasure_id = new_id(self._randomness, now)
            if await erasures.add(tx, caller.account_id, erasure_id, email, hashes[0], erasure.START, now):
                # Without the address, which would stay in the log.
                target = ids.text(ids.ERASURE, erasure_id)
                await self._audit_log.add_entry(tx, caller.account_id, caller.actor, "erasure.begun", target, now)
            found = await erasures.running(tx, caller.account_id, hashes)
        if found is None:
            raise Refusal(Code.TEMPORARY_FAILURE, "An erasure of this address has just finished: try again.", 1)
        return found

    async def erasure(self, account_id: AccountId, given_id: str) -> ErasureRow:
        erasure_id = ids.parse(ids.ERASURE, given_id)
        if erasure_id is not None:
            async with self._database.connection() as connection:
                found = await erasures.by_id(connection, account_id, erasure_id)
            if found is not None:
                return found
        raise Refusal(Code.NOT_FOUND, "This account has no erasure with this id, or no longer.")
