"""Keys derived from the installation's secrets, a key for each purpose."""

from collections.abc import Sequence
from hashlib import blake2b

from posthouse.config import Settings
from posthouse.store.seal import Sealer


def sealer(settings: Settings) -> Sealer:
    return Sealer(settings.secrets.seal_key_bytes, settings.secrets.seal_key_active)


def return_path_keys(settings: Settings) -> Sequence[bytes]:
    """The first signs; each of them verifies."""
    return _keys_for(b"return path", settings)


def unsubscribe_keys(settings: Settings) -> Sequence[bytes]:
    """The first signs; each of them verifies."""
    return _keys_for(b"unsubscribe", settings)


def _keys_for(purpose: bytes, settings: Settings) -> Sequence[bytes]:
    """Keys of their own, so that what they sign reveals nothing about other uses of the peppers."""
    return [
        blake2b(key=blake2b(pepper).digest(), person=purpose, digest_size=32).digest()
        for pepper in settings.secrets.peppers.keys
    ]
