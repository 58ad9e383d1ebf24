"""The envelope's return path: an address of ours that says which mail came back, and that we wrote it.

`bounces+<token>@<domain>` (VERP). The token is the message's id, the recipient's position and a keyed
hash over both, in base 32: whoever sends us a bounce must know the token, and only those do whom we
sent the mail. Mail systems change the case of addresses, so base 32 it is; RFC 5321 allows a local
part 64 characters, of which this takes 56.
"""

import hmac
from base64 import b32decode
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final
from uuid import UUID

LOCAL_PREFIX: Final = "bounces+"
# One byte of position and sixteen of id leave thirteen for the hash: thirty bytes fill 48 characters
# of base 32 exactly, so that a token has one spelling but for its case.
_HASH_BYTES: Final = 13
_TOKEN_CHARACTERS: Final = 48
_POSITION_MAX: Final = 254
_DIGITS: Final = "abcdefghijklmnopqrstuvwxyz234567"
_PAIRS: Final = tuple(high + low for high in _DIGITS for low in _DIGITS)
_SHIFTS: Final = range(5 * _TOKEN_CHARACTERS - 10, -1, -10)
# Keeps these hashes apart from any other use of the key, and from a later form of the token.
_PURPOSE: Final = b"return path 1"


@dataclass(frozen=True, slots=True)
class Origin:
    """Which mail a return path stands for; without a position, several recipients shared the envelope."""

    message_id: UUID
    position: int | None


def return_path(origin: Origin, domain: str, key: bytes) -> str:
    if origin.position is not None and not 0 <= origin.position <= _POSITION_MAX:
        raise ValueError(f"a message has no recipient number {origin.position}")
    number = 0 if origin.position is None else origin.position + 1
    named = number.to_bytes(1, "big") + origin.message_id.bytes
    return f"{LOCAL_PREFIX}{_spelt(named + _hash(named, key))}@{domain}"


def parse_return_path(address: str, domain: str, keys: Iterable[bytes]) -> Origin | None:
    """What the address stands for, or None if it is no return path of this domain, signed by one of the keys.

    Several keys, so that one can be replaced while mail signed with it is still under way.
    """
    local, _, given_domain = address.rpartition("@")
    token = local[len(LOCAL_PREFIX) :]
    if len(token) != _TOKEN_CHARACTERS or not token.isascii():
        return None
    if local[: len(LOCAL_PREFIX)].lower() != LOCAL_PREFIX or given_domain.lower() != domain.lower():
        return None
    try:
        raw = b32decode(token, casefold=True)
    except ValueError:
        return None
    named, given_hash = raw[:-_HASH_BYTES], raw[-_HASH_BYTES:]
    if not any(hmac.compare_digest(_hash(named, key), given_hash) for key in keys):
        return None
    return Origin(UUID(bytes=named[1:]), named[0] - 1 if named[0] else None)


def _spelt(raw: bytes) -> str:
    """In base 32, two digits at a time: this is done for every mail, and the library's way takes five times as long."""
    number = int.from_bytes(raw, "big")
    return "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])


def _hash(named: bytes, key: bytes) -> bytes:
    # BLAKE2 takes a key by itself, and a tenth of the time of an HMAC, for every mail that leaves.
    return blake2b(named, digest_size=_HASH_BYTES, key=key, person=_PURPOSE).digest()
