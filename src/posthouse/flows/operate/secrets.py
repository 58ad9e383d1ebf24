"""The installation's secrets that can be replaced: whether an old one is still needed, and what it sealed."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Final, NamedTuple

from posthouse.flows.shared.context import Context, Flow
from posthouse.rules.limits import JWT_LIFETIME_SECONDS, OLD_LINK_DAYS
from posthouse.store import doctor, domains, endpoints, maintenance, relays, second_factors
from posthouse.store.postgres import Connection

PEPPER: Final = "pepper"
TOKEN_SECRET: Final = "jwt secret"  # noqa: S105 (its name)
SEAL_KEY: Final = "seal key"
ACTIVE: Final = "active"
TOKEN_LIFETIME: Final = timedelta(seconds=JWT_LIFETIME_SECONDS)
LINK_LIFETIME: Final = timedelta(days=OLD_LINK_DAYS)
SEALS_A_BATCH: Final = 200


@dataclass(frozen=True, slots=True)
class SecretUse:
    """`needed_until` is when the last token that it signed expires, if those are not counted in `uses`."""

    kind: str
    id: str
    is_active: bool
    is_known: bool
    uses: Mapping[str, int]
    needed_until: datetime | None = None

    def may_be_removed(self, now: datetime) -> bool:
        is_over = self.needed_until is None or self.needed_until <= now
        return self.is_known and not self.is_active and not self.uses and is_over


class Secrets(Flow):
    def __init__(self, context: Context, *, other_jwt_secrets: Sequence[str]) -> None:
        """`other_jwt_secrets` are their names."""
        super().__init__(context)
        self._jwt_secret = context.keys.token_secrets[0]
        self._other_jwt_secrets = other_jwt_secrets

    async def all_now(self) -> tuple[Sequence[SecretUse], datetime]:
        """All secrets, and the time. Notes which are active, because what an old one signed expires later than that."""
        now = self._clock.now()
        async with self._database.transaction() as tx:
            pepper_since = await self._active_since(tx, PEPPER, self._keys.peppers.active.id, now)
            jwt_since = await self._active_since(tx, TOKEN_SECRET, _mark(self._jwt_secret), now)
            hashed = await doctor.pepper_uses(tx, now)
            sealed = await doctor.sealing_key_uses(tx)
        found = [
            *self._all_peppers(hashed, pepper_since + LINK_LIFETIME),
            SecretUse(TOKEN_SECRET, ACTIVE, True, True, {}),
            *[
                SecretUse(TOKEN_SECRET, name, False, True, {}, jwt_since + TOKEN_LIFETIME)
                for name in self._other_jwt_secrets
            ],
            *self._all_seal_keys(sealed),
        ]
        return found, now

    async def _active_since(self, tx: Connection, kind: str, key: str, now: datetime) -> datetime:
        return await maintenance.note_first(tx, f"{kind} ", f"{kind} {key}", now)

    def _all_peppers(self, uses: Mapping[str, Mapping[str, int]], needed_until: datetime) -> Sequence[SecretUse]:
        known = [pepper.id for pepper in self._keys.peppers.all]
        return [
            SecretUse(
                PEPPER,
                key,
                key == self._keys.peppers.active.id,
                key in known,
                uses.get(key, {}),
                needed_until if key in known[1:] else None,
            )
            for key in [*known, *sorted(uses.keys() - set(known))]
        ]

    def _all_seal_keys(self, uses: Mapping[str, int]) -> Sequence[SecretUse]:
        retired = self._keys.sealer.retired_key_ids
        return [
            SecretUse(
                SEAL_KEY,
                key,
                key in self._keys.sealer.key_ids - retired,
                key in self._keys.sealer.key_ids,
                {"sealed secrets": uses[key]} if uses.get(key) else {},
            )
            for key in sorted(self._keys.sealer.key_ids | uses.keys())
        ]


class _Batch(NamedTuple):
    rows: int
    secrets: int


class Reseal(Flow):
    """Seals with the active key what a retired key sealed, so that the retired key can be removed."""

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


def _mark(secret: str) -> str:
    """A fingerprint that tells secrets apart and reveals nothing about them."""
    return blake2b(secret.encode(), person=b"jwt secret", digest_size=8).hexdigest()
