"""Strict parsing of a single mailbox or domain, as typed by a user.

Accepts a bare address, or a display name and an address in angle brackets, and nothing else of RFC 5322's grammar:
no comment, group, list, route, quoted local part or address literal. So an accepted address is ASCII without white
space, brackets or control characters, and is safe in an SMTP command or a header field.

Everything here is linear in its input: lengths are checked first, and the patterns can match a text in only one way.
"""

import re
from typing import Final, NamedTuple

import idna

LOCAL_CHARACTERS_MAX: Final = 64
DOMAIN_CHARACTERS_MAX: Final = 253
ADDRESS_CHARACTERS_MAX: Final = 254
NAME_CHARACTERS_MAX: Final = 256
# A quoted name with every character escaped, and the longest address, fit easily.
GIVEN_CHARACTERS_MAX: Final = 1_024

_ATOM: Final = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]++"
_LOCAL: Final = rf"{_ATOM}(?:\.{_ATOM})*"
_LABEL: Final = r"(?!-)[A-Za-z0-9-]{1,63}+(?<!-)"
# A label whose third and fourth characters are hyphens is either Punycode, which must decode, or reserved: both take
# the slow path.
_PLAIN_LABEL: Final = rf"(?!..--){_LABEL}"
# At least two labels, and the last is not a number: never mistaken for an IP address.
_PLAIN_DOMAIN: Final = rf"(?:{_PLAIN_LABEL}\.)+(?![0-9]++\Z){_PLAIN_LABEL}\Z"

_plain_address: Final = re.compile(rf"({_LOCAL})@({_PLAIN_DOMAIN})").match
_plain_domain: Final = re.compile(_PLAIN_DOMAIN).match
_encoded_domain: Final = re.compile(rf"(?:{_LABEL}\.)+(?![0-9]++\Z){_LABEL}\Z").match
_plain_local: Final = re.compile(rf"{_LOCAL}\Z").match
# C0, DEL, C1, the two Unicode line ends, and surrogates, which UTF-8 can't encode.
find_control: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]").search
_plain_phrase: Final = re.compile(r'[^()<>\[\]:;@\\,"]*+\Z').match
_next_word: Final = re.compile(r' *+(?:"((?:[^"\\]++|\\.)*)"|([^()<>\[\]:;@\\," ]++))').match
unescape: Final = re.compile(r"\\(.)").sub

_EXAMPLE: Final = 'ada@example.com or "Ada Lovelace" <ada@example.com>'


class AddressError(ValueError):
    """What is wrong with an address, and what to write instead."""


class Mailbox(NamedTuple):
    """`name` is the display name or empty; `domain` is in A-labels, lower case."""

    name: str
    local: str
    domain: str

    @property
    def address(self) -> str:
        return f"{self.local}@{self.domain}"

    @property
    def key(self) -> str:
        """Two addresses with the same key are the same recipient."""
        return f"{self.local}@{self.domain}".lower()


def parse_mailbox(given: str) -> Mailbox:
    if len(given) <= ADDRESS_CHARACTERS_MAX and (plain := _plain_address(given)) is not None:
        local, domain = plain.groups()
        if len(local) <= LOCAL_CHARACTERS_MAX:
            return Mailbox("", local, domain.lower())
    if len(given) > GIVEN_CHARACTERS_MAX:
        raise AddressError(f"is longer than {GIVEN_CHARACTERS_MAX} characters; give one address only")
    if not given:
        raise AddressError(f"is empty; write {_EXAMPLE}")
    if find_control(given):
        raise AddressError("holds a line break or another control character; remove it")
    if given[0] == " " or given[-1] == " ":
        raise AddressError("has white space around it; remove it")
    if given[-1] != ">":
        return _mailbox("", given)
    opening = given.rfind("<")
    if opening < 0:
        raise AddressError(f"has a > without a < before it; write {_EXAMPLE}")
    return _mailbox(_display_name(given[:opening]), given[opening + 1 : -1])


