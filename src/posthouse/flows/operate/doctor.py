"""Doctor: checks that everything needed to accept and store mail is in place, and says what to do if it is not."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final

from posthouse.clock import host_time
from posthouse.flows.operate.address_check import AddressCheck, AddressFindings
from posthouse.flows.operate.outside_checks import OutsideChecks
from posthouse.flows.operate.sandbox_domain import SandboxDomain
from posthouse.flows.shared.context import Context, Flow
from posthouse.flows.shared.disk_space import NOT_MEASURED, DiskSpace, Gauge
from posthouse.rules import check_up, database_check, service_time
from posthouse.rules.check_up import DoctorCheck as DoctorCheck
from posthouse.rules.check_up import StreamServer, expect
from posthouse.rules.disk_space import FreeMark
from posthouse.rules.limits import GIB, PARTITION_DAYS_AHEAD
from posthouse.rules.refusal import Refusal
from posthouse.store import doctor, domains, endpoints, partitions, postgres, schema, second_factors
from posthouse.store.postgres import Connection
from posthouse.store.seal import SealError, sealing_key_id

DAYS_NAMED_MAX: Final = 3
MEMBERS_NAMED_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class DoctorSettings:
    """`dashboard_lack` says why the dashboard can't be served, and what to do.

    `sender_account` is the name or id of the account that sends the service's own mail, if it sends any. `backup_max`
    is how old the last backup may be, None if that is not checked.
    """

    public_url: str = ""
    trusted_proxies: str = ""
    sender_account: str = ""
    captures: bool = False
    dashboard_lack: str | None = None
    stream_replicas: int = 1
    backup_max: timedelta | None = None


class Doctor(Flow):
    """`stream_probes`, by server address, raise ConnectionError for a server that can't be used."""

    def __init__(
        self,
        context: Context,
        settings: DoctorSettings = DoctorSettings(),  # noqa: B008 (it is frozen)
        *,
        disk_space: DiskSpace | None = None,
        stream_probes: Mapping[str, Callable[[], Awaitable[StreamServer]]] = MappingProxyType({}),
        clock_step: Callable[[], timedelta | None] = lambda: None,
        sandbox_domain: SandboxDomain | None = None,
        address_check: AddressCheck | None = None,
        outside: OutsideChecks | None = None,
        host_time: Callable[[], datetime] = host_time,
    ) -> None:
        """`host_time` is the time of this machine."""
        super().__init__(context)
        self._settings = settings
        self._disk_space = disk_space or DiskSpace()
        self._stream_probes = stream_probes
        self._clock_step = clock_step
        self._sandbox_domain = sandbox_domain
        self._address_check = address_check
        self._outside = outside
        self._host_time = host_time

    async def check_up(self) -> Sequence[DoctorCheck]:
        try:
            checks = await self._database_checks()
        except Refusal as refusal:
            cause = str(refusal.__cause__ or "").strip().splitlines()
            advice = postgres.advice(refusal.__cause__)
            found = cause[0] if cause else refusal.text
            return [DoctorCheck("postgres", False, found, f"{advice[0].upper()}{advice[1:]}.")]
        checks += [_outbound_check(self._settings.captures), _dashboard_check(self._settings.dashboard_lack)]
        checks += [*await self._capacity(), *await self._stream(), *self._proxy()]
        if self._outside is not None:
            if not self._settings.captures:
                has_addresses = any(check.kind == "address" for check in checks)
                checks += await self._outside.outbound(has_addresses=has_addresses)
            checks += self._outside.machine(self._host_time())
        return checks

    async def _database_checks(self) -> list[DoctorCheck]:
        async with self._database.connection() as connection:
            tables = await _tables(connection)
            server = await doctor.server(connection)
            checks = [
                DoctorCheck("postgres", True, "yes"),
                *database_check.check_server(server, self._host_time()),
                _clock_check(self._clock_step()),
                tables,
            ]
            if not tables.is_well:
                return checks
            now = self._clock.now()
            checks += [await self._partitions(connection), await self._seal_keys(connection)]
            checks += [*await self._sandbox(connection), *await self._sender(connection)]
            checks += database_check.check_waiting(
                await doctor.waiting(connection, now), now, self._settings.backup_max
            )
        if self._address_check is not None:
            checks += [_address_check(found) for found in await self._address_check.check_all()]
        return checks

    async def _partitions(self, connection: Connection) -> DoctorCheck:
        today = self._clock.now().date()
        days = [today + timedelta(days=ahead) for ahead in range(PARTITION_DAYS_AHEAD + 1)]
        attached = set(await partitions.attached(connection))
        lacking = [
            day for day in days if any(partitions.Partition(day, table) not in attached for table in partitions.TABLES)
        ]
        if not lacking:
            return DoctorCheck("partitions", True, f"partitions until {days[-1]}")
        named = ", ".join(map(str, lacking[:DAYS_NAMED_MAX])) + (" …" if len(lacking) > DAYS_NAMED_MAX else "")
        advice = (
            "Run `posthouse maintenance` now, and keep `posthouse run maintenance` running: it creates them each day."
        )
        return DoctorCheck("partitions", False, f"no partitions for {named}", advice)

    async def _seal_keys(self, connection: Connection) -> DoctorCheck:
        counts = await doctor.sealing_key_uses(connection)
        unknown = {key_id: count for key_id, count in counts.items() if key_id not in self._keys.sealer.key_ids}
        wrong = [key_id for key_id in sorted(set(counts) - set(unknown)) if not await self._opens(connection, key_id)]
        if wrong:
            return DoctorCheck(
                "seals",
                False,
                f"the key {wrong[0]!r} in the settings is not the key that sealed them",
                "Restore that key in `secrets.seal_keys` from your copy of the settings: a new key can't open them.",
            )
        if not unknown:
            return DoctorCheck("seals", True, f"{sum(counts.values())} sealed")
        found = ", ".join(f"{count} sealed with {key_id!r}" for key_id, count in sorted(unknown.items()))
        return DoctorCheck(
            "seals",
            False,
            found,
            "Put the missing keys back into `secrets.seal_keys`, from your copy of the settings; keep the others.",
        )

    async def _opens(self, connection: Connection, key_id: str) -> bool:
        """Whether the key opens the secrets that name it; one of each kind is tried."""
        sealed = [
            *(
                (row.dkim_sealed, domains.dkim_purpose(row.account_id, row.id))
                for row in await domains.sealed_with(connection, [key_id], 1)
            ),
            *(
                (value, purpose)
                for row in await endpoints.sealed_with(connection, [key_id], 1)
                for value, purpose in endpoints.sealed_values(row)
                if value is not None and sealing_key_id(value) == key_id
            ),
            *(
                (row.secret_sealed, second_factors.secret_purpose(row.user_id))
                for row in await second_factors.sealed_with(connection, [key_id], 1)
            ),
        ]
        try:
            for secret, purpose in sealed:
                self._keys.sealer.open(secret, purpose)
        except SealError:
            return False
        return True

    async def _sandbox(self, connection: Connection) -> list[DoctorCheck]:
        if self._sandbox_domain is None:
            return []
        name, account = self._sandbox_domain.name, self._sandbox_domain.account
        is_well = await self._sandbox_domain.is_verified(connection)
        return [
            expect(
                "sandbox",
                is_well,
                f"new accounts share {name}" if is_well else f"{name} is not a verified domain of {account}",
                f"Add it with `posthouse domain add {account!r} {name}`, publish its records, and verify it: until "
                "then new accounts need their own domain for their first message.",
            )
        ]

    async def _sender(self, connection: Connection) -> list[DoctorCheck]:
        account = self._settings.sender_account
        # Captured mail is there to be read.
        if not account or self._settings.captures:
            return []
        others = await doctor.members_who_are_not_operators(connection, account)
        named = ", ".join(others[:MEMBERS_NAMED_MAX]) + (" …" if len(others) > MEMBERS_NAMED_MAX else "")
        return [
            expect(
                "sender_members",
                not others,
                f"{named} of {account}: not operators" if others else f"every member of {account} is an operator",
                f"Remove them with `posthouse user remove {account!r} ADDRESS`, or name an account without customers "
                "in service.sender_account.",
            )
        ]

    async def _capacity(self) -> list[DoctorCheck]:
        gauges = self._disk_space.gauges
        if not gauges:
            return [DoctorCheck("storage", True, f"not checked: {NOT_MEASURED}")]
        return [await _capacity_of(gauge) for gauge in gauges]

    def _proxy(self) -> list[DoctorCheck]:
        """An https address means that there is a proxy in front, because this service speaks HTTP without TLS."""
        if not self._settings.public_url.startswith("https:"):
            return []
        return [
            expect(
                "proxy",
                bool(self._settings.trusted_proxies),
                self._settings.trusted_proxies
                or f"{self._settings.public_url} needs a proxy, and http.trusted_proxies is empty",
                "Set http.trusted_proxies to the proxy's address. Without it all of its clients count as one address "
                "for failed logins and allow-lists.",
            )
        ]

    async def _stream(self) -> list[DoctorCheck]:
        return [
            check for address, probe in self._stream_probes.items() for check in await self._answer_of(address, probe)
        ]

    async def _answer_of(self, address: str, probe: Callable[[], Awaitable[StreamServer]]) -> list[DoctorCheck]:
        try:
            return list(check_up.check_stream(address, await probe(), self._settings.stream_replicas))
        except ConnectionError as error:
            advice = (
                "Start a NATS server there with JetStream (`nats-server --jetstream`), or correct `stream.servers`. "
                "While none answers, mail is accepted and waits."
            )
            return [DoctorCheck("stream", False, str(error), advice, f"at {address} answers")]


