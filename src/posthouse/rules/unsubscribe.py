"""Leaving a list with one click (RFC 8058): which mail offers it, and the token in its link.

Mail belongs to a list by its tag `list:<name>`, and offers the click by another tag or a header. The token names
the account, the list and the address, sealed under a key of ours (AES-SIV, RFC 5297). So it needs no table and
works for as long as the key does, however old the mail is; nobody can read or make one, and the same three always
give the same token, which tells a reader nothing that the mail itself doesn't.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from posthouse.rules.ids import AccountId
from posthouse.rules.limits import ADDRESS_CHARACTERS_MAX
from posthouse.rules.refusal import Refusal, invalid

HEADER: Final = "X-Service-Unsubscribe"
ONE_CLICK: Final = "one-click"
TAG: Final = "one-click-unsubscribe"
LIST_TAG_PREFIX: Final = "list:"
LIST_CHARACTERS_MAX: Final = 64
# Where the links lead, below the installation's public address.
PATH: Final = "/unsubscribe/"
# AES-128 for each half of SIV.
KEY_BYTES: Final = 32

# Keeps these tokens apart from any other use of the key, and from a later form of the token.
_PURPOSE: Final = [b"unsubscribe 1"]
_TAG_BYTES: Final = 16
_ID_BYTES: Final = 16
_SEALED_BYTES_MAX: Final = _TAG_BYTES + _ID_BYTES + 1 + LIST_CHARACTERS_MAX + ADDRESS_CHARACTERS_MAX
TOKEN_CHARACTERS_MAX: Final = -(-_SEALED_BYTES_MAX * 4 // 3)

_is_list: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{LIST_CHARACTERS_MAX}}}\Z").match


class UnsubscribeOption(NamedTuple):
    """`mailing_list` is the one that the mail belongs to; with `one_click`, each recipient gets a link to leave it."""

    mailing_list: str | None
    one_click: bool


class ListMember(NamedTuple):
    """Who leaves which list; the address is in lower case."""

    account_id: AccountId
    mailing_list: str
    email: str


NO_LIST: Final = UnsubscribeOption(None, one_click=False)


def unsubscribe_option(tags: Sequence[str], header: str | None, *, has_own: bool) -> UnsubscribeOption:
    """What the mail's tags and its header ask for; nothing is added to mail that has a List-Unsubscribe of its own."""
    if header is not None and header.strip().lower() != ONE_CLICK:
        raise invalid(f"`{HEADER}` takes `{ONE_CLICK}` only: write that, or leave the header out.")
    is_wanted = header is not None or TAG in tags
    lists = {tag.removeprefix(LIST_TAG_PREFIX) for tag in tags if tag.startswith(LIST_TAG_PREFIX)}
    if len(lists) == 1 and _is_list(name := next(iter(lists))):
        return UnsubscribeOption(name, one_click=is_wanted and not has_own)
    if not is_wanted:
        return NO_LIST
    raise invalid(
        f"One-click unsubscribe needs to know the list: give the message one tag `{LIST_TAG_PREFIX}<name>`, "
        f"the name 1 to {LIST_CHARACTERS_MAX} of A-Z, a-z, 0-9, dot, underscore and hyphen"
        f"{'' if len(lists) < 2 else f'; it has {len(lists)}'}."
    )


def not_offered() -> Refusal:
    """To whoever opts in where links would lead nowhere."""
    return invalid(
        "This installation has no public URL for one-click links: ask its operator to set `http.public_url`, "
        "or give the message a List-Unsubscribe header of your own."
    )


def token(leaver: ListMember, key: bytes) -> str:
    """What stands at the end of a link: 468 characters of the URL alphabet at most."""
    name = leaver.mailing_list.encode("ascii")
    named = leaver.account_id.bytes + len(name).to_bytes(1, "big") + name + leaver.email.lower().encode("ascii")
    return _spelt(AESSIV(key).encrypt(named, _PURPOSE))


def read(given: str, key: bytes) -> ListMember | None:
    """Who the token names, or None if we never wrote it."""
    if len(given) > TOKEN_CHARACTERS_MAX or not given.isascii():
        return None
    try:
        sealed = urlsafe_b64decode(given + "=" * (-len(given) % 4))
    except ValueError:
        return None
    # A token has one spelling: the library skips what is no digit, and ignores what is left over of the last one.
    if len(sealed) <= _TAG_BYTES or _spelt(sealed) != given:
        return None
    try:
        named = AESSIV(key).decrypt(sealed, _PURPOSE)
    except InvalidTag:
        return None
    rest = named[_ID_BYTES + 1 :]
    size = named[_ID_BYTES]
    return ListMember(
        AccountId(UUID(bytes=named[:_ID_BYTES])), rest[:size].decode("ascii"), rest[size:].decode("ascii")
    )


def _spelt(sealed: bytes) -> str:
    return urlsafe_b64encode(sealed).rstrip(b"=").decode("ascii")
