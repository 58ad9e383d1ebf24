"""DNS look-ups: answers as values, so that "it is not there" and "nobody knows" are never confused.

What delivery asks (exchanges and addresses) is remembered for as long as DNS says, within bounds: a query
costs more than a whole mail on a connection that is open. Proofs of ownership (`texts`) are asked anew.
"""

import asyncio
import time
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

from posthouse.mail.exchange import MxRecord
from posthouse.rules.domain import NoTxtRecord, TxtAnswer, TxtUnknown, TxtValues
from posthouse.rules.public_address import Address

LOOKUP_SECONDS_MAX: Final = 6.0
SERVER_SECONDS_MAX: Final = 2.0
# What passes everywhere without fragments; longer answers come over TCP.
UDP_BYTES_MAX: Final = 1232
# A name with more records than this is not read to its end.
RECORDS_MAX: Final = 100
# However long or short DNS wants it: a wrong record must not stay for a week, nor be asked for every mail.
KNOWN_SECONDS_MIN: Final = 30.0
KNOWN_SECONDS_MAX: Final = 3600.0
ABSENT_SECONDS: Final = 300.0
UNKNOWN_SECONDS: Final = 10.0
KNOWN_MAX: Final = 100_000
PARSED_MAX: Final = 10_000
ADDRESS_KINDS: Final = ("A", "AAAA")


@dataclass(frozen=True, slots=True)
class RecordsFound:
    """Records of the kind that was asked for, as text."""

    records: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoRecord:
    """The name exists, or may exist, without a record of this kind."""


@dataclass(frozen=True, slots=True)
class NoName:
    """There is no such name."""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Nobody who should know gave a usable answer."""

    reason: str


DnsAnswer = RecordsFound | NoRecord | NoName | NoAnswer


@dataclass(frozen=True, slots=True)
class MxRecords:
    """A domain's MX records; none when the domain exists and has no such record."""

    records: tuple[MxRecord, ...]


@dataclass(frozen=True, slots=True)
class HostAddresses:
    """A host's addresses of both families; none when it has none."""

    addresses: tuple[Address, ...]


class Resolver:
    """Asks the given name servers, each an address and a port, or those of the system when none is given."""

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
        self._known: dict[tuple[str, str], tuple[float, DnsAnswer]] = {}
        self._asking: dict[tuple[str, str], asyncio.Future[DnsAnswer]] = {}

    async def exchanges(self, domain: str) -> MxRecords | NoName | NoAnswer:
        answer = await self._recall(domain, "MX")
        match answer:
            case RecordsFound(records):
                return _exchanges(records)
            case NoRecord():
                return MxRecords(())
            case _:
                return answer

    async def addresses(self, host: str) -> HostAddresses | NoName | NoAnswer:
        # Most often both are known, and two tasks would cost more than all else here.
        answers = [self._remembered(host, kind) for kind in ADDRESS_KINDS]
        if None in answers:
            answers = list(await asyncio.gather(*(self._recall(host, kind) for kind in ADDRESS_KINDS)))
        found = [one for answer in answers if isinstance(answer, RecordsFound) for one in _addresses(answer.records)]
        # Half an answer that holds addresses is enough; a half that is missing could have held some.
        if not found:
            for answer in answers:
                if isinstance(answer, NoAnswer):
                    return answer
            if all(isinstance(answer, NoName) for answer in answers):
                return NoName()
        return HostAddresses(tuple(found))

    async def texts(self, name: str) -> TxtAnswer:
        """The TXT records at exactly this name (no search list), asked anew each time."""
        answer, _ = await self._ask(name, "TXT")
        match answer:
            case RecordsFound(records):
                return TxtValues(records)
            case NoRecord() | NoName():
                return NoTxtRecord()
            case NoAnswer(reason):
                return TxtUnknown(reason)

    def _remembered(self, name: str, kind: str) -> DnsAnswer | None:
        known = self._known.get((name, kind))
        return known[1] if known is not None and self._monotonic() < known[0] else None

    async def _recall(self, name: str, kind: str) -> DnsAnswer:
        remembered = self._remembered(name, kind)
        if remembered is not None:
            return remembered
        key = (name, kind)
        asking = self._asking.get(key)
        if asking is None:
            asking = self._asking[key] = asyncio.ensure_future(self._learn(key))
        return await asyncio.shield(asking)

    async def _learn(self, key: tuple[str, str]) -> DnsAnswer:
        try:
            answer, seconds = await self._ask(*key)
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[key] = (self._monotonic() + seconds, answer)
            return answer
        finally:
            del self._asking[key]

    async def _ask(self, name: str, kind: str) -> tuple[DnsAnswer, float]:
        """The answer, and for how many seconds it may be believed."""
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
            reason = f"the look-up failed: {type(error).__name__}"
        except OSError as error:
            reason = f"the name servers can't be reached: {error.strerror or error}"
        else:
            seconds = min(max(float(answer.rrset.ttl if answer.rrset else 0), KNOWN_SECONDS_MIN), KNOWN_SECONDS_MAX)
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


# Read once, asked for with every mail.
@lru_cache(maxsize=PARSED_MAX)
def _exchanges(records: tuple[str, ...]) -> MxRecords:
    pairs = [record.split(" ", 1) for record in records]
    return MxRecords(tuple([MxRecord(int(preference), host) for preference, host in pairs]))


@lru_cache(maxsize=PARSED_MAX)
def _addresses(records: tuple[str, ...]) -> tuple[Address, ...]:
    return tuple([ip_address(record) for record in records])


def _text(record: dns.rdata.Rdata) -> str:
    if record.rdtype == dns.rdatatype.TXT:
        return b"".join(record.strings).decode("utf-8", "replace")  # type: ignore[attr-defined]
    return record.to_text()
