"""Peppers: the keys of the hashes under which secrets are stored. Each has an id, so that a pepper can be replaced.

The active pepper makes hashes, and every known pepper recognises its own. A hash of the pepper `first` is only the
HMAC, as it was before peppers had ids; any other hash has its pepper's id in front of it.
"""

import hmac
import re
from dataclasses import dataclass, field
from typing import Final

from posthouse.rules import credential

FIRST: Final = "first"
HASH_BYTES: Final = 32
_ID: Final = re.compile(r"[a-z0-9-]{1,32}")


def is_id(given: str) -> bool:
    return _ID.fullmatch(given) is not None


@dataclass(frozen=True, slots=True)
class Pepper:
    id: str
    key: bytes = field(repr=False)

    def hash(self, secret: str) -> bytes:
        hashed = credential.secret_hash(secret, self.key)
        return hashed if self.id == FIRST else self.id.encode() + b":" + hashed


@dataclass(frozen=True, slots=True)
class Peppers:
    active: Pepper
    others: tuple[Pepper, ...] = ()

    @property
    def all(self) -> tuple[Pepper, ...]:
        return self.active, *self.others

    @property
    def keys(self) -> tuple[bytes, ...]:
        """The active pepper's comes first."""
        return tuple([pepper.key for pepper in self.all])

    def hash(self, secret: str) -> bytes:
        """The hash that is stored in place of a secret."""
        return self.active.hash(secret)

    def hashes(self, secret: str) -> tuple[bytes, ...]:
        """Every hash under which the secret may be stored; the active pepper's comes first."""
        return tuple([pepper.hash(secret) for pepper in self.all])

    def matches(self, secret: str, stored_hash: bytes) -> bool:
        """Whether the secret matches the stored hash, in constant time."""
        return any(hmac.compare_digest(hashed, stored_hash) for hashed in self.hashes(secret))

    def rehashed(self, secret: str, stored_hash: bytes) -> bytes | None:
        """The hash to store instead of one that another pepper made."""
        if not self.others:
            return None
        hashed = self.hash(secret)
        return None if hashed == stored_hash else hashed
