"""Doctor: checks that everything is in place to accept and keep mail, and says what to do where it is not."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Final

from posthouse.clock import Clock
from posthouse.flows.operate.address_check import AddressCheck, AddressFindings
from posthouse.flows.operate.sandbox_domain import SandboxDomain
from posthouse.flows.shared.disk_space import NOT_MEASURED, DiskSpace, Gauge
from posthouse.rules import service_time
from posthouse.rules.disk_space import FreeMark
from posthouse.rules.limits import GIB, PARTITION_DAYS_AHEAD
from posthouse.rules.refusal import Refusal
from posthouse.store import doctor, domains, partitions, postgres, revision, second_factors, webhooks
from posthouse.store.doctor import DatabaseServer
from posthouse.store.postgres import Connection, Database
from posthouse.store.seal import Sealer, SealError

OLDEST_VERSION: Final = 15
LOCKS_PER_TRANSACTION_MIN: Final = 256
DAYS_NAMED_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """A check: what was found, and, if it failed, what to do."""

    name: str
    is_well: bool
    found: str
    advice: str = ""


class Doctor:
    """`stream_probes` are by the servers' addresses, and raise ConnectionError for a server that can't be used."""

    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        sealer: Sealer,
        disk_space: DiskSpace | None = None,
        stream_probes: Mapping[str, Callable[[], Awaitable[str]]] = MappingProxyType({}),
        clock_step: Callable[[], timedelta | None] = lambda: None,
        public_url: str = "",
        trusted_proxies: str = "",
        captures: bool = False,
        dashboard_lack: str | None = None,
        sandbox_domain: SandboxDomain | None = None,
        address_check: AddressCheck | None = None,
    ) -> None:
        """`dashboard_lack` says why the dashboard can't be served, and what to do."""
        self._database = database
        self._clock = clock
        self._sealer = sealer
        self._disk_space = disk_space or DiskSpace()
        self._stream_probes = stream_probes
        self._clock_step = clock_step
        self._public_url = public_url
        self._trusted_proxies = trusted_proxies
        self._captures = captures
        self._dashboard_lack = dashboard_lack
        self._sandbox_domain = sandbox_domain
        self._address_check = address_check

    async def check_up(self) -> Sequence[DoctorCheck]:
        try:
            async with self._database.connection() as connection:
                tables = await _tables(connection)
                checks = [
                    DoctorCheck("PostgreSQL answers", True, "yes"),
                    *_server_checks(await doctor.server(connection)),
                    _clock_check(self._clock_step()),
                    tables,
                ]
                if tables.is_well:
                    checks += [await self._partitions(connection), await self._seal_keys(connection)]
                    checks += await self._sandbox(connection)
            if tables.is_well and self._address_check is not None:
                checks += [_address_check(found) for found in await self._address_check.check_all()]
            checks += [_outbound_check(self._captures), _dashboard_check(self._dashboard_lack)]
            return [*checks, *await self._room(), *await self._stream(), *self._proxy()]
        except Refusal as refusal:
            cause = str(refusal.__cause__ or "").strip().splitlines()
            advice = postgres.advice(refusal.__cause__)
            found = cause[0] if cause else refusal.text
            return [DoctorCheck("PostgreSQL answers", False, found, f"{advice[0].upper()}{advice[1:]}.")]

    async def _partitions(self, connection: Connection) -> DoctorCheck:
        name = f"room for the next {PARTITION_DAYS_AHEAD} days"
        today = self._clock.now().date()
        days = [today + timedelta(days=ahead) for ahead in range(PARTITION_DAYS_AHEAD + 1)]
        attached = set(await partitions.attached(connection))
        lacking = [
            day for day in days if any(partitions.Partition(day, table) not in attached for table in partitions.TABLES)
        ]
        if not lacking:
            return DoctorCheck(name, True, f"partitions until {days[-1]}")
        named = ", ".join(map(str, lacking[:DAYS_NAMED_MAX])) + (" …" if len(lacking) > DAYS_NAMED_MAX else "")
        advice = "Run `posthouse upkeep` now, and keep `posthouse run upkeep` running: it makes them each day."
        return DoctorCheck(name, False, f"no partitions for {named}", advice)

    async def _seal_keys(self, connection: Connection) -> DoctorCheck:
        counts = await doctor.sealing_key_uses(connection)
        unknown = {key_id: count for key_id, count in counts.items() if key_id not in self._sealer.key_ids}
        wrong = [key_id for key_id in sorted(set(counts) - set(unknown)) if not await self._opens(connection, key_id)]
        if wrong:
            return DoctorCheck(
                "stored secrets can be opened",
                False,
                f"the key {wrong[0]!r} in the settings is not the key that sealed them",
                "Restore that key in `secrets.seal_keys` from your copy of the settings: no new key opens them.",
            )
        if not unknown:
            return DoctorCheck("stored secrets can be opened", True, f"{sum(counts.values())} sealed")
        found = ", ".join(f"{count} sealed with {key_id!r}" for key_id, count in sorted(unknown.items()))
        return DoctorCheck(
            "stored secrets can be opened",
            False,
            found,
            "Put the missing keys back into `secrets.seal_keys`, from your copy of the settings; keep the others.",
        )

    async def _opens(self, connection: Connection, key_id: str) -> bool:
        """Whether the key opens the secrets that name it: one of each kind is tried."""
        sealed = [
            *(
                (row.dkim_sealed, domains.dkim_purpose(row.account_id, row.id))
                for row in await domains.sealed_with(connection, [key_id], 1)
            ),
            *(
                (row.secret_sealed, webhooks.secret_purpose(row.account_id))
                for row in await webhooks.sealed_with(connection, [key_id], 1)
            ),
            *(
                (row.secret_sealed, second_factors.secret_purpose(row.user_id))
                for row in await second_factors.sealed_with(connection, [key_id], 1)
            ),
        ]
        try:
            for secret, purpose in sealed:
                self._sealer.open(secret, purpose)
        except SealError:
            return False
        return True

    async def _sandbox(self, connection: Connection) -> list[DoctorCheck]:
        if self._sandbox_domain is None:
            return []
        name, account = self._sandbox_domain.name, self._sandbox_domain.account
        is_well = await self._sandbox_domain.is_verified(connection)
        return [
            _expect(
                "sandbox domain",
                is_well,
                f"new accounts share {name}" if is_well else f"{name} is not a verified domain of {account}",
                f"Add it with `posthouse domain add {account!r} {name}`, publish its records, and verify it: until "
                "then new accounts need a domain of their own for their first mail.",
            )
        ]

    async def _room(self) -> list[DoctorCheck]:
        gauges = self._disk_space.gauges
        if not gauges:
            return [DoctorCheck("room in storage", True, f"not checked: {NOT_MEASURED}")]
        return [await _room_of(gauge) for gauge in gauges]

    def _proxy(self) -> list[DoctorCheck]:
        """An https address means a proxy in front, because this service speaks HTTP without TLS."""
        if not self._public_url.startswith("https:"):
            return []
        return [
            _expect(
                "the proxy in front is named",
                bool(self._trusted_proxies),
                self._trusted_proxies or f"{self._public_url} needs a proxy, and http.trusted_proxies is empty",
                "Set http.trusted_proxies to the proxy's address: without it all of its clients count as one address, "
                "for failed logins and allow-lists.",
            )
        ]

    async def _stream(self) -> list[DoctorCheck]:
        return [await _answer_of(address, probe) for address, probe in self._stream_probes.items()]


