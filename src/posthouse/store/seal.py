"""Secrets that we must be able to read again, sealed before they are stored: AES-256-GCM with key ids.

A sealed value is a version byte, the key id's length and the key id, a nonce, and the cipher text with
its tag. The key id lets keys be rotated: the active key seals, every known key opens. The purpose (what
the secret is, and whose) is authenticated with it, so that a value copied into another row or column
does not open there.
"""

from collections.abc import Mapping
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from posthouse.randomness import Randomness, SystemRandomness

KEY_BYTES: Final = 32
KEY_ID_BYTES_MAX: Final = 255
_VERSION: Final = 1
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16


class SealError(Exception):
    """A sealed value can't be opened; the text says why, and never contains the value."""


class Sealer:
    def __init__(self, keys: Mapping[str, bytes], active: str, randomness: Randomness | None = None) -> None:
        for key_id, key in keys.items():
            if not 1 <= len(key_id.encode()) <= KEY_ID_BYTES_MAX:
                raise ValueError(f"a seal key's id has 1 to {KEY_ID_BYTES_MAX} bytes")
            if len(key) != KEY_BYTES:
                raise ValueError(f"seal key {key_id!r} has {len(key)} bytes instead of {KEY_BYTES}")
        if active not in keys:
            raise ValueError(f"the active seal key {active!r} is not among the seal keys")
        self._ciphers = {key_id: AESGCM(key) for key_id, key in keys.items()}
        self._active = active
        self._randomness = randomness or SystemRandomness()

    @property
    def key_ids(self) -> frozenset[str]:
        return frozenset(self._ciphers)

    @property
    def retired_key_ids(self) -> frozenset[str]:
        """Keys that open what they once sealed, but no longer seal."""
        return self.key_ids - {self._active}

    def seal(self, plain: bytes, purpose: bytes) -> bytes:
        key_id = self._active.encode()
        head = bytes([_VERSION, len(key_id)]) + key_id
        nonce = self._randomness.bytes(_NONCE_BYTES)
        return head + nonce + self._ciphers[self._active].encrypt(nonce, plain, head + purpose)

    def open(self, sealed: bytes, purpose: bytes) -> bytes:
        key_id = sealing_key_id(sealed)
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise SealError(
                f"the value was sealed with key {key_id!r}, which is not configured: "
                "put that key back among the seal keys"
            )
        head_bytes = 2 + len(key_id.encode())
        head, rest = sealed[:head_bytes], sealed[head_bytes:]
        if len(rest) < _NONCE_BYTES + _TAG_BYTES:
            raise SealError("the sealed value is truncated")
        try:
            return cipher.decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], head + purpose)
        except InvalidTag:
            raise SealError(
                f"the value sealed with key {key_id!r} does not open: it was changed or belongs elsewhere, "
                "or a different key has this id"
            ) from None


def sealing_key_id(sealed: bytes) -> str:
    """The id of the key that a value was sealed with, readable without any key."""
    if len(sealed) < 2 or sealed[0] != _VERSION or not sealed[1] or len(sealed) < 2 + sealed[1]:
        raise SealError("this is not a sealed value")
    try:
        return sealed[2 : 2 + sealed[1]].decode()
    except UnicodeDecodeError:
        raise SealError("this is not a sealed value") from None
