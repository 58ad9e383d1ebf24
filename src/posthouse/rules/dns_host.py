"""Who hosts a domain's DNS, guessed from the names of its name servers: where its owner has to publish records.

The names are the domain owner's: they are shown, and nothing is done with them.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

# A name server's last labels, and the name that its customers know.
_HOSTS: Final = {
    "akam.net": "Akamai",
    "alidns.com": "Alibaba Cloud DNS",
    "anycast.me": "OVHcloud",
    "bluehost.com": "Bluehost",
    "bunny.net": "bunny.net",
    "cloudflare.com": "Cloudflare",
    "desec.io": "deSEC",
    "desec.org": "deSEC",
    "digitalocean.com": "DigitalOcean",
    "dns-parking.com": "Hostinger",
    "dnsimple.com": "DNSimple",
    "dnspod.net": "DNSPod",
    "domaincontrol.com": "GoDaddy",
    "dreamhost.com": "DreamHost",
    "dynect.net": "Oracle Dyn",
    "gandi.net": "Gandi",
    "googledomains.com": "Google Cloud DNS",
    "he.net": "Hurricane Electric",
    "hetzner.com": "Hetzner",
    "hetzner.de": "Hetzner",
    "hover.com": "Hover",
    "infomaniak.ch": "Infomaniak",
    "inwx.de": "INWX",
    "inwx.eu": "INWX",
    "linode.com": "Akamai (Linode)",
    "loopia.se": "Loopia",
    "name.com": "Name.com",
    "netcup.net": "netcup",
    "nsone.net": "NS1",
    "one.com": "one.com",
    "ovh.net": "OVHcloud",
    "porkbun.com": "Porkbun",
    "registrar-servers.com": "Namecheap",
    "rzone.de": "Strato",
    "scw.cloud": "Scaleway",
    "squarespacedns.com": "Squarespace",
    "transip.net": "TransIP",
    "transip.nl": "TransIP",
    "ui-dns.com": "IONOS",
    "vercel-dns.com": "Vercel",
    "vultr.com": "Vultr",
    "wixdns.net": "Wix",
}
# Hosts whose name servers are under many domains: the beginning of a label.
_LABELS: Final = {"awsdns-": "Amazon Route 53", "azure-dns": "Azure DNS", "ui-dns": "IONOS", "ultradns": "UltraDNS"}
_HOST_NAME: Final = re.compile(r"[a-z0-9-]{1,63}(\.[a-z0-9-]{1,63}){1,9}")
# Parents of a domain that are asked for name servers: a subdomain seldom has its own.
ZONES_MAX: Final = 4


def zones(domain: str) -> Iterator[str]:
    """The names at which the domain's zone may begin, the longest first."""
    labels = domain.split(".")
    for start in range(min(ZONES_MAX, len(labels) - 1)):
        yield ".".join(labels[start:])


def dns_host(name_servers: Sequence[str]) -> str | None:
    """The host's name; of an unknown host, the domain of its name servers."""
    names = [name for name in (given.lower().rstrip(".") for given in name_servers) if _HOST_NAME.fullmatch(name)]
    for name in names:
        labels = name.split(".")
        for start in range(len(labels)):
            if known := _HOSTS.get(".".join(labels[start:])):
                return known
        for beginning, known in _LABELS.items():
            if any(label.startswith(beginning) for label in labels):
                return known
    return names[0].partition(".")[2] if names else None
