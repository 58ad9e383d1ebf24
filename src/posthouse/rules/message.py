"""Messages: states, metadata, tags, forgotten content, fingerprints of their requests, and the time to send them.

Metadata are pairs that a sender attaches to a message for its own use; they are never part of the sent email.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from hashlib import blake2b
from typing import Final, assert_never

from posthouse.rules import limits
from posthouse.rules.refusal import Code, Refusal, invalid

_METADATA_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_HASH_BYTES: Final = 32
# Refused in subjects, tags, headers and metadata.
CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

# With `content: "forget"`, no one can read a message's content once it is accepted.
FORGET: Final = "forget"

TAG_SHAPE: Final = f"1 to {limits.TAG_CHARACTERS_MAX} printable characters"

# How far ahead a message's `send_at` may be.
AHEAD_MAX: Final = timedelta(days=limits.SEND_AT_DAYS_MAX)
# A sender's clock may be behind ours, and a request takes a while. A time longer ago is a mistake.
PAST_MAX: Final = timedelta(minutes=5)

# RFC 3339. The year keeps conversions to UTC within what a datetime can hold.
_FORM: Final = re.compile(r"2\d{3}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:[Zz]|[+-]\d\d:\d\d)\Z", re.ASCII)


class MessageStatus(StrEnum):
    """`queued` until each recipient has a result; `partial`: not all were delivered."""

    QUEUED = "queued"
    DELIVERED = "delivered"
    PARTIAL = "partial"
    FAILED = "failed"


class RecipientStatus(StrEnum):
    """`bounced`: refused for good; `failed`: given up. Only `queued` and `deferred` are not final."""

    QUEUED = "queued"
    DEFERRED = "deferred"
    DELIVERED = "delivered"
    BOUNCED = "bounced"
    FAILED = "failed"
    # Cancelled by the sender, before it was tried.
    CANCELLED = "cancelled"


class MessageState(StrEnum):
    """What is more exact than the status: of a queued message, or of all recipients of a failed one."""

    SCHEDULED = "scheduled"
    BOUNCED = "bounced"
    # Nothing was sent: the account suppresses the address, or the recipient left the list.
    SUPPRESSED = "suppressed"
    CANCELLED = "cancelled"


class BillingStatus(StrEnum):
    """Whether the credits are set aside (`reserved`), spent (`settled`) or returned (`released`)."""

    RESERVED = "reserved"
    SETTLED = "settled"
    RELEASED = "released"


class Source(StrEnum):
    """How it was submitted; `test`: with a test key, or as a test email."""

    SMTP = "smtp"
    API = "api"
    TEST = "test"


def message_state(open: int, delivered: int, released: int, total: int) -> tuple[MessageStatus, BillingStatus]:  # noqa: A002
    """The message's state from its counts: recipients not final (`open`), delivered, and with a returned credit.

    The other recipients have failed. The state changes only when the last recipient is final.
    """
    if min(open, delivered, released) < 0 or total < 1 or open + delivered + released > total:
        raise ValueError(f"impossible counts: {open=} {delivered=} {released=} {total=}")
    if open:
        return MessageStatus.QUEUED, BillingStatus.RESERVED
    billing = BillingStatus.RELEASED if released == total else BillingStatus.SETTLED
    if delivered == total:
        return MessageStatus.DELIVERED, billing
    if delivered:
        return MessageStatus.PARTIAL, billing
    return MessageStatus.FAILED, billing


def billing_of(status: RecipientStatus, *, is_released: bool = False) -> BillingStatus:
    """`is_released`: it failed through no fault of the recipient's, and its credit is returned."""
    match status:
        case RecipientStatus.QUEUED | RecipientStatus.DEFERRED:
            return BillingStatus.RESERVED
        case RecipientStatus.FAILED if is_released:
            return BillingStatus.RELEASED
        case RecipientStatus.DELIVERED | RecipientStatus.FAILED:
            return BillingStatus.SETTLED
        case RecipientStatus.BOUNCED | RecipientStatus.CANCELLED:
            return BillingStatus.RELEASED
        case _:
            assert_never(status)


