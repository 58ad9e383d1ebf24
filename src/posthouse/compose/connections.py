"""Connections to other servers: which addresses and URLs are allowed, and with which TLS."""

import ssl
from collections.abc import Callable
from functools import cache, lru_cache
from ipaddress import ip_address
from typing import Final

from posthouse.config import Settings
from posthouse.rules.public_address import Address, is_public
from posthouse.rules.webhook_url import WebhookTarget, check_url
from posthouse.wire.dns import Resolver
from posthouse.wire.tls import TlsPolicy, TlsUse, verifying_context

URLS_CACHED_MAX: Final = 10_000


def resolver(settings: Settings) -> Resolver:
    return Resolver(settings.service.resolver_endpoints)


def may_connect(settings: Settings, *, allow_loopback: bool) -> Callable[[Address], bool]:
    own_addresses = frozenset(map(ip_address, settings.service.own_addresses))

    def may(address: Address) -> bool:
        return is_public(address, own_addresses) or (allow_loopback and address.is_loopback)

    return may


def target_of(settings: Settings) -> Callable[[str], WebhookTarget]:
    """The check of a webhook's URL, when it is saved and at each request."""
    own_domains = (settings.service.hostname, settings.return_path, *settings.service.own_domains)
    own_addresses = frozenset(map(ip_address, settings.service.own_addresses))

    @lru_cache(URLS_CACHED_MAX)
    def check(url: str) -> WebhookTarget:
        return check_url(url, own_domains=own_domains, own_addresses=own_addresses, ports=settings.webhooks.ports)

    return check


@cache
def verified_tls() -> TlsPolicy:
    """For servers where we log in: their certificate must be valid for the machine's authorities."""
    return TlsPolicy(TlsUse.REQUIRED_VERIFIED, verifying_context())


def opportunistic_tls() -> TlsPolicy:
    """Encrypt if offered: an unverified peer is better than cleartext."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return TlsPolicy(TlsUse.OPPORTUNISTIC, context)
