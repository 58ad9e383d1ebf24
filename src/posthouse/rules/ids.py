"""Ids: 128 bits that sort by time, written with a prefix for their type.

An id is a UUID version 7, so PostgreSQL stores sixteen bytes, inserts touch only the hot end of an index, and a day
of messages is a range of ids. The API writes a prefix and 26 characters of Crockford's base 32 (`em_01k...`), which
sorts the same way.

The last six bits of a message id are zero. A recipient's id is its message's id with the recipient's number, from
1, in those bits: it needs no column and no index, is unique, and identifies the message.
"""

from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Final, NewType
from uuid import UUID

AccountId = NewType("AccountId", UUID)
CredentialId = NewType("CredentialId", UUID)
ApiKeyId = NewType("ApiKeyId", UUID)
UserId = NewType("UserId", UUID)
DomainId = NewType("DomainId", UUID)
MessageId = NewType("MessageId", UUID)
RequestId = NewType("RequestId", UUID)
SessionId = NewType("SessionId", UUID)

ACCOUNT: Final = "ac_"
CREDENTIAL: Final = "cr_"
API_KEY: Final = "ak_"
USER: Final = "us_"
DOMAIN: Final = "dm_"
GRANT: Final = "gr_"
MESSAGE: Final = "em_"
RECIPIENT: Final = "rc_"
REQUEST: Final = "rq_"
EVENT: Final = "ev_"
WEBHOOK_DELIVERY: Final = "wd_"
POSTMASTER_MESSAGE: Final = "in_"
AUDIT_ENTRY: Final = "al_"
INVITATION: Final = "iv_"
SESSION: Final = "se_"
LEDGER_ENTRY: Final = "le_"
ENDPOINT: Final = "ep_"
RESEND: Final = "rs_"
ERASURE: Final = "er_"

RANDOM_BYTES: Final = 10
_RECIPIENT_BITS: Final = 6
_RECIPIENT_MASK: Final = (1 << _RECIPIENT_BITS) - 1
_DIGITS: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_VALUES: Final = {digit: value for value, digit in enumerate(_DIGITS)}
_PAIRS: Final = tuple(high + low for high in _DIGITS for low in _DIGITS)
_TEXT_LENGTH: Final = 26
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def new_id(now: datetime, random: bytes) -> UUID:
    """An id for something created at `now`; `random` is ten bytes."""
    return UUID(int=_new_number(now, random))


def derived_id(now: datetime, *parts: bytes) -> UUID:
    """An id for something that is created at `now` and identified by these parts: the same each time."""
    return new_id(now, blake2b(b"".join(parts), digest_size=RANDOM_BYTES).digest())


def new_message_id(now: datetime, random: bytes) -> MessageId:
    return MessageId(UUID(int=_new_number(now, random) & ~_RECIPIENT_MASK))


def _new_number(now: datetime, random: bytes) -> int:
    milliseconds = (now - _EPOCH) // _MILLISECOND
    randomness = int.from_bytes(random, "big")
    return (
        milliseconds << 80
        | 0x7 << 76
        | (randomness & 0xFFF) << 64
        | 0b10 << 62
        | (randomness >> 12) & 0x3FFF_FFFF_FFFF_FFFF
    )


def recipient_id(message_id: MessageId, position: int) -> UUID:
    """The id of the recipient at `position`, counted from zero."""
    if not 0 <= position < _RECIPIENT_MASK:
        raise ValueError(f"a message has no recipient number {position}")
    return UUID(int=message_id.int | position + 1)


def message_of(recipient: UUID) -> MessageId:
    """The id of the recipient's message; a message id is returned as it is."""
    return MessageId(UUID(int=recipient.int & ~_RECIPIENT_MASK))


def time_of(value: UUID) -> datetime:
    """The creation time in the id, to the millisecond."""
    return _EPOCH + (value.int >> 80) * _MILLISECOND


def text(prefix: str, value: UUID) -> str:
    number = value.int
    pairs = _PAIRS
    return (
        f"{prefix}{pairs[number >> 120]}{pairs[number >> 110 & 1023]}{pairs[number >> 100 & 1023]}"
        f"{pairs[number >> 90 & 1023]}{pairs[number >> 80 & 1023]}{pairs[number >> 70 & 1023]}"
        f"{pairs[number >> 60 & 1023]}{pairs[number >> 50 & 1023]}{pairs[number >> 40 & 1023]}"
        f"{pairs[number >> 30 & 1023]}{pairs[number >> 20 & 1023]}{pairs[number >> 10 & 1023]}{pairs[number & 1023]}"
    )


def parse(prefix: str, given: str) -> UUID | None:
    """The parsed id, or None; only the exact form that `text` writes is accepted."""
    if not given.startswith(prefix) or len(given) != len(prefix) + _TEXT_LENGTH:
        return None
    number = 0
    for digit in given[len(prefix) :]:
        value = _VALUES.get(digit)
        if value is None:
            return None
        number = number << 5 | value
    return UUID(int=number) if number < 1 << 128 else None


def lowest_id(day: datetime) -> UUID:
    """The lowest id of `day`; all lower ids are older."""
    return UUID(int=((day - _EPOCH) // _MILLISECOND) << 80)


def id_before(other: UUID) -> UUID:
    """The highest id below `other`; for the lowest id, the lowest itself."""
    return UUID(int=max(0, other.int - 1))