async def _tables(connection: Connection) -> DoctorCheck:
    newest = schema.newest_revision()
    try:
        applied = await schema.applied_revision(connection)
    except Refusal as refusal:
        return DoctorCheck("tables", False, "no", refusal.text)
    found = f"{applied}, the newest" if applied == newest else f"{applied or 'none'}, the newest known here is {newest}"
    # Newer migrations belong to a newer version, which may be rolled out process by process.
    return expect("tables", applied is not None and applied >= newest, found, "Run `posthouse migrate`.")


async def _capacity_of(gauge: Gauge) -> DoctorCheck:
    subject = f"({gauge.name})"
    mark = gauge.mark
    try:
        measured = await gauge.measure()
    except OSError as error:
        advice = "Correct disk_space.directory: nothing is refused while it can't be read."
        return DoctorCheck("storage", False, str(error), advice, subject)
    if measured is None:
        return DoctorCheck("storage", True, f"not checked: {NOT_MEASURED}", subject=subject)
    if isinstance(mark, FreeMark):
        found = f"{_gib(measured)} free, mail is refused at {_gib(mark.bytes_min)}"
        advice = f"Mail is refused until {_gib(mark.again_bytes)} are free. Free space on the volume, or enlarge it"
    else:
        found = f"{_gib(measured)} used, mail is refused at {_gib(mark.bytes_max)}"
        advice = (
            f"Mail is refused until {_gib(mark.again_bytes)} are used. "
            "Raise disk_space.database_bytes_max if the disk has space"
        )
    advice += "; shorter times under [retention] free some at the next maintenance."
    return expect("storage", not mark.is_low(measured, was_low=False), found, advice, subject)


def _gib(count: int) -> str:
    return f"{count / GIB:,.2f} GiB"


def _clock_check(step: timedelta | None) -> DoctorCheck:
    if step is None:
        return DoctorCheck("clock", True, "yes")
    found = f"it differs from service time by {round(step.total_seconds())} s"
    return DoctorCheck("clock", False, found, service_time.explain(step))


def _address_check(found: AddressFindings) -> DoctorCheck:
    lists = f"{len(found.listings)} lists" if found.listings else "no lists"
    text = "; ".join([found.address.hostname, f"PTR, SPF and {lists}", *found.unknown])
    return expect("address", not found.findings, text, " ".join(found.findings), str(found.address.ip))


def _outbound_check(captures: bool) -> DoctorCheck:
    found = 'no mail leaves: delivery.outbound is "capture"' if captures else "delivered"
    return DoctorCheck("outbound", True, found)


def _dashboard_check(lack: str | None) -> DoctorCheck:
    # Mail is accepted and stored without it.
    return DoctorCheck("dashboard", True, lack or "at /dashboard")
