"""The hash by which request bodies are compared; keyed, since a body may be guessable.

A fingerprint has a hash for each known key, one after another, so that a body is recognised while the key is replaced.
The first is stored.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Fingerprint:
    keys: tuple[bytes, ...]

    def __call__(self, canonical: bytes) -> bytes:
        return b"".join([blake2b(canonical, key=key, digest_size=_BYTES).digest() for key in self.keys])


def stored(fingerprint: bytes) -> bytes:
    return fingerprint[:_BYTES]


def of_rehearsal(fingerprint: bytes) -> bytes:
    """Of the same body as test mail: never the fingerprint of the mail itself."""
    return b"".join([blake2b(part, person=b"rehearsal", digest_size=_BYTES).digest() for part in _parts(fingerprint)])


def is_same(fingerprint: bytes, stored_before: bytes) -> bool:
    return stored_before in _parts(fingerprint)


def _parts(fingerprint: bytes) -> list[bytes]:
    return [fingerprint[at : at + _BYTES] for at in range(0, len(fingerprint), _BYTES)] or [fingerprint]
