"""Mail exchanges (RFC 5321, 5.1; RFC 7505): which hosts take a domain's mail, in the order to try them."""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

# Real domains have fewer, and each costs a DNS query and perhaps a timeout.
EXCHANGES_MAX: Final = 10
RANDOM_BYTES_MAX: Final = blake2b.MAX_KEY_SIZE


@dataclass(frozen=True, slots=True)
class MxRecord:
    """As in DNS; `host` with or without its last dot, "." or "" for the root."""

    preference: int
    host: str


@dataclass(frozen=True, slots=True)
class MxHost:
    """`host` is in lower case without a last dot; implicit means that the domain has no MX and is its own host."""

    host: str
    preference: int
    is_implicit: bool = False


@dataclass(frozen=True, slots=True)
class NullMx:
    """The domain says that it takes no mail."""


def mx_hosts(domain: str, records: Iterable[MxRecord], random: bytes) -> tuple[MxHost, ...] | NullMx:
    """The hosts to try, the most preferred first, those of equal preference in an order drawn from `random`.

    The domain is known to exist. `random` is up to 64 bytes; the same bytes give the same order,
    whatever order DNS answered in.
    """
    preferences: dict[str, int] = {}
    for record in records:
        host = record.host.lower().removesuffix(".")
        preferences[host] = min(record.preference, preferences.get(host, record.preference))
    if not preferences:
        return (MxHost(domain.lower().removesuffix("."), 0, is_implicit=True),)
    if len(preferences) == 1 and "" not in preferences:
        ((host, preference),) = preferences.items()
        return (MxHost(host, preference),)
    # RFC 7505, 3: a null MX must be the only record. Next to real hosts it is a mistake and ignored.
    preferences.pop("", None)
    if not preferences:
        return NullMx()

    def order(host: str) -> tuple[int, bytes]:
        return preferences[host], blake2b(host.encode("utf-8", "replace"), digest_size=8, key=random).digest()

    return tuple(MxHost(host, preferences[host]) for host in sorted(preferences, key=order)[:EXCHANGES_MAX])
