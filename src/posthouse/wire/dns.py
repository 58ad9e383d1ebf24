"""DNS look-ups: answers as values, so that "it is not there" and "nobody knows" are never confused."""

from collections.abc import Sequence
from typing import Final

import dns.asyncresolver
import dns.exception
import dns.name
import dns.nameserver
import dns.rdatatype
import dns.resolver

from posthouse.rules.domain import NoTexts, TextAnswer, Texts, UnknownTexts

LOOKUP_SECONDS_MAX: Final = 6.0
SERVER_SECONDS_MAX: Final = 2.0
# What passes everywhere without fragments; longer answers come over TCP.
UDP_BYTES_MAX: Final = 1232
# A name with more records than this is not read to its end.
RECORDS_MAX: Final = 100


class Resolver:
    """Asks the given name servers, each an address and a port, or those of the system when none is given."""

    def __init__(
        self, servers: Sequence[tuple[str, int]] = (), *, lookup_seconds_max: float = LOOKUP_SECONDS_MAX
    ) -> None:
        self._servers = tuple(servers)
        self._lookup_seconds_max = lookup_seconds_max
        self._resolver: dns.asyncresolver.Resolver | None = None

    async def texts(self, name: str) -> TextAnswer:
        """The TXT records at exactly this name (no search list), asked anew each time."""
        try:
            resolver = self._configured()
            answer = await resolver.resolve(
                dns.name.from_text(name), dns.rdatatype.TXT, search=False, lifetime=self._lookup_seconds_max
            )
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
            return NoTexts()
        except dns.resolver.NoResolverConfiguration:
            return UnknownTexts("no name server is configured on this machine; set `resolvers`")
        except dns.exception.Timeout:
            return UnknownTexts("the name servers did not answer in time")
        except dns.resolver.NoNameservers:
            return UnknownTexts("the name servers could not answer")
        except dns.exception.DNSException as error:
            return UnknownTexts(f"the look-up failed: {type(error).__name__}")
        except OSError as error:
            return UnknownTexts(f"the name servers can't be reached: {error.strerror or error}")
        texts = tuple(b"".join(record.strings).decode("utf-8", "replace") for record in list(answer)[:RECORDS_MAX])
        return Texts(texts)

    def _configured(self) -> dns.asyncresolver.Resolver:
        if self._resolver is None:
            resolver = dns.asyncresolver.Resolver(configure=not self._servers)
            if self._servers:
                resolver.nameservers = [dns.nameserver.Do53Nameserver(host, port) for host, port in self._servers]
            resolver.timeout = SERVER_SECONDS_MAX
            resolver.use_edns(0, 0, UDP_BYTES_MAX)
            self._resolver = resolver
        return self._resolver
