"""The envelope's return path: an address of ours that says which mail came back, and that we wrote it.

`bounces+<token>@<domain>` (VERP). The token is the recipient's position, the message's id, the end of its
account's id and a keyed hash over them, in base 32: whoever sends us a bounce must know the token, and only
those do whom we sent the mail. Mail systems change the case of addresses, so base 32 it is; RFC 5321 allows
a local part 64 characters, of which this takes 56.

A bare token of another purpose stands in a header field, for complaints (CFBL, RFC 9477): all recipients of a
message get the same bytes, so it has no position.
"""

import hmac
from base64 import b32decode
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final
from uuid import UUID

LOCAL_PREFIX: Final = "bounces+"
# The end of an account's id is chance, and enough of it to find the account by an index.
TAIL_BYTES: Final = 4
# One byte of position, sixteen of id and the account's four leave nine for the hash: thirty bytes fill 48
# characters of base 32 exactly, so that a token has one spelling but for its case.
_HASH_BYTES: Final = 9
_TOKEN_CHARACTERS: Final = 48
_POSITION_MAX: Final = 254
_DIGITS: Final = "abcdefghijklmnopqrstuvwxyz234567"
_PAIRS: Final = tuple(high + low for high in _DIGITS for low in _DIGITS)
_SHIFTS: Final = range(5 * _TOKEN_CHARACTERS - 10, -1, -10)
# Keep these hashes apart from any other use of the key, from each other, and from a later form of the token.
_RETURN_PATH: Final = b"return path 2"
_FEEDBACK: Final = b"feedback 1"


@dataclass(frozen=True, slots=True)
class MailReference:
    """Which mail a token stands for; without a position, several recipients shared the envelope.

    Accounts whose ids end alike are told apart by which of them has the message.
    """

    message_id: UUID
    position: int | None
    account_tail: bytes

    @classmethod
    def of(cls, account_id: UUID, message_id: UUID, position: int | None) -> "MailReference":
        return cls(message_id, position, account_id.bytes[-TAIL_BYTES:])


def return_path(origin: MailReference, domain: str, key: bytes) -> str:
    if origin.position is not None and not 0 <= origin.position <= _POSITION_MAX:
        raise ValueError(f"a message has no recipient number {origin.position}")
    return f"{LOCAL_PREFIX}{_token(origin, origin.position, key, _RETURN_PATH)}@{domain}"


def parse_return_path(address: str, domain: str, keys: Iterable[bytes]) -> MailReference | None:
    """What the address stands for, or None if it is no return path of this domain, signed by one of the keys.

    Several keys, so that one can be replaced while mail signed with it is still under way.
    """
    local, _, given_domain = address.rpartition("@")
    if local[: len(LOCAL_PREFIX)].lower() != LOCAL_PREFIX or given_domain.lower() != domain.lower():
        return None
    return _origin(local[len(LOCAL_PREFIX) :], keys, _RETURN_PATH)


def feedback_token(origin: MailReference, key: bytes) -> str:
    """What the mail itself carries, for whoever complains about it; it names the message and no recipient."""
    return _token(origin, None, key, _FEEDBACK)


def parse_feedback_token(token: str, keys: Iterable[bytes]) -> MailReference | None:
    return _origin(token, keys, _FEEDBACK)


def _token(origin: MailReference, position: int | None, key: bytes, purpose: bytes) -> str:
    number = 0 if position is None else position + 1
    named = number.to_bytes(1, "big") + origin.message_id.bytes + origin.account_tail
    return _spelt(named + _hash(named, key, purpose))


def _origin(token: str, keys: Iterable[bytes], purpose: bytes) -> MailReference | None:
    if len(token) != _TOKEN_CHARACTERS or not token.isascii():
        return None
    try:
        raw = b32decode(token, casefold=True)
    except ValueError:
        return None
    named, given_hash = raw[:-_HASH_BYTES], raw[-_HASH_BYTES:]
    if not any(hmac.compare_digest(_hash(named, key, purpose), given_hash) for key in keys):
        return None
    message_id = UUID(bytes=named[1:-TAIL_BYTES])
    return MailReference(message_id, named[0] - 1 if named[0] else None, named[-TAIL_BYTES:])


def _spelt(raw: bytes) -> str:
    """In base 32, two digits at a time: this is done for every mail, and the library's way takes five times as long."""
    number = int.from_bytes(raw, "big")
    return "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])


def _hash(named: bytes, key: bytes, purpose: bytes) -> bytes:
    # BLAKE2 takes a key by itself, and a tenth of the time of an HMAC, for every mail that leaves.
    return blake2b(named, digest_size=_HASH_BYTES, key=key, person=purpose).digest()
