"""The hash by which request bodies are compared; keyed, since a body may be guessable."""

from dataclasses import dataclass
from hashlib import blake2b


@dataclass(frozen=True, slots=True)
class Fingerprint:
    key: bytes

    def __call__(self, canonical: bytes) -> bytes:
        return blake2b(canonical, key=self.key, digest_size=32).digest()