def check_metadata(given: Mapping[str, str]) -> Mapping[str, str]:
    """The pairs, if all of them may be stored."""
    if len(given) > limits.METADATA_MAX:
        raise invalid(f"`metadata` has {len(given)} pairs: at most {limits.METADATA_MAX} are allowed.")
    for name, value in given.items():
        check_metadata_pair(name, value)
    return given


def check_metadata_pair(name: str, value: str) -> None:
    if not _METADATA_NAME.match(name):
        raise invalid(f"`metadata`: the name {name[:100]!r} is not 1 to 64 letters, digits or any of _ . -")
    if len(value) > limits.METADATA_VALUE_CHARACTERS_MAX:
        raise invalid(
            f"`metadata.{name}` has {len(value)} characters: "
            f"at most {limits.METADATA_VALUE_CHARACTERS_MAX} are allowed."
        )
    if CONTROL.search(value):
        raise invalid(f"`metadata.{name}` contains a line break or another control character: remove it.")


def stored_metadata(given: Mapping[str, str]) -> str | None:
    """The pairs as a column stores them, in their order; None for no pairs."""
    return json.dumps(given, ensure_ascii=False, separators=(",", ":")) if given else None


def read_metadata(column: str | None) -> dict[str, str]:
    """The pairs of a stored column."""
    pairs: dict[str, str] = {} if column is None else json.loads(column)
    return pairs


def is_forget(given: str) -> bool:
    """True, or a Refusal: there is no other value."""
    if given != FORGET:
        raise invalid(f'`content` is {given[:100]!r}: write "{FORGET}", or leave it out to keep the content.')
    return True


def forgotten_content() -> Refusal:
    return Refusal(
        Code.NOT_FOUND,
        'This message was sent with `content`: "forget", so that no one can read its content. '
        "Its history is at GET /v1/messages/{id}.",
    )


def is_tag(text: str) -> bool:
    return 1 <= len(text) <= limits.TAG_CHARACTERS_MAX and text.isprintable()


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The hash by which request bodies are compared; keyed, since a body may be guessable.

    It contains a hash for each known key, one after another, so that a body is recognised while the key is replaced.
    Only the first is stored.
    """

    keys: tuple[bytes, ...]

    def __call__(self, canonical: bytes) -> bytes:
        return b"".join([blake2b(canonical, key=key, digest_size=_HASH_BYTES).digest() for key in self.keys])


def stored_fingerprint(fingerprint: bytes) -> bytes:
    return fingerprint[:_HASH_BYTES]


def fingerprint_of_test_mode(fingerprint: bytes) -> bytes:
    """The fingerprint of the same body as test mail, which differs from that of live mail."""
    return b"".join(
        [blake2b(part, person=b"test mode", digest_size=_HASH_BYTES).digest() for part in _parts(fingerprint)]
    )


def is_same_body(fingerprint: bytes, stored_before: bytes) -> bool:
    return stored_before in _parts(fingerprint)


def _parts(fingerprint: bytes) -> list[bytes]:
    return [fingerprint[at : at + _HASH_BYTES] for at in range(0, len(fingerprint), _HASH_BYTES)] or [fingerprint]


def parse_send_time(given: str) -> datetime:
    """The time in UTC, whether past or future."""
    try:
        if not _FORM.match(given):
            raise ValueError(given)
        return datetime.fromisoformat(given.upper()).astimezone(UTC)
    except ValueError:
        raise invalid(
            "`send_at` is a time with its offset from UTC, like `2030-06-01T09:00:00Z` or `2030-06-01T09:00:00+02:00`."
        ) from None


def check_send_time(at: datetime | None, now: datetime) -> None:
    """Raises if the time is too far away."""
    if at is None:
        return
    if at > now + AHEAD_MAX:
        raise invalid(f"`send_at` is more than {limits.SEND_AT_DAYS_MAX} days ahead: give an earlier time.")
    if at < now - PAST_MAX:
        raise invalid("`send_at` is in the past: give a future time, or leave it out to send immediately.")


def is_ahead(at: datetime | None, now: datetime) -> bool:
    return at is not None and at > now
