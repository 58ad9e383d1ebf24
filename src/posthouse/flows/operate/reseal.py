"""Reseals with the active key what a retired key sealed, so that the retired key can be removed."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from posthouse.flows.shared.context import Flow
from posthouse.store import domains, endpoints, relays, second_factors
from posthouse.store.postgres import Connection

SEALS_A_BATCH: Final = 200


class _Batch(NamedTuple):
    rows: int
    secrets: int


class Reseal(Flow):
    async def run(self) -> int:
        """Returns how many secrets were resealed."""
        retired = sorted(self._keys.sealer.retired_key_ids)
        if not retired:
            return 0
        total = 0
        for reseal in (
            self._domains,
            self._waiting_keys,
            self._endpoints,
            self._second_factors,
            self._relays,
        ):
            total += await self._in_batches(reseal, retired)
        return total

    async def _in_batches(
        self, reseal: Callable[[Connection, Sequence[str]], Awaitable[_Batch]], retired: Sequence[str]
    ) -> int:
        total = 0
        while True:
            async with self._database.transaction() as tx:
                batch = await reseal(tx, retired)
            total += batch.secrets
            if batch.rows < SEALS_A_BATCH:
                return total

    async def _domains(self, tx: Connection, retired: Sequence[str]) -> _Batch:
        found = await domains.sealed_with(tx, retired, SEALS_A_BATCH)
        secrets = 0
        for row in found:
            rsa = self._resealed(row.dkim_sealed, domains.dkim_purpose(row.account_id, row.id))
            ed25519 = None
            if row.ed25519_sealed is not None:
                ed25519 = self._resealed(row.ed25519_sealed, domains.ed25519_purpose(row.account_id, row.id))
            await domains.reseal(tx, row, rsa, ed25519)
            secrets += 1 if ed25519 is None else 2
        return _Batch(len(found), secrets)

    async def _waiting_keys(self, tx: Connection, retired: Sequence[str]) -> _Batch:
        found = await domains.keys_sealed_with(tx, retired, SEALS_A_BATCH)
        secrets = 0
        for row in found:
            if row.dkim_sealed is not None and row.ed25519_sealed is not None:
                rsa = self._resealed(row.dkim_sealed, domains.dkim_purpose(row.account_id, row.domain_id))
                purpose = domains.ed25519_purpose(row.account_id, row.domain_id)
                await domains.reseal_keys(tx, row, rsa, self._resealed(row.ed25519_sealed, purpose))
                secrets += 2
        return _Batch(len(found), secrets)

    async def _endpoints(self, tx: Connection, retired: Sequence[str]) -> _Batch:
        found = await endpoints.sealed_with(tx, retired, SEALS_A_BATCH)
        secrets = 0
        for row in found:
            values = endpoints.sealed_values(row)
            resealed = [None if sealed is None else self._resealed(sealed, purpose) for sealed, purpose in values]
            await endpoints.reseal(tx, row, resealed)
            secrets += sum(sealed is not None for sealed in resealed)
        return _Batch(len(found), secrets)

    async def _second_factors(self, tx: Connection, retired: Sequence[str]) -> _Batch:
        found = await second_factors.sealed_with(tx, retired, SEALS_A_BATCH)
        for row in found:
            sealed = self._resealed(row.secret_sealed, second_factors.secret_purpose(row.user_id))
            await second_factors.reseal(tx, row.user_id, sealed)
        return _Batch(len(found), len(found))

    async def _relays(self, tx: Connection, retired: Sequence[str]) -> _Batch:
        found = await relays.sealed_with(tx, retired, SEALS_A_BATCH)
        for name, before in found:
            await relays.reseal(tx, name, self._resealed(before, relays.password_purpose(name)), before)
        return _Batch(len(found), len(found))

    def _resealed(self, sealed: bytes, purpose: bytes) -> bytes:
        return self._keys.sealer.seal(self._keys.sealer.open(sealed, purpose), purpose)
