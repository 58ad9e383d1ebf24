"""DNS queries: answers as values, so that "does not exist" and "no answer" are never confused.

Queries for delivery (MX and addresses) and for the keys of received mail are cached for the record's TTL, within
bounds: a query costs more than a message on an open connection. Ownership checks (`texts`) are never cached.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import Final

import dns.asyncresolver
import dns.exception
import dns.name
import dns.nameserver
import dns.rdata
import dns.rdatatype
import dns.resolver

from posthouse.mail.mx_host import MxRecord
from posthouse.rules.domain import NoTxtRecord, TxtAnswer, TxtUnknown, TxtValues
from posthouse.rules.public_address import Address

LOOKUP_SECONDS_MAX: Final = 6.0
SERVER_SECONDS_MAX: Final = 2.0
# Passes everywhere without fragmentation; longer answers use TCP.
UDP_BYTES_MAX: Final = 1232
# Further records of a name are ignored.
RECORDS_MAX: Final = 100
# Bounds on the TTL: a wrong record must not stay cached for a week, nor be queried for every message.
CACHE_SECONDS_MIN: Final = 30.0
CACHE_SECONDS_MAX: Final = 3600.0
ABSENT_SECONDS: Final = 300.0
UNKNOWN_SECONDS: Final = 10.0
CACHE_MAX: Final = 100_000
PARSED_MAX: Final = 10_000
ADDRESS_KINDS: Final = ("A", "AAAA")


@dataclass(frozen=True, slots=True)
class RecordsFound:
    """Records of the requested type, as text."""

    records: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoRecord:
    """The name exists, or may exist, without a record of this type."""


@dataclass(frozen=True, slots=True)
class NoName:
    """There is no such name."""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """No name server gave a usable answer."""

    reason: str


DnsAnswer = RecordsFound | NoRecord | NoName | NoAnswer


@dataclass(frozen=True, slots=True)
class MxRecords:
    """A domain's MX records; empty if the domain exists without MX records."""

    records: tuple[MxRecord, ...]


@dataclass(frozen=True, slots=True)
class HostAddresses:
    """A host's IPv4 and IPv6 addresses; may be empty."""

    addresses: tuple[Address, ...]


def system_name_servers() -> tuple[tuple[str, int], ...]:
    """The system's name servers, as address and port; empty if none are configured."""
    try:
        return tuple((str(address), 53) for address in dns.resolver.Resolver().nameservers)
    except dns.resolver.NoResolverConfiguration:
        return ()


