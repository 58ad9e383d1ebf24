"""Keys derived from the installation's secrets, a key for each purpose."""

from collections.abc import Sequence
from hashlib import blake2b

from posthouse.config import Settings
from posthouse.rules.erasure import ErasureKey
from posthouse.rules.pepper import FIRST
from posthouse.store.seal import Sealer


def sealer(settings: Settings) -> Sealer:
    return Sealer(settings.secrets.seal_key_bytes, settings.secrets.seal_key_active)


def return_path_keys(settings: Settings) -> Sequence[bytes]:
    """The first signs; each of them verifies."""
    return _keys_for(b"return path", settings)


def unsubscribe_keys(settings: Settings) -> Sequence[bytes]:
    """The first signs; each of them verifies."""
    return _keys_for(b"unsubscribe", settings)


def erasure_keys(settings: Settings) -> Sequence[ErasureKey]:
    """The first makes new hashes; each of them recognises its own, which begin as those of its pepper do."""
    peppers = settings.secrets.peppers.all
    prefixes = [b"" if pepper.id == FIRST else pepper.id.encode() + b":" for pepper in peppers]
    return [ErasureKey(*pair) for pair in zip(prefixes, _keys_for(b"erasure", settings), strict=True)]


def _keys_for(purpose: bytes, settings: Settings) -> Sequence[bytes]:
    """Keys of their own, so that what they sign reveals nothing about other uses of the peppers."""
    return [
        blake2b(key=blake2b(pepper).digest(), person=purpose, digest_size=32).digest()
        for pepper in settings.secrets.peppers.keys
    ]
