"""Webhook URLs: HTTPS on public hosts only, and nothing that URL parsers could read differently.

A URL is checked twice: its text, here, when it is saved and before each attempt; and its host's addresses, when the
connection is made. Ambiguous URLs are refused rather than repaired.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final

import idna

from posthouse.mail.address import AddressError, parse_domain
from posthouse.rules.public_address import Address, is_public
from posthouse.rules.refusal import invalid

HTTPS_PORT: Final = 443
PORT_MAX: Final = 65_535
# Well-known services that are not HTTPS: a call to them could only do harm.
FORBIDDEN_PORTS: Final = frozenset(
    {
        20, 21,  # FTP
        22, 23,  # SSH, Telnet
        25, 465, 587, 2525,  # SMTP
        53, 853,  # DNS
        110, 143, 993, 995,  # POP3, IMAP
        111, 135, 137, 138, 139, 445,  # RPC, Windows
        389, 636,  # LDAP
        512, 513, 514, 515,  # remote shells, printers
        1433, 1521, 3306, 5432, 6379, 11211, 27017,  # databases
        3389, 5900,  # remote desktops
    }
)  # fmt: skip
URL_CHARACTERS_MAX: Final = 2_048

# Names that no public server can have: reserved for private use or for the local machine, or not in use.
_PRIVATE_ENDINGS: Final = frozenset(
    {
        "alt", "arpa", "corp", "example", "home", "internal", "intranet", "invalid", "lan", "local", "localdomain",
        "localhost", "mail", "onion", "private", "svc", "test",
    }
)  # fmt: skip
# Cloud metadata services whose names look public; the others end in a name above.
_METADATA_NAMES: Final = frozenset(
    {"metadata.goog", "metadata.tencentyun.com", "metadata.platformequinix.com", "metadata.packet.net"}
)

_find_blank: Final = re.compile(r"[\x00-\x20\x7f-\xa0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff]").search
_scheme: Final = re.compile(r"https://(?!/)", re.IGNORECASE | re.ASCII).match  # or the long s would be one, too
_authority_end: Final = re.compile(r"[/?]").search
_port: Final = re.compile(r"[1-9][0-9]{0,4}").fullmatch
# RFC 3986; and brackets in a query, which are common and accepted everywhere.
_path_and_query: Final = re.compile(
    r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]++|%[0-9A-Fa-f]{2})*(?:\?(?:[A-Za-z0-9._~!$&'()*+,;=:@/?\[\]-]++|%[0-9A-Fa-f]{2})*)?"
).fullmatch
# Some parsers read such a host as an IPv4 address: its last part is a number, in any base and any script.
_ends_in_number: Final = re.compile(r"(?:.*\.)?(?:\d+|0[xX][0-9A-Fa-f]*)\.?").fullmatch
_find_other_dot: Final = re.compile("[\u3002\uff0e\uff61\u2024]").search


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """Where events are sent to. `host` is a name in A-labels or an address without brackets, in lower case."""

    host: str
    port: int
    path_and_query: str
    url: str

    @property
    def address(self) -> Address | None:
        """The host's address, or None if the host is a name."""
        return _literal(self.host)

    @property
    def authority(self) -> str:
        """The host and port as in the Host header."""
        return _authority(self.host, self.port)


def check_url(
    url: str,
    *,
    own_domains: Collection[str] = (),
    own_addresses: Collection[Address] = (),
    ports: Collection[int] = (),
) -> WebhookTarget:
    """The URL's parts, and its normalised form; or a Refusal that says what to do.

    Without `ports`, any port is accepted except FORBIDDEN_PORTS.
    """
    if not url:
        raise invalid("`url` is empty: give the address that events are sent to, such as https://example.com/events.")
    if len(url) > URL_CHARACTERS_MAX:
        raise invalid(f"`url` is longer than {URL_CHARACTERS_MAX} characters: shorten it.")
    if _find_blank(url):
        raise invalid("`url` contains white space or a control character: remove it, or write a space as %20.")
    scheme = _scheme(url)
    if scheme is None:
        raise invalid("`url` must begin with https:// and a host, such as https://example.com/events.")
    if "#" in url:
        raise invalid("`url` has a fragment, which is never sent: leave out the # and what follows it.")
    if "\\" in url:
        raise invalid("`url` contains a backslash: write /, or %5C if it must be one.")
    end = _authority_end(url, scheme.end())
    authority, rest = (
        (url[scheme.end() :], "") if end is None else (url[scheme.end() : end.start()], url[end.start() :])
    )
    if "@" in authority:
        raise invalid(
            "`url` has a user name or password before its host: leave it out; events are authenticated by their "
            "signature."
        )
    host_given, port = _host_and_port(authority, ports)
    host = _checked_host(host_given, own_domains, own_addresses)
    if not _path_and_query(rest):
        raise invalid(
            "`url` contains a character that is not allowed in a path or a query: percent-encode it (RFC 3986), such "
            "as %C3%BC for ü."
        )
    path_and_query = rest if rest.startswith("/") else f"/{rest}"
    return WebhookTarget(host, port, path_and_query, f"https://{_authority(host, port)}{path_and_query}")