def parse_domain(given: str) -> str:
    """The domain in A-labels, lower case."""
    if len(given) <= DOMAIN_CHARACTERS_MAX and _plain_domain(given):
        return given.lower()
    if not given:
        raise AddressError("has no domain; write one such as example.com")
    if given[0] == "[":
        raise AddressError("has an address literal; write a domain name instead of [...]")
    if len(given) > DOMAIN_CHARACTERS_MAX:
        raise AddressError(f"has a domain longer than {DOMAIN_CHARACTERS_MAX} characters")
    if find_control(given):
        raise AddressError("holds a line break or another control character; remove it")
    try:
        domain = idna.encode(given, uts46=True).decode()
    except UnicodeError:
        domain = ""
    if "." not in domain and "." not in given:
        raise AddressError("has a domain of a single label; write it in full, such as example.com")
    if len(domain) > DOMAIN_CHARACTERS_MAX or not _encoded_domain(domain):
        raise AddressError(
            "has a domain that can't exist in DNS; write labels of letters, digits and inner hyphens, "
            "63 characters each at most, with single dots between them and a last one that is not a number"
        )
    return domain


def _mailbox(name: str, address: str) -> Mailbox:
    if "(" in address:
        raise AddressError("holds a comment in parentheses; remove it")
    local, at, domain_given = address.rpartition("@")
    if not _plain_local(local):
        raise AddressError(_fault_of_local(address, local, at))
    if len(local) > LOCAL_CHARACTERS_MAX:
        raise AddressError(f"has more than {LOCAL_CHARACTERS_MAX} characters before the @")
    domain = parse_domain(domain_given)
    if len(local) + 1 + len(domain) > ADDRESS_CHARACTERS_MAX:
        raise AddressError(f"is longer than {ADDRESS_CHARACTERS_MAX} characters")
    return Mailbox(name, local, domain)


def _fault_of_local(address: str, local: str, at: str) -> str:
    """Why `local` is not a dot-atom; the most specific mistake first."""
    if not at:
        return f"has no @; write {_EXAMPLE}"
    if not local:
        return f"has nothing before the @; write {_EXAMPLE}"
    if "<" in local or ">" in local:
        return f"has misplaced angle brackets; write {_EXAMPLE}"
    if local[0] == '"':
        return "has a quoted local part, which is not supported; use an address without quotes"
    if local[0] == "@":
        return "has a source route, which is not supported; write only the final address"
    if ":" in local or address[-1] == ";":
        return "is a group, which is not supported; list its addresses one by one"
    if "," in local or ";" in local:
        return "holds more than one address; give each as its own list item"
    if "@" in local:
        return "has more than one @; give one address only"
    if " " in local:
        return f"holds a space; write {_EXAMPLE}"
    if not local.isascii():
        return "has characters outside ASCII before the @, which is not supported; use an ASCII address"
    if local[0] == "." or local[-1] == "." or ".." in local:
        return "has a dot at the start or end of the part before the @, or two in a row"
    return "has a character before the @ that an address can't hold"


def _display_name(given: str) -> str:
    """The name in a phrase: words separated by spaces, quotes and escapes resolved."""
    if _plain_phrase(given):
        # Most names have no quotes and only need a split on spaces.
        name = " ".join([word for word in given.split(" ") if word])
    else:
        name = " ".join(_words(given.rstrip(" ")))
    if len(name) > NAME_CHARACTERS_MAX:
        raise AddressError(f"has a display name longer than {NAME_CHARACTERS_MAX} characters")
    return name


def _words(given: str) -> list[str]:
    words = []
    position = 0
    while position < len(given):
        word = _next_word(given, position)
        if word is None:
            raise AddressError('has a display name that must be in double quotes: "Lovelace, Ada" <ada@example.com>')
        quoted, atom = word.groups()
        words.append(unescape(r"\1", quoted) if atom is None else atom)
        position = word.end()
    return words