async def _answer_of(address: str, probe: Callable[[], Awaitable[str]]) -> DoctorCheck:
    name = f"the stream's server at {address} answers"
    try:
        return DoctorCheck(name, True, await probe())
    except ConnectionError as error:
        advice = (
            "Start a NATS server there with JetStream (`nats-server --jetstream`), or correct `stream.servers`. "
            "As long as none answers, mail is accepted and waits."
        )
        return DoctorCheck(name, False, str(error), advice)


async def _tables(connection: Connection) -> DoctorCheck:
    applied, newest = await revision.applied(connection), revision.newest()
    found = f"{applied}, the newest" if applied == newest else f"{applied or 'none'}, the newest known here is {newest}"
    # Newer tables belong to a newer version, which may be rolled out process by process.
    return _expect("tables up to date", applied is not None and applied >= newest, found, "Run `posthouse migrate`.")


async def _room_of(gauge: Gauge) -> DoctorCheck:
    name = f"room in storage ({gauge.name})"
    mark = gauge.mark
    try:
        measured = await gauge.measure()
    except OSError as error:
        return DoctorCheck(
            name, False, str(error), "Correct disk_space.directory: nothing is refused while it can't be read."
        )
    if measured is None:
        return DoctorCheck(name, True, f"not checked: {NOT_MEASURED}")
    if isinstance(mark, FreeMark):
        found = f"{_gib(measured)} free, mail is refused at {_gib(mark.bytes_min)}"
        advice = f"Mail is refused until {_gib(mark.again_bytes)} are free. Make room on the volume, or enlarge it"
    else:
        found = f"{_gib(measured)} used, mail is refused at {_gib(mark.bytes_max)}"
        advice = (
            f"Mail is refused until {_gib(mark.again_bytes)} are used. "
            "Raise disk_space.database_bytes_max if there is room"
        )
    advice += "; shorter times under [retention] free some at the next upkeep."
    return _expect(name, not mark.is_low(measured, was_low=False), found, advice)