def _host_and_port(authority: str, ports: Collection[int]) -> tuple[str, int]:
    if authority.startswith("["):
        host, bracket, after = authority.partition("]")
        host += bracket
        colon, port_given = after[:1], after[1:]
    else:
        host, colon, port_given = authority.partition(":")
    if not colon:
        port = HTTPS_PORT
    elif colon == ":" and _port(port_given) and int(port_given) <= PORT_MAX:
        port = int(port_given)
    else:
        raise invalid(f"`url` has a port that is not from 1 to {PORT_MAX}: correct it, or leave it out for 443.")
    if ports and port not in ports:
        allowed = " or ".join(map(str, sorted(ports)))
        raise invalid(f"`url` names a port that events are not sent to: use port {allowed}.")
    if not ports and port in FORBIDDEN_PORTS:
        raise invalid(f"`url` names port {port}, which belongs to another service: use 443, or another of your ports.")
    return host, port


def _checked_host(given: str, own_domains: Collection[str], own_addresses: Collection[Address]) -> str:
    if not given:
        raise invalid("`url` has no host: write it in full, such as https://example.com/events.")
    bare = given[1:-1] if given[0] == "[" and given[-1] == "]" else given
    address = _literal(bare) if (":" in bare) == (bare is not given) else None
    if address is not None:
        if not is_public(address, own_addresses):
            raise invalid("`url` has an address that is not public: events are sent to public servers only.")
        return str(address)
    if bare is not given:
        raise invalid("`url` has brackets around something that is not an IPv6 address: correct it, or use a name.")
    name = _name(given)
    labels = name.split(".")
    if labels[-1] in _PRIVATE_ENDINGS or name in _METADATA_NAMES:
        raise invalid(f"`url` has the host {name}, which is not public: events are sent to public servers only.")
    for own in own_domains:
        if f".{name}".endswith(f".{own.strip('.').lower()}"):
            raise invalid(f"`url` leads to this service itself ({name}): give an address of yours.")
    return name


def _name(given: str) -> str:
    """The name in A-labels, in lower case. Only the case is mapped: an accepted name is what it looks like."""
    if given[-1] == ".":
        raise invalid("`url` has a host that ends with a dot: leave the dot out.")
    if _ends_in_number(given):
        raise invalid(
            "`url` has a host that is a number or ends in one: write a name, or an IPv4 address as four decimal "
            "numbers without leading zeros."
        )
    try:
        if given.isascii():
            name = given
        elif _find_other_dot(given):
            raise invalid("`url` has a dot in its host that is not an ASCII dot: write it with one.")
        else:
            name = idna.encode(given.lower()).decode()
        name = parse_domain(name)
    except AddressError as error:
        raise invalid(f"`url` {error}.") from error
    except UnicodeError as error:
        raise invalid("`url` has characters in its host that no domain name can have: correct it.") from error
    if _ends_in_number(name):
        raise invalid("`url` has a host that ends in a number: write a name.")
    return name


# Called for every webhook call.
@lru_cache(maxsize=10_000)
def _literal(host: str) -> Address | None:
    """The host as an address, only in canonical form: not short, octal, hexadecimal or scoped."""
    try:
        if ":" in host:
            return IPv6Address(host) if host.isascii() and "%" not in host else None
        return IPv4Address(host)
    except AddressValueError:
        return None


def _authority(host: str, port: int) -> str:
    bracketed = f"[{host}]" if ":" in host else host
    return bracketed if port == HTTPS_PORT else f"{bracketed}:{port}"
