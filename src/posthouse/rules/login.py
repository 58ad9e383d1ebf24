"""Logins: how remembered sessions are renewed and end, and the places that users log in from.

The secret that renews a session changes at each use. The next is derived from the one before it, a random salt that is
stored with the session, and the service's key. So two tabs that present a secret at the same moment get the same next
one, in whichever order the browser stores them.
"""

import hmac
import re
from datetime import datetime, timedelta
from enum import Enum
from typing import Final, NamedTuple

from posthouse.rules import credential, limits

SALT_BYTES: Final = 32
# Makes the derived bytes useless as any other hash under the same key.
_SECRET_PURPOSE: Final = b"next renewal secret "

LOCATIONS_KEPT: Final = 20
# Mail to a user about new places: an attacker with the password must not be able to flood them.
NOTICES_A_DAY_MAX: Final = 3
NOTICES_PERIOD: Final = timedelta(days=1)
# The time of a place is updated at most this often.
SEEN_AGAIN_AFTER: Final = timedelta(days=1)
UNKNOWN_LOCATION: Final = "unknown"

# In this order, since a browser's user agent also names the browsers that it is derived from.
_BROWSERS: Final = {
    "edg": "Edge",
    "opr": "Opera",
    "samsungbrowser": "Samsung Internet",
    "firefox": "Firefox",
    "fxios": "Firefox",
    "crios": "Chrome",
    "chrome": "Chrome",
    "safari": "Safari",
}
_products: Final = re.compile(r"([A-Za-z][A-Za-z0-9._-]{0,31})/", re.ASCII).findall
_first_word: Final = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,31}", re.ASCII).match


class SecretUse(Enum):
    """The use of a renewal secret."""

    FIRST = "first"
    # Presented by another tab, or again because the response got lost: the same next secret is given.
    AGAIN = "again"
    # Presented by someone who copied it from the browser: the session ends.
    TOO_LATE = "too late"


class LoginLocation(NamedTuple):
    """The place of a login: a network and a program's family, coarse enough that it stays the same for weeks.

    An address changes within its provider's network, and a browser's version every month. A client can write anything
    as its user agent: only a short plain word of it is stored.
    """

    network: str
    program: str


def next_secret(secret: str, salt: bytes, key: bytes) -> str:
    derived = hmac.digest(key, _SECRET_PURPOSE + salt + secret.encode("utf-8", "surrogatepass"), "sha256")
    return credential.new_mail_token(derived)


def judge_secret(*, is_current: bool, renewed_at: datetime | None, now: datetime) -> SecretUse:
    """`renewed_at` is when the current secret replaced the one before it."""
    if is_current:
        return SecretUse.FIRST
    grace = timedelta(seconds=limits.RENEWAL_GRACE_SECONDS)
    return SecretUse.AGAIN if renewed_at is not None and now - renewed_at <= grace else SecretUse.TOO_LATE


def renewed_session_end(began_at: datetime, now: datetime) -> datetime:
    """When a remembered session that begins or is renewed now ends; in whole seconds, as in a token."""
    idle = now + timedelta(seconds=limits.REMEMBERED_SESSION_IDLE_SECONDS)
    return min(idle, began_at + timedelta(seconds=limits.REMEMBERED_SESSION_SECONDS_MAX)).replace(microsecond=0)


def end_of_token(session_ends_at: datetime, now: datetime) -> datetime:
    return min(session_ends_at, now.replace(microsecond=0) + timedelta(seconds=limits.RENEWED_TOKEN_SECONDS))


def login_location(peer: str, user_agent: str) -> LoginLocation:
    network = credential.peer_prefix(peer)
    # What is no address is its own prefix.
    return LoginLocation(UNKNOWN_LOCATION if network == peer else network, _program(user_agent))


def _program(user_agent: str) -> str:
    products = {name.lower() for name in _products(user_agent)}
    for name, family in _BROWSERS.items():
        if name in products:
            return family
    word = _first_word(user_agent)
    return UNKNOWN_LOCATION if word is None else word[0]