class Resolver:
    """Queries the given name servers (address and port), or the system's if none are given."""

    def __init__(
        self,
        servers: Sequence[tuple[str, int]] = (),
        *,
        lookup_seconds_max: float = LOOKUP_SECONDS_MAX,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._servers = tuple(servers)
        self._lookup_seconds_max = lookup_seconds_max
        self._monotonic = monotonic
        self._resolver: dns.asyncresolver.Resolver | None = None
        # The answers, and until when they are good; the oldest first.
        self._cache: OrderedDict[tuple[str, str], tuple[float, DnsAnswer]] = OrderedDict()
        self._pending: dict[tuple[str, str], asyncio.Future[DnsAnswer]] = {}

    async def mx_hosts(self, domain: str) -> MxRecords | NoName | NoAnswer:
        answer = await self._cached_or_query(domain, "MX")
        match answer:
            case RecordsFound(records):
                return _mx_hosts(records)
            case NoRecord():
                return MxRecords(())
            case _:
                return answer

    async def addresses(self, host: str) -> HostAddresses | NoName | NoAnswer:
        # Usually both are cached, and two tasks would cost more than everything else here.
        answers = [self._cached(host, kind) for kind in ADDRESS_KINDS]
        if not all(answers):
            answers = list(await asyncio.gather(*(self._cached_or_query(host, kind) for kind in ADDRESS_KINDS)))
        found = [
            address for answer in answers if isinstance(answer, RecordsFound) for address in _addresses(answer.records)
        ]
        # Addresses of either family are enough. Without any, a missing answer could have contained some.
        if not found:
            for answer in answers:
                if isinstance(answer, NoAnswer):
                    return answer
            if all(isinstance(answer, NoName) for answer in answers):
                return NoName()
        return HostAddresses(tuple(found))

    async def is_alive(self) -> bool:
        """Whether a name server answers at all: any zone has the root's."""
        answer, _ = await self._query(".", "NS")
        return not isinstance(answer, NoAnswer)

    async def texts(self, name: str) -> TxtAnswer:
        """The TXT records at exactly this name (no search list), never cached."""
        answer, _ = await self._query(name, "TXT")
        return _txt_answer(answer)

    async def name_servers(self, zone: str) -> tuple[str, ...] | None:
        """The names of the zone's name servers; empty if no zone begins there, None without an answer."""
        return await self._names(zone, "NS")

    async def host_names(self, reverse_name: str) -> tuple[str, ...] | None:
        """The names of PTR records; empty if there are none, None without an answer."""
        return await self._names(reverse_name, "PTR")

    async def _names(self, name: str, kind: str) -> tuple[str, ...] | None:
        answer, _ = await self._query(name, kind)
        match answer:
            case RecordsFound(records):
                return records
            case NoRecord() | NoName():
                return ()
            case NoAnswer():
                return None

    async def cached_texts(self, name: str) -> TxtAnswer:
        return _txt_answer(await self._cached_or_query(name, "TXT"))

    def _cached(self, name: str, kind: str) -> DnsAnswer | None:
        entry = self._cache.get((name, kind))
        return entry[1] if entry is not None and self._monotonic() < entry[0] else None

    async def _cached_or_query(self, name: str, kind: str) -> DnsAnswer:
        cached = self._cached(name, kind)
        if cached is not None:
            return cached
        key = (name, kind)
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = asyncio.ensure_future(self._query_and_cache(key))
        return await asyncio.shield(pending)

    async def _query_and_cache(self, key: tuple[str, str]) -> DnsAnswer:
        try:
            answer, seconds = await self._query(*key)
            self._cache[key] = (self._monotonic() + seconds, answer)
            self._cache.move_to_end(key)
            if len(self._cache) > CACHE_MAX:
                self._cache.popitem(last=False)
            return answer
        finally:
            del self._pending[key]

    async def _query(self, name: str, kind: str) -> tuple[DnsAnswer, float]:
        """The answer, and for how many seconds it may be cached."""
        try:
            answer = await self._configured().resolve(
                dns.name.from_text(name), kind, search=False, lifetime=self._lookup_seconds_max
            )
        except dns.resolver.NXDOMAIN:
            return NoName(), ABSENT_SECONDS
        except dns.resolver.NoAnswer:
            return NoRecord(), ABSENT_SECONDS
        except dns.resolver.NoResolverConfiguration:
            reason = "no name server is configured on this machine; set `resolvers`"
        except dns.exception.Timeout:
            reason = "the name servers did not answer in time"
        except dns.resolver.NoNameservers:
            reason = "the name servers could not answer"
        except dns.exception.DNSException as error:
            reason = f"the lookup failed: {type(error).__name__}"
        except OSError as error:
            reason = f"the name servers can't be reached: {error.strerror or error}"
        else:
            seconds = min(max(float(answer.rrset.ttl if answer.rrset else 0), CACHE_SECONDS_MIN), CACHE_SECONDS_MAX)
            return RecordsFound(tuple([_text(record) for record in list(answer)[:RECORDS_MAX]])), seconds
        return NoAnswer(reason), UNKNOWN_SECONDS

    def _configured(self) -> dns.asyncresolver.Resolver:
        if self._resolver is None:
            resolver = dns.asyncresolver.Resolver(configure=not self._servers)
            if self._servers:
                resolver.nameservers = [dns.nameserver.Do53Nameserver(host, port) for host, port in self._servers]
            resolver.timeout = SERVER_SECONDS_MAX
            resolver.use_edns(0, 0, UDP_BYTES_MAX)
            self._resolver = resolver
        return self._resolver


def _txt_answer(answer: DnsAnswer) -> TxtAnswer:
    match answer:
        case RecordsFound(records):
            return TxtValues(records)
        case NoRecord() | NoName():
            return NoTxtRecord()
        case NoAnswer(reason):
            return TxtUnknown(reason)


# Parsed once, needed for every message.
@lru_cache(maxsize=PARSED_MAX)
def _mx_hosts(records: tuple[str, ...]) -> MxRecords:
    pairs = [record.split(" ", 1) for record in records]
    return MxRecords(tuple([MxRecord(int(preference), host) for preference, host in pairs]))


@lru_cache(maxsize=PARSED_MAX)
def _addresses(records: tuple[str, ...]) -> tuple[Address, ...]:
    return tuple([ip_address(record) for record in records])


def _text(record: dns.rdata.Rdata) -> str:
    if record.rdtype == dns.rdatatype.TXT:
        return b"".join(record.strings).decode("utf-8", "replace")  # type: ignore[attr-defined]
    return record.to_text()
