"""The check of sending addresses in DNS, as receivers make it: names, SPF of the return path, and DNS lists."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import structlog

from posthouse.clock import Clock
from posthouse.flows.operate.spf_lookup import SpfLookup
from posthouse.rules import address_check
from posthouse.rules.public_address import Address
from posthouse.rules.route import AddressState
from posthouse.store import addresses
from posthouse.store.addresses import AddressRow
from posthouse.store.postgres import Database
from posthouse.wire.dns import HostAddresses, NoAnswer, Resolver

log = structlog.get_logger(__name__)

CHECKED_EVERY: Final = timedelta(hours=1)
# For the names and SPF of one address.
CHECK_SECONDS_MAX: Final = 20.0


@dataclass(frozen=True, slots=True)
class AddressFindings:
    """What is wrong with an address; `unknown` is what DNS gave no answer to.

    `listings` has, for each list that answered, what it answered if it lists the address.
    """

    address: AddressRow
    findings: tuple[str, ...]
    unknown: tuple[str, ...]
    listings: Mapping[str, str | None]


class AddressCheck:
    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        resolver: Resolver,
        return_path: str,
        blocklists: Sequence[str] = (),
    ) -> None:
        self._database = database
        self._clock = clock
        self._resolver = resolver
        self._spf = SpfLookup(resolver)
        self._return_path = return_path
        self._blocklists = tuple(blocklists)

    async def check_all(self) -> list[AddressFindings]:
        """Of all addresses that aren't retired, now; nothing is stored."""
        return [await self._check(row) for row in await self._in_use()]

    async def run(self) -> int:
        """Check those whose last check is long ago, and store what was found; returns how many."""
        before = self._clock.now() - CHECKED_EVERY
        due = [row for row in await self._in_use() if row.checked_at is None or row.checked_at <= before]
        for row in due:
            found = await self._check(row)
            async with self._database.transaction() as tx:
                await addresses.record_check(
                    tx, row.ip, found.findings, found.listings, self._blocklists, self._clock.now()
                )
            if found.findings and found.findings != row.findings:
                log.warning("address_findings", address=str(row.ip), findings=list(found.findings))
        return len(due)

    async def _in_use(self) -> list[AddressRow]:
        async with self._database.connection() as connection:
            return [row for row in await addresses.list_all(connection) if row.state is not AddressState.RETIRED]

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
        findings += [address_check.listing_finding(row.ip, zone) for zone, answer in listings.items() if answer]
        return AddressFindings(row, tuple(findings), tuple(unknown), listings)

    async def _check_names(self, row: AddressRow, findings: list[str], unknown: list[str]) -> None:
        names = await self._resolver.host_names(address_check.reverse_name(row.ip))
        forward = await self._resolver.addresses(row.hostname)
        if names is None or isinstance(forward, NoAnswer):
            unknown.append(f"DNS gave no answer about the names of {row.ip}")
            return
        found = forward.addresses if isinstance(forward, HostAddresses) else ()
        finding = address_check.names_finding(row.ip, row.hostname, names, found)
        if finding is not None:
            findings.append(finding)

    async def _check_spf(self, ip: Address, findings: list[str], unknown: list[str]) -> None:
        answer = await self._spf.allows(ip, self._return_path)
        if answer.is_allowed is None:
            unknown.append(f"SPF of {self._return_path}: {answer.reason}")
        elif not answer.is_allowed:
            findings.append(address_check.spf_finding(ip, self._return_path, answer.reason))

    async def _listing(self, ip: Address, zone: str) -> tuple[bool, str | None]:
        """Whether the list answered; and its answer, if it lists the address."""
        answer = await self._resolver.addresses(address_check.list_name(ip, zone))
        if isinstance(answer, NoAnswer):
            return False, None
        found = answer.addresses if isinstance(answer, HostAddresses) else ()
        match address_check.is_listed(found):
            case None:
                return False, None
            case False:
                return True, None
            case True:
                return True, ", ".join(map(str, found))
