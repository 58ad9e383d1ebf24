"""Which addresses we connect to: public addresses only, in every notation.

Others control the names of mail servers and webhooks, so a name may resolve to anything: to ourselves, to a private
network, to a cloud's metadata service. The list is our own, because the standard library's `is_global` accepts
several of those (NAT64, 6to4 and IPv4-compatible forms, multicast, some clouds' metadata addresses).
"""

from collections.abc import Collection
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

FORBIDDEN: Final[tuple[Network, ...]] = tuple(
    ip_network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carriers' address translation, and several clouds' metadata
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # a cloud's metadata and name service, in a public range
        "169.254.0.0/16",  # link-local, and most clouds' metadata
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # anycast of the AS112 project
        "192.52.193.0/24",  # automatic multicast tunnelling
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # anycast of the AS112 project
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/3",  # multicast, reserved, broadcast
    )
)
# The allocated unicast space; everything outside it is special, and so are the networks below.
ALLOCATED_6: Final = IPv6Network("2000::/3")
FORBIDDEN_6: Final = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, which embeds an IPv4 address
        "2620:4f:8000::/48",  # anycast of the AS112 project
        "3fff::/20",  # documentation
    )
)


def is_public(address: Address, ours: Collection[Address] = ()) -> bool:
    """Whether we may connect to the address; `ours` are addresses of this installation."""
    # An IPv4 address inside an IPv6 address (mapped, compatible, NAT64) is outside the allocated space.
    if address in ours:
        return False
    if isinstance(address, IPv4Address):
        return not any(address in network for network in FORBIDDEN)
    return address in ALLOCATED_6 and not any(address in network for network in FORBIDDEN_6)
