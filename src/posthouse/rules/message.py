"""The states of a message and its recipients, and how the message's state follows from the recipients'."""

from enum import StrEnum
from typing import assert_never


class MessageStatus(StrEnum):
    QUEUED = "queued"
    DELIVERED = "delivered"
    PARTIAL = "partial"
    FAILED = "failed"


class RecipientStatus(StrEnum):
    QUEUED = "queued"
    DEFERRED = "deferred"
    DELIVERED = "delivered"
    BOUNCED = "bounced"
    FAILED = "failed"
    # By the sender, before it was tried.
    CANCELLED = "cancelled"


class BillingStatus(StrEnum):
    RESERVED = "reserved"
    SETTLED = "settled"
    RELEASED = "released"


class Source(StrEnum):
    SMTP = "smtp"
    API = "api"
    TEST = "test"


def message_state(open: int, delivered: int, released: int, total: int) -> tuple[MessageStatus, BillingStatus]:  # noqa: A002
    """The message's state from its counts: recipients not final (`open`), delivered, and with a returned credit.

    The rest has failed. The state changes only when the last recipient is final.
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
