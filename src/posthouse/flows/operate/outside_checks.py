"""Checks of what others see of this installation (hostname, outgoing port 25, certificate), and of the machine."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from posthouse.flows.operate.address_check import spf_allows
from posthouse.rules import outside_check
from posthouse.rules.check_up import DoctorCheck, expect
from posthouse.rules.public_address import Address
from posthouse.wire.dns import HostAddresses, MxRecords, NoAnswer, Resolver
from posthouse.wire.tls import greeting

SECONDS_MAX: Final = 20.0
CERTIFICATE_BYTES_MAX: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class OutsideSettings:
    """`return_path` is the domain that bounces come back to; `takes_bounces`: the part `inbound` is set up.

    `files` is how many open files the parts need, by the setting that decides it; `files_max` is how many are allowed.
    """

    hostname: str
    return_path: str
    takes_bounces: bool = False
    port_25_host: str = ""
    certificate_file: str = ""
    key_file: str = ""
    authorities_file: str = ""
    files: Mapping[str, int] | None = None
    files_max: int | None = None


class OutsideChecks:
    """`name_servers` are asked one by one, each with its own resolver; `resolver` is that of the service."""

    def __init__(
        self,
        *,
        settings: OutsideSettings,
        resolver: Resolver,
        name_servers: Mapping[str, Resolver],
        greeting: Callable[[str], Awaitable[str]] = greeting,
    ) -> None:
        self._settings = settings
        self._resolver = resolver
        self._name_servers = name_servers
        self._greeting = greeting

    async def outbound(self, *, has_addresses: bool) -> list[DoctorCheck]:
        """For an installation whose mail leaves. Sending addresses that were added are checked separately."""
        checks = list(await asyncio.gather(*(self._name_server(*pair) for pair in self._name_servers.items())))
        name = outside_check.check_hostname(self._settings.hostname)
        checks.append(name)
        # Without DNS, or a hostname, all later checks would only repeat this result.
        if name.is_well and (not checks[:-1] or any(check.is_well for check in checks[:-1])):
            try:
                async with asyncio.timeout(SECONDS_MAX):
                    checks += await self._names(has_addresses=has_addresses)
            except TimeoutError:
                checks.append(_no_answer())
        checks.append(await self._port_25())
        return checks

    def machine(self, now: datetime) -> list[DoctorCheck]:
        return [*self._certificate(now), *self._files()]

    async def _name_server(self, name: str, resolver: Resolver) -> DoctorCheck:
        is_alive = await resolver.is_alive()
        return expect(
            "resolver",
            is_alive,
            "answers" if is_alive else "doesn't answer",
            "Start it, or set others in service.resolvers or /etc/resolv.conf: one on the same machine is best.",
            name,
        )

    async def _names(self, *, has_addresses: bool) -> list[DoctorCheck]:
        hostname = self._settings.hostname
        forward = await self._resolver.addresses(hostname)
        if isinstance(forward, NoAnswer):
            return [_no_answer()]
        found = forward.addresses if isinstance(forward, HostAddresses) else ()
        checks = [
            expect(
                "hostname_dns",
                bool(found),
                ", ".join(map(str, found)) or f"{hostname} has none",
                f"Publish an A record of {hostname} with the address that mail leaves from.",
            )
        ]
        if not has_addresses:
            for ip in found:
                checks += [await self._reverse(ip, found), await self._spf_of(ip)]
        if self._settings.takes_bounces:
            checks.append(await self._return_path())
        return checks

    async def _reverse(self, ip: Address, forward: Sequence[Address]) -> DoctorCheck:
        names = await self._resolver.host_names(outside_check.reverse_name(ip))
        if names is None:
            return DoctorCheck("reverse_dns", True, "not checked: DNS gave no answer", subject=f"of {ip}")
        finding = outside_check.names_finding(ip, self._settings.hostname, names, forward)
        return expect("reverse_dns", finding is None, ", ".join(names) or "none", finding or "", f"of {ip}")

    async def _spf_of(self, ip: Address) -> DoctorCheck:
        domain = self._settings.return_path
        answer = await spf_allows(self._resolver, ip, domain)
        if answer.is_allowed is None:
            return DoctorCheck("spf", True, f"not checked: {answer.reason}", subject=f"for {ip}")
        advice = outside_check.spf_finding(ip, domain, answer.reason)
        return expect("spf", answer.is_allowed, answer.reason or "allowed", advice, f"for {ip}")

    async def _return_path(self) -> DoctorCheck:
        domain, hostname = self._settings.return_path, self._settings.hostname.lower()
        answer = await self._resolver.mx_hosts(domain)
        if isinstance(answer, NoAnswer):
            return DoctorCheck("return_path", True, "not checked: DNS gave no answer")
        hosts = (
            [record.host.lower().removesuffix(".") for record in answer.records]
            if isinstance(answer, MxRecords)
            else []
        )
        return expect(
            "return_path",
            hostname in hosts or (not hosts and domain.lower() == hostname),
            f"MX of {domain}: {', '.join(hosts) or 'none'}",
            f"Publish `{domain}. MX 10 {self._settings.hostname}.`, where the part `inbound` listens at port 25.",
        )

    async def _port_25(self) -> DoctorCheck:
        host = self._settings.port_25_host
        if not host:
            return DoctorCheck("port_25", True, "not checked: doctor.port_25_host is empty")
        try:
            return DoctorCheck("port_25", True, f"{host}: {await self._greeting(host)}")
        except OSError as error:
            found = f"{host}: {str(error) or 'no answer in time'}"
        return DoctorCheck(
            "port_25",
            False,
            found,
            "Ask the network's owner to open outgoing port 25, or send through a relay that they offer.",
        )

    def _certificate(self, now: datetime) -> list[DoctorCheck]:
        settings = self._settings
        if not settings.certificate_file:
            return []
        try:
            certificate = _read(Path(settings.certificate_file))
            key = _read(Path(settings.key_file))
        except OSError as error:
            return [outside_check.unreadable_certificate(error)]
        authorities = None
        if settings.authorities_file:
            authorities = outside_check.authorities_of(_read(Path(settings.authorities_file)))
        return list(outside_check.check_certificate(certificate, key, settings.hostname, now, authorities))

    def _files(self) -> list[DoctorCheck]:
        most, needed = self._settings.files_max, self._settings.files or {}
        if most is None or not needed:
            return []
        setting = max(needed, key=lambda name: needed[name])
        return [
            expect(
                "files",
                most >= needed[setting],
                f"{most:,} are allowed, {setting} needs {needed[setting]:,}",
                f"Allow {needed[setting]:,} (LimitNOFILE= in systemd, `ulimit -Hn`), or lower {setting}.",
            )
        ]


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(CERTIFICATE_BYTES_MAX)


def _no_answer() -> DoctorCheck:
    return DoctorCheck(
        "hostname_dns",
        False,
        "DNS gave no answer",
        "Check whether the name servers of its domain answer: `dig +trace NAME`.",
    )
