"""Authorization headers with an SMTP password that was verified: the next request needn't verify it again.

A header is known by its keyed hash, so the search reveals nothing about it and no password is kept. It is as good as
the credential that the control cache holds: after any change of that, of its password for example, the cache holds
another, and the header is verified again.
"""

from hashlib import blake2b
from typing import Final

from posthouse.rules.limits import AUTHORIZATION_CHARACTERS_MAX
from posthouse.store.control_cache import CachedCredential, ControlCache

HEADERS_MAX: Final = 20_000
_HASH_BYTES: Final = 16


class VerifiedHeaders:
    def __init__(self, control_cache: ControlCache, key: bytes) -> None:
        self._control_cache = control_cache
        self._key = blake2b(key, person=b"authorization").digest()
        self._known: dict[bytes, tuple[str, CachedCredential]] = {}

    def credential(self, header: str | None) -> CachedCredential | None:
        """The credential that the header was verified with, if that has not changed."""
        if not header or len(header) > AUTHORIZATION_CHARACTERS_MAX:
            return None
        found = self._known.get(self._hash(header))
        if found is None:
            return None
        username, verified = found
        return verified if self._control_cache.known_credential(username) is verified else None

    def add(self, header: str, username: str, verified: CachedCredential) -> None:
        if len(self._known) >= HEADERS_MAX:
            self._known.clear()
        self._known[self._hash(header)] = username, verified

    def _hash(self, header: str) -> bytes:
        return blake2b(header.encode("utf-8", "surrogatepass"), key=self._key, digest_size=_HASH_BYTES).digest()
