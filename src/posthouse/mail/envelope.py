"""The envelope's return path: an address of ours that identifies the bounced mail and can't be forged.

`bounces+<token>@<domain>` (VERP). The token is the recipient's position, the message's id, the end of its account's
id and a keyed hash over them, in base 32: the sender of a bounce must know the token, and only those to whom we sent
the message do. Base 32, because mail systems change the case of addresses. RFC 5321 allows a local part 64 characters;
this takes 56.

A second kind of token is in a header field, for complaints (CFBL, RFC 9477): all recipients of a message get the
same bytes, so it has no position.
"""

import hmac
from base64 import b32decode
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final
from uuid import UUID

LOCAL_PREFIX: Final = "bounces+"
# The end of an account's id is random, and long enough to find the account by an index.
TAIL_BYTES: Final = 4
# A byte of position, sixteen of id, the account's four and nine of hash: thirty bytes fill 48 characters of base 32
# exactly, so that a token has a single encoding apart from its case.
_HASH_BYTES: Final = 9
_TOKEN_CHARACTERS: Final = 48
_POSITION_MAX: Final = 254
_DIGITS: Final = "abcdefghijklmnopqrstuvwxyz234567"
_PAIRS: Final = tuple(high + low for high in _DIGITS for low in _DIGITS)
_SHIFTS: Final = range(5 * _TOKEN_CHARACTERS - 10, -1, -10)
# Separate these hashes from other uses of the key, from each other, and from later token formats.
_RETURN_PATH: Final = b"return path 2"
_FEEDBACK: Final = b"feedback 1"


@dataclass(frozen=True, slots=True)
class MailReference:
    """The message that a token identifies; without a position, several recipients shared the envelope.

    Of accounts whose ids end alike, the one that has the message is meant.
    """

    message_id: UUID
    position: int | None
    account_tail: bytes

    @classmethod
    def of(cls, account_id: UUID, message_id: UUID, position: int | None) -> "MailReference":
        return cls(message_id, position, account_id.bytes[-TAIL_BYTES:])


def return_path(reference: MailReference, domain: str, key: bytes) -> str:
    if reference.position is not None and not 0 <= reference.position <= _POSITION_MAX:
        raise ValueError(f"a message has no recipient number {reference.position}")
    return f"{LOCAL_PREFIX}{_token(reference, reference.position, key, _RETURN_PATH)}@{domain}"


def parse_return_path(address: str, domain: str, keys: Iterable[bytes]) -> MailReference | None:
    """The message of a return path, or None if the domain is not ours or no key fits.

    Several keys, so that a key can be replaced while mail signed with it is in transit.
    """
    local, _, given_domain = address.rpartition("@")
    if local[: len(LOCAL_PREFIX)].lower() != LOCAL_PREFIX or given_domain.lower() != domain.lower():
        return None
    return _reference(local[len(LOCAL_PREFIX) :], keys, _RETURN_PATH)


def feedback_token(reference: MailReference, key: bytes) -> str:
    """The token in the mail itself, for complaints; it identifies the message but no recipient."""
    return _token(reference, None, key, _FEEDBACK)


def parse_feedback_token(token: str, keys: Iterable[bytes]) -> MailReference | None:
    return _reference(token, keys, _FEEDBACK)


def _token(reference: MailReference, position: int | None, key: bytes, purpose: bytes) -> str:
    number = 0 if position is None else position + 1
    payload = bytes([number]) + reference.message_id.bytes + reference.account_tail
    return _encoded(payload + _hash(payload, key, purpose))


def _reference(token: str, keys: Iterable[bytes], purpose: bytes) -> MailReference | None:
    if len(token) != _TOKEN_CHARACTERS or not token.isascii():
        return None
    try:
        raw = b32decode(token, casefold=True)
    except ValueError:
        return None
    payload, given_hash = raw[:-_HASH_BYTES], raw[-_HASH_BYTES:]
    if not any(hmac.compare_digest(_hash(payload, key, purpose), given_hash) for key in keys):
        return None
    message_id = UUID(bytes=payload[1:-TAIL_BYTES])
    return MailReference(message_id, payload[0] - 1 if payload[0] else None, payload[-TAIL_BYTES:])


def _encoded(raw: bytes) -> str:
    """In base 32, two digits at a time: runs for every message, and the standard library takes five times as long."""
    number = int.from_bytes(raw, "big")
    return "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])


def _hash(payload: bytes, key: bytes, purpose: bytes) -> bytes:
    # BLAKE2 has a built-in key and takes a tenth of the time of an HMAC, for every outgoing message.
    return blake2b(payload, digest_size=_HASH_BYTES, key=key, person=purpose).digest()
