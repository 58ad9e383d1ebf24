"""Strict checks of operator input about accounts, domains, credentials and users."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final

from posthouse.mail.address import AddressError, parse_domain, parse_mailbox
from posthouse.rules.limits import PASSWORD_CHARACTERS_MAX, PASSWORD_CHARACTERS_MIN
from posthouse.rules.refusal import invalid

NAME_CHARACTERS_MAX: Final = 200
REASON_CHARACTERS_MAX: Final = 500
NETWORKS_MAX: Final = 100
# Line ends of every kind, other control characters, surrogates, which UTF-8 can't encode, and characters that change
# the direction of the text around them: names are shown inside sentences that others read.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


# ASCII digits only: Python's own parser accepts others.
_RFC_3339: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)


def name(what: str, given: str) -> str:
    stripped = given.strip()
    if not 1 <= len(stripped) <= NAME_CHARACTERS_MAX or _CONTROL.search(stripped):
        raise invalid(f"{what} has 1 to {NAME_CHARACTERS_MAX} characters, none of which breaks or turns a line.")
    return stripped


def reason(given: str) -> str:
    stripped = given.strip()
    if not 1 <= len(stripped) <= REASON_CHARACTERS_MAX or _CONTROL.search(stripped):
        raise invalid(f"`reason` has 1 to {REASON_CHARACTERS_MAX} characters, without line breaks.")
    return stripped


def moment(what: str, given: str) -> datetime:
    """RFC 3339: a date, a time, and the offset from UTC."""
    try:
        if not _RFC_3339.fullmatch(given):
            raise ValueError(given)
        return datetime.fromisoformat(given).astimezone(UTC)
    except (ValueError, OverflowError):
        raise invalid(f"`{what}` is a time such as 2027-01-31T12:00:00Z.") from None


def domain_name(given: str, field: str = "name") -> str:
    """The name in A-labels, in lower case, without a trailing dot."""
    try:
        return parse_domain(given.strip().removesuffix("."))
    except AddressError as error:
        raise invalid(f"`{field}` {error}.") from None


def networks(given: Sequence[str]) -> tuple[IPv4Network | IPv6Network, ...]:
    """The networks; a single address counts as a network of one."""
    if len(given) > NETWORKS_MAX:
        raise invalid(f"`allowed_networks` has at most {NETWORKS_MAX} networks.")
    read = []
    for text in map(str.strip, given):
        try:
            network = ip_network(text, strict=False)
            start = ip_network(text.partition("/")[0]).network_address
        except ValueError:
            raise invalid(
                f"`allowed_networks`: {text!r} is not a network: write 192.0.2.0/24, 2001:db8::/32 or a single address."
            ) from None
        if start != network.network_address:
            raise invalid(
                f"`allowed_networks`: {text!r} is an address inside a network: write {network} for the whole of it."
            )
        read.append(network)
    return tuple(read)


def user_address(given: str) -> str:
    """In lower case, as users are looked up by it."""
    try:
        mailbox = parse_mailbox(given.strip())
    except AddressError as error:
        raise invalid(f"`email` {error}.") from None
    if mailbox.name:
        raise invalid("`email` has a display name: give the bare address.")
    return mailbox.key


def check_password(given: str, field: str = "password") -> None:
    if not PASSWORD_CHARACTERS_MIN <= len(given) <= PASSWORD_CHARACTERS_MAX:
        raise invalid(f"`{field}` has {PASSWORD_CHARACTERS_MIN} to {PASSWORD_CHARACTERS_MAX} characters.")
