"""The installation's secrets that can be replaced, and whether an old one is still needed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Final

from posthouse.flows.shared.context import Context, Flow
from posthouse.rules.limits import JWT_LIFETIME_SECONDS, OLD_LINK_DAYS
from posthouse.store import doctor, maintenance
from posthouse.store.postgres import Connection

PEPPER: Final = "pepper"
TOKEN_SECRET: Final = "jwt secret"  # noqa: S105 (its name)
SEAL_KEY: Final = "seal key"
ACTIVE: Final = "active"
TOKEN_LIFETIME: Final = timedelta(seconds=JWT_LIFETIME_SECONDS)
LINK_LIFETIME: Final = timedelta(days=OLD_LINK_DAYS)


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


def _mark(secret: str) -> str:
    """A fingerprint that tells secrets apart and reveals nothing about them."""
    return blake2b(secret.encode(), person=b"jwt secret", digest_size=8).hexdigest()
