"""What receivers check of a sending address in DNS: its names, SPF, and lists of addresses that send spam."""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network
from typing import Final

from posthouse.rules.public_address import Address

# Lists answer with an address here for what they list, by RFC 5782 …
_LISTED: Final = IPv4Network("127.0.0.0/8")
# … but for these, which say that the list refuses to answer: too many questions, or by way of a public resolver.
_REFUSED: Final = IPv4Network("127.255.255.0/24")


def reverse_name(ip: Address) -> str:
    """Where the address's PTR record is."""
    return ip.reverse_pointer


def list_name(ip: Address, zone: str) -> str:
    """Where a DNS list says whether it has the address."""
    return f"{ip.reverse_pointer.removesuffix('.in-addr.arpa').removesuffix('.ip6.arpa')}.{zone}"


def is_listed(answers: Sequence[Address]) -> bool | None:
    """Whether the answers list the address; None if the list did not say."""
    own = [answer for answer in answers if isinstance(answer, IPv4Address) and answer in _LISTED]
    if any(answer not in _REFUSED for answer in own):
        return True
    return None if answers else False


def names_finding(ip: Address, hostname: str, names: Sequence[str], addresses: Sequence[Address]) -> str | None:
    """What is wrong with the address's names: `names` are those of its PTR record, `addresses` the greeting's."""
    named = [name.lower().removesuffix(".") for name in names]
    if not named:
        return f"{ip} has no PTR record: have the owner of the network name it {hostname}."
    if hostname.lower() not in named:
        return f"The PTR record of {ip} names {named[0]}, and mail from it greets with {hostname}: let both be equal."
    if ip not in addresses:
        kind = "A" if ip.version == 4 else "AAAA"
        return f"{hostname} does not lead back to {ip}: publish an {kind} record."
    return None


def spf_finding(ip: Address, domain: str, reason: str) -> str:
    return (
        f"SPF of the return path does not allow {ip}: {reason}. Publish ip{ip.version}:{ip} in the record of {domain}."
    )


def listing_finding(ip: Address, zone: str) -> str:
    return f"{zone} lists {ip}: look up why there, end the cause, and ask to be removed."
