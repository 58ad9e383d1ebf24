"""Resends: which recipients of old messages get them again, and how long a resend lasts.

A message is sent again if its destination or this service was the obstacle. The address itself must be fine: it exists,
and its owner wants the mail. A message that was refused for its content would be refused again.
"""

from datetime import timedelta
from enum import StrEnum
from typing import Final

from posthouse.rules.delivery_reason import DeliveryReason, reason_of
from posthouse.rules.refusal import Code

R = DeliveryReason

# After this, bodies have been deleted by the usual retention.
LIFETIME: Final = timedelta(days=3)
# How long a resend and its key are remembered.
REMEMBERED: Final = timedelta(days=30)

_NEVER: Final = frozenset(
    {
        R.UNKNOWN_ADDRESS,
        R.UNKNOWN_DOMAIN,
        R.NO_MAIL_ACCEPTED,
        R.MAILBOX_DISABLED,
        R.RECIPIENT_REFUSES,
        R.SUPPRESSED,
        R.UNSUBSCRIBED,
        # An operator decided that it is not to be sent.
        R.CANCELLED,
    }
)
# Reasons of bounces that may have ended since, for the same message.
_FOR_POLICY: Final = frozenset(
    {
        R.AUTHENTICATION_FAILED,
        R.SENDER_ADDRESS,
        R.SENDER_REPUTATION,
        R.BLOCKLISTED,
        R.REVERSE_DNS,
        R.RATE_LIMITED,
        R.GREYLISTED,
        R.PROVIDER_BUSY,
        R.TLS_FAILED,
        R.POLICY,
    }
)
# The account may send again later.
WAITED_FOR: Final = frozenset(
    {
        Code.RATE_LIMITED,
        Code.WARMUP_LIMITED,
        Code.INSUFFICIENT_CREDITS,
        Code.ACCOUNT_SUSPENDED,
        Code.TEMPORARY_FAILURE,
        Code.SERVICE_UNAVAILABLE,
    }
)


class ResendStatus(StrEnum):
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"


class Fate(StrEnum):
    """What a resend does with a recipient of a message that failed, at least in part."""

    RESENT = "resent"
    # It got the message, or was cancelled.
    LEFT = "left"
    # Its address is unknown or wants no mail, or the same message would be refused again.
    NEVER = "never"


def fate(status: str, code: int | None, response: str | None, *, is_suppressed: bool) -> Fate:
    """`is_suppressed`: by now the address is suppressed, or is unsubscribed from the message's list."""
    if status not in ("failed", "bounced"):
        return Fate.LEFT
    reason = reason_of(status, code, response)
    if is_suppressed or reason in _NEVER:
        return Fate.NEVER
    return Fate.RESENT if status == "failed" or reason in _FOR_POLICY else Fate.NEVER
