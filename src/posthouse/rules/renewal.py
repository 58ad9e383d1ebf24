"""Kept sessions: how long they and their tokens last, and the secret that renews them, which changes at each use.

The next secret is derived from the one before it, a random salt that is stored with the session, and the service's key.
So two tabs that present a secret at the same moment get the same next one, in whichever order the browser stores them.
"""

import hmac
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

from posthouse.rules import credential, limits

SALT_BYTES: Final = 32
# Makes the derived bytes useless as any other hash under the same key.
_PURPOSE: Final = b"next renewal secret "


class Use(Enum):
    FIRST = "first"
    # Presented by another tab, or again because the response got lost: the same next secret is given.
    AGAIN = "again"
    # A copy that is not the browser's: the session ends.
    TOO_LATE = "too late"


def next_secret(secret: str, salt: bytes, key: bytes) -> str:
    derived = hmac.digest(key, _PURPOSE + salt + secret.encode("utf-8", "surrogatepass"), "sha256")
    return credential.new_mail_token(derived)


def judge(*, is_current: bool, renewed_at: datetime | None, now: datetime) -> Use:
    """`renewed_at` is when the current secret replaced the one before it."""
    if is_current:
        return Use.FIRST
    grace = timedelta(seconds=limits.RENEWAL_GRACE_SECONDS)
    return Use.AGAIN if renewed_at is not None and now - renewed_at <= grace else Use.TOO_LATE


def end_of_session(began_at: datetime, now: datetime) -> datetime:
    """When a kept session ends that is begun or renewed now; in whole seconds, as in a token."""
    idle = now + timedelta(seconds=limits.KEPT_SESSION_IDLE_SECONDS)
    return min(idle, began_at + timedelta(seconds=limits.KEPT_SESSION_SECONDS_MAX)).replace(microsecond=0)


def end_of_token(session_ends_at: datetime, now: datetime) -> datetime:
    return min(session_ends_at, now.replace(microsecond=0) + timedelta(seconds=limits.RENEWED_TOKEN_SECONDS))
