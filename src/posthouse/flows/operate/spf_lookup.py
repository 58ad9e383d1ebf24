"""Whether a domain's SPF record allows an address: the look-ups that `rules.spf` needs."""

from dataclasses import dataclass

from posthouse.rules import spf
from posthouse.rules.domain import NoTxtRecord, TxtUnknown, TxtValues
from posthouse.rules.public_address import Address
from posthouse.rules.spf import BadSpf, SpfKind, SpfTerm
from posthouse.wire.dns import HostAddresses, MxRecords, NoAnswer, Resolver


@dataclass(frozen=True, slots=True)
class SpfAnswer:
    """None: DNS did not say, or it depends on the mail."""

    is_allowed: bool | None
    reason: str = ""


class _TooMany(Exception):  # noqa: N818 (ends a recursion, and no caller sees it)
    pass


class SpfLookup:
    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    async def allows(self, ip: Address, domain: str) -> SpfAnswer:
        try:
            return await _Evaluation(self._resolver, ip).of(domain)
        except _TooMany:
            return SpfAnswer(False, f"it needs more than {spf.LOOKUPS_MAX} look-ups, which voids it")


class _Evaluation:
    def __init__(self, resolver: Resolver, ip: Address) -> None:
        self._resolver = resolver
        self._ip = ip
        self._lookups = 0

    async def of(self, domain: str) -> SpfAnswer:
        answer = await self._resolver.texts(domain)
        match answer:
            case TxtUnknown(reason):
                return SpfAnswer(None, reason)
            case NoTxtRecord():
                return SpfAnswer(False, f"{domain} has no SPF record")
            case TxtValues(values):
                records = spf.records_among(values)
        if len(records) != 1:
            state = "has several SPF records, which voids them" if records else "has no SPF record"
            return SpfAnswer(False, f"{domain} {state}")
        terms = spf.read(records[0])
        if isinstance(terms, BadSpf):
            return SpfAnswer(False, f"the record of {domain} is void: {terms.reason}")
        return await self._first_match(domain, terms)

    async def _first_match(self, domain: str, terms: tuple[SpfTerm, ...]) -> SpfAnswer:
        unknown = ""
        for term in terms:
            self._count(term)
            if term.has_macro or term.kind in (SpfKind.EXISTS, SpfKind.PTR):
                unknown = f"the record of {domain} has {term.kind}, which depends on the mail"
                continue
            if term.kind is SpfKind.REDIRECT:
                return await self.of(term.value)
            matches = await self._matches(domain, term)
            if matches.is_allowed is None:
                unknown = matches.reason
            elif matches.is_allowed:
                if term.allows or not unknown:
                    return SpfAnswer(term.allows, f"the record of {domain} does not name it")
                break
        return SpfAnswer(None, unknown) if unknown else SpfAnswer(False, f"the record of {domain} does not name it")

    async def _matches(self, domain: str, term: SpfTerm) -> SpfAnswer:
        if term.kind is SpfKind.INCLUDE:
            return await self.of(term.value)
        hosts: list[str] = []
        if term.kind is SpfKind.A:
            hosts = [term.value or domain]
        elif term.kind is SpfKind.MX:
            exchanges = await self._resolver.exchanges(term.value or domain)
            if isinstance(exchanges, NoAnswer):
                return SpfAnswer(None, exchanges.reason)
            records = exchanges.records if isinstance(exchanges, MxRecords) else ()
            hosts = [record.host for record in records[: spf.LOOKUPS_MAX]]
        found: list[Address] = []
        for host in hosts:
            answer = await self._resolver.addresses(host)
            if isinstance(answer, NoAnswer):
                return SpfAnswer(None, answer.reason)
            found += answer.addresses if isinstance(answer, HostAddresses) else ()
        return SpfAnswer(spf.contains(term, self._ip, found))

    def _count(self, term: SpfTerm) -> None:
        self._lookups += term.needs_lookup
        if self._lookups > spf.LOOKUPS_MAX:
            raise _TooMany
