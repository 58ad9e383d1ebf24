"""Keys derived from the installation's secrets, a key for each purpose."""

from hashlib import blake2b

from posthouse.config import Settings
from posthouse.store.seal import Sealer


def sealer(settings: Settings) -> Sealer:
    return Sealer(settings.secrets.seal_key_bytes, settings.secrets.seal_key_active)


def return_path_key(settings: Settings) -> bytes:
    return _key_for(b"return path", settings)


def unsubscribe_key(settings: Settings) -> bytes:
    return _key_for(b"unsubscribe", settings)


def _key_for(purpose: bytes, settings: Settings) -> bytes:
    """A key of its own, so that what it signs reveals nothing about other uses of the pepper."""
    return blake2b(key=blake2b(settings.secrets.pepper_bytes).digest(), person=purpose, digest_size=32).digest()
