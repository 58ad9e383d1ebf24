"""The place of a login: a network and the family of the program, coarse enough that a place stays the same for weeks.

An address changes within its provider's network, and a browser's version every month. The user agent is whatever the
client writes: only a short plain word of it is kept.
"""

import re
from datetime import timedelta
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final, NamedTuple

IPV4_PREFIX: Final = 24
IPV6_PREFIX: Final = 48
PLACES_KEPT: Final = 20
# Mail to a user about new places: an attacker with the password must not be able to flood them.
NOTICES_A_DAY_MAX: Final = 3
NOTICES_PERIOD: Final = timedelta(days=1)
# The time of a place is written anew only so often.
SEEN_AGAIN_AFTER: Final = timedelta(days=1)
UNKNOWN: Final = "unknown"

# In this order: a browser's user agent names those that it is derived from as well.
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


class LoginPlace(NamedTuple):
    network: str
    program: str


def place_of(peer: str, user_agent: str) -> LoginPlace:
    return LoginPlace(_network(peer), _program(user_agent))


def _network(peer: str) -> str:
    try:
        address = ip_address(peer)
    except ValueError:
        return UNKNOWN
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            return str(ip_network((int(address), IPV6_PREFIX), strict=False))
        address = address.ipv4_mapped
    return str(ip_network((int(address), IPV4_PREFIX), strict=False))


def _program(user_agent: str) -> str:
    products = {name.lower() for name in _products(user_agent)}
    for name, family in _BROWSERS.items():
        if name in products:
            return family
    word = _first_word(user_agent)
    return UNKNOWN if word is None else word[0]
