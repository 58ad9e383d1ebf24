"""SPF records (RFC 7208), as far as is needed to decide whether one of our own addresses is allowed to send.

`read` parses a record; the caller looks up what its terms name and asks `contains`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_network
from typing import Final

from posthouse.rules.public_address import Address

TAG: Final = "v=spf1"
# RFC 7208, 4.6.4: more terms that need a lookup make the record invalid.
LOOKUPS_MAX: Final = 10


class SpfKind(StrEnum):
    ALL = "all"
    INCLUDE = "include"
    A = "a"
    MX = "mx"
    IP4 = "ip4"
    IP6 = "ip6"
    EXISTS = "exists"
    PTR = "ptr"
    REDIRECT = "redirect"


_NAMES: Final = {kind.value: kind for kind in SpfKind}
_LOOKED_UP: Final = frozenset(SpfKind) - {SpfKind.ALL, SpfKind.IP4, SpfKind.IP6}


@dataclass(frozen=True, slots=True)
class SpfTerm:
    """`allows` is False for a term that forbids or is neutral. `prefix` has a length for each IP version."""

    kind: SpfKind
    allows: bool = True
    value: str = ""
    prefix: tuple[int, int] = (32, 128)

    @property
    def needs_lookup(self) -> bool:
        return self.kind in _LOOKED_UP

    @property
    def has_macro(self) -> bool:
        return "%" in self.value


@dataclass(frozen=True, slots=True)
class BadSpf:
    """The record is invalid."""

    reason: str


def records_among(texts: Iterable[str]) -> list[str]:
    """The texts that are SPF records; a domain may have only one."""
    return [text for text in texts if text.lower() == TAG or text.lower().startswith(f"{TAG} ")]


def read(record: str) -> tuple[SpfTerm, ...] | BadSpf:
    """The terms of the record in their order, with a redirect at the end."""
    terms: list[SpfTerm] = []
    redirect: list[SpfTerm] = []
    for word in record.split()[1:]:
        if word.lower().startswith("redirect="):
            redirect.append(SpfTerm(SpfKind.REDIRECT, value=word[9:]))
        elif "=" not in word.partition(":")[0].partition("/")[0]:
            term = _term(word)
            if term is None:
                return BadSpf(f"it has a term that no receiver understands: {word!r}")
            terms.append(term)
    if len(redirect) > 1:
        return BadSpf("it has several redirects")
    # A redirect counts only where no `all` ends the record.
    return tuple(terms if any(term.kind is SpfKind.ALL for term in terms) else [*terms, *redirect])


def _term(word: str) -> SpfTerm | None:
    qualifier, rest = (word[0], word[1:]) if word[0] in "+-~?" else ("+", word)
    name, colon, value = rest.partition(":")
    if not colon:
        name, slash, bits = rest.partition("/")
        value = slash + bits
    kind = _NAMES.get(name.lower())
    if kind is None or kind is SpfKind.REDIRECT:
        return None
    if kind in (SpfKind.IP4, SpfKind.IP6):
        return SpfTerm(kind, qualifier == "+", value) if _network_version(value) == int(kind[2]) else None
    value, prefix = _without_prefix(value) if kind in (SpfKind.A, SpfKind.MX) else (value, (32, 128))
    if prefix is None or (kind in (SpfKind.INCLUDE, SpfKind.EXISTS) and not value):
        return None
    return SpfTerm(kind, qualifier == "+", value, prefix)


def _network_version(value: str) -> int | None:
    try:
        return ip_network(value, strict=False).version
    except ValueError:
        return None


def _without_prefix(value: str) -> tuple[str, tuple[int, int] | None]:
    """`host/24//64` as the host and its prefixes; None if the prefixes are invalid."""
    value, _, six = value.partition("//")
    value, _, four = value.partition("/")
    given = (four or "32", six or "128")
    if not all(bits.isascii() and bits.isdigit() for bits in given) or int(given[0]) > 32 or int(given[1]) > 128:
        return value, None
    return value, (int(given[0]), int(given[1]))


def contains(term: SpfTerm, ip: Address, found: Sequence[Address] = ()) -> bool:
    """Whether the term matches the address; `found` are the addresses of the hosts that it names."""
    match term.kind:
        case SpfKind.ALL:
            return True
        case SpfKind.IP4 | SpfKind.IP6:
            network = ip_network(term.value, strict=False)
            return ip.version == network.version and ip in network
        case SpfKind.A | SpfKind.MX:
            bits = term.prefix[0] if ip.version == 4 else term.prefix[1]
            return any(each.version == ip.version and ip in ip_network((each, bits), strict=False) for each in found)
        case _:
            return False
