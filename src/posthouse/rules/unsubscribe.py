"""One-click unsubscribe (RFC 8058): which messages offer it, and the token in its link.

The tag `list:<name>` assigns a message to a list; another tag or a header requests the one-click link. The token
contains the account, the list and the address, encrypted with our key (AES-SIV, RFC 5297). So it needs no table and
works as long as the key exists, however old the message is; without the key it can't be read or forged. The same three
values always give the same token, which reveals nothing beyond the message itself.
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
# The links' path below the installation's public URL.
PATH: Final = "/unsubscribe/"
# AES-128 for each half of SIV.
KEY_BYTES: Final = 32

# Separates these tokens from other uses of the key, and from later token formats.
_PURPOSE: Final = [b"unsubscribe 1"]
_TAG_BYTES: Final = 16
_ID_BYTES: Final = 16
_SEALED_BYTES_MAX: Final = _TAG_BYTES + _ID_BYTES + 1 + LIST_CHARACTERS_MAX + ADDRESS_CHARACTERS_MAX
TOKEN_CHARACTERS_MAX: Final = -(-_SEALED_BYTES_MAX * 4 // 3)

_is_list: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{LIST_CHARACTERS_MAX}}}\Z").match


class UnsubscribeOption(NamedTuple):
    """`mailing_list` is the message's list; with `one_click`, each recipient gets a link to unsubscribe from it."""

    mailing_list: str | None
    one_click: bool


class ListMember(NamedTuple):
    """An address on a list; the address is in lower case."""

    account_id: AccountId
    mailing_list: str
    email: str


NO_LIST: Final = UnsubscribeOption(None, one_click=False)


def unsubscribe_option(tags: Sequence[str], header: str | None, *, has_own: bool) -> UnsubscribeOption:
    """The option from the message's tags and header; a message with its own List-Unsubscribe gets no link."""
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
    """For one-click mail on an installation without a public URL."""
    return invalid(
        "This installation has no public URL for one-click links: ask its operator to set `http.public_url`, "
        "or give the message your own List-Unsubscribe header."
    )


def token(member: ListMember, key: bytes) -> str:
    """The last part of the link: at most 468 URL-safe characters."""
    name = member.mailing_list.encode("ascii")
    payload = member.account_id.bytes + len(name).to_bytes(1, "big") + name + member.email.lower().encode("ascii")
    return _encoded(AESSIV(key).encrypt(payload, _PURPOSE))


def read(given: str, key: bytes) -> ListMember | None:
    """The list member in the token, or None if it is not ours."""
    if len(given) > TOKEN_CHARACTERS_MAX or not given.isascii():
        return None
    try:
        sealed = urlsafe_b64decode(given + "=" * (-len(given) % 4))
    except ValueError:
        return None
    # A token has a single valid encoding: the library skips invalid characters and ignores stray last bits.
    if len(sealed) <= _TAG_BYTES or _encoded(sealed) != given:
        return None
    try:
        payload = AESSIV(key).decrypt(sealed, _PURPOSE)
    except InvalidTag:
        return None
    rest = payload[_ID_BYTES + 1 :]
    size = payload[_ID_BYTES]
    return ListMember(
        AccountId(UUID(bytes=payload[:_ID_BYTES])), rest[:size].decode("ascii"), rest[size:].decode("ascii")
    )


def _encoded(sealed: bytes) -> str:
    return urlsafe_b64encode(sealed).rstrip(b"=").decode("ascii")