def _gib(count: int) -> str:
    return f"{count / GIB:,.2f} GiB"


def _server_checks(server: DatabaseServer) -> list[DoctorCheck]:
    return [
        _expect(
            "PostgreSQL is new enough",
            server.version_number >= OLDEST_VERSION * 10_000,
            server.version,
            f"Upgrade PostgreSQL to {OLDEST_VERSION} or newer.",
        ),
        *(
            _expect(
                f"{setting} is on",
                value == "on",
                value,
                f"Set {setting} = on in postgresql.conf and restart PostgreSQL: accepted mail could be lost.",
            )
            for setting, value in (
                ("fsync", server.fsync),
                ("full_page_writes", server.full_page_writes),
                ("synchronous_commit", server.synchronous_commit),
            )
        ),
        _expect(
            "enough locks a transaction",
            server.locks_per_transaction_max >= LOCKS_PER_TRANSACTION_MIN,
            f"max_locks_per_transaction = {server.locks_per_transaction_max}",
            f"Set max_locks_per_transaction = {LOCKS_PER_TRANSACTION_MIN} in postgresql.conf and restart "
            "PostgreSQL: a transaction may touch many days of every table.",
        ),
    ]


def _clock_check(step: timedelta | None) -> DoctorCheck:
    name = "the database's clock is believed"
    if step is None:
        return DoctorCheck(name, True, "yes")
    found = f"it differs from service time by {round(step.total_seconds())} s"
    return DoctorCheck(name, False, found, service_time.explain(step))


def _address_check(found: AddressFindings) -> DoctorCheck:
    lists = f"{len(found.listings)} lists" if found.listings else "no lists"
    text = "; ".join([found.address.hostname, f"PTR, SPF and {lists}", *found.unknown])
    return DoctorCheck(f"sending address {found.address.ip}", not found.findings, text, " ".join(found.findings))


def _outbound_check(captures: bool) -> DoctorCheck:
    found = 'none leaves: delivery.outbound is "capture"' if captures else "delivered"
    return DoctorCheck("outbound mail", True, found)


def _dashboard_check(lack: str | None) -> DoctorCheck:
    # Mail is accepted and kept without it.
    return DoctorCheck("dashboard", True, lack or "at /dashboard")


def _expect(name: str, is_well: bool, found: str, advice: str) -> DoctorCheck:
    return DoctorCheck(name, is_well, found, "" if is_well else advice)
