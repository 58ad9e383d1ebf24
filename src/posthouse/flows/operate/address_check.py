"""The check of sending addresses in DNS, as receivers make it: names, SPF of the return path, and DNS lists."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import structlog

from posthouse.flows.shared.context import Context, Flow
from posthouse.rules import outside_check, spf
from posthouse.rules.domain import NoTxtRecord, TxtUnknown, TxtValues
from posthouse.rules.public_address import Address
from posthouse.rules.route import AddressState
from posthouse.rules.spf import BadSpf, SpfKind, SpfTerm
from posthouse.store import sending_addresses
from posthouse.store.sending_addresses import AddressRow
from posthouse.wire.dns import HostAddresses, MxRecords, NoAnswer, Resolver

log = structlog.get_logger(__name__)
CHECKED_EVERY: Final = timedelta(hours=1)
# For the names and SPF of one address.
CHECK_SECONDS_MAX: Final = 20.0


@dataclass(frozen=True, slots=True)
class SpfAnswer:
    """None if DNS gave no answer, or if the result depends on the message."""

    is_allowed: bool | None
    reason: str = ""


class _TooMany(Exception):  # noqa: N818 (ends a recursion, and no caller sees it)
    pass


async def spf_allows(resolver: Resolver, ip: Address, domain: str) -> SpfAnswer:
    """Whether a domain's SPF record allows an address: the look-ups that `rules.spf` needs."""
    try:
        return await _Evaluation(resolver, ip).of(domain)
    except _TooMany:
        return SpfAnswer(False, f"it needs more than {spf.LOOKUPS_MAX} look-ups, which makes it invalid")


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
            state = "has several SPF records, which makes them invalid" if records else "has no SPF record"
            return SpfAnswer(False, f"{domain} {state}")
        terms = spf.read(records[0])
        if isinstance(terms, BadSpf):
            return SpfAnswer(False, f"the record of {domain} is invalid: {terms.reason}")
        return await self._first_match(domain, terms)

    async def _first_match(self, domain: str, terms: tuple[SpfTerm, ...]) -> SpfAnswer:
        unknown = ""
        for term in terms:
            self._count(term)
            if term.has_macro or term.kind in (SpfKind.EXISTS, SpfKind.PTR):
                unknown = f"the record of {domain} has {term.kind}, which depends on the message"
                continue
            if term.kind is SpfKind.REDIRECT:
                return await self.of(term.value)
            matches = await self._matches(domain, term)
            if matches.is_allowed is None:
                unknown = matches.reason
            elif matches.is_allowed:
                if term.allows or not unknown:
                    return SpfAnswer(term.allows, f"the record of {domain} does not include it")
                break
        return SpfAnswer(None, unknown) if unknown else SpfAnswer(False, f"the record of {domain} does not include it")

    async def _matches(self, domain: str, term: SpfTerm) -> SpfAnswer:
        if term.kind is SpfKind.INCLUDE:
            return await self.of(term.value)
        hosts: list[str] = []
        if term.kind is SpfKind.A:
            hosts = [term.value or domain]
        elif term.kind is SpfKind.MX:
            mx_hosts = await self._resolver.mx_hosts(term.value or domain)
            if isinstance(mx_hosts, NoAnswer):
                return SpfAnswer(None, mx_hosts.reason)
            records = mx_hosts.records if isinstance(mx_hosts, MxRecords) else ()
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


@dataclass(frozen=True, slots=True)
class AddressFindings:
    """What is wrong with an address; `unknown` is what DNS gave no answer about.

    `listings` contains each list that answered, with its answer if it lists the address.
    """

    address: AddressRow
    findings: tuple[str, ...]
    unknown: tuple[str, ...]
    listings: Mapping[str, str | None]


class AddressCheck(Flow):
    def __init__(
        self, context: Context, *, resolver: Resolver, return_path: str, blocklists: Sequence[str] = ()
    ) -> None:
        super().__init__(context)
        self._resolver = resolver
        self._return_path = return_path
        self._blocklists = tuple(blocklists)

    async def check_all(self) -> list[AddressFindings]:
        """Check all addresses that aren't retired now, without storing the result."""
        return [await self._check(row) for row in await self._in_use()]

    async def run(self) -> int:
        """Check addresses whose last check is long ago, and store the results; returns how many."""
        before = self._clock.now() - CHECKED_EVERY
        due = [row for row in await self._in_use() if row.checked_at is None or row.checked_at <= before]
        for row in due:
            found = await self._check(row)
            async with self._database.transaction() as tx:
                await sending_addresses.record_check(
                    tx, row.ip, found.findings, found.listings, self._blocklists, self._clock.now()
                )
            if found.findings and found.findings != row.findings:
                log.warning("address_findings", address=str(row.ip), findings=list(found.findings))
        return len(due)

    async def _in_use(self) -> list[AddressRow]:
        async with self._database.connection() as connection:
            return [
                row for row in await sending_addresses.list_all(connection) if row.state is not AddressState.RETIRED
            ]

    async def _check(self, row: AddressRow) -> AddressFindings:
        findings: list[str] = []
        unknown: list[str] = []
        try:
            async with asyncio.timeout(CHECK_SECONDS_MAX):
                await self._check_names(row, findings, unknown)
                await self._check_spf(row.ip, findings, unknown)
        except TimeoutError:
            unknown.append("the name servers did not answer in time")
        answers = await asyncio.gather(*[self._listing(row.ip, zone) for zone in self._blocklists])
        listings = {
            zone: answer for zone, (is_known, answer) in zip(self._blocklists, answers, strict=True) if is_known
        }
        unknown += [
            f"{zone} did not say whether it lists {row.ip}" for zone in self._blocklists if zone not in listings
        ]
        findings += [outside_check.listing_finding(row.ip, zone) for zone, answer in listings.items() if answer]
        return AddressFindings(row, tuple(findings), tuple(unknown), listings)

    async def _check_names(self, row: AddressRow, findings: list[str], unknown: list[str]) -> None:
        names = await self._resolver.host_names(outside_check.reverse_name(row.ip))
        forward = await self._resolver.addresses(row.hostname)
        if names is None or isinstance(forward, NoAnswer):
            unknown.append(f"DNS gave no answer about the names of {row.ip}")
            return
        found = forward.addresses if isinstance(forward, HostAddresses) else ()
        finding = outside_check.names_finding(row.ip, row.hostname, names, found)
        if finding is not None:
            findings.append(finding)

    async def _check_spf(self, ip: Address, findings: list[str], unknown: list[str]) -> None:
        answer = await spf_allows(self._resolver, ip, self._return_path)
        if answer.is_allowed is None:
            unknown.append(f"SPF of {self._return_path}: {answer.reason}")
        elif not answer.is_allowed:
            findings.append(outside_check.spf_finding(ip, self._return_path, answer.reason))

    async def _listing(self, ip: Address, zone: str) -> tuple[bool, str | None]:
        """Whether the list answered; and its answer, if it lists the address."""
        answer = await self._resolver.addresses(outside_check.list_name(ip, zone))
        if isinstance(answer, NoAnswer):
            return False, None
        found = answer.addresses if isinstance(answer, HostAddresses) else ()
        match outside_check.is_listed(found):
            case None:
                return False, None
            case False:
                return True, None
            case True:
                return True, ", ".join(map(str, found))
